"""What a job has waited in all, on PostgreSQL: kept over its attempts, and what the order of its
queue, the stops of others and its views make of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, tzinfo

import pytest

from longshore.activities.database import clock
from longshore.activities.preemption_inputs import read_inputs
from longshore.activities.snapshot import load_pool, read_place, read_queue
from longshore.activities.views import Views, set_pool
from longshore.client.words import class_of
from longshore.models.deadline import DeadlineOutlook
from longshore.models.job_status import JobState
from longshore.models.messages import HoldRequest, LeaseEnd, ReleaseRequest
from longshore.models.placement import PackingPolicy, PlacementKey, ScoreWeights
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.scheduling.order import queue_order
from tests.support.ledger import SUBMITTED_AT, Ledger

DAY = timedelta(days=1)
WHOLE = {"gpus": 2, "expected_duration": "1000h"}
URGENT = {"gpus": 2, "expected_duration": "30m"}


async def test_a_job_that_waited_a_month_goes_before_one_of_the_next_class(ledger: Ledger):
    async with _two_that_wait(ledger):
        assert await _places(ledger) == {"old": 1, "new": 2}
        assert (await ledger.cycle("one")).placed == 1
        (row,) = await ledger.rows("SELECT job_id, waited, decision FROM placements")
        assert (row["job_id"], row["decision"]["counted_as"]) == ("old", 5)
        assert timedelta(0) <= row["waited"] - 31 * DAY < DAY
        old = await Views(ledger.database).job("old")
        assert (old.state, old.priority, old.counted_as) == (JobState.RUNNING, 4, 5)
        assert old.waited == row["waited"]


@pytest.mark.parametrize("weight", [0, 2], ids=["", "paths"])
@pytest.mark.parametrize("every", [timedelta(0), 30 * DAY], ids=["never", "rises"])
async def test_a_place_is_the_one_that_the_order_gives(
    ledger: Ledger, every: timedelta, weight: float
):
    await _rises_every(ledger, every, critical_path=weight)
    for number in range(24):
        name = f"{'Aa_'[number % 3]}-{number}"  # other languages have other orders of letters
        await ledger.enqueue(name, priority=number * 7 % 11, path_behind=number * 3 % 7 / 7)
        await _age(ledger, name, number * 5 % 4 * 30)
    await _set_hold(ledger, True, "A-3")
    fills = "UPDATE queue SET request = request || '{\"fills\": true}' WHERE job_id LIKE '%5'"
    await ledger.rows(fills)
    async with ledger.database.transaction() as connection:
        packing: PackingPolicy = (await load_pool(connection, ledger.pool)).packing
        queue = (await read_queue(connection, ledger.pool)).entries
        ordered = queue_order([each.request for each in queue], packing, await clock(connection))
    assert list((await _places(ledger)).items()) == [
        (job.id, place) for place, job in enumerate(ordered, 1)
    ]


async def test_a_pool_can_switch_it_off(ledger: Ledger):
    async with _two_that_wait(ledger):
        await _rises_every(ledger, timedelta(0))
        assert await _places(ledger) == {"new": 1, "old": 2}
        await ledger.cycle("one")
        assert await ledger.value("SELECT job_id FROM placements") == "new"
        old = await Views(ledger.database).job("old")
        assert old.counted_as is None


async def test_a_cycle_says_what_a_job_that_waits_on_counted_as(ledger: Ledger):
    await ledger.register(gpus=1)
    await ledger.enqueue("wide", gpus=2, priority=4)
    await _age(ledger, "wide", 61)
    await ledger.cycle("one")
    wide = await Views(ledger.database).job("wide")
    assert (wide.state, wide.counted_as, wide.waited) == (JobState.QUEUED, 6, timedelta(0))


async def test_the_class_that_is_told_is_of_the_moment_of_the_wait_beside_it(ledger: Ledger):
    """A cycle writes what a job counts as with its news, and no news comes for long."""
    await ledger.register(gpus=1)
    for name in ("wide", "held"):
        await ledger.enqueue(name, gpus=2, priority=4)
        await _age(ledger, name, 61)
    await ledger.cycle("one")
    for name in ("wide", "held"):
        await _age(ledger, name, 30)
    await _set_hold(ledger, True, "held")
    for name, state in (("wide", JobState.QUEUED), ("held", JobState.HELD)):
        job = await Views(ledger.database).job(name)
        assert (job.state, job.counted_as) == (state, 7)
        assert class_of(job, datetime.now(UTC)).startswith("class 4, counted as 7 after 91d")
    await _rises_every(ledger, timedelta(0))
    assert (await Views(ledger.database).job("wide")).counted_as is None


async def test_whoever_looks_with_a_wrong_clock_sees_the_class_that_cycles_go_by(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    class AYearAhead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + 365 * DAY

    await ledger.register(gpus=1)
    await ledger.enqueue("wide", gpus=2, priority=4)
    await _age(ledger, "wide", 31)
    await ledger.rows("UPDATE jobs SET deadline_at = now() + interval '1 day'")
    for module in ("risen", "views"):
        monkeypatch.setattr(f"longshore.activities.{module}.datetime", AYearAhead)
    wide = await Views(ledger.database).job("wide")
    assert wide.counted_as == 5
    assert wide.deadline is not None
    assert wide.deadline.outlook is DeadlineOutlook.UNKNOWN


async def test_what_was_waited_before_an_attempt_counts_in_the_next(ledger: Ledger):
    async with _two_that_wait(ledger):
        await ledger.cycle("one")
        await ledger.release("old")
        await ledger.enqueue("old", attempt=2, priority=4, gpus=2)
        await ledger.rows("UPDATE queue SET submitted_at = :new WHERE job_id = 'new'",
                          new=SUBMITTED_AT + DAY)  # fmt: skip
        assert await _places(ledger) == {"old": 1, "new": 2}
        waited = await ledger.value("SELECT waited FROM queue WHERE job_id = 'old'")
        assert timedelta(0) <= waited - 31 * DAY < DAY


async def test_a_month_on_gpus_is_no_wait(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("old"):
        await ledger.enqueue("old", priority=4, **WHOLE)
        await ledger.cycle("one")
        await _unguarded(
            ledger, "UPDATE placements SET placed_at = placed_at - interval '40 days'"
        )
        await ledger.release("old")
        await ledger.enqueue("old", attempt=2, priority=4, **WHOLE)
        await ledger.enqueue("new", priority=5, **WHOLE)
        assert await _places(ledger) == {"new": 1, "old": 2}


async def test_a_hold_is_no_wait(ledger: Ledger):
    waited = "SELECT waited FROM queue"
    await ledger.enqueue("old")
    await _age(ledger, "old", 10)
    for _twice in range(2):
        await _set_hold(ledger, True)
    before = await ledger.value(waited)
    assert timedelta(0) <= before - 10 * DAY < DAY
    await _age(ledger, "old", 100)
    async with ledger.database.transaction() as connection:
        (entry,) = (await read_queue(connection, ledger.pool)).entries
        now = (await connection.exec_driver_sql("SELECT clock_timestamp()")).scalar_one()
    assert entry.request.waits_since is not None
    assert timedelta(0) <= now - entry.request.waits_since - before < DAY
    for _twice in range(2):
        await _set_hold(ledger, False)
    assert await ledger.value(waited) == before


async def test_a_risen_job_is_not_stopped_for_one_that_it_went_before(ledger: Ledger):
    async with _two_that_wait(ledger):
        await ledger.cycle("one")
        async with ledger.database.transaction() as connection:
            (work,) = (await read_inputs(connection, ledger.pool)).running
        assert (work.id, work.counted_as) == ("old", 5)
        await ledger.cycle("two")
        assert await ledger.rows("SELECT * FROM preemptions") == []
        await ledger.enqueue("newest", priority=6, **URGENT)
        await ledger.cycle("three")
        assert await ledger.rows("SELECT job_id, for_job FROM preemptions") == [
            {"job_id": "old", "for_job": "newest"}
        ]


async def test_without_the_rise_the_same_job_is_stopped(ledger: Ledger):
    async with _two_that_wait(ledger):
        await ledger.rows("UPDATE queue SET held = true WHERE job_id = 'new'")
        await _rises_every(ledger, timedelta(0))
        await ledger.cycle("one")
        await ledger.rows("UPDATE queue SET held = false WHERE job_id = 'new'")
        await ledger.cycle("two")
        assert await ledger.value("SELECT job_id FROM preemptions") == "old"


async def test_who_is_left_alone_because_it_gave_way_lately_is_told_to_who_waits(ledger: Ledger):
    views = Views(ledger.database)
    await ledger.register(gpus=2)
    async with ledger.listening("low"):
        await ledger.enqueue("low", priority=1, **WHOLE)
        await ledger.cycle("one")
        key = PlacementKey(job_id="low", attempt=1)
        gave_way = ReleaseRequest(key=key, reason=LeaseEnd.PREEMPTED, message="for another")
        await ledger.run(ledger.queue.release, gave_way)
        await ledger.enqueue("low", attempt=2, priority=1, **WHOLE)
        assert (await ledger.cycle("two")).placed == 1
        await ledger.enqueue("high", priority=9, **URGENT)
        await ledger.cycle("three")
        assert await ledger.rows("SELECT * FROM preemptions") == []
        (spared,) = await views.spared("high")
        ended = await ledger.value("SELECT ended_at FROM placements WHERE attempt = 1")
        assert (spared.job_id, spared.until) == ("low", ended + timedelta(minutes=10))
        version = "SELECT xmin FROM queue WHERE job_id = 'high'"
        before = await ledger.value(version)
        await ledger.cycle("four")
        assert await ledger.value(version) == before, "it says the same: nothing is written"
        # The cooldown is over: it is preempted, and nobody is left alone.
        minutes = "ended_at = ended_at - interval '11 minutes'"
        await _unguarded(ledger, f"UPDATE placements SET {minutes} WHERE attempt = 1")
        await _unguarded(
            ledger, "UPDATE placements SET placed_at = placed_at - interval '6 minutes'"
        )
        await ledger.cycle("five")
        assert await ledger.value("SELECT for_job FROM preemptions") == "high"
        assert await views.spared("high") == ()


async def test_who_runs_no_more_or_may_be_stopped_again_is_not_said_to_be_left_alone(
    ledger: Ledger,
):
    views = Views(ledger.database)
    await ledger.register(gpus=2)
    async with ledger.listening("low"):
        await ledger.enqueue("low", priority=1)
        await ledger.cycle("one")
        await ledger.enqueue("high", gpus=2, priority=9)
        for minutes, said in ((5, 1), (-5, 0)):
            until = f"clock_timestamp() + interval '{minutes} minutes'"
            await ledger.rows(
                "UPDATE queue SET spared = jsonb_build_array(jsonb_build_object("
                f"'job_id', 'low', 'until', {until}))"
            )
            assert len(await views.spared("high")) == said
        await ledger.rows(
            "UPDATE queue SET spared = jsonb_build_array(jsonb_build_object("
            "'job_id', 'low', 'until', clock_timestamp() + interval '5 minutes'))"
        )
        await ledger.release("low")
        assert await views.spared("high") == ()


@asynccontextmanager
async def _two_that_wait(ledger: Ledger) -> AsyncIterator[None]:
    """Let one of class 4 wait since 31 days, one of class 5 since now, for both GPUs of a node."""
    await ledger.register(gpus=2)
    async with ledger.listening("old", "new", "newest"):
        await ledger.enqueue("old", priority=4, **WHOLE)
        await ledger.enqueue("new", priority=5, **URGENT)
        await _age(ledger, "old", 31)
        yield


async def _age(ledger: Ledger, job: str, days: int) -> None:
    """Let a job have been submitted and queued so many days earlier."""
    submitted = (SUBMITTED_AT - timedelta(days=days)).isoformat()
    await ledger.rows(
        "UPDATE queue SET queued_at = queued_at - :age, submitted_at = :submitted,"
        " request = request || jsonb_build_object('submitted_at', CAST(:text AS text))"
        " WHERE job_id = :job",
        job=job, age=timedelta(days=days), submitted=submitted, text=submitted,
    )  # fmt: skip


async def _unguarded(ledger: Ledger, statement: str) -> None:
    """Write what the database refuses otherwise: a test may not wait for it."""
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await ledger.rows(statement)
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")


async def _rises_every(ledger: Ledger, every: timedelta, **weights: float) -> None:
    packing = PoolPacking(class_rises_every=every, weights=ScoreWeights(**weights))
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, packing=packing))


async def _places(ledger: Ledger) -> dict[str, int | None]:
    """Return the place of each job in the queue, the first first."""
    async with ledger.database.transaction() as connection:
        pool = await load_pool(connection, ledger.pool)
        queue = (await read_queue(connection, ledger.pool)).entries
        packing: PackingPolicy = pool.packing
        places = {
            entry.request.id: (
                await read_place(connection, ledger.pool, entry.request.id, packing)
            )()
            for entry in queue
        }
    return dict(sorted(places.items(), key=lambda item: item[1] or 0))


async def _set_hold(ledger: Ledger, held: bool, job: str = "old") -> None:
    key = PlacementKey(job_id=job, attempt=1)
    await ledger.run(ledger.queue.set_hold, HoldRequest(key=key, held=held))
