"""What is kept of a pool between cycles equals a read of everything, whatever happened since."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.pool_cache import CachedPool, PoolCache
from longshore.activities.preemption_inputs import PreemptionInputs, read_inputs
from longshore.activities.queue_cache import differences
from longshore.activities.queue_rows import ensure_pool
from longshore.activities.snapshot import load_nodes, load_queue, load_running
from longshore.models.failover import SwapRequest
from longshore.models.job_request import JobRequest
from longshore.models.messages import LeaseEnd
from longshore.models.node import NodeState
from longshore.models.node_messages import DrainRequest, NodeEnd
from longshore.models.packing import PackingPolicy, PackingRule
from longshore.models.placement import PlacementKey
from longshore.scheduling.cycle import plan, plan_cached
from tests.scheduling.test_node_cache import assert_same_columns
from tests.support.ledger import Ledger, registration
from tests.support.packing import NOW, a_job

_JOBS = tuple(f"job-{number}" for number in range(8))
_GANG = "wide"
_NODES = ("node-a", "node-b", "node-c")
_HELD = ("held-a", "held-b", "held-c")
"""Nodes that take no job, each with one: transactions on them can stay open."""
_POLICY = PackingPolicy(rule=PackingRule.KEEP_ROOM)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 9))]
)
async def test_what_is_kept_is_what_a_read_of_everything_says(ledger: Ledger, seed: int):
    chance = random.Random(seed)  # the same seed is the same sequence
    workers = [PoolCache(), PoolCache()]
    async with ledger.listening(*_JOBS, _GANG), AsyncExitStack() as open_ones:
        story = _Story(ledger, chance, open_ones)
        await story.begin()
        for number, step in enumerate(story.steps()):
            await step()
            try:
                # Each of two workers looks now and then, so much may have changed since.
                await look(ledger, chance.choice(workers), chance)
            except AssertionError as error:
                raise AssertionError(f"step {number}: {step.__name__}") from error
        await story.commit_all()
        for worker in workers:
            await look(ledger, worker, chance)


async def test_transactions_that_commit_in_any_order_are_all_seen(ledger: Ledger):
    for node in _NODES:
        await ledger.register(node, gpus=2)
    kept, enough = PoolCache(), asyncio.Event()
    writing = [asyncio.create_task(_write(ledger, seed, enough)) for seed in range(6)]
    for number in range(40):
        await look(ledger, kept, random.Random(number))
    enough.set()
    await asyncio.gather(*writing)
    await look(ledger, kept, random.Random())


async def test_a_change_that_commits_after_later_ones_is_seen(held: Ledger):
    kept = PoolCache()
    async with held.database.transaction() as slow:
        await slow.execute(text("UPDATE gpus SET vram_mb = 90000 WHERE node_id = 'held-a'"))
        for _ in range(3):
            await held.rows("UPDATE gpus SET vram_mb = vram_mb + 1 WHERE node_id = 'held-b'")
            await look(held, kept, random.Random())
    await look(held, kept, random.Random())


async def test_what_did_not_change_is_not_read_again(held: Ledger):
    kept = PoolCache()
    before = (await look(held, kept, random.Random())).nodes.nodes
    await held.rows("UPDATE gpus SET vram_mb = 90000 WHERE node_id = 'held-b'")
    after = (await look(held, kept, random.Random())).nodes.nodes
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]


@pytest.mark.parametrize(
    "doubt",
    [{"server": "another"}, {"since": 1 << 62}, {"read_at": float("-inf")}],
    ids=["another server", "numbers that went back", "long ago"],
)
async def test_all_is_read_again_in_doubt(held: Ledger, doubt: dict[str, object]):
    kept = PoolCache()
    before = await look(held, kept, random.Random())
    kept.keep(held.pool, replace(before, **doubt))  # pyright: ignore[reportArgumentType]
    assert (await look(held, kept, random.Random())).nodes is not before.nodes


async def test_pools_that_sleep_are_forgotten(held: Ledger):
    kept = PoolCache()
    asleep = await look(held, kept, random.Random())
    kept.keep("asleep", replace(asleep, read_at=float("-inf")))
    await look(held, kept, random.Random())
    assert kept.names == {held.pool}


async def test_who_takes_and_fails_leaves_nothing(held: Ledger):
    kept = PoolCache()
    before = await look(held, kept, random.Random())
    async with held.database.snapshot() as connection:
        assert (await kept.take(connection, held.pool)).nodes is before.nodes
    assert (await look(held, kept, random.Random())).nodes is not before.nodes


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM nodes", "UPDATE nodes SET id = id || 'x'", "TRUNCATE nodes CASCADE",
        "TRUNCATE gpus", "DELETE FROM preemptions", "UPDATE preemptions SET attempt = 2",
        "TRUNCATE preemptions",
    ],
)  # fmt: skip
async def test_the_database_refuses_changes_that_nobody_would_hear_of(held: Ledger, change: str):
    await held.rows(_PREEMPT, job="of-held-a", attempt=1, pool=held.pool, seconds=60)
    with pytest.raises(IntegrityError, match="never removed"):
        await held.rows(change)


async def look(ledger: Ledger, pools: PoolCache, chance: random.Random) -> CachedPool:
    """Take the pool and hold it against a read of everything in the same snapshot."""
    async with ledger.database.snapshot() as connection:
        kept = await pools.take(connection, ledger.pool)
        nodes = await load_nodes(connection, ledger.pool)
        running = await load_running(connection, ledger.pool)
        entries = await load_queue(connection, ledger.pool)
        queue = [entry.request for entry in entries if not entry.held]
        now = await clock(connection) + timedelta(minutes=chance.choice([0, 0, 40]))
        nothing = await PoolCache().take(connection, ledger.pool)
        inputs = await read_inputs(connection, ledger.pool)
        assert _ordered(await read_inputs(connection, ledger.pool, kept=kept)) == _ordered(inputs)
        assert await differences(connection, ledger.pool, kept.queue) == frozenset()
    assert kept.nodes.nodes == nodes
    assert kept.queue.waiting(now) == nothing.queue.waiting(now)
    assert kept.queue.versions == nothing.queue.versions
    waiting = [entry.request for entry in kept.queue.waiting(now).entries.values()]
    assert sorted(waiting, key=_by_id) == sorted(queue, key=_by_id)
    assert sorted(kept.nodes.running, key=lambda job: (job.job_id, job.node_id)) == sorted(
        running, key=lambda job: (job.job_id, job.node_id)
    )
    queue += [a_job("one", 1, vram_per_gpu=10, cpus=1, ram=1, submitted_at=NOW)]
    queue += [a_job("two", 2, vram_per_gpu=10, cpus=1, ram=1, submitted_at=NOW)]
    expected = plan(queue, nodes, running, _POLICY, now)
    assert plan_cached(queue, kept.nodes, _POLICY, now) == expected
    assert_same_columns(kept.nodes.columns(now), nothing.nodes.columns(now))
    pools.keep(ledger.pool, kept)
    return kept


def _ordered(inputs: PreemptionInputs) -> PreemptionInputs:
    queue = tuple(sorted(inputs.queue, key=_by_id))
    return inputs.model_copy(update={"queue": queue})


def _by_id(job: JobRequest) -> str:
    return job.id


@pytest.fixture
async def held(ledger: Ledger) -> Ledger:
    """A pool with three nodes that take no job, each with one."""
    await hold(ledger)
    return ledger


async def hold(ledger: Ledger) -> None:
    """Let three nodes be there that take no job, each with one."""
    await ledger.add_job("for")
    for node in _HELD:
        await ledger.register(node, gpus=2)
        await ledger.add_job(f"of-{node}")
        await ledger.place(f"of-{node}", node=node)
    await ledger.rows("UPDATE nodes SET state = 'DRAINING'")


class _Story:
    """Does one thing after another to a pool, as chance has it."""

    def __init__(self, ledger: Ledger, chance: random.Random, open_ones: AsyncExitStack) -> None:
        self._ledger = ledger
        self._chance = chance
        self._attempts = dict.fromkeys((*_JOBS, _GANG), 1)
        self._boots = 1
        self._cycles = 0
        self._open_ones = open_ones
        self._open_on: dict[str, AsyncExitStack] = {}

    async def begin(self) -> None:
        await hold(self._ledger)
        async with self._ledger.database.transaction() as connection:
            await ensure_pool(connection, "elsewhere")
        for node in _NODES:
            await self._ledger.register(node, gpus=4, mig=(3,))

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        """Return all that can happen, several times each, as chance has it."""
        steps = [
            self._cycle, self._cycle, self._enqueue, self._enqueue, self._release,
            self._drain, self._end_node, self._register, self._move, self._preempt, self._swap,
            self._open, self._open, self._commit, self._outlive,
        ]  # fmt: skip
        return self._chance.sample(steps * 4, 4 * len(steps))

    async def commit_all(self) -> None:
        while self._open_on:
            await self._commit()

    async def _cycle(self) -> None:
        self._cycles += 1
        await self._ledger.cycle(f"cycle-{self._cycles}")

    async def _enqueue(self) -> None:
        chance = self._chance
        if chance.random() < 0.2:
            wish = {"group_gpus": 4, "spares_per_group": 1, "unlabelled_nodes": True}
            await self._ledger.enqueue(
                _GANG, attempt=self._attempts[_GANG], gpus=4, cpus=4, gang=wish
            )
            return
        part: dict[str, Any] = chance.choice(
            [{"gpus": 2}, {"milli": 300, "vram_per_gpu": 20}, {"mig": "1g.10gb"}]
        )
        job = chance.choice(_JOBS)
        await self._ledger.enqueue(
            job, attempt=self._attempts[job], cpus=chance.choice([0, 0.125, 3]), **part
        )

    async def _release(self) -> None:
        for job in (*self._chance.sample(_JOBS, 3), _GANG):
            await self._ledger.release(job, self._attempts[job])
            self._attempts[job] += 1

    async def _drain(self) -> None:
        node = self._chance.choice(_NODES)
        if epoch := await self._live_epoch(node):
            draining = self._chance.random() < 0.3
            request = DrainRequest(node_id=node, epoch=epoch, draining=draining)
            await self._ledger.run(self._ledger.registry.drain_node, request)

    async def _end_node(self) -> None:
        node = self._chance.choice(_NODES)
        if epoch := await self._live_epoch(node):
            state = self._chance.choice([NodeState.LOST, NodeState.GONE])
            request = NodeEnd(node_id=node, epoch=epoch, state=state, reason="chance")
            await self._ledger.run(self._ledger.registry.end_node, request)

    async def _register(self) -> None:
        await self._come(self._chance.choice(_NODES), self._ledger.pool)

    async def _move(self) -> None:
        await self._come(self._chance.choice(_NODES), "elsewhere")

    async def _come(self, node: str, pool: str) -> None:
        self._boots += 1
        gpus = self._chance.randint(2, 5)
        request = registration(
            pool, node, boot=f"boot-{self._boots}", gpus=gpus, mig=(1,), power=1500
        )
        await self._ledger.run(self._ledger.registry.register_node, request)

    async def _preempt(self) -> None:
        """Let jobs be stopped for another: their GPUs come free sooner."""
        for job in (*self._chance.sample(_JOBS, 3), _GANG):
            attempt = self._attempts[job]
            found = "SELECT FROM placements WHERE job_id = :job AND attempt = :attempt"
            if await self._ledger.rows(found, job=job, attempt=attempt):
                seconds = self._chance.choice([5, 30])
                await self._ledger.rows(
                    _PREEMPT, job=job, attempt=attempt, pool=self._ledger.pool, seconds=seconds
                )

    async def _swap(self) -> None:
        """Lose a node of the gang, and go on with a spare where there is one."""
        held = await self._ledger.rows(
            "SELECT node_id AS node, epoch FROM placements"
            " WHERE job_id = :job AND ended_at IS NULL AND NOT spare",
            job=_GANG,
        )
        if not held:
            return
        lost = self._chance.choice(held)
        end = NodeEnd(
            node_id=lost["node"], epoch=lost["epoch"], state=NodeState.LOST, reason="chance"
        )
        await self._ledger.run(self._ledger.registry.end_node, end)
        key = PlacementKey(job_id=_GANG, attempt=self._attempts[_GANG])
        request = SwapRequest(key=key, end=LeaseEnd.NODE_LOST, message="lost")
        await self._ledger.run(self._ledger.spares.swap, request)
        self._attempts[_GANG] += 1

    async def _open(self) -> None:
        """Begin a transaction that stays open."""
        if free := [node for node in _HELD if node not in self._open_on]:
            node = self._chance.choice(free)
            own = self._open_on[node] = await self._open_ones.enter_async_context(AsyncExitStack())
            connection = await own.enter_async_context(self._ledger.database.transaction())
            await self._change(connection, node)

    async def _commit(self) -> None:
        """Commit one that is open: not the oldest one, as a rule."""
        if self._open_on:
            node = self._chance.choice(sorted(self._open_on))
            await self._open_on.pop(node).aclose()

    async def _outlive(self) -> None:
        """Let the time of a node end, or not."""
        ends = self._chance.choice(["NULL", "now() + interval '30 minutes'"])
        node = self._chance.choice(_NODES)
        await self._ledger.rows(f"UPDATE nodes SET expires_at = {ends} WHERE id = :id", id=node)

    async def _change(self, connection: AsyncConnection, node: str) -> None:
        change = self._chance.choice(_CHANGES)
        pool, job = self._ledger.pool, f"of-{node}"
        values = {"node": node, "job": job, "pool": pool, "seconds": 20, "attempt": 1}
        wanted = {name: value for name, value in values.items() if f":{name}" in change}
        await connection.execute(text(change), wanted)

    async def _live_epoch(self, node: str) -> int | None:
        return await self._ledger.value(
            "SELECT epoch FROM nodes WHERE id = :node AND pool = :pool"
            " AND state IN ('READY', 'DRAINING')",
            node=node, pool=self._ledger.pool,
        )  # fmt: skip


async def _write(ledger: Ledger, seed: int, enough: asyncio.Event) -> None:
    """Change nodes and GPUs in transactions that take their time, and some of which fail."""
    chance = random.Random(seed)
    while not enough.is_set():
        nodes = sorted(chance.sample(_NODES, 2))  # in one order: nobody waits in a circle
        async with ledger.database.transaction() as connection:
            await connection.execute(text("SELECT pg_current_xact_id()"))
            for node in nodes:
                await connection.execute(text("SELECT pg_sleep(:s)"), {"s": chance.random() / 100})
                change = chance.choice(
                    ["UPDATE gpus SET vram_mb = :n WHERE node_id = :node AND index = 0",
                     "UPDATE nodes SET cpu_milli = :n WHERE id = :node"]
                )  # fmt: skip
                await connection.execute(
                    text(change), {"n": chance.randint(1000, 9000), "node": node}
                )
            if chance.random() < 0.2:
                await connection.rollback()


_PREEMPT = """
    INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,
                             for_priority, plan, frees_by)
    SELECT :job, CAST(:attempt AS integer), :pool, 'by hand', 'for', 1, 0, 1, '{}',
           clock_timestamp() + make_interval(secs => :seconds)
    ON CONFLICT (job_id, attempt) DO UPDATE SET frees_by = excluded.frees_by
"""

_CHANGES = (
    "UPDATE gpus SET vram_mb = vram_mb + 1000 WHERE node_id = :node",
    'UPDATE nodes SET labels = \'{"region": "eu"}\' WHERE id = :node',
    "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'finished'"
    " WHERE job_id = :job AND ended_at IS NULL",
    "DELETE FROM gpus WHERE node_id = :node AND index = 1",
    "UPDATE nodes SET pool = CASE pool WHEN 'elsewhere' THEN :pool ELSE 'elsewhere' END"
    " WHERE id = :node",
    _PREEMPT,
)
