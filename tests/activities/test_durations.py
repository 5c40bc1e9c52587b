"""How long jobs run, on PostgreSQL: learnt from those that succeeded, used by the next ones."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from longshore.activities.buying.inputs import read_need
from longshore.activities.departures import (
    _OCCUPANTS,  # pyright: ignore[reportPrivateUsage]
    occupant_of,
)
from longshore.activities.durations import (
    DurationViews,
    forget_runs,
    learnt_for,
    learnt_in_dag,
)
from longshore.activities.preemption_inputs import read_inputs
from longshore.activities.queue_views import QueueViews
from longshore.activities.snapshot import load_pool, load_recent, load_running, read_queue
from longshore.activities.views import Views
from longshore.models.dag import DagSpec
from longshore.models.deadline import DeadlineOutlook
from longshore.models.durations import ExpectedFrom
from longshore.models.job_request import JobRequest
from longshore.models.job_status import JobResult, JobState
from longshore.models.messages import FinishRequest, LeaseEnd
from longshore.models.placement import PlacementKey, RunningJob
from longshore.models.preemption import RunningWork
from longshore.scheduling.dag_paths import expected_seconds
from longshore.scheduling.durations import LEAST_RUNS, MOST_RUNS, expected_from
from tests.support.ledger import Ledger

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
ASKS: dict[str, Any] = {"name": "train", "gpus": 2}
NAMES = ("first", "next", "other", "again", "stated", "scaled", "dag.train", "slot")


@pytest.fixture
async def pool(ledger: Ledger) -> AsyncIterator[Ledger]:
    """A pool with one node of two GPUs; 0.1 s."""
    await ledger.register(gpus=2)
    async with ledger.listening(*NAMES):
        yield ledger


async def test_what_succeeded_says_how_long_the_next_takes(pool: Ledger):
    await _history(pool, LEAST_RUNS - 1)
    await pool.enqueue("first", **ASKS)
    assert await pool.value("SELECT learnt FROM queue") is None, "nineteen say nothing"
    await _placed_for(pool, "first", "70 minutes")
    await pool.finish("first")
    (kept,) = await pool.rows("SELECT * FROM run_times WHERE job_id = 'first'")
    assert (kept["tenant"], kept["name"], kept["shape"]) == ("default", "train", "2 x GPU")
    assert kept["seconds"] == pytest.approx(4200, abs=60)
    await pool.enqueue("next", **ASKS)
    job = await _waiting(pool)
    assert (expected_from(job), job.expected_duration) == (ExpectedFrom.LEARNT, 10 * MINUTE)
    await pool.cycle("placed")
    assert await pool.value("SELECT expected_seconds FROM placements WHERE job_id = 'next'") == 600
    share, work = await _runs(pool)
    assert work.expected_end - work.started_at == 10 * MINUTE
    assert work.request.expected_duration == 10 * MINUTE
    # It overruns: of those before it one ran for longer, and then none.
    await _ran(pool, "20 minutes")
    share, work = await _runs(pool)
    assert work.expected_end - work.started_at == 75 * MINUTE, "rounded up"
    assert share.expected_end == work.expected_end
    await _ran(pool, "2 hours")
    share, work = await _runs(pool)
    assert work.expected_end - work.started_at == 10 * MINUTE, "overdue"


async def test_a_deadline_is_judged_by_what_is_learnt(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    for name, minutes in (("first", 30), ("next", 5)):
        await pool.enqueue(name, **ASKS, deadline=datetime.now(UTC) + minutes * MINUTE)
    await pool.cycle("one")
    found = {job.id: job.deadline for job in await Views(pool.database).jobs()}
    judged, late = found["first"], found["next"]
    assert judged is not None
    assert late is not None
    assert (judged.outlook, late.outlook) == (DeadlineOutlook.ON_TIME, DeadlineOutlook.LATE)
    assert "as jobs like it did of late, about 10m" in late.says


async def test_a_pool_without_a_history_plans_as_before(pool: Ledger):
    await pool.enqueue("first", **ASKS)
    job = await _waiting(pool)
    assert (job.learnt, job.expected_duration) == (None, HOUR)
    await pool.cycle("placed")
    share, work = await _runs(pool)
    assert (share.ends, work.request.learnt) == ((), None)
    assert await pool.value("SELECT expected_seconds FROM placements") == 3600


@pytest.mark.parametrize(
    "asks", [{"gpus": 1}, {"name": "other"}, {"tenant": "other"}, {"gpu_type": "A100"}]
)
async def test_another_key_has_another_history(pool: Ledger, asks: dict[str, Any]):
    await _history(pool, LEAST_RUNS)
    await pool.enqueue("other", **{**ASKS, **asks})
    assert await pool.value("SELECT learnt FROM queue") is None


async def test_who_states_a_duration_is_taken_at_their_word(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    await pool.enqueue("stated", **ASKS, expected_duration="3h")
    assert await pool.value("SELECT learnt FROM queue") is None
    assert (await _waiting(pool)).expected_duration == 3 * HOUR


async def test_malleable_jobs_are_neither_learnt_from_nor_planned_by_it(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    await pool.enqueue("scaled", **ASKS, malleable={"min": 1, "max": 2})
    await _placed_for(pool, "scaled", "1 hour")
    await pool.finish("scaled")
    assert await pool.value("SELECT count(*) FROM run_times") == LEAST_RUNS


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
async def test_what_did_not_succeed_says_nothing(pool: Ledger, state: JobState):
    await pool.enqueue("first", **ASKS)
    await _placed_for(pool, "first", "1 hour")
    result = JobResult(job_id="first", state=state, attempts=1)
    key = PlacementKey(job_id="first", attempt=1)
    request = FinishRequest(key=key, reason=LeaseEnd.FINISHED, result=result)
    await pool.run(pool.queue.finish, request)
    assert await pool.rows("SELECT FROM run_times") == []


async def test_a_repeat_of_the_end_keeps_it_once(pool: Ledger):
    await pool.enqueue("first", **ASKS)
    await _placed_for(pool, "first", "1 hour")
    for delivery in (1, 2):
        await pool.finish("first", delivery=delivery)
    assert await pool.value("SELECT count(*) FROM run_times") == 1


async def test_all_attempts_count_and_what_was_taken_over_does_not(pool: Ledger):
    """Its first attempt took over five hours, and saved after three of its own."""
    await _history(pool, LEAST_RUNS, "6 hours")
    await pool.enqueue("again", **ASKS)
    await pool.rows(
        "UPDATE queue SET attained = '5 hours',"
        " learnt = jsonb_set(learnt, '{taken_over}', '18000')"
    )
    assert (await _waiting(pool)).expected_duration == 6 * HOUR
    await _placed_for(pool, "again", "4 hours")
    await pool.release("again")
    await pool.enqueue("again", attempt=2, **ASKS)
    await pool.rows("UPDATE queue SET attained = '8 hours'")  # three of its own were saved
    job = await _waiting(pool)
    assert job.expected_duration == 3 * HOUR
    await pool.cycle("second")
    await _ran(pool, "2 hours")
    await pool.finish("again", 2)
    seconds = await pool.value("SELECT seconds FROM run_times WHERE job_id = 'again'")
    assert seconds == pytest.approx(5 * 3600, abs=60)


async def test_a_job_of_a_dag_is_learnt_by_both_names(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    await _in_dag(pool, "dag.train")
    await pool.enqueue("dag.train", **ASKS)
    assert await pool.value("SELECT learnt FROM queue") is None, "another train"
    await _placed_for(pool, "dag.train", "1 hour")
    await pool.finish("dag.train")
    name = await pool.value("SELECT name FROM run_times WHERE job_id = 'dag.train'")
    assert name == "nightly/train"


async def test_of_a_key_the_last_runs_stay(pool: Ledger):
    await _history(pool, MOST_RUNS + 3)
    for job in ("first", "next"):
        await pool.enqueue(job, **ASKS)
        await _placed_for(pool, job, "1 hour")
        await pool.finish(job)
    assert await pool.value("SELECT count(*) FROM run_times") == MOST_RUNS
    left = await pool.rows("SELECT FROM run_times WHERE job_id IN ('first', 'next')")
    assert len(left) == 2, "the oldest went"


async def test_old_runs_say_nothing_and_are_forgotten(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    await pool.rows("UPDATE run_times SET ended_at = now() - interval '91 days'")
    await pool.enqueue("next", **ASKS)
    assert await pool.value("SELECT learnt FROM queue") is None
    async with pool.database.transaction() as connection:
        await forget_runs(connection)
    assert await pool.rows("SELECT FROM run_times") == []


async def test_ends_of_one_key_do_not_wait_for_each_other(pool: Ledger):
    await _history(pool, MOST_RUNS)
    jobs = [f"at-once-{number}" for number in range(2)]
    for job in jobs:
        await pool.enqueue(job, name="train", gpus=1)
    await pool.cycle("both")
    await asyncio.gather(*(pool.finish(job) for job in jobs))
    assert await pool.value("SELECT count(*) FROM run_times WHERE shape = '1 x GPU'") == 2


async def test_a_job_is_planned_for_no_longer_than_it_may_run(pool: Ledger):
    await _history(pool, LEAST_RUNS, "6 hours")
    await pool.enqueue("next", **ASKS, max_duration="2h")
    assert (await _waiting(pool)).expected_duration == 2 * HOUR


async def test_what_somebody_wrote_by_hand_is_as_nothing(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    await pool.enqueue("next", **ASKS)
    await pool.rows("""UPDATE queue SET learnt = '{"runs": "many"}'""")
    assert (await _waiting(pool)).expected_duration == HOUR
    await pool.cycle("placed")
    share, _ = await _runs(pool)
    assert share.ends == ()


async def test_keep_room_and_buying_see_the_same(pool: Ledger):
    await _history(pool, LEAST_RUNS, "6 hours")
    for job in ("next", "other"):
        await pool.enqueue(job, **ASKS)
    await pool.cycle("placed")
    async with pool.database.snapshot() as connection:
        (recent,) = await load_recent(connection, pool.pool)
        need = await read_need(connection, await load_pool(connection, pool.pool))
    assert recent.request.expected_duration == 6 * HOUR
    (unmet,) = need.unmet.jobs
    assert unmet.request.expected_duration == 6 * HOUR


async def test_the_view_says_what_is_learnt_and_who_uses_it(pool: Ledger):
    await _history(pool, 30)
    await _history(pool, 3, name="rare")
    await pool.enqueue("next", **ASKS)
    view = await DurationViews(pool.database).durations()
    rare, train = view.rows
    assert (rare.name, rare.runs, rare.expected) == ("rare", 3, None)
    assert (train.runs, train.expected) == (30, 10 * MINUTE)
    assert train.quantiles == (10 * MINUTE,) * 5
    assert (train.used, train.used_by) == (1, ("next",))
    await pool.cycle("placed")
    found = await DurationViews(pool.database).durations(tenant="default", name="tr*")
    assert [row.name for row in found.rows] == ["train"]
    assert found.rows[0].used_by == ("next",), "it runs now"
    assert (await DurationViews(pool.database).durations(tenant="nobody")).rows == ()


async def test_lists_and_reports_say_where_a_duration_comes_from(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    await pool.enqueue("next", **ASKS)
    await pool.enqueue("stated", **ASKS, expected_duration="3h")
    await pool.enqueue("other", name="other")
    jobs = {job.job_id: job for job in (await QueueViews(pool.database).queue(pool.pool)).jobs}
    told = {name: (str(job.expected), job.expected_duration) for name, job in jobs.items()}
    assert told == {
        "next": ("learnt", 10 * MINUTE), "stated": ("known", 3 * HOUR), "other": ("unknown", None),
    }  # fmt: skip
    says = "learnt from 20 runs: 10m, 9 in 10 under 10m"
    assert jobs["next"].learnt == says
    views = Views(pool.database)
    assert [(await views.job(name)).learnt for name in ("next", "stated")] == [says, ""]
    await pool.cycle("placed")
    assert (await views.job("next")).learnt == says, "it runs"
    await pool.finish("next")
    assert (await views.job("next")).learnt == ""


async def test_a_job_that_would_be_submitted_is_foreseen_with_it(pool: Ledger):
    await _history(pool, LEAST_RUNS)
    async with pool.database.transaction() as connection:
        learnt = await learnt_for(connection, "this-job", pool.spec(**ASKS))
        stated = await learnt_for(
            connection, "this-job", pool.spec(**ASKS, expected_duration="1h")
        )
    assert learnt is not None
    assert (learnt.runs, stated) == (LEAST_RUNS, None)


async def _history(pool: Ledger, runs: int, each: str = "10 minutes", name: str = "train") -> None:
    """Put runs of that length on record, ended within the last hours."""
    await pool.add_job(f"past-{name}")
    await pool.rows(
        "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)"
        " SELECT id || '-' || n, name, tenant, pool, spec, submitted_at, ''"
        " FROM jobs, generate_series(1, :runs) AS n WHERE id = :past",
        runs=runs, past=f"past-{name}",
    )  # fmt: skip
    await pool.rows(
        "INSERT INTO run_times SELECT :past || '-' || n, 'default', :name, '2 x GPU',"
        " now() - n * interval '1 minute',"
        " extract(epoch FROM CAST(CAST(:each AS text) AS interval))"
        " FROM generate_series(1, :runs) AS n",
        runs=runs, past=f"past-{name}", name=name, each=each,
    )  # fmt: skip


async def _placed_for(pool: Ledger, job: str, span: str) -> None:
    assert (await pool.cycle(f"place-{job}")).placed == 1
    await _ran(pool, span)


async def _ran(pool: Ledger, span: str) -> None:
    """Let what runs have begun so long ago: the database rewrites no placement, and a test may not
    wait."""
    await _rewrite(pool, f"placed_at = clock_timestamp() - interval '{span}'")


async def _rewrite(pool: Ledger, new: str) -> None:
    await pool.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await pool.rows(f"UPDATE placements SET {new} WHERE ended_at IS NULL")
    await pool.rows("ALTER TABLE placements ENABLE TRIGGER USER")


async def _waiting(pool: Ledger) -> JobRequest:
    async with pool.database.snapshot() as connection:
        (entry,) = (await read_queue(connection, pool.pool)).entries
    return entry.request


async def _runs(pool: Ledger) -> tuple[RunningJob, RunningWork]:
    async with pool.database.snapshot() as connection:
        (share,) = await load_running(connection, pool.pool)
        (work,) = (await read_inputs(connection, pool.pool)).running
    return share, work


async def _in_dag(pool: Ledger, job: str) -> None:
    await pool.rows(
        "INSERT INTO dags (id, name, tenant, spec, submitted_at, state)"
        " VALUES ('dag', 'nightly', 'default', '{}', now(), 'RUNNING')"
    )
    await pool.rows(
        "INSERT INTO dag_jobs (dag_id, name, job_id, state)"
        " VALUES ('dag', 'train', :job, 'SUBMITTED')",
        job=job,
    )  # fmt: skip


async def test_paths_of_a_dag_and_departures_go_by_what_is_learnt(pool: Ledger):
    """The same values that place a job: of its DAG's path, and of when it leaves a node."""
    dag = DagSpec.model_validate(
        {
            "name": "nightly",
            "jobs": {
                "train": {"command": "true", "gpus": 2},
                "report": {"command": "true", "after": "train", "expected_duration": "30m"},
                "new": {"command": "true", "gpus": 2},
            },
        }
    )
    async with pool.database.transaction() as connection:
        assert await learnt_in_dag(connection, dag) == {}
    await _history(pool, LEAST_RUNS)
    await pool.rows("UPDATE run_times SET name = 'nightly/train'")
    async with pool.database.transaction() as connection:
        learnt = await learnt_in_dag(connection, dag)
    assert learnt.keys() == {"train"}
    assert expected_seconds(dag, learnt) == {"train": 600, "report": 1800, "new": 3600}
    await pool.rows("UPDATE run_times SET name = 'train'")
    await pool.enqueue("first", **ASKS)
    await pool.cycle("placed")
    async with pool.database.transaction() as connection:
        found = await connection.execute(text(_OCCUPANTS), {"id": "node-a", "epoch": 1})
        (row,) = found.mappings()
    assert occupant_of(row).expected_end - row["placed_at"] == 10 * MINUTE
    share, _ = await _runs(pool)
    assert occupant_of(row).expected_end == share.expected_end
