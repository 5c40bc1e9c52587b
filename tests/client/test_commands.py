"""Commands against the real stack. No node runs here: jobs wait, are held, and are cancelled."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from longshore.models.block import FOR_SALE
from longshore.models.departures import DISK_REFUSES
from longshore.models.explanation import Explanation
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult
from longshore.models.node_messages import ProcessReport, Progress
from longshore.models.settings import Settings
from longshore.models.views import JobView, PoolView, Submission
from tests.client.conftest import Command, Ran
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
MINUTE = r"\d{4}-\d\d-\d\d \d\d:\d\d"


async def submitted(longshore: Command, pool: str, *more: str, name: str = "job") -> str:
    ran = await longshore("submit", "-q", "--pool", pool, "--name", name, *more, "--", "true")
    assert ran.code == 0, ran.err
    return ran.out.strip()


async def is_listed(longshore: Command, pool: str, job_id: str, state: str) -> JobView:
    """Wait until the database and the job's workflow say so: either may be the first."""

    async def there() -> JobView:
        ran = await longshore("job", job_id, "--json")
        assert ran.code == 0, ran.err  # a busy control worker has not taken it up yet
        told = json.loads(ran.out)
        view = JobView.model_validate(told["job"])
        assert (view.state.value, told["status"] and told["status"]["state"]) == (state, state)
        return view

    return await eventually(there)


async def test_a_submission_says_what_to_do_next(longshore: Command, pool: str) -> None:
    ran = await longshore("submit", "--pool", pool, "--name", "first", "--", "python", "a.py")
    job_id = ran.out.strip()
    assert ran.code == 0
    assert job_id.startswith("first-")
    assert f"warning: pool {pool} has no nodes yet" in ran.err
    assert f"Next: longshore why {job_id}" in ran.err


async def test_hold_why_release_cancel(longshore: Command, pool: str) -> None:
    job_id = await submitted(longshore, pool, "--hold", name="kept")
    await is_listed(longshore, pool, job_id, "HELD")
    why = await longshore("why", job_id)
    assert re.search(
        rf"is held since {MINUTE} UTC \(held at submit\): `longshore release", why.out
    )
    assert "place 1 in pool" not in why.out

    assert (await longshore("release", job_id)).out == f"{job_id} may be placed again\n"
    await is_listed(longshore, pool, job_id, "QUEUED")
    why = await longshore("why", job_id)
    assert f"waits: pool {pool} has no nodes" in why.out
    assert f"- start a node: `longshore agent --pool {pool}`" in why.out
    explained = Explanation.model_validate_json((await longshore("why", job_id, "--json")).out)
    assert (explained.job.id, explained.position, explained.ahead) == (job_id, 1, 0)

    held = await longshore("hold", "kept", "--reason", "make room", "--json")
    assert json.loads(held.out) == {
        "asked": "hold", "jobs": [job_id], "ended": [], "failed": [],
    }  # fmt: skip
    await is_listed(longshore, pool, job_id, "HELD")
    why = await longshore("why", job_id)
    assert re.search(rf"is held since {MINUTE} UTC \(make room\): `longshore release", why.out)

    assert (await longshore("cancel", job_id, "--reason", "enough")).code == 0
    watched = await longshore("watch", job_id)
    assert watched.code == 130
    assert watched.out.splitlines()[-1].endswith("CANCELLED enough")
    again = await longshore("cancel", job_id)
    assert (again.code, again.err) == (77, f"error: job {job_id} has ended already\n")
    why = (await longshore("why", job_id)).out
    assert f"{job_id} is cancelled: enough" in why
    assert "cost   nothing: it held no GPU" in why


async def test_a_name_that_ends_like_an_id_is_a_name(longshore: Command, pool: str) -> None:
    job_id = await submitted(longshore, pool, "--hold", name=f"{pool}-processing")
    await is_listed(longshore, pool, job_id, "HELD")
    assert (await longshore("release", f"{pool}-processing")).out.startswith(job_id)


async def test_jobs_lists_what_has_not_ended(longshore: Command, pool: str) -> None:
    first, second = [await submitted(longshore, pool, name=name) for name in ("one", "two")]
    for job_id in (first, second):
        await is_listed(longshore, pool, job_id, "QUEUED")
    lines = (await longshore("jobs", "--pool", pool)).out.splitlines()
    assert [line.split()[0] for line in lines] == ["job", second, first]
    views = json.loads((await longshore("jobs", "--pool", pool, "--json", "-n", "1")).out)
    assert [JobView.model_validate(view).id for view in views] == [second]
    none = await longshore("jobs", "--pool", pool, "--state", "running")
    assert (none.code, none.out) == (0, "")
    assert "`longshore jobs --all`" in none.err


async def test_one_job_with_its_spec(longshore: Command, pool: str) -> None:
    job_id = await submitted(longshore, pool, "--set", "env.SEED=7", "--gpus", "3")
    await is_listed(longshore, pool, job_id, "QUEUED")
    ran = await longshore("job", job_id, "--spec")
    assert "3 x GPU, 1 core, 1GB RAM" in ran.out
    assert "SEED: '7'" in ran.out
    whole = json.loads((await longshore("job", job_id, "--json")).out)
    assert JobSpec.model_validate(whole["spec"]).env == {"SEED": "7"}
    assert whole["status"]["state"] == "QUEUED"


async def test_a_key_makes_a_submission_happen_once(longshore: Command, pool: str) -> None:
    name = f"keyed-{pool}"
    args = ("submit", "--pool", pool, "--name", name, "--key", "k", "--json")
    first = Submission.model_validate_json((await longshore(*args, "--", "true")).out)
    second = Submission.model_validate_json((await longshore(*args, "--", "true")).out)
    assert (first.created, second.created) == (True, False)
    assert first.job_id == second.job_id
    other = await longshore(*args, "--", "false")
    assert (other.code, other.out) == (65, "")
    assert "was submitted before with the same name and key but other content" in other.err


async def test_waiting_ends_with_the_code_of_a_queue_timeout(
    longshore: Command, pool: str
) -> None:
    args = ("submit", "--pool", pool, "--set", "queue_timeout=200ms", "--wait")
    ran = await longshore(*args, "--", "true")
    assert ran.code == 75
    assert "FAILED (queue_timeout) no placement within 200ms" in ran.out.splitlines()[-1]
    as_json = await longshore(*args, "--json", "--", "true")
    result = JobResult.model_validate_json(as_json.out)
    assert (as_json.code, result.failure) == (75, "queue_timeout")


async def test_a_fixed_pool_refuses_what_it_could_never_hold(
    longshore: Command, pool: str
) -> None:
    changed = await longshore(
        "pool", "set", pool, "--growth", "fixed", "--weights", "expiry=-0.4", "--interval", "20s"
    )
    assert changed.code == 0
    shown = PoolView.model_validate_json((await longshore("pool", "show", pool, "--json")).out)
    assert shown.spec.packing.weights.expiry == -0.4
    assert shown.spec.packing.weights.utilization == 1.0
    assert shown.spec.packing.rule == "keep-room"
    changed = await longshore(
        "pool", "set", pool, "--packing", "rule=tight", "--packing", "max_reservations=3"
    )
    assert changed.code == 0
    shown = PoolView.model_validate_json((await longshore("pool", "show", pool, "--json")).out)
    assert (shown.spec.packing.rule, shown.spec.packing.max_reservations) == ("tight", 3)
    assert (await longshore("pool", "set", pool, "--packing", "rule=loose")).code == 65
    refused = await longshore("submit", "--pool", pool, "--", "true")
    assert (refused.code, refused.out) == (69, "")
    assert f"pool {pool} has no nodes, and is fixed: start one (`longshore agent" in refused.err
    wrong = await longshore("pool", "set", pool, "--weights", "speed=1")
    assert (wrong.code, wrong.err) == (
        65,
        "error: --weights speed=1: packing.weights.speed: no such field; there are utilization, "
        "fragmentation, expiry, provider, locality, links, separation, critical_path\n",
    )


async def test_lists_without_rows_say_what_to_do(longshore: Command, pool: str) -> None:
    assert (await longshore("pool", "set", pool, "--growth", "open")).code == 0
    nodes = await longshore("nodes", "--pool", pool)
    assert (nodes.code, nodes.out) == (0, "")
    assert "`longshore agent`" in nodes.err
    assert json.loads((await longshore("nodes", "--pool", pool, "--json")).out) == []


@pytest.mark.parametrize(
    "command", ["job", "why", "cancel", "hold", "requeue", "logs", "watch", "ui"]
)
async def test_a_job_that_does_not_exist(longshore: Command, command: str) -> None:
    for ref in ("nosuch", "nosuch-abcdefghij"):
        ran = await longshore(command, ref)
        assert (ran.code, ran.out) == (66, "")
        assert ran.err.startswith("error: no job ")


async def test_only_a_running_job_can_be_queued_again(longshore: Command, pool: str) -> None:
    job_id = await submitted(longshore, pool, "--hold")
    await is_listed(longshore, pool, job_id, "HELD")
    assert await longshore("requeue", job_id) == Ran(
        77, "", f"error: job {job_id} is HELD: only one that runs can be queued again\n"
    )


@pytest.mark.exhaustive
async def test_why_and_uncordon_say_that_an_agent_has_cordoned_its_node(
    longshore: Command, pool: str, node: ScriptedNode
) -> None:
    full = f"{DISK_REFUSES}: No space left on device"
    assert (await longshore("cordon", node.id, "--reason", full)).code == 0
    job_id = await submitted(longshore, pool)

    async def told() -> str | None:
        why = (await longshore("why", job_id)).out
        return why if "cordoned" in why else None

    why = " ".join((await eventually(told) or "").split())
    assert f"is cordoned ({full})" in why
    assert f"make room on {node.id}" in why
    assert "uncordon" not in why
    job = " ".join((await longshore("job", job_id)).out.split())
    assert f"not ready {node.id} is cordoned ({full})" in job
    ran = await longshore("uncordon", node.id)
    assert (ran.code, ran.out) == (0, f"{node.id} is READY and takes jobs\n")
    assert f"warning: {node.id} took no jobs because {full}" in ran.err
    assert "its agent cordons it again: make room on" in ran.err
    assert (await longshore("uncordon", node.id)).err == ""


async def test_uncordon_says_that_no_job_is_placed_where_the_time_is_for_sale(
    longshore: Command, node: ScriptedNode
) -> None:
    assert (await longshore("cordon", node.id, "--reason", FOR_SALE)).code == 0
    ran = await longshore("uncordon", node.id)
    assert (ran.code, ran.out) == (0, f"{node.id} is READY and takes jobs\n")
    assert f"warning: {node.id} took no jobs because {FOR_SALE}" in ran.err


async def test_a_node_that_does_not_exist(longshore: Command) -> None:
    assert await longshore("drain", "nosuch") == Ran(
        66, "", "error: no live node nosuch: `longshore nodes` lists them\n"
    )


@pytest.mark.parametrize("command", ["jobs", "nodes", "blocks", "purchases", "topology", "buy"])
async def test_a_pool_that_does_not_exist(longshore: Command, command: str) -> None:
    options = ["--dry-run"] if command == "buy" else ["--json"]
    assert (await longshore("pool", "set", "known", "--growth", "open")).code == 0
    ran = await longshore(command, "--pool", "nosuch", *options)
    assert (ran.code, ran.out) == (66, "")
    assert ran.err.startswith("error: no pool 'nosuch': `longshore pools` lists them; there are ")


@pytest.mark.exhaustive
async def test_output_that_the_log_store_lacks_is_told(
    longshore: Command, pool: str, node: ScriptedNode
) -> None:
    told = "This is not all that it wrote: the log store took no more (no space left)"
    node.says = Progress(log_error="no space left")
    job_id = await submitted(longshore, pool)
    await node.started(job_id)

    async def tells() -> bool:
        return told in (await longshore("logs", job_id)).err

    await eventually(tells)  # while it runs, too
    shown = await longshore("job", job_id)
    assert "the log store takes no more: no space left" in " ".join(shown.out.split())
    await node.end(job_id, report=ProcessReport(exit_code=0, log_error="no space left"))
    assert (await longshore("watch", job_id)).code == 0
    shown = await longshore("job", job_id)
    assert "its output is not all stored: no space left" in " ".join(shown.out.split())
    assert "the log store takes no more" not in shown.out
    assert told in (await longshore("logs", job_id)).err


async def test_to_ask_for_no_line_says_nothing_of_what_is_stored(
    longshore: Command, pool: str
) -> None:
    job_id = await submitted(longshore, pool)
    assert "Nothing is stored" in (await longshore("logs", job_id)).err
    none = await longshore("logs", "-n", "0", job_id)
    assert (none.code, none.out, none.err) == (0, "", "")


async def test_links_to_the_temporal_ui_and_the_console(
    longshore: Command, pool: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_CONSOLE_ADDRESS", "127.0.0.1:18999")
    monkeypatch.setenv("LONGSHORE_CONSOLE_TOKEN", "a-token-of-this-test")
    job_id = await submitted(longshore, pool)
    await is_listed(longshore, pool, job_id, "QUEUED")
    links = json.loads((await longshore("ui", job_id, "--json")).out)
    base = f"{settings.stack().temporal_ui}/namespaces/default/workflows"
    assert links[f"job {job_id}"] == f"{base}/job-{job_id}"
    assert links["all workflows"] == base
    assert next(iter(links)) == f"job {job_id}", "which --open opens"
    assert links["its page"] == (
        f"http://127.0.0.1:18999/jobs/{job_id}?token=a-token-of-this-test"
    )


async def test_a_database_without_tables(
    longshore: Command, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
    monkeypatch.setenv("LONGSHORE_DATABASE_URL", database_url)
    for args in (["jobs"], ["nodes"], ["pools"], ["why", "x"]):
        ran = await longshore(*args)
        assert (ran.code, ran.out) == (69, "")
        assert "`longshore db upgrade`" in ran.err


async def test_an_interrupt_leaves_the_job_alone(
    longshore: Command, pool: str, settings: Settings
) -> None:
    args = ("submit", "--pool", pool, "--name", "patient", "--wait", "--", "true")
    with program(settings, *args) as waiting:
        assert waiting.stdout
        job_id = (await asyncio.to_thread(waiting.stdout.readline)).strip()
        await asyncio.to_thread(waiting.stdout.readline)  # its state: it waits now
        waiting.send_signal(signal.SIGINT)
        _, said = await asyncio.to_thread(waiting.communicate, timeout=60)
    assert waiting.returncode == 130
    assert f"The job goes on. Follow it with `longshore watch {job_id}`" in said
    await is_listed(longshore, pool, job_id, "QUEUED")


async def test_watching_everything_prints_a_line_for_each_change(
    longshore: Command, pool: str, settings: Settings
) -> None:
    with program(settings, "watch", "--pool", pool, "--every", "0.2", "--json") as watching:
        assert watching.stdout
        first = json.loads(await asyncio.to_thread(watching.stdout.readline))
        assert (first["nodes"], first["jobs"]) == ([], [])
        job_id = await submitted(longshore, pool)
        second = json.loads(await asyncio.to_thread(watching.stdout.readline))
        assert [JobView.model_validate(job).id for job in second["jobs"]] == [job_id]
        watching.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(watching.wait, 60) == 130


@contextmanager
def program(settings: Settings, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command line as a process of its own; it is killed where it outlives the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "longshore.client.cli", *args],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=_environment(settings),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _environment(settings: Settings) -> dict[str, str]:
    return {**os.environ, "LONGSHORE_STATE_DIR": str(settings.state_dir)}


async def test_why_of_a_job_that_has_run_says_where_and_how_it_ended(
    longshore: Command, node: ScriptedNode, pool: str
) -> None:
    job_id = (await longshore("submit", "-q", "--pool", pool, "--", "true")).out.strip()
    await node.end(job_id)
    assert (await longshore("watch", job_id)).code == 0
    why = await longshore("why", job_id)
    assert (why.code, why.err) == (0, "")
    assert f"{node.id}" in why.out
    assert "finished" in why.out
    assert "of GPU time on nodes that were not bought" in why.out
    told = Explanation.model_validate_json((await longshore("why", job_id, "--json")).out)
    assert [attempt.shares[0].node_id for attempt in told.attempts] == [node.id]
