"""The queue that is kept between cycles equals a read of everything, whatever happened since."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities import pool_cache
from longshore.activities.database import clock
from longshore.activities.metrics import KEPT_DIFFERENCES, Metric, Metrics
from longshore.activities.pool_cache import CHECKED_EVERY, CachedPool, PoolCache
from longshore.activities.queue_cache import differences, note_length, read_all, trim_left
from longshore.activities.queue_rows import ensure_pool
from longshore.activities.snapshot import load_queue, read_queue
from longshore.models.job_request import JobRequest
from longshore.models.messages import CycleRequest, HoldRequest
from longshore.models.placement import PlacementKey
from tests.support.ledger import Ledger

_JOBS = tuple(f"job-{number}" for number in range(6))
_OPEN = tuple(f"open-{number}" for number in range(4))
"""Jobs that no step but an open transaction writes: it may stay open."""
_UNREADABLE = 'request || \'{"expected_duration": "99999999h"}\''


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 9))]
)
async def test_what_is_kept_is_what_a_read_of_everything_says(ledger: Ledger, seed: int):
    chance = random.Random(seed)  # the same seed is the same sequence
    workers = [PoolCache(), PoolCache()]
    async with ledger.listening(*_JOBS), AsyncExitStack() as open_ones:
        story = _Story(ledger, chance, open_ones)
        await story.begin()
        for number, step in enumerate(story.steps()):
            await step()
            try:
                # Each of two workers looks now and then, so much may have changed since.
                seen = await look(ledger, chance.choice(workers))
            except AssertionError as error:
                raise AssertionError(f"step {number}: {step.__name__}") from error
            if chance.random() < 0.2:
                await _note_length(ledger, seen)
        await story.commit_all()
        for worker in workers:
            await look(ledger, worker)


async def test_transactions_that_commit_in_any_order_are_all_seen(ledger: Ledger):
    pools, enough = PoolCache(), asyncio.Event()
    for job in _JOBS:
        await ledger.add_job(job)
    writing = [asyncio.create_task(_write(ledger, seed, enough)) for seed in range(6)]
    for number in range(60):
        seen = await look(ledger, pools)
        if number % 5 == 0:
            await _note_length(ledger, seen)
    enough.set()
    await asyncio.gather(*writing)
    await look(ledger, pools)


async def test_a_job_that_comes_again_in_an_older_transaction_is_there(ledger: Ledger):
    """Who puts it back has a lower number than who took it out, and one between them holds the
    mark back: what says that it left is read again, and its row has an older mark."""
    pools = PoolCache()
    await ledger.enqueue("a")
    async with ledger.database.transaction() as between:
        async with ledger.database.transaction() as older:
            for connection in (older, between):
                await connection.execute(text("SELECT pg_current_xact_id()"))
            await ledger.rows("DELETE FROM queue WHERE job_id = 'a'")
            assert await _entries(ledger, pools) == {}
            await _insert(older, ledger.pool, "a")
        for _ in range(3):
            assert "a" in await _entries(ledger, pools)


async def test_what_did_not_change_is_not_read_again(ledger: Ledger):
    pools = PoolCache()
    for job in ("a", "b", "c"):
        await ledger.enqueue(job, gpus=3)
    before = await _entries(ledger, pools)
    await ledger.rows("UPDATE queue SET priority = 9 WHERE job_id = 'b'")
    await ledger.register()
    await ledger.cycle("one")  # writes why they wait
    after = await _entries(ledger, pools)
    assert [after[job] is before[job] for job in ("a", "b", "c")] == [True, False, True]


async def test_two_workers_know_what_the_other_stored(ledger: Ledger):
    one, other = PoolCache(), PoolCache()
    await ledger.enqueue("a")
    for worker in (one, other):
        await look(ledger, worker)
    for said in ("this", "that", "this"):
        await ledger.rows(
            "UPDATE queue SET decision = jsonb_build_object('kind', 'QUEUE_FOR_FLEX', 'reason',"
            " CAST(:said AS text)), decided_at = now()", said=said,
        )  # fmt: skip
        for worker in (one, other):
            seen = await look(ledger, worker)
            async with ledger.database.snapshot() as connection:
                now = await clock(connection)
            assert seen.queue.waiting(now).stored["a"].words == said


@pytest.mark.parametrize(
    "doubt",
    [{"server": "another"}, {"since": 1 << 62}, {"read_at": float("-inf")}],
    ids=["another server", "numbers that went back", "long ago"],
)
async def test_all_is_read_again_in_doubt(ledger: Ledger, doubt: dict[str, object]):
    pools = PoolCache()
    await ledger.enqueue("a")
    before = await look(ledger, pools)
    pools.keep(ledger.pool, replace(before, **doubt))  # pyright: ignore[reportArgumentType]
    assert (await look(ledger, pools)).queue is not before.queue


async def test_who_missed_what_was_trimmed_reads_all(ledger: Ledger):
    awake, asleep = PoolCache(), PoolCache()
    for job in ("a", "b"):
        await ledger.enqueue(job)
    for worker in (awake, asleep):
        await look(ledger, worker)
    await ledger.rows("DELETE FROM queue WHERE job_id = 'a'")
    seen = await look(ledger, awake)
    await _trim(ledger)
    assert await ledger.value("SELECT count(*) FROM queue_left") == 1, "it is too young"
    await ledger.rows("UPDATE queue_left SET left_at = left_at - interval '1 hour'")
    await look(ledger, awake)
    async with ledger.database.transaction() as old:
        await old.execute(text("SELECT pg_current_xact_id()"))
        await ledger.rows("DELETE FROM queue WHERE job_id = 'b'")
        await ledger.rows("UPDATE queue_left SET left_at = left_at - interval '1 hour'")
        await _trim(ledger)
        left = await ledger.rows("SELECT job_id FROM queue_left")
        assert left == [{"job_id": "b"}], "a reader may have to read it again"
    assert (await look(ledger, awake)).queue is seen.queue
    await _trim(ledger)
    assert await ledger.rows("SELECT job_id FROM queue_left") == []
    assert await _entries(ledger, asleep) == {}


async def test_every_hundredth_cycle_trims(ledger: Ledger):
    await ledger.enqueue("a")
    await ledger.rows("DELETE FROM queue")
    await ledger.rows("UPDATE queue_left SET left_at = left_at - interval '1 hour'")
    for number, left in ((99, 1), (100, 0)):
        request = CycleRequest(pool=ledger.pool, cycle_id=f"new-{number}", number=number)
        await ledger.run(ledger.cycles.run_cycle, request)
        assert await ledger.value("SELECT count(*) FROM queue_left") == left


async def test_every_hundredth_take_finds_what_no_mark_said(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    metrics = _Counted()
    pools = PoolCache(metrics)
    await ledger.enqueue("a")
    await ledger.enqueue("b")
    await look(ledger, pools)
    for change in (
        "UPDATE queue SET held = true WHERE job_id = 'a'", "DELETE FROM queue WHERE job_id = 'b'"
    ):  # fmt: skip
        await _silently(ledger, change)
    stale = await _take(ledger, pools)
    assert sorted(await _entries(ledger, pools, checked=False)) == ["a", "b"]
    pools.keep(ledger.pool, replace(stale, takes=CHECKED_EVERY - 1))
    caplog.set_level(logging.ERROR, pool_cache.__name__)
    fresh = await look(ledger, pools)
    assert fresh.queue is not stale.queue
    assert await _entries(ledger, pools) == {}
    assert "2 of its queue were kept wrong: a, b" in caplog.text
    assert metrics.counted == 2


async def test_the_length_of_a_long_queue_is_counted_from_what_a_cycle_saw(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool_cache, "LONG", 3)
    pools, noted = PoolCache(), "SELECT counted FROM pools WHERE name = :pool"

    async def look_and_note() -> object:
        await look(ledger, pools)
        await pools.note_length(ledger.database, ledger.pool)
        return await ledger.value(noted, pool=ledger.pool)

    for number, expected in enumerate([None, None, 3, 3]):
        await ledger.enqueue(f"job-{number}")
        assert await look_and_note() == expected, "it is short, or was noted just before"
    length = "SELECT queue_length(:pool)"
    assert await ledger.value(length, pool=ledger.pool) == 4
    await ledger.rows("UPDATE pools SET counted = counted + 100")
    assert await ledger.value(length, pool=ledger.pool) == 104, "it counts from what was noted"
    await ledger.rows("UPDATE pools SET counted_on = 'another'")
    assert await ledger.value(length, pool=ledger.pool) == 4, "another server has other numbers"
    monkeypatch.setattr(pool_cache, "_NOTED_EVERY", 0.0)
    assert await look_and_note() == 4
    for number in range(3):
        await ledger.rows("DELETE FROM queue WHERE job_id = :job", job=f"job-{number}")
    await ledger.rows("UPDATE queue_left SET left_at = left_at - interval '1 hour'")
    await _trim(ledger)
    assert await ledger.value(length, pool=ledger.pool) == 1, "who left is known no more"
    assert await look_and_note() == 1, "it was long"


@pytest.mark.parametrize(
    "change",
    ["TRUNCATE queue", "UPDATE queue SET job_id = 'b'", "UPDATE queue SET pool = 'elsewhere'"],
)
async def test_the_database_refuses_changes_that_nobody_would_hear_of(ledger: Ledger, change: str):
    await ledger.enqueue("a")
    await ledger.add_job("b")
    async with ledger.database.transaction() as connection:
        await ensure_pool(connection, "elsewhere")
    with pytest.raises(IntegrityError, match="leave one by one"):
        await ledger.rows(change)


async def look(ledger: Ledger, pools: PoolCache) -> CachedPool:
    """Take the pool and hold its queue against a read of everything in the same snapshot."""
    async with ledger.database.snapshot() as connection:
        seen = await pools.take(connection, ledger.pool)
        everything = await read_all(connection, ledger.pool)
        rows = await read_queue(connection, ledger.pool)
        load = await load_queue(connection, ledger.pool)
        now = await clock(connection)
        assert await differences(connection, ledger.pool, seen.queue) == frozenset()
        length, rows_there = (await connection.execute(text(_LENGTH), {"pool": ledger.pool})).one()
        assert length == rows_there == len(seen.queue.versions)
    waiting = seen.queue.waiting(now)
    expected = everything.waiting(now)
    assert waiting.entries == expected.entries
    assert waiting.stored == expected.stored
    assert waiting.unreadable.keys() == expected.unreadable.keys()
    assert waiting.unreadable.keys() <= rows.unreadable.keys()
    found = [entry.request for entry in waiting.entries.values()]
    assert _by_id(found) == _by_id([entry.request for entry in load if not entry.held])
    pools.keep(ledger.pool, seen)
    return seen


async def _note_length(ledger: Ledger, seen: CachedPool) -> None:
    async with ledger.database.transaction() as connection:
        length = len(seen.queue.versions)
        await note_length(connection, ledger.pool, length, seen.snapshot, seen.server)


def _by_id(jobs: list[JobRequest]) -> dict[str, JobRequest]:
    return {job.id: job for job in jobs}


async def _take(ledger: Ledger, pools: PoolCache) -> CachedPool:
    async with ledger.database.snapshot() as connection:
        seen = await pools.take(connection, ledger.pool)
    pools.keep(ledger.pool, seen)
    return seen


async def _entries(ledger: Ledger, pools: PoolCache, *, checked: bool = True) -> dict[str, object]:
    seen = await (look if checked else _take)(ledger, pools)
    async with ledger.database.snapshot() as connection:
        now = await clock(connection)
    return dict(seen.queue.waiting(now).entries)


async def _trim(ledger: Ledger) -> None:
    async with ledger.database.transaction() as connection:
        await trim_left(connection, ledger.pool)


async def _silently(ledger: Ledger, change: str) -> None:
    """Write without the triggers that leave marks."""
    await ledger.rows("ALTER TABLE queue DISABLE TRIGGER USER")
    await ledger.rows(change)
    await ledger.rows("ALTER TABLE queue ENABLE TRIGGER USER")


async def _insert(connection: AsyncConnection, pool: str, job: str) -> None:
    await connection.execute(text(_INSERT), {"job": job, "pool": pool, "attempt": 1})


class _Counted(Metrics):
    """Counts differences."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    def add(self, metric: Metric, count: int = 1, **labels: str) -> None:
        super().add(metric, count, **labels)
        assert metric is KEPT_DIFFERENCES
        self.counted += count


class _Story:
    """Does one thing after another to a queue, as chance has it."""

    def __init__(self, ledger: Ledger, chance: random.Random, open_ones: AsyncExitStack) -> None:
        self._ledger = ledger
        self._chance = chance
        self._attempts = dict.fromkeys(_JOBS, 1)
        self._cycles = 0
        self._open_ones = open_ones
        self._open_on: dict[str, AsyncExitStack] = {}

    async def begin(self) -> None:
        await self._ledger.register("node-a", gpus=2)
        for job in _OPEN:
            await self._ledger.enqueue(job, gpus=8)

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        """Return all that can happen, several times each, as chance has it."""
        steps = [
            self._cycle, self._cycle, self._enqueue, self._enqueue, self._release, self._hold,
            self._spoil, self._rest, self._reorder, self._again, self._open, self._open,
            self._commit, self._trim,
        ]  # fmt: skip
        return self._chance.sample(steps * 4, 4 * len(steps))

    async def commit_all(self) -> None:
        while self._open_on:
            await self._commit()

    async def _cycle(self) -> None:
        if self._chance.random() < 0.3:
            await self.commit_all()  # what it writes would wait for them
        if not self._open_on:
            self._cycles += 1
            await self._ledger.cycle(f"cycle-{self._cycles}")

    async def _enqueue(self) -> None:
        job = self._chance.choice(_JOBS)
        await self._ledger.enqueue(
            job, attempt=self._attempts[job], gpus=self._chance.choice([1, 2, 5]),
            held=self._chance.random() < 0.2,
        )  # fmt: skip

    async def _release(self) -> None:
        for job in self._chance.sample(_JOBS, 3):
            await self._ledger.release(job, self._attempts[job])
            self._attempts[job] += 1

    async def _hold(self) -> None:
        job = self._chance.choice(_JOBS)
        key = PlacementKey(job_id=job, attempt=self._attempts[job])
        request = HoldRequest(key=key, held=self._chance.random() < 0.5)
        await self._ledger.run(self._ledger.queue.set_hold, request)

    async def _spoil(self) -> None:
        """Let a job be one that this version cannot read."""
        job = self._chance.choice(_JOBS)
        await self._ledger.rows(
            f"UPDATE queue SET request = {_UNREADABLE} WHERE job_id = :job", job=job
        )

    async def _rest(self) -> None:
        """Let those that were set aside have rested."""
        age = timedelta(minutes=self._chance.choice([5, 11]))
        await self._ledger.rows(
            "UPDATE queue SET decided_at = decided_at - :age WHERE job_id = ANY(:jobs)",
            age=age, jobs=list(_JOBS),
        )  # fmt: skip

    async def _reorder(self) -> None:
        job = self._chance.choice(_JOBS)
        await self._ledger.rows(
            "UPDATE queue SET queued_at = queued_at - interval '1 day' WHERE job_id = :job",
            job=job,
        )

    async def _again(self) -> None:
        """Let a job leave and come again in one transaction."""
        job = self._chance.choice(_JOBS)
        async with self._ledger.database.transaction() as connection:
            found = await connection.execute(
                text("DELETE FROM queue WHERE job_id = :job RETURNING attempt"), {"job": job}
            )
            if found.first() is not None:
                await _insert(connection, self._ledger.pool, job)
                self._attempts[job] = 1

    async def _open(self) -> None:
        """Begin a transaction that stays open."""
        if free := [job for job in _OPEN if job not in self._open_on]:
            job = self._chance.choice(free)
            own = self._open_on[job] = await self._open_ones.enter_async_context(AsyncExitStack())
            connection = await own.enter_async_context(self._ledger.database.transaction())
            change = self._chance.choice(_CHANGES)
            if change is _INSERT:
                await connection.execute(text(_LEAVE), {"job": job})
                await _insert(connection, self._ledger.pool, job)
            else:
                await connection.execute(text(change), {"job": job})

    async def _commit(self) -> None:
        """Commit one that is open: not the oldest one, as a rule."""
        if self._open_on:
            job = self._chance.choice(sorted(self._open_on))
            await self._open_on.pop(job).aclose()

    async def _trim(self) -> None:
        await self._ledger.rows("UPDATE queue_left SET left_at = left_at - interval '1 hour'")
        await _trim(self._ledger)


async def _write(ledger: Ledger, seed: int, enough: asyncio.Event) -> None:
    """Let jobs come, leave and change in transactions that take their time; some fail."""
    chance = random.Random(seed)
    while not enough.is_set():
        jobs = sorted(chance.sample(_JOBS, 2))  # in one order: nobody waits in a circle
        async with ledger.database.transaction() as connection:
            await connection.execute(text("SELECT pg_current_xact_id()"))
            for job in jobs:
                await connection.execute(text("SELECT pg_sleep(:s)"), {"s": chance.random() / 100})
                change = chance.choice((*_CHANGES, _INSERT, _INSERT))
                if change is _INSERT:
                    await _insert(connection, ledger.pool, job)
                else:
                    await connection.execute(text(change), {"job": job})
            if chance.random() < 0.2:
                await connection.rollback()


_INSERT = """
    INSERT INTO queue (job_id, attempt, pool, held, priority, request, submitted_at)
    SELECT :job, :attempt, :pool, false, 5,
           jsonb_build_object('id', CAST(:job AS text), 'gpus', 8, 'priority', 5), now()
    ON CONFLICT (job_id) DO NOTHING
"""

_LENGTH = "SELECT queue_length(:pool), (SELECT count(*) FROM queue WHERE pool = :pool)"

_LEAVE = "DELETE FROM queue WHERE job_id = :job"

_CHANGES = (
    "UPDATE queue SET held = NOT held WHERE job_id = :job",
    "UPDATE queue SET request = request || '{\"gpus\": 7}' WHERE job_id = :job",
    "UPDATE queue SET told_at = now(), told_reason = 'by hand' WHERE job_id = :job",
    _LEAVE,
    _INSERT,
)
