"""A cycle with one job, its nodes read from nothing, and kept since the cycle before.

    python -m benchmarks.kept_nodes [--nodes 10000] [--turns 5] [--json]

A pool on a PostgreSQL of its own: nodes of 8 GPUs, a tenth of which work on a job each. In each
turn jobs end and others begin, so that one node of a hundred changes (half of them each); then the
same cycle is planned twice: `from nothing` reads all nodes and makes all views and columns, `kept`
reads what changed (`activities.pool_cache`). Both plans are checked to be the same.

`read` and `plan` are milliseconds on the clock, `processor` those of this process in both
together: what a control worker cannot do anything else in. The rest of `read` is the server's. The
least of the turns counts. `memory` is what a kept node holds, in kB. Nothing runs.
"""

import argparse
import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.decisions import KEEP_ROOM
from longshore.activities.database import Database
from longshore.activities.migrations import upgrade
from longshore.activities.pool_cache import PoolCache
from longshore.activities.snapshot import load_nodes, load_running
from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan
from longshore.scheduling.cycle import plan, plan_cached
from longshore.workers.postgres import LocalPostgres
from longshore.workers.processes import Processes

SIZES = (1_000, 10_000, 100_000)
SEED = 20261120
POOL = "default"
JOB = JobRequest(id="one", gpus=2, vram_per_gpu=40, cpus=8, ram=64)


@dataclass(frozen=True)
class Turn:
    """One cycle, in milliseconds."""

    read: float
    plan: float
    processor: float


@dataclass(frozen=True)
class Row:
    nodes: int
    changed: int
    first: Turn
    """The cycle after which something is kept."""
    from_nothing: Turn
    kept: Turn
    memory: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, help="only so many")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for nodes in (arguments.nodes,) if arguments.nodes else SIZES:
        with TemporaryDirectory(prefix="longshore-") as folder, own_postgres(Path(folder)) as url:
            rows.append(asyncio.run(_with(url, nodes, arguments.turns)))
        if not arguments.json:
            print(line(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


def line(row: Row) -> str:
    return (
        f"{row.nodes} nodes, {row.changed} changed: from nothing {_words(row.from_nothing)}; "
        f"kept {_words(row.kept)}; first {_words(row.first)}; {row.memory:.1f} kB a node"
    )


async def measure(database: Database, nodes: int, turns: int) -> Row:
    """Return what a cycle takes either way. Ends the program when plans differ."""
    chance, pools = random.Random(SEED), PoolCache()
    before = psutil.Process().memory_info().rss
    first, _ = await _from_kept(database, pools)
    gc.collect()
    memory = (psutil.Process().memory_info().rss - before) / nodes / 1000
    all_anew: list[Turn] = []
    kept: list[Turn] = []
    for turn in range(turns):
        await _change(database, nodes, turn, chance)
        ways = [_from_nothing(database), _from_kept(database, pools)]
        (one, made), (other, expected) = [await way for way in ways]
        if made != expected:
            sys.exit(f"{nodes} nodes: the two ways decided differently")
        all_anew.append(one)
        kept.append(other)
    changed = 2 * max(nodes // 200, 1)
    return Row(nodes, changed, first, _least(all_anew), _least(kept), memory)


async def _from_nothing(database: Database) -> tuple[Turn, CyclePlan]:
    taken = _Clock()
    async with database.snapshot() as connection:
        nodes = await load_nodes(connection, POOL)
        running = await load_running(connection, POOL)
    taken.has_read()
    made = plan([JOB], nodes, running, KEEP_ROOM, datetime.now(UTC))
    return taken.turn(), made


async def _from_kept(database: Database, pools: PoolCache) -> tuple[Turn, CyclePlan]:
    taken = _Clock()
    async with database.snapshot() as connection:
        kept = await pools.take(connection, POOL)
    taken.has_read()
    made = plan_cached([JOB], kept.nodes, KEEP_ROOM, datetime.now(UTC))
    turn = taken.turn()
    pools.keep(POOL, kept)
    return turn, made


class _Clock:
    def __init__(self) -> None:
        gc.collect()  # so that neither way pays for what the other left
        self._began, self._processor = time.perf_counter(), time.process_time()
        self._read = self._began

    def has_read(self) -> None:
        self._read = time.perf_counter()

    def turn(self) -> Turn:
        now, processor = time.perf_counter(), time.process_time() - self._processor
        return Turn(1e3 * (self._read - self._began), 1e3 * (now - self._read), 1e3 * processor)


def _least(turns: list[Turn]) -> Turn:
    def of(amount: Callable[[Turn], float]) -> float:
        return min(amount(turn) for turn in turns)

    return Turn(of(lambda t: t.read), of(lambda t: t.plan), of(lambda t: t.processor))


def _words(turn: Turn) -> str:
    return f"read {turn.read:.1f} ms plan {turn.plan:.1f} ms (processor {turn.processor:.1f})"


@contextmanager
def own_postgres(folder: Path) -> Iterator[str]:
    """Yield the URL of a database of a server of its own, migrated; the server ends with it."""
    server = LocalPostgres(folder / "postgres", Processes(folder))
    url = server.start(lambda _: None)
    try:
        upgrade(url)
        yield url
    finally:
        if running := server.running():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(running.pid)
                process.terminate()
                process.wait(60)


async def _with(url: str, nodes: int, turns: int) -> Row:
    database = Database(url)
    try:
        await _fill(database, nodes)
        return await measure(database, nodes, turns)
    finally:
        await database.close()


async def _fill(database: Database, nodes: int) -> None:
    async with database.transaction() as connection:
        for statement in _FILL:
            await connection.execute(
                text(statement), {"nodes": nodes} if ":nodes" in statement else {}
            )
        await _begin(connection, range(nodes // 10), 0)
    async with database.transaction() as connection:
        await connection.execute(text("ANALYZE"))


async def _change(database: Database, nodes: int, turn: int, chance: random.Random) -> None:
    """End jobs on one node of 200, and begin others on as many that are free."""
    some = max(nodes // 200, 1)
    async with database.transaction() as connection:
        ended = await connection.execute(text(_END), {"some": some})
        assert len(ended.all()) == some
        free = list(await connection.scalars(text(_FREE)))
        await _begin(connection, chance.sample(free, some), turn + 1)


async def _begin(connection: AsyncConnection, nodes: range | list[int], turn: int) -> None:
    values = {"numbers": list(nodes), "turn": turn}
    for statement in _BEGIN:
        await connection.execute(text(statement), values)


_FILL = (
    "INSERT INTO pools (name, spec) VALUES ('default', '{}')",
    "INSERT INTO cycles (id, pool, queued, placed, refused, took_ms)"
    " VALUES ('c', 'default', 0, 0, 0, 0)",
    """
    INSERT INTO nodes (id, pool, provider, tier, state, state_reason, epoch, agent_id, boot_id,
                       hostname, agent_version, simulated, gpu_type, cpu_milli, ram_mb, labels)
    SELECT 'node-' || i, 'default', 'own', 'FAST', 'READY', '', 1, 'a', 'b', 'h', '1', true,
           'H100', 128000, 1024000, '{"region": "eu", "cluster": "c1"}'
      FROM generate_series(0, :nodes - 1) AS i
    """,
    """
    INSERT INTO gpus (node_id, index, model, uuid, vram_mb)
    SELECT 'node-' || i, g, 'H100', '', 80000
      FROM generate_series(0, :nodes - 1) AS i, generate_series(0, 7) AS g
    """,
)

_BEGIN = (
    """
    INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)
    SELECT 'job-' || i || '-' || :turn, 'job', 'default', 'default', '{}', now(), ''
      FROM unnest(CAST(:numbers AS integer[])) AS i
    """,
    """
    INSERT INTO placements (job_id, attempt, cycle_id, node_id, epoch, gpu_indices, cpu_milli,
                            ram_mb, vram_mb, expected_seconds, decision)
    SELECT 'job-' || i || '-' || :turn, 1, 'c', 'node-' || i, 1,
           (SELECT array_agg(g) FROM generate_series(0, i % 4) AS g), 8000 * (1 + i % 4), 64000,
           40000, 3600 * (1 + i % 5), '{}'
      FROM unnest(CAST(:numbers AS integer[])) AS i
    """,
    """
    INSERT INTO leases (job_id, attempt, node_id, epoch, gpu_index, vram_mb, tenant)
    SELECT 'job-' || i || '-' || :turn, 1, 'node-' || i, 1, g, 40000, 'default'
      FROM unnest(CAST(:numbers AS integer[])) AS i, generate_series(0, i % 4) AS g
    """,
)

_END = """
    UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'finished'
     WHERE (job_id, attempt, rank) IN (SELECT job_id, attempt, rank FROM placements
                                        WHERE ended_at IS NULL ORDER BY placed_at LIMIT :some)
    RETURNING job_id
"""

_FREE = """
    SELECT CAST(split_part(id, '-', 2) AS integer) FROM nodes WHERE cpu_milli_used = 0 ORDER BY id
"""


if __name__ == "__main__":
    main()
