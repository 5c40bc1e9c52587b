"""One cycle of a large pool: 10,000 jobs wait for 10,000 nodes, and a tenth of them is placed.

    python -m benchmarks.whole_cycle [--nodes 10000] [--waiting 10000] [--turns 3] [--json]

A pool on a PostgreSQL of its own: nodes of 8 GPUs, all busy but for four GPUs on every tenth one.
Jobs of 1, 2, 4 and 8 GPUs wait, of mixed sizes and one class: none is preempted. The cycle is the
activity's own (`CycleActivities`), with all that it reads, plans, commits and explains in the
database; only the signals to jobs are left out, which have no workflows here. `first` is the first
cycle of a process: it reads all nodes and all jobs. Before each further one the jobs of the last
end, and as many new ones are queued.

Milliseconds on the clock, as `longshore cycles` shows them; `memory` is what the process held at
most, in MB. Nothing runs.
"""

import argparse
import asyncio
import json
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import text

from benchmarks.growth import PARTS
from benchmarks.kept_nodes import own_postgres
from longshore.activities.cycle import CycleActivities
from longshore.activities.database import Database
from longshore.activities.queue_rows import put_into_queue
from longshore.activities.signals import Signals
from longshore.models.base import Wire
from longshore.models.job import JobSpec
from longshore.models.messages import CycleRequest, EnqueueRequest
from longshore.scheduling.bulk.warm import warm

_AT_ONCE = 1000
"""Jobs that are queued in one transaction."""
_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Cycle:
    waiting: int
    placed: int
    ms: dict[str, float]
    """By part, and as `took` all of it."""


@dataclass(frozen=True)
class Report:
    nodes: int
    first: Cycle
    later: list[Cycle]
    memory: float
    """MB at most, of this process."""


class _Unheard(Signals):
    """Tells nobody: the jobs here have no workflows."""

    def __init__(self) -> None:
        pass

    async def tell_jobs(
        self, signal: str, messages: Sequence[tuple[str, Wire]]
    ) -> Mapping[str, str]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=10_000, help="jobs")
    parser.add_argument("--turns", type=int, default=3, help="cycles after the first one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    warm()
    with TemporaryDirectory(prefix="longshore-") as folder, own_postgres(Path(folder)) as url:
        report = asyncio.run(measure(url, arguments.nodes, arguments.waiting, arguments.turns))
    if arguments.json:
        print(json.dumps(asdict(report), indent=2))
        return
    print(f"{report.nodes} nodes, at most {report.memory:.0f} MB")
    for name, cycle in [("first", report.first), *(("later", each) for each in report.later)]:
        parts = ", ".join(f"{part} {cycle.ms[part]:.0f}" for part in (*PARTS, "took"))
        print(f"{name}: {cycle.waiting} waiting, {cycle.placed} placed, ms: {parts}")


async def measure(url: str, nodes: int, waiting: int, turns: int) -> Report:
    """Return what the cycles took. Ends the program where a tenth of the nodes got no jobs."""
    database = Database(url)
    activities = CycleActivities(database, _Unheard())
    try:
        await _fill(database, nodes)
        made: list[Cycle] = []
        for turn in range(turns + 1):
            await _end_all(database)
            there = made[-1].waiting - made[-1].placed if made else 0
            await _queue(database, turn, waiting - there)
            await _analyze(database)
            await activities.run_cycle(CycleRequest(pool="default", cycle_id=f"default/{turn}"))
            made.append(await _made(database))
            if made[-1].placed < nodes // 10:
                sys.exit(f"only {made[-1].placed} jobs were placed on {nodes} nodes")
    finally:
        await database.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return Report(nodes=nodes, first=made[0], later=made[1:], memory=memory)


async def _queue(database: Database, turn: int, count: int) -> None:
    for begin in range(0, count, _AT_ONCE):
        async with database.transaction() as connection:
            for number in range(begin, min(begin + _AT_ONCE, count)):
                request = EnqueueRequest(
                    job_id=f"job-{turn}-{number:06}",
                    attempt=1,
                    spec=_spec(number),
                    submitted_at=datetime.now(UTC),
                )
                if refusal := await put_into_queue(connection, request):
                    sys.exit(refusal)


def _spec(number: int) -> JobSpec:
    gpus = _SIZES[number % len(_SIZES)]
    return JobSpec(
        name="waits",
        command=("true",),
        gpus=gpus,
        vram_per_gpu=20 + 20 * (number // 4 % 3),
        cpus=gpus * (1 + number // 12 % 4),
        ram=8 * gpus * (1 + number // 48 % 3),
    )


async def _fill(database: Database, nodes: int) -> None:
    async with database.transaction() as connection:
        for statement in _FILL:
            values = {"nodes": nodes} if ":nodes" in statement else {}
            await connection.execute(text(statement), values)


async def _analyze(database: Database) -> None:
    """As the server does by itself within a minute."""
    async with database.transaction() as connection:
        await connection.execute(text("ANALYZE"))


async def _end_all(database: Database) -> None:
    """End what the last cycle started."""
    async with database.transaction() as connection:
        await connection.execute(text(_END))


async def _made(database: Database) -> Cycle:
    async with database.transaction() as connection:
        row = (await connection.execute(text(_LAST))).mappings().one()
    ms = {part: round(row[f"{part}_ms"], 1) for part in (*PARTS, "took")}
    return Cycle(waiting=row["queued"], placed=row["placed"], ms=ms)


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
    """
    INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)
    SELECT 'busy-' || i, 'job', 'default', 'default',
           '{"name": "busy", "command": ["true"]}', now(), ''
      FROM generate_series(0, :nodes - 1) AS i
    """,
    """
    INSERT INTO placements (job_id, attempt, cycle_id, node_id, epoch, gpu_indices, cpu_milli,
                            ram_mb, vram_mb, expected_seconds, placed_at, decision)
    SELECT 'busy-' || i, 1, 'c', 'node-' || i, 1,
           (SELECT array_agg(g) FROM generate_series(0, CASE i % 10 WHEN 0 THEN 3 ELSE 7 END) g),
           16000, 64000, 40000, 36000 + i, now() - i * interval '1 second', '{}'
      FROM generate_series(0, :nodes - 1) AS i
    """,
    """
    INSERT INTO leases (job_id, attempt, node_id, epoch, gpu_index, vram_mb, tenant)
    SELECT 'busy-' || i, 1, 'node-' || i, 1, g, 40000, 'default'
      FROM generate_series(0, :nodes - 1) AS i,
           generate_series(0, CASE i % 10 WHEN 0 THEN 3 ELSE 7 END) AS g
    """,
)

_END = """
    UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'finished'
     WHERE ended_at IS NULL AND cycle_id <> 'c'
"""

_LAST = "SELECT * FROM cycles WHERE id <> 'c' ORDER BY committed_at DESC LIMIT 1"


if __name__ == "__main__":
    main()
