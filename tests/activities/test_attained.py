"""Attained service on PostgreSQL: what attempts ran is kept, and who has run long yields."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.checkpoints.rows import keep_seen
from longshore.activities.database import clock
from longshore.activities.preemption_inputs import read_inputs
from longshore.activities.snapshot import load_nodes, load_pool, read_place, read_queue
from longshore.activities.views import set_pool
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.messages import HoldRequest, LeaseEnd, ReleaseRequest
from longshore.models.packing import QueueOrder
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.scheduling.order import queue_order
from tests.support.ledger import Ledger

HOUR = timedelta(hours=1)
SAVES: dict[str, Any] = {"checkpoint": {"folder": "saved", "save_file": True}}
ASKS: dict[str, Any] = {"gpus": 2, **SAVES}


@pytest.fixture
async def pool(ledger: Ledger) -> AsyncIterator[Ledger]:
    """A pool by attained service, whose only node works on a job since ten hours, nine of which
    are saved."""
    await _set_order(ledger, QueueOrder.ATTAINED_SERVICE)
    await ledger.register(gpus=2)
    async with ledger.listening("long", "new"):
        await ledger.enqueue("long", name="long", **ASKS)
        assert (await ledger.cycle("first")).placed == 1
        await _ran(ledger, "10 hours")
        await _saved(ledger, 1)
        yield ledger


async def test_a_job_that_has_run_for_hours_yields_to_one_of_its_class(pool: Ledger):
    await pool.enqueue("new", **ASKS)
    await pool.cycle("second")
    (row,) = await pool.rows("SELECT job_id, for_job, plan FROM preemptions")
    assert (row["job_id"], row["for_job"]) == ("long", "new")
    assert row["plan"]["reason"].startswith("stop long, which yields to twice its rank: ")


async def test_who_has_not_saved_since_it_was_placed_again_is_not_stopped(pool: Ledger):
    """Nobody knows whether it has begun: its image or its data may still come."""
    await _stopped(pool, 1)
    await pool.cycle("second")
    await _ran(pool, "10 hours", attempt=2)
    await _ended_before(pool, "1 day")  # it was not stopped of late
    await pool.enqueue("new", **ASKS)
    await pool.cycle("third")
    assert await pool.rows("SELECT FROM preemptions") == []
    await _saved(pool, 2)  # an hour ago
    await pool.cycle("fourth")
    assert await pool.rows("SELECT attempt FROM preemptions") == [{"attempt": 2}]


async def test_one_that_saves_only_when_it_is_stopped_yields_without_a_save(ledger: Ledger):
    """Nothing would tell that a later attempt of it has begun."""
    await _set_order(ledger, QueueOrder.ATTAINED_SERVICE)
    await ledger.register(gpus=2)
    own = {"gpus": 2, "checkpoint": {"folder": "saved"}}
    async with ledger.listening("long", "new"):
        await ledger.enqueue("long", **own)
        await ledger.cycle("first")
        await _saved(ledger, 1)
        await ledger.release("long")
        await ledger.enqueue("long", attempt=2, **own)
        await ledger.cycle("second")
        await _ran(ledger, "10 hours", attempt=2)
        await ledger.enqueue("new", **ASKS)
        await ledger.cycle("third")
    assert await ledger.rows("SELECT attempt FROM preemptions") == [{"attempt": 2}]


async def test_it_runs_for_ten_minutes_from_its_first_save_on(pool: Ledger):
    await pool.rows("UPDATE job_checkpoints SET saved_at = saved_at + interval '55 minutes'")
    await pool.enqueue("new", **ASKS)
    await pool.cycle("second")
    assert await pool.rows("SELECT FROM preemptions") == []


@pytest.mark.parametrize("why", ["by age", "no save", "higher"])
async def test_it_does_not_otherwise(pool: Ledger, why: str):
    if why == "by age":
        await _set_order(pool, QueueOrder.AGE)
    if why == "no save":
        await pool.rows("DELETE FROM job_checkpoints")
    await pool.enqueue("new", **ASKS, priority=4 if why == "higher" else 5)
    await pool.cycle("second")
    assert await pool.rows("SELECT FROM preemptions") == []


async def test_what_was_run_until_the_last_save_is_kept_over_attempts(pool: Ledger):
    await _stopped(pool, 1)
    (queued,) = await _attained(pool, "queue")
    assert queued == pytest.approx(9 * 3600, abs=60)
    await pool.cycle("second")
    (placed,) = await _attained(pool, "placements WHERE attempt = 2")
    assert placed == queued
    async with pool.database.transaction() as connection:
        (work,) = (await read_inputs(connection, pool.pool)).running
    assert work.request.attained == timedelta(seconds=placed)
    # Of an attempt that saved nothing nothing goes on.
    await _ran(pool, "5 hours", attempt=2)
    await _stopped(pool, 2)
    assert await _attained(pool, "queue") == [queued]


async def test_a_save_that_is_seen_after_the_stop_counts(pool: Ledger):
    """The last one is made because the job is stopped, and seen a minute later at most."""
    await pool.rows("DELETE FROM job_checkpoints")
    await _stopped(pool, 1)
    assert await _attained(pool, "queue") == [0]
    await keep_seen(pool.database, [_a_save("long", datetime.now(UTC) + HOUR)])
    # Until the end of the attempt: the clock of its node may be ahead.
    assert await _attained(pool, "queue") == [pytest.approx(36_000, abs=60)]


@pytest.mark.parametrize("preemptible", [True, False])
@pytest.mark.parametrize("seen", ["before the stop", "after it"])
async def test_who_saves_and_has_not_said_so_can_be_stopped_once_that_is_seen(
    ledger: Ledger, preemptible: bool, seen: str
):
    await _set_order(ledger, QueueOrder.ATTAINED_SERVICE)
    await ledger.register(gpus=2)
    own = {"gpus": 2, "checkpoint": {"folder": "saved"}, "preemptible": preemptible}
    can_stop = "SELECT can_stop FROM queue"
    async with ledger.listening("own"):
        await ledger.enqueue("own", **own)
        assert await ledger.rows(can_stop) == [{"can_stop": False}]
        await ledger.cycle("first")
        await _ran(ledger, "10 hours")
        if seen == "before the stop":
            await _saved(ledger, 1)
        await ledger.release("own")
        await ledger.enqueue("own", attempt=2, **own)
    if seen == "after it":
        assert await ledger.rows(can_stop) == [{"can_stop": False}]
        await keep_seen(ledger.database, [_a_save("own", datetime.now(UTC))])
    assert await ledger.rows(can_stop) == [{"can_stop": preemptible}]


@pytest.mark.parametrize(
    ("change", "hands_on"),
    [
        ("", True),
        ("UPDATE jobs SET ended_at = ended_at - interval '11 minutes'", False),
        ("UPDATE jobs SET name = 'other'", False),
        ("UPDATE jobs SET tenant = 'other'", False),
    ],
    ids=["same", "later", "name", "tenant"],
)
async def test_an_end_hands_its_time_run_to_one_successor_of_its_name(
    pool: Ledger, change: str, hands_on: bool
):
    """So who cuts a job into pieces does not begin anew with each."""
    await pool.finish("long")
    if change:
        await pool.rows(change)
    async with pool.listening("piece", "second"):
        await pool.enqueue("piece", name="long", **ASKS)
        await pool.enqueue("piece", name="long", **ASKS, delivery=2)  # told again
        await pool.enqueue("second", name="long", **ASKS)
    rows = await pool.rows("SELECT job_id, extract(epoch FROM attained) AS ran FROM queue")
    ran = {row["job_id"]: float(row["ran"]) for row in rows}
    assert ran["piece"] == pytest.approx(36_000 if hands_on else 0, abs=600 if hands_on else 0)
    assert ran["second"] == 0


async def test_it_hands_on_less_the_longer_the_pause_was(pool: Ledger):
    """So what comes at its own times, as runs of a schedule do, does not pile up."""
    await pool.finish("long")
    await pool.rows("UPDATE jobs SET ended_at = ended_at - interval '4 minutes'")
    async with pool.listening("piece"):
        await pool.enqueue("piece", name="long", **ASKS)
    assert await _attained(pool, "queue") == [pytest.approx(0.6 * 36_000, abs=600)]


async def test_runs_with_pauses_between_them_do_not_pile_up(ledger: Ledger):
    """Six minutes every ten, as by a schedule: each comes with less than ten of the others."""
    await _set_order(ledger, QueueOrder.ATTAINED_SERVICE)
    await ledger.register(gpus=2)
    names = [f"eval-{number}" for number in range(12)]
    async with ledger.listening(*names):
        for name in names:
            await ledger.enqueue(name, name="eval", **ASKS)
            assert await ledger.value("SELECT attained FROM queue") <= timedelta(minutes=10)
            assert (await ledger.cycle(name)).placed == 1
            await _ran(ledger, "6 minutes")
            await ledger.finish(name)
            await ledger.rows("UPDATE jobs SET ended_at = ended_at - interval '4 minutes'")
    assert await ledger.value("SELECT max(attained) FROM placements") > timedelta(minutes=8)


@pytest.mark.parametrize("begin_only", [False, True], ids=["hold", "begin"])
async def test_a_piece_that_was_submitted_ahead_takes_over_when_it_may_start(
    pool: Ledger, begin_only: bool
):
    """It was held until the one before it has ended."""
    async with pool.listening("piece", "next"):
        for name in ("piece", "next"):
            await pool.enqueue(name, name="long", held=True, **ASKS)
        await pool.finish("long")
        key = PlacementKey(job_id="piece", attempt=1)
        for held in (True, False, False):  # told again
            request = HoldRequest(key=key, held=held, begin_only=begin_only and held)
            await pool.run(pool.queue.set_hold, request)
        handed = await pool.rows("SELECT job_id, extract(epoch FROM attained) AS ran FROM queue")
    ran = {row["job_id"]: float(row["ran"]) for row in handed}
    assert ran == {"piece": pytest.approx(36_000, abs=600), "next": 0}


async def test_who_never_ran_hands_on_nothing_and_gives_back_what_it_took_over(pool: Ledger):
    await pool.finish("long")
    async with pool.listening("piece", "next"):
        await pool.enqueue("piece", name="long", **ASKS)
        await pool.finish("piece")
        await pool.enqueue("next", name="long", **ASKS)
    assert await _attained(pool, "queue WHERE job_id = 'next'") == [pytest.approx(36_000, abs=600)]


async def test_of_two_that_come_at_once_one_takes_over(pool: Ledger):
    await pool.finish("long")
    names = [f"piece-{number}" for number in range(4)]
    async with pool.listening(*names):
        await asyncio.gather(*(pool.enqueue(name, name="long", **ASKS) for name in names))
    assert sorted(await _attained(pool, "queue"))[:3] == [0, 0, 0]
    assert max(await _attained(pool, "queue")) == pytest.approx(36_000, abs=60)


async def test_a_pool_by_age_hands_nothing_on(pool: Ledger):
    await _set_order(pool, QueueOrder.AGE)
    await pool.finish("long")
    async with pool.listening("piece"):
        await pool.enqueue("piece", name="long", **ASKS)
    assert await _attained(pool, "queue") == [0]


async def test_a_place_in_the_queue_is_the_one_that_the_order_gives(ledger: Ledger):
    await _set_order(ledger, QueueOrder.ATTAINED_SERVICE)
    await ledger.register(gpus=4)
    for number in range(12):
        await ledger.enqueue(f"j-{number}", gpus=1 + number % 4, priority=4 + number % 2, **SAVES)
        await ledger.rows(
            "UPDATE queue SET attained = :ran, waited = :waited WHERE job_id = :id",
            id=f"j-{number}", ran=number * 5 % 7 * HOUR, waited=number * 7 % 5 * 20 * HOUR,
        )  # fmt: skip
    async with ledger.database.transaction() as connection:
        packing = (await load_pool(connection, ledger.pool)).packing
        queue = (await read_queue(connection, ledger.pool)).entries
        nodes = await load_nodes(connection, ledger.pool)
        requests = [each.request for each in queue]
        ordered = queue_order(requests, packing, await clock(connection), nodes)
        places = {
            job.id: (await read_place(connection, ledger.pool, job.id, packing))()
            for job in ordered
        }
    assert list(places.values()) == list(range(1, 13))
    assert {job.attained for job in ordered} == {number * HOUR for number in range(7)}


@pytest.mark.parametrize("table", ["queue", "placements"])
async def test_the_database_refuses_what_no_job_can_have_run(pool: Ledger, table: str):
    await pool.enqueue("new", **ASKS)
    for ran in ("-1 second", "4000 days"):
        with pytest.raises(Exception, match=r"attained_ten_years|rewritten"):
            await pool.rows(f"UPDATE {table} SET attained = CAST(:ran AS interval)", ran=ran)


async def _set_order(ledger: Ledger, order: QueueOrder) -> None:
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, packing=PoolPacking(order=order)))


async def _ran(ledger: Ledger, time: str, attempt: int = 1) -> None:
    """Let an attempt have begun so long ago: the database rewrites no placement, and a test may
    not wait."""
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await ledger.rows(
        "UPDATE placements SET placed_at = placed_at - CAST(:time AS interval)"
        " WHERE attempt = :attempt",
        time=time, attempt=attempt,
    )  # fmt: skip
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")


async def _ended_before(ledger: Ledger, time: str) -> None:
    """Have the first attempt have been so much longer ago."""
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await ledger.rows(
        "UPDATE placements SET placed_at = placed_at - CAST(:time AS interval),"
        " ended_at = ended_at - CAST(:time AS interval) WHERE attempt = 1",
        time=time,
    )
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")


async def _saved(ledger: Ledger, attempt: int) -> None:
    await ledger.rows(
        "INSERT INTO job_checkpoints (job_id, attempt, number, ranks, bytes, write_seconds,"
        " saved_at, simulated)"
        " SELECT job_id, attempt, 1, 1, 1000, 1, placed_at + interval '9 hours', true"
        "   FROM placements WHERE attempt = :attempt",
        attempt=attempt,
    )


async def _stopped(ledger: Ledger, attempt: int) -> None:
    key = PlacementKey(job_id="long", attempt=attempt)
    await ledger.run(ledger.queue.release, ReleaseRequest(key=key, reason=LeaseEnd.PREEMPTED))
    await ledger.enqueue("long", attempt=attempt + 1, **ASKS)


def _a_save(job_id: str, saved_at: datetime) -> CheckpointInfo:
    return CheckpointInfo(
        job_id=job_id, attempt=1, number=1, ranks=1, bytes=1, write_seconds=1.0,
        saved_at=saved_at, simulated=True, published=True, whole=True,
    )  # fmt: skip


async def _attained(ledger: Ledger, rows: str) -> list[float]:
    found = await ledger.rows(f"SELECT extract(epoch FROM attained) AS ran FROM {rows}")
    return [float(row["ran"]) for row in found]
