"""What no queue would ever take for its tenant is refused before anything is started."""

import re
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.client.api import Longshore
from longshore.models.dag import DagSpec
from longshore.models.errors import SpecError
from longshore.models.schedule import ScheduleTimes
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.client.conftest import Command, Ran
from tests.support.control import a_spec
from tests.support.database_away import database_away
from tests.support.scripted_node import ScriptedNode


@pytest.fixture
async def walled(longshore: Command, pool: str) -> str:
    """A tenant that may hold 6 GPUs, of which one job waits at most."""
    name = f"{pool}-walled"
    ran = await longshore("tenant", "set", name, "--max-gpus", "6", "--max-queued", "1")
    assert ran.code == 0, ran.err
    return name


def says(ran: Ran) -> str:
    return " ".join(ran.err.split())


async def submitted(longshore: Command, pool: str, tenant: str, name: str, *more: str) -> Ran:
    asks = ("--pool", pool, "--tenant", tenant, "--name", name, *more)
    return await longshore("submit", "-q", *asks, "--", "true")


@pytest.mark.parametrize("more", [(), ("--array", "0-9"), ("--hold",)])
async def test_more_than_a_quota_alone(
    longshore: Command, pool: str, node: ScriptedNode, walled: str, more: tuple[str, ...]
) -> None:
    ran = await submitted(longshore, pool, walled, "wide", "--gpus", "7", *more)
    assert (ran.code, ran.out) == (65, "")
    assert (
        f"error: quota of tenant {walled}: max_gpus: it asks for 7, and 6 is the most that the "
        f"tenant and those below it may hold; `longshore tenant set {walled} --max-gpus 7` raises "
        "it" in says(ran)
    )


async def test_a_sponsor_that_there_is_not(
    longshore: Command, pool: str, node: ScriptedNode, walled: str
) -> None:
    lent = ("--set", "funding.allow_borrow=true", "--set", f"funding.sponsors=[{walled}x]")
    ran = await submitted(longshore, pool, walled, "lent", "--gpus", "1", *lent)
    assert (ran.code, ran.out) == (65, "")
    meant = f"there is no tenant '{walled}x'; did you mean {walled}?"
    assert f"error: funding.sponsors: {meant} No tenant lends to {walled}" in says(ran)


async def test_a_sponsor_that_is_the_own_tenant(
    longshore: Command, pool: str, node: ScriptedNode, walled: str
) -> None:
    lent = ("--set", "funding.allow_borrow=true", "--set", f"funding.sponsors=[{walled}]")
    for more in ((), ("--dry-run",)):
        ran = await submitted(longshore, pool, walled, "lent", "--gpus", "1", *lent, *more)
        assert (ran.code, ran.out) == (77 if more else 65, "")
        assert f"funding.sponsors: {walled} is the job's own tenant, whose envelopes" in says(ran)


async def test_of_too_many_that_wait_the_next_one(
    longshore: Command, pool: str, node: ScriptedNode, walled: str
) -> None:
    first = await submitted(longshore, pool, walled, "first", "--hold", "--key", "k")
    assert first.code == 0, first.err
    await longshore("why", first.out.strip())  # it is on record
    for more in ((), ("--array", "0-3")):
        ran = await submitted(longshore, pool, walled, "second", *more)
        assert (ran.code, ran.out) == (77, "")
        assert f"quota of tenant {walled}: max_queued: 1 + 1 > 1: submit it when one" in says(ran)
        assert f"`longshore tenant set {walled} --max-queued 2` raises it" in says(ran)
    dry = await submitted(longshore, pool, walled, "second", "--array", "0-3", "--dry-run")
    assert dry.code == 77
    assert "it would be refused: quota of tenant" in says(dry)
    again = await submitted(longshore, pool, walled, "first", "--hold", "--key", "k")
    assert (again.code, again.out) == (0, first.out), "the same one, as it was taken"
    await longshore("cancel", first.out.strip())


async def test_a_dry_run_of_an_array_that_is_taken_says_what_it_does_not_know(
    longshore: Command, pool: str, node: ScriptedNode, walled: str
) -> None:
    ran = await submitted(longshore, pool, walled, "a", "--array", "0-3", "--dry-run")
    assert ran.code == 0, ran.err
    assert "what it would cost is not known: it is an array" in says(ran)


async def test_steps_of_a_dag_that_could_never_start_are_named(
    longshore: Command, pool: str, node: ScriptedNode, walled: str, tmp_path: Path
) -> None:
    file = tmp_path / "dag.yaml"
    file.write_text(f"""
name: steps
tenant: {walled}
pool: {pool}
jobs:
  first: {{command: x}}
  wide: {{command: x, gpus: 7, after: first}}
  lent: {{command: x, funding: {{allow_borrow: true, sponsors: [nobody-here]}}, after: first}}
""")
    ran = await longshore("dag", "submit", str(file))
    assert (ran.code, ran.out) == (65, "")
    assert re.search(r"job wide: quota of tenant \S+: max_gpus: it asks for 7", ran.err), ran.err
    assert "job lent: funding.sponsors: there is no tenant 'nobody-here'" in says(ran)


async def test_a_schedule_of_what_could_never_start_is_not_made(
    longshore: Command, pool: str, node: ScriptedNode, walled: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{{name: wide, command: x, tenant: {walled}, pool: {pool}, gpus: 7}}")
    ran = await longshore("schedule", "create", pool, str(file), "--cron", "30 2 * * *")
    assert (ran.code, ran.out) == (65, "")
    assert "max_gpus: it asks for 7" in says(ran)


async def test_from_python_it_is_an_error_and_nothing_starts(
    temporal: Client, settings: Settings, longshore: Command, pool: str, walled: str
) -> None:
    api = Longshore(temporal, settings)
    spec = a_spec(pool, tenant=walled, gpus=7, name=f"{pool}-wide")
    try:
        with pytest.raises(SpecError, match="max_gpus: it asks for 7"):
            await api.submit(spec)
        await longshore("tenant", "set", walled, "--max-queued", "none", "--max-jobs", "0")
        with pytest.raises(SpecError, match="max_jobs: it asks for 1, and 0 is the most"):
            await api.submit(spec.model_copy(update={"gpus": 1}))
        await longshore("tenant", "set", walled, "--max-jobs", "none", "--max-queued", "0")
        with pytest.raises(SpecError, match="max_queued: it asks for 1, and 0"):
            await api.submit(spec.model_copy(update={"gpus": 1}))
    finally:
        await api.close()


async def test_without_the_database_it_is_submitted(
    temporal: Client, settings: Settings, stack: Stack, longshore: Command, pool: str, walled: str
) -> None:
    api = Longshore(temporal, settings)
    try:
        with database_away(stack, settings.resolve_database_url()):
            done = await api.submit(a_spec(pool, tenant=walled, gpus=7))
        assert "could not look at the nodes first" in done.warnings[0]
        result = await api.wait(done.job_id)
        assert "max_gpus: it asks for 7" in result.message, "and its queue refuses it"
    finally:
        await api.close()


async def test_a_url_without_a_host_that_a_program_gives(
    settings: Settings, temporal: Client, pool: str
) -> None:
    api = Longshore(temporal, settings)
    job = a_spec(pool, data={"set": "http://[abc/x"})
    said = r"data\.set\.from: http://\[abc/x is no URL"
    with pytest.raises(SpecError, match=said):
        await api.submit(job)
    dag = DagSpec.model_validate(
        {
            "name": pool,
            "pool": pool,
            "jobs": {"one": {"command": "x", "data": {"set": "http://[abc/x"}}},
        }
    )
    with pytest.raises(SpecError, match=rf"jobs\.one\.{said}"):
        await api.submit_dag(dag)
    with pytest.raises(SpecError, match=said):
        await api.create_schedule(pool, job, ScheduleTimes(cron=("30 2 * * *",)))
