"""`--deadline` of a submit, and what the commands say of a job that has one."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.client.api import Longshore
from longshore.client.preempt import PreemptionDryRun
from longshore.models.dag import DagSpec
from longshore.models.deadline import DeadlineOutlook
from longshore.models.domains import Foreseen
from longshore.models.errors import SpecError
from longshore.models.explanation import Explanation
from longshore.models.forecast import Forecast
from longshore.models.job import JobSpec
from longshore.models.moment import said_at
from longshore.models.preemption import WayKind
from longshore.models.queue_view import QueueView
from longshore.models.settings import Settings
from longshore.models.views import JobView
from longshore.scheduling.deadline import deadlines_in_vain
from tests.client.conftest import Command, Ran
from tests.client.test_begin import submit
from tests.client.test_commands import is_listed
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
SOON = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:00Z")
HOUR = ("--set", "expected_duration=1h")
CLI = Callable[..., Ran]


async def job_of(longshore: Command, job_id: str) -> JobView:
    ran = await longshore("why", job_id, "--json")
    assert ran.code == 0, ran.err
    return Explanation.model_validate_json(ran.out).job


async def test_a_deadline_that_cannot_be_met_is_refused_and_nothing_is_submitted(
    longshore: Command, pool: str
) -> None:
    async def refused(*flags: str) -> str:
        ran = await longshore("submit", "--pool", pool, *flags, "--", "true")
        assert (ran.code, ran.out) == (65, ""), ran.err
        return " ".join(ran.err.split())

    past = ("--deadline", "2020-01-01T00:00:00Z")
    assert "deadline: 2020-01-01T00:00:00Z is past: give a time to come" in await refused(*past)
    assert "is past" in await refused(*past, "--dry-run")
    same = ("--deadline", "2h", "--begin", "2h")
    assert "deadline: 2h is not after its begin, 2h" in await refused(*same)
    mixed = ("--deadline", SOON, "--begin", "4d")
    assert f"deadline: {SOON} is not after its begin, 4d" in await refused(*mixed)
    short = ("--deadline", "30m", *HOUR)
    assert "30m is too soon: from the submit on the job takes 1h" in await refused(*short)
    assert "or 16h" in await refused("--deadline", "16:00")
    listed = await longshore("queue", "--pool", pool)
    assert f"no pool '{pool}'" in listed.err, "the first job makes it"


async def test_a_time_limit_that_is_longer_is_a_warning_alone(
    longshore: Command, pool: str
) -> None:
    flags = ("--pool", pool, "--deadline", "2h", "--time", "3h", "--hold")
    ran = await longshore("submit", *flags, "--", "true")
    assert ran.code == 0, ran.err
    said = " ".join(ran.err.split())
    assert "deadline: 2h is before the job has run for its time limit of 3h" in said
    assert (await longshore("cancel", ran.out.strip())).code == 0


async def test_a_key_that_was_used_finds_its_job_after_the_deadline(
    pool: str, temporal: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"name": "keyed", "command": "true", "pool": pool, "deadline": SOON}
    spec = JobSpec.model_validate(given)
    api = Longshore(temporal, settings)
    first = await api.submit(spec, key="k", held=True)
    past = datetime.now(UTC) + timedelta(days=4)
    monkeypatch.setattr(
        "longshore.client.api.deadlines_in_vain", lambda spec, now: deadlines_in_vain(spec, past)
    )
    again = await api.submit(spec, key="k", held=True)
    assert (again.job_id, again.created) == (first.job_id, False)
    with pytest.raises(SpecError, match="is past"):
        await api.submit(spec, key="another", held=True)
    with pytest.raises(SpecError, match="is past"):
        await api.submit(spec, held=True)
    await api.cancel(first.job_id)
    await api.close()


async def test_jobs_of_dags_and_schedules_are_refused_alike(
    longshore: Command, pool: str, tmp_path: Path
) -> None:
    dag = {"jobs": {"one": {"command": "true", "deadline": "2020-01-01T00:00:00Z"}}}
    file = tmp_path / "dag.yaml"
    file.write_text(json.dumps({"name": "d", "pool": pool, **dag}))
    assert DagSpec.model_validate_json(file.read_text()).jobs["one"].spec.deadline is not None
    ran = await longshore("dag", "submit", str(file))
    assert ran.code == 65, ran.out
    assert "jobs.one.deadline: 2020-01-01T00:00:00Z is past" in " ".join(ran.err.split())
    job = tmp_path / "job.yaml"
    job.write_text(f"{{name: a, command: 'true', pool: {pool}, deadline: 2020-01-01T00:00:00Z}}")
    made = ("schedule", "create", f"s-{pool}", str(job), "--cron", "0 3 * * *", "--dry-run")
    ran = await longshore(*made)
    assert ran.code == 65, ran.out
    assert "deadline: 2020-01-01T00:00:00Z is past" in " ".join(ran.err.split())


async def test_what_is_said_of_a_job_that_will_be_late_and_what_meeting_it_costs(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    # Who waits costs nothing, so nobody is stopped: but it can be said what that would cost.
    free = ("--preemption", "delay_price.FAST=$0", "--preemption", "near_end=0s")
    ran = await longshore("pool", "set", pool, *free, "--interval", "1s")
    assert ran.code == 0, ran.err
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    async with node.serving():
        await node.register()
        low = ("--gpus", "8", "--set", "priority=2", "--set", "expected_duration=4h")
        runs = await submit(longshore, pool, "low", *low)
        await node.started(runs)
        high = ("--gpus", "4", "--set", "priority=8", *HOUR, "--deadline", "2h")
        dry = await longshore("submit", "--pool", pool, *high, "--dry-run", "--json", "--", "true")
        assert dry.code == 0, dry.err
        found = Forecast.model_validate_json(dry.out)
        assert found.deadline is not None
        assert found.deadline.outlook is DeadlineOutlook.LATE
        assert found.meeting is not None
        assert found.meeting.remedy is not None
        assert found.meeting.remedy.kind is WayKind.PREEMPT
        assert f"Its deadline, {said_at(found.deadline.at, datetime.now(UTC))}: " in found.says
        assert "late by" in found.says
        assert f"stop {runs} meets it, for $" in found.says
        job_id = await submit(longshore, pool, "high", *high)

        async def is_late() -> JobView | None:
            job = await job_of(longshore, job_id)
            late = job.deadline is not None and job.deadline.late_since is not None
            return job if late else None

        job = await eventually(is_late)
        assert job is not None
        assert job.deadline is not None
        assert job.deadline.outlook is DeadlineOutlook.LATE
        why = await longshore("why", job_id)
        said = " ".join(why.out.split())
        assert "deadline" in said
        assert "late by" in said
        assert f"stop {runs} meets it, for $" in said
        told = Explanation.model_validate_json((await longshore("why", job_id, "--json")).out)
        assert told.meeting is not None
        assert told.meeting.remedy is not None
        assert told.meeting.remedy.cost_micro_usd > 0
        shown = await longshore("job", job_id)
        assert "late by" in " ".join(shown.out.split())
        queue = await longshore("queue", "--pool", pool)
        assert "deadline (UTC)" in queue.out
        assert "late by" in queue.out
        rows = QueueView.model_validate_json(
            (await longshore("queue", "--pool", pool, "--json")).out
        )
        assert rows.jobs[0].deadline is not None
        assert rows.jobs[0].deadline.outlook is DeadlineOutlook.LATE
        listed = json.loads((await longshore("jobs", "--pool", pool, "--json")).out)
        by_id = {each["id"]: each["deadline"] for each in listed}
        assert by_id[job_id]["outlook"] == "late"
        assert by_id[runs] is None
        for each in (job_id, runs):
            await longshore("cancel", each)
        await node.end(runs)


@pytest.mark.exhaustive
async def test_a_dry_run_judges_no_deadline_by_a_start_that_nobody_keeps(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    by_age = ("--profile", "none", "--order", "age", "--max-reservations", "1")
    ran = await longshore("pool", "set", pool, *by_age, "--interval", "1s")
    assert ran.code == 0, ran.err
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    async with node.serving():
        await node.register()
        asked = ("--gpus", "8", *HOUR, "--deadline", "20h")
        runs = await submit(longshore, pool, "runs", "--gpus", "8", *HOUR)
        await node.started(runs)
        dry = ("submit", "--pool", pool, *asked, "--dry-run", "--json", "--", "true")
        kept = Forecast.model_validate_json((await longshore(*dry)).out)
        assert kept.deadline is not None
        assert (kept.start_kept, kept.deadline.outlook) == (True, DeadlineOutlook.ON_TIME)
        waits = await submit(longshore, pool, "waits", "--gpus", "8", *HOUR)
        found = Forecast.model_validate_json((await longshore(*dry)).out)
        assert found.deadline is not None
        assert (found.start_kept, found.deadline.outlook) == (False, DeadlineOutlook.UNKNOWN)
        assert "for which no place would be kept yet" in found.says
        assert "unknown: no place is kept for it yet: it may start at " in found.says
        for each in (waits, runs):
            await longshore("cancel", each)
        await node.end(runs)


async def test_a_queue_without_deadlines_has_no_column_of_them(
    longshore: Command, pool: str
) -> None:
    job_id = await submit(longshore, pool, "plain", "--hold")
    await is_listed(longshore, pool, job_id, "HELD")
    assert "deadline" not in (await longshore("queue", "--pool", pool)).out
    assert (await longshore("cancel", job_id)).code == 0


def later(tmp_path: Path, example: str) -> str:
    file = tmp_path / "later.yaml"
    file.write_text((EXAMPLES / example).read_text() + "\nbegin: 2030-01-01T08:00:00Z\n")
    return str(file)


def test_place_and_preempt_on_files_say_that_a_job_begins_later(cli: CLI, tmp_path: Path) -> None:
    begins = "note: it begins at 2030-01-01 08:00 UTC at the earliest"
    state, preempt = EXAMPLES / "state.yaml", EXAMPLES / "state-preemption.yaml"
    now = cli("place", "--state", str(state), "--job", str(EXAMPLES / "job.yaml"))
    then = cli("place", "--state", str(state), "--job", later(tmp_path, "job.yaml"))
    assert (then.code, now.err) == (0, "")
    assert then.out == now.out
    assert begins in " ".join(then.err.split())
    assert "as if it began now" in then.err
    now = cli(
        "preempt", "--dry-run", "--state", str(preempt), "--job", str(EXAMPLES / "urgent.yaml")
    )
    then = cli(
        "preempt", "--dry-run", "--state", str(preempt), "--job", later(tmp_path, "urgent.yaml")
    )
    assert then.code == 0
    assert then.out == now.out
    assert begins in " ".join(then.err.split())


async def test_place_and_preempt_on_a_pool_say_that_a_job_begins_later(
    longshore: Command, pool: str, node: ScriptedNode, tmp_path: Path
) -> None:
    file = tmp_path / "later.yaml"
    file.write_text(f"{{name: later, command: 'true', pool: {pool}, begin: {SOON}}}")
    ran = await longshore("place", "--live", "--job", str(file), "--json")
    assert ran.code == 0, ran.err
    found = Foreseen.model_validate_json(ran.out)
    assert found.begins_at is not None
    assert found.request.submitted_at == found.at
    assert found.decision.node_id == node.id
    shown = await longshore("place", "--live", "--job", str(file))
    assert "as if it began now" in " ".join(shown.err.split())
    ran = await longshore("preempt", "--dry-run", str(file), "--json")
    assert ran.code == 0, ran.err
    plan = PreemptionDryRun.model_validate_json(ran.out)
    assert plan.begins_at == found.begins_at
    assert "as if it began now" in plan.notes[0]
