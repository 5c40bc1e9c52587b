"""What it costs a commit to say who pays, on a PostgreSQL of its own.

Run by `python -m benchmarks.funding --commits`. Jobs of 1, 2, 4 and 8 GPUs of 20 tenants in two
families are placed on empty nodes, planned and committed by the product's own code, as their
cycle does it; what counts is the transaction of the commit, to its end: milliseconds of the
processor, of this process and the server's, which others on the machine change less than those on
the clock. In turns

- `without`: no tenant has a budget;
- `open`: each has an envelope without an end that is larger than all that there is;
- `limited`: each has two that hold no more than its jobs, one for the type of GPU and one for any,
  below a cap of their family, and lends.

Then 8 pools commit at once, a few jobs each, in rounds: all on one envelope, and each on one of
its own: seconds on the clock. Nothing runs.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import psutil
from sqlalchemy import text

from longshore.activities.commit import commit
from longshore.activities.cycle_inputs import Planning
from longshore.activities.database import Database, clock
from longshore.activities.funding.edits import apply_budgets, remove_budget, set_tenant
from longshore.activities.funding.planning import (
    Settlement,
    funded_by,
    read_funding,
    settlement_of,
)
from longshore.activities.pool_cache import PoolCache
from longshore.activities.queue_rows import put_into_queue
from longshore.activities.snapshot import load_pool
from longshore.models.funding import Budget, Cap, Envelope, Lending, Tenant
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.margins import DEFAULT_MARGINS
from longshore.models.messages import CycleRequest, EnqueueRequest
from longshore.models.node import Node
from longshore.models.placement import CyclePlan
from longshore.scheduling.order import queue_order
from longshore.scheduling.unplannable_jobs import plan_without

POOL = "pool"
KINDS = ("without", "open", "limited")
TENANTS = 20
POOLS = 8
_FAMILIES = ("left", "right")
_SIZES = (1, 2, 4, 8)
_GPUS = 8
_MANY = 1_000_000.0


@dataclass(frozen=True)
class Commits:
    placements: int
    turns: int
    without: float
    """Milliseconds of the processor for a commit of so many; the median of all turns."""
    open: float
    limited: float
    times_open: float
    """How many times as long as without budgets in the same turn; the median of all turns."""
    times_limited: float
    at_once: int
    """Placements of each pool in a round, where pools commit at once."""
    one_envelope: float
    """Placements a second, of all pools together."""
    own_envelopes: float
    deadlocks: int

    @property
    def of_the_rate(self) -> float:
        return self.one_envelope / self.own_envelopes


class _Made(NamedTuple):
    request: CycleRequest
    plan: CyclePlan
    queue: Sequence[JobRequest]
    nodes: Sequence[Node]
    settlement: Settlement | None


async def measure(url: str, placements: int, turns: int, at_once: int) -> Commits:
    """Return what commits took; all of their jobs were placed and paid for, or this fails."""
    database = Database(url, pool_size=POOLS)
    try:
        scene = _Scene(database)
        alone = await _Alone(scene, placements).all(turns)
        together = _Together(scene, at_once)
        one, own = await together.all(turns)
    finally:
        await database.close()
    return Commits(
        placements, turns, statistics.median(alone["without"]), statistics.median(alone["open"]),
        statistics.median(alone["limited"]),
        _times(alone, "open"), _times(alone, "limited"), at_once, one, own, together.deadlocks,
    )  # fmt: skip


def _times(took: Mapping[str, Sequence[float]], kind: str) -> float:
    return statistics.median(
        long / base for long, base in zip(took[kind], took["without"], strict=True)
    )


def told(made: Commits) -> str:
    return (
        f"commit of {made.placements:,} placements: {made.without:.0f} ms without budgets; with "
        f"envelopes without an end {made.open:.0f} ms, {made.times_open:.2f} times; with limited "
        f"ones below caps {made.limited:.0f} ms, {made.times_limited:.2f} times\n"
        f"{POOLS} pools commit {made.at_once} placements each at once: {made.one_envelope:,.0f} a "
        f"second on one envelope, {made.own_envelopes:,.0f} on {POOLS}: "
        f"{made.of_the_rate:.2f} of the rate, {made.deadlocks} deadlocks"
    )


class _Scene:
    """Pools with empty nodes, and jobs that come and go."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._pools = PoolCache()
        self._number = 0

    async def fill(self, pool: str, nodes: int) -> None:
        async with self.database.transaction() as connection:
            for statement in _FILL:
                values = (
                    {"pool": pool, "nodes": nodes} if ":nodes" in statement else {"pool": pool}
                )
                await connection.execute(text(statement), values)

    async def queue(self, pool: str, specs: Sequence[JobSpec]) -> None:
        async with self.database.transaction() as connection:
            for spec in specs:
                self._number += 1
                refusal = await put_into_queue(
                    connection,
                    EnqueueRequest(
                        job_id=f"job-{self._number:07}", attempt=1, spec=spec,
                        submitted_at=datetime.now(UTC),
                    ),
                )  # fmt: skip
                if refusal:
                    raise AssertionError(refusal)

    async def decide(self, pool: str) -> _Made:
        """Plan what waits, as the cycle does."""
        async with self.database.snapshot() as connection:
            spec = await load_pool(connection, pool, DEFAULT_MARGINS)
            kept = await self._pools.take(connection, pool)
            now = await clock(connection)
            queue = [each.request for each in kept.queue.waiting(now).entries.values()]
            funding = await read_funding(connection, pool, queue)
            packing = spec.packing
            if funding:
                ordered = queue_order(queue, packing, now, kept.nodes.nodes, kept.nodes.running)
                packing = funded_by(packing, pool, funding, ordered, now)
        plan = plan_without(Planning(kept.nodes, packing, now, (), None, None), queue)
        nodes = kept.nodes.named({id for each in plan.placements for id, _ in each.held})
        self._pools.keep(pool, kept)
        self._number += 1
        request = CycleRequest(pool=pool, cycle_id=f"{pool}/{self._number}")
        return _Made(
            request, plan, queue, nodes, settlement_of(funding, pool, plan, queue, nodes, now)
        )

    async def commit(self, made: _Made) -> None:
        async with self.database.transaction() as connection:
            placed = await commit(
                connection, made.request, made.plan, made.queue, made.nodes, made.settlement
            )
        if len(placed) < len(made.queue):
            raise AssertionError(f"{len(made.queue) - len(placed)} jobs were not placed")

    async def check(self, *, paid: bool) -> None:
        """All that runs is paid for, or nothing is: no tenant has a budget then."""
        async with self.database.transaction() as connection:
            row = (await connection.execute(text(_PAID))).one()
        if row.paid != (row.held if paid else 0) or not row.held:
            raise AssertionError(f"{row.paid} of {row.held} GPUs are paid for")

    async def end_all(self) -> None:
        async with self.database.transaction() as connection:
            await connection.execute(text(_END))
        async with self.database.transaction() as connection:
            await connection.execute(text("ANALYZE"))

    async def budgets(self, budgets: Sequence[Budget]) -> None:
        async with self.database.transaction() as connection:
            found = await connection.scalars(text(_WITH_BUDGET))
            for tenant in found.all():
                await remove_budget(connection, tenant)
        async with self.database.transaction() as connection:
            await apply_budgets(connection, budgets)


class _Alone:
    """One pool, whose commits are large."""

    def __init__(self, scene: _Scene, placements: int) -> None:
        self._scene = scene
        self._specs = [_spec(POOL, number, _SIZES[number // TENANTS % 4])
                       for number in range(placements)]  # fmt: skip
        self._gpus: dict[str, int] = {}
        for spec in self._specs:
            self._gpus[spec.tenant] = self._gpus.get(spec.tenant, 0) + spec.gpus

    async def all(self, turns: int) -> dict[str, list[float]]:
        scene = self._scene
        await scene.fill(POOL, -(-sum(self._gpus.values()) // _GPUS) + 1)
        server = await _server(scene.database)
        await _family(scene.database, sorted(self._gpus))
        took: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for turn in range(turns + 1):
            for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
                await scene.budgets(self._budgets(kind))
                await scene.queue(POOL, self._specs)
                made = await scene.decide(POOL)
                gc.collect()
                began = _seconds(server)
                await scene.commit(made)
                if turn:  # the first is for plans and caches
                    took[kind].append(1000 * (_seconds(server) - began))
                await scene.check(paid=kind != "without")
                await scene.end_all()
        return took

    def _budgets(self, kind: str) -> list[Budget]:
        if kind == "without":
            return []
        if kind == "open":
            envelope = Envelope(name="main", gpus=_MANY, end=None)
            return [Budget(tenant=name, envelopes=(envelope,)) for name in sorted(self._gpus)]
        caps = [
            Budget(tenant=family, caps=(Cap(name="all", gpus=self._of(family), subtree=True),))
            for family in _FAMILIES
        ]
        return caps + [self._limited(name, gpus) for name, gpus in sorted(self._gpus.items())]

    def _of(self, family: str) -> int:
        return sum(gpus for name, gpus in self._gpus.items() if _above(name) == family)

    def _limited(self, tenant: str, gpus: int) -> Budget:
        lending = Lending(to=("stranger",), max=1)
        half = gpus // 2
        return Budget(
            tenant=tenant,
            envelopes=(
                Envelope(name="h100", gpus=half, gpu_type="H100", end=None, lending=lending),
                Envelope(name="any", gpus=gpus - half, end=None),
            ),
        )


class _Together:
    """Several pools, whose commits come at once."""

    def __init__(self, scene: _Scene, at_once: int) -> None:
        self._scene = scene
        self._at_once = at_once
        self._pools = [f"pool-{number}" for number in range(POOLS)]
        self.deadlocks = 0

    async def all(self, turns: int) -> tuple[float, float]:
        """Return placements a second on one envelope, and on one for each pool."""
        for pool in self._pools:
            await self._scene.fill(pool, -(-self._at_once // _GPUS))
        count = POOLS * self._at_once
        one = [Budget(tenant="all", envelopes=(Envelope(name="main", gpus=count, end=None),))]
        own = [
            Budget(
                tenant=pool,
                envelopes=(Envelope(name="main", gpus=self._at_once, end=None),),
            )
            for pool in self._pools
        ]
        took: tuple[list[float], list[float]] = ([], [])
        for turn in range(turns + 1):
            for which, budgets in enumerate((one, own)):
                await self._scene.budgets(budgets)
                seconds = await self._round(None if which else "all")
                if turn:
                    took[which].append(seconds)
        return count / statistics.median(took[0]), count / statistics.median(took[1])

    async def _round(self, tenant: str | None) -> float:
        for pool in self._pools:
            specs = [_spec(pool, number, 1, tenant or pool) for number in range(self._at_once)]
            await self._scene.queue(pool, specs)
        made = [await self._scene.decide(pool) for pool in self._pools]
        gc.collect()
        began = time.perf_counter()
        found = await asyncio.gather(
            *(self._scene.commit(each) for each in made), return_exceptions=True
        )
        seconds = time.perf_counter() - began
        for error in found:
            if error is not None and "deadlock" not in str(error):
                raise error
            self.deadlocks += error is not None
        await self._scene.check(paid=True)
        await self._scene.end_all()
        return seconds


async def _family(database: Database, tenants: Sequence[str]) -> None:
    async with database.transaction() as connection:
        for family in _FAMILIES:
            await set_tenant(connection, Tenant(name=family))
        for name in tenants:
            await set_tenant(connection, Tenant(name=name, parent=_above(name)))


async def _server(database: Database) -> psutil.Process:
    async with database.transaction() as connection:
        backend = await connection.scalar(text("SELECT pg_backend_pid()"))
    parent = psutil.Process(backend).parent()
    assert parent is not None
    return parent


def _seconds(server: psutil.Process) -> float:
    """Return what this process and those of a server have taken of the processor."""
    used = [each.cpu_times() for each in (psutil.Process(), server, *server.children())]
    return sum(each.user + each.system for each in used)


def _above(tenant: str) -> str:
    return _FAMILIES[int(tenant.rpartition("-")[2]) % len(_FAMILIES)]


def _spec(pool: str, number: int, gpus: int, tenant: str | None = None) -> JobSpec:
    return JobSpec(
        name="paid", command=("true",), pool=pool, gpus=gpus,
        tenant=tenant or f"tenant-{number % TENANTS}",
    )  # fmt: skip


_FILL = (
    "INSERT INTO pools (name, spec) VALUES (:pool, '{}')",
    """
    INSERT INTO nodes (id, pool, provider, tier, state, state_reason, epoch, agent_id, boot_id,
                       hostname, agent_version, simulated, gpu_type, cpu_milli, ram_mb, labels)
    SELECT :pool || '-node-' || i, :pool, 'own', 'FAST', 'READY', '', 1, 'a', 'b', 'h', '1',
           true, 'H100', 128000, 1024000, '{"region": "eu"}'
      FROM generate_series(1, :nodes) AS i
    """,
    """
    INSERT INTO gpus (node_id, index, model, uuid, vram_mb)
    SELECT n.id, g, 'H100', '', 80000
      FROM nodes n, generate_series(0, 7) AS g WHERE n.pool = :pool
    """,
)

_END = """
    UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'finished'
     WHERE ended_at IS NULL
"""

_PAID = """
    SELECT (SELECT coalesce(sum(cardinality(gpu_indices)), 0)
              FROM placements WHERE ended_at IS NULL) AS held,
           (SELECT coalesce(sum(cardinality(gpu_indices)), 0)
              FROM charges WHERE ended_at IS NULL) AS paid
"""

_WITH_BUDGET = "SELECT name FROM tenants WHERE budget_since IS NOT NULL ORDER BY name"
