"""The past day of a queue: who waited, who ran and who made room, at the end of each bucket."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from longshore.activities.queue_history import BUCKET, HISTORY, OVER, QueueHistories
from longshore.models.errors import NotFoundError
from longshore.models.queue_view import QueueHistory
from tests.support.ledger import Ledger

_CYCLE = (
    "INSERT INTO cycles (id, pool, committed_at, queued, placed, refused, took_ms)"
    " VALUES (:id, :pool, :at, :queued, :placed, 0, 1)"
)
_PLACEMENT = (
    "INSERT INTO placements (job_id, attempt, rank, cycle_id, node_id, epoch, gpu_indices,"
    " cpu_milli, ram_mb, vram_mb, expected_seconds, decision, placed_at)"
    " VALUES (:job, :attempt, :rank, 'first', :node, 1, '{0}', 1, 1, 0, 60, '{}', :start)"
)
_END = "UPDATE placements SET ended_at = :end, end_reason = 'finished' WHERE job_id = :job"
_STOP = (
    "INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,"
    " for_priority, plan, frees_by, decided_at)"
    " VALUES (:job, 1, :pool, 'first', :job, 1, 5, 5, '{}', :at, :at)"
)
_LONG_PAST = (
    "SET LOCAL session_replication_role = replica",
    "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)"
    " SELECT 'old-' || i, 'old', 'default', :pool, '{}', now(), ''"
    "   FROM generate_series(1, 10000) i",
    "INSERT INTO placements (job_id, attempt, rank, cycle_id, node_id, epoch, gpu_indices,"
    " cpu_milli, ram_mb, vram_mb, expected_seconds, decision, placed_at, ended_at, end_reason)"
    " SELECT 'old-' || i, 1, 0, 'first', 'node-a', 1, '{0}', 1, 1, 0, 60, '{}',"
    "        now() - interval '25 hours' - i * interval '5 min',"
    "        now() - interval '25 hours' - i * interval '4 min', 'finished'"
    "   FROM generate_series(1, 10000) i",
    "ANALYZE placements",
    "ANALYZE jobs",
)
"""Ten thousand placements that ended before the day, without what triggers keep of them."""
HOURS: dict[str, tuple[float, float | None]] = {
    "long-before": (40, 30),
    "from-before": (26, 20),
    "within": (22, 21.1),
    "goes-on": (21.5, None),
    "began-lately": (2, None),
    "short": (1.01, 1.0),
}
"""How many hours ago each job started, and ended."""


@pytest.fixture
async def past(ledger: Ledger) -> Ledger:
    """A node, and a job for each of `HOURS` that had it then; no cycle but one of long ago."""
    await ledger.register(gpus=2)
    await ledger.register("node-b", gpus=2)
    await _cycle(ledger, "first", 50, queued=3, placed=1)
    for job, (start, end) in HOURS.items():
        await ledger.add_job(job)
        await _placement(ledger, job, start)
        if end is not None:
            await ledger.rows(_END, job=job, end=_ago(end))
    return ledger


async def test_running_jobs_are_counted_at_the_end_of_each_bucket(past: Ledger):
    history = await _history(past)
    assert len(history.moments) in (97, 98)
    for moment in history.moments:
        ran = [
            job
            for job, (start, end) in HOURS.items()
            if _ago(start) < moment.at and (end is None or _ago(end) >= moment.at)
        ]
        # Some time passes between the two looks at the clock.
        near = any(abs(moment.at - _ago(at)) < timedelta(seconds=30) for at in _times())
        assert near or moment.running == len(ran), (moment, ran)
    assert history.moments[-1].running == 2
    assert max(moment.running for moment in history.moments) == 3


async def test_a_job_on_many_nodes_counts_once_and_another_pool_not_at_all(past: Ledger):
    before = await _history(past)
    await _placement(past, "goes-on", 21.5, rank=1, node="node-b")
    there = past.pool
    past.pool = f"{there}-2"
    await past.add_job("elsewhere")
    await _placement(past, "elsewhere", 3)
    await past.rows(_STOP, job="elsewhere", pool=past.pool, at=_ago(2))
    past.pool = there
    after = await _history(past)
    known = {moment.at: moment for moment in before.moments[:-1]}
    assert all(known.get(moment.at, moment) == moment for moment in after.moments)


async def test_who_waited_is_what_the_last_cycle_left(past: Ledger):
    await past.rows("UPDATE cycles SET committed_at = :at WHERE id = 'first'", at=_ago(23))
    await _cycle(past, "second", 10, queued=9, placed=2)
    await _cycle(past, "third", 5, queued=0, placed=0)
    waited = [moment.waiting for moment in (await _history(past)).moments]
    assert waited == sorted(waited, key=(None, 2, 7, 0).index)
    assert (waited.count(7), waited.count(0)) == (20, len(waited) - waited.index(0))
    assert waited[0] is None


async def test_a_cycle_of_before_the_day_says_who_waited_as_it_began(past: Ledger):
    assert {moment.waiting for moment in (await _history(past)).moments} == {2}


async def test_stops_count_in_the_bucket_in_which_they_were_decided(past: Ledger):
    for job, hours in (("from-before", 25.5), ("within", 21.1), ("goes-on", 2), ("short", 2)):
        await past.rows(_STOP, job=job, pool=past.pool, at=_ago(hours))
    history = await _history(past)
    stops = {moment.at: moment.stops for moment in history.moments if moment.stops}
    assert list(stops.values()) == [1, 2]
    for at, hours in zip(stops, (21.1, 2), strict=True):
        assert at - BUCKET <= _ago(hours) + timedelta(seconds=30)
        assert _ago(hours) - timedelta(seconds=30) < at
    assert history.moments[-1].running == 2


async def test_a_pool_that_is_not_there_is_not_found(ledger: Ledger):
    with pytest.raises(NotFoundError):
        await QueueHistories(ledger.database).history("no-such-pool")


async def test_what_ended_before_the_day_is_not_read(past: Ledger):
    now = datetime.now(UTC)
    asked = {"pool": past.pool, "since": now - OVER, "now": now, "bucket": BUCKET}
    async with past.database.transaction() as connection:
        for statement in _LONG_PAST:
            await connection.execute(text(statement), {"pool": past.pool})
        plan = await connection.execute(text(f"EXPLAIN (ANALYZE) {HISTORY}"), asked)
        steps = "\n".join(plan.scalars())
    assert "placements_by_end" in steps
    assert "Seq Scan on placements" not in steps
    read = re.findall(r"on placements .*actual time=\S+ rows=([\d.]+)", steps)
    assert len(read) >= 2
    assert sum(map(float, read)) <= len(HOURS)


async def _history(ledger: Ledger) -> QueueHistory:
    return await QueueHistories(ledger.database).history(ledger.pool)


async def _cycle(ledger: Ledger, name: str, hours: float, **numbers: int) -> None:
    await ledger.rows(_CYCLE, id=name, pool=ledger.pool, at=_ago(hours), **numbers)


async def _placement(
    ledger: Ledger, job: str, hours: float, *, rank: int = 0, node: str = "node-a"
) -> None:
    await ledger.rows(_PLACEMENT, job=job, attempt=1, rank=rank, node=node, start=_ago(hours))


def _ago(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


def _times() -> list[float]:
    return [hours for times in HOURS.values() for hours in times if hours is not None]
