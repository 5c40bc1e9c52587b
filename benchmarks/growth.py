"""What a job takes, and what the system does in a second, while ever more other jobs wait.

    python -m benchmarks.growth [--waiting 0,1000,3000] [--jobs N] [--shapes N] [--json]

An installation of its own (Temporal, PostgreSQL, a control worker, one agent of nine simulated
GPUs). One job holds a GPU for ten hours; the others wait, of the lowest class: half of them for
all nine GPUs, until that job ends, half for more than any node has, in twelve shapes that each
have a decision of their own (`--shapes`; 0: each job has an expected duration of its own, between
one and eleven hours). No-op jobs (the command `true`, one GPU) come and go beside them:
one by one, from just before the submit to the client's hearing of the end, and with eight under
way, as a rate. Each row stands beside the first one, of the same run, as a ratio.

The waiting jobs are queued by the function that `enqueue` queues with, 1,000 in a transaction,
and have no workflows of their own: 10,000 would take minutes to start, and a workflow that waits
takes no part in a cycle. So nobody could be told why they wait: they are marked as told, and the
schedule that would find them without workflows does not come up. What is left out with that is a
cost that each job has once.

Of each row besides: what the pool's cycles took by part, how often it planned for one no-op job,
what PostgreSQL wrote for it, and how long a person waits who submits one job more that waits,
lists jobs (100) and pools, reads all of this job (pages show these) and why it waits, and cancels
it (to its end).
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import text
from temporalio.client import Client

from benchmarks.installation import cpu_seconds, forget_environment, installed, processes_of
from longshore.activities.database import Database
from longshore.activities.queue_rows import put_into_queue
from longshore.client.api import Longshore
from longshore.client.process import leave, run
from longshore.models.errors import NotFoundError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import EnqueueRequest, PoolStatus, pool_workflow_id
from longshore.models.settings import Settings
from longshore.workers.stack import Stack

T = TypeVar("T")
UNDER_WAY = 8
GPUS = UNDER_WAY + 1
SHAPES = 12
CALLS = ("submit", "list", "pools", "report", "why", "cancel")
PARTS = ("read", "plan", "commit", "explain")
SPEC = JobSpec(name="noop", command=("true",), expected_duration=timedelta(minutes=1))
HOLDER = JobSpec(
    name="holder", command=("sleep", "36000"), priority=9, expected_duration=timedelta(hours=10)
)
WAITS = JobSpec(name="one-more", command=("true",), priority=0, gpus=GPUS)
_CALLS = 7
"""Times that each call is made."""
_AT_ONCE = 1000
"""Jobs that are queued in one transaction."""
_WARM_UP = 4


@dataclass(frozen=True)
class Row:
    """What was measured while so many jobs waited."""

    waiting: int
    jobs: int
    """No-op jobs one by one, and as many with eight under way."""
    done_p50_ms: float
    done_p95_ms: float
    jobs_per_s: float
    time_ratio: float
    """Of the median times: this row to the first."""
    rate_ratio: float
    cycle_ms: dict[str, float]
    """Means of a cycle that has a row: its parts, and as `took` all of it."""
    cycles: float
    """Cycles of the pool for one job, also those that changed nothing and have no row."""
    wal_kb: float
    """What the database wrote to its log for one job."""
    calls_ms: dict[str, float]
    """Medians of calls of the client."""
    cpu_ms: dict[str, float]
    """Processor time of each part for one job: where the machine has other work, look at this."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--waiting", default="0,1000,3000", help="jobs that wait, ascending")
    parser.add_argument("--jobs", type=int, default=40, help="no-op jobs of each kind a row")
    parser.add_argument(
        "--shapes", type=int, default=SHAPES, help="of jobs that wait; 0: each its own duration"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    counts = sorted(int(count) for count in arguments.waiting.split(","))
    forget_environment()
    rows = run(measure(counts, arguments.jobs, arguments.shapes))
    if arguments.json:
        print(json.dumps({"results": [asdict(row) for row in rows]}, indent=2))
    else:
        _print_table(rows)
    leave(0)


async def measure(counts: Sequence[int], jobs: int, shapes: int = SHAPES) -> list[Row]:
    """Return a row for each number of waiting jobs, in this order; numbers ascend.

    They are of so many `shapes`; 0: each has a duration of its own.
    """
    env = {"LONGSHORE_RECONCILE_EVERY": "24h"}
    with installed({"node-1": f"{GPUS}xH100-80GB"}, env=env) as stack:
        settings = Settings(state_dir=stack.folder)
        api = await Longshore.connect(settings)
        database = Database(settings.resolve_database_url(), pool_size=2)
        temporal = await Client.connect(stack.temporal.address)
        try:
            bench = _Bench(stack, api, database, temporal, shapes)
            await bench.hold_a_gpu()
            rows: list[Row] = []
            for count in counts:
                rows.append(await bench.row(count, jobs, rows[0] if rows else None))
            return rows
        finally:
            await database.close()
            await api.close()


class _Bench:
    def __init__(
        self, stack: Stack, api: Longshore, database: Database, temporal: Client, shapes: int
    ) -> None:
        self._stack = stack
        self._temporal = temporal
        self._api = api
        self._database = database
        self._shapes = shapes
        self._waiting = 0

    async def hold_a_gpu(self) -> None:
        """Let one GPU be held: whoever wants all waits for it."""
        holder = (await self._api.submit(HOLDER)).job_id
        deadline = time.monotonic() + 60
        while not await self._api.list(states=frozenset({JobState.RUNNING})):
            if time.monotonic() > deadline:
                sys.exit(f"{holder} does not run")
            await asyncio.sleep(0.1)

    async def row(self, waiting: int, jobs: int, first: Row | None) -> Row:
        await self._fill(waiting)
        before, cpu = await self._written(), cpu_seconds(self._stack)
        one_by_one = [await self._one_job() for _ in range(jobs)]
        began = time.perf_counter()
        await self._eight_under_way(jobs)
        per_s = jobs / (time.perf_counter() - began)
        after = await self._written()
        spent = cpu_seconds(self._stack).items()
        done = statistics.median(one_by_one)
        calls = await self._calls()
        return Row(
            waiting=waiting,
            jobs=jobs,
            done_p50_ms=1000 * done,
            done_p95_ms=1000 * sorted(one_by_one)[min(jobs * 95 // 100, jobs - 1)],
            jobs_per_s=per_s,
            time_ratio=1000 * done / first.done_p50_ms if first else 1.0,
            rate_ratio=per_s / first.jobs_per_s if first else 1.0,
            cycle_ms=await self._cycle_ms(before["at"]),
            cycles=(after["cycles"] - before["cycles"]) / (2 * jobs),
            wal_kb=(after["wal"] - before["wal"]) / 1000 / (2 * jobs),
            calls_ms=calls,
            cpu_ms={part: round(1000 * (now - cpu[part]) / (2 * jobs), 1) for part, now in spent},
        )

    async def _fill(self, waiting: int) -> None:
        """Let so many jobs wait, each with its reason stored and told."""
        for begin in range(self._waiting, waiting, _AT_ONCE):
            numbers = range(begin, min(begin + _AT_ONCE, waiting))
            async with self._database.transaction() as connection:
                for number in numbers:
                    request = EnqueueRequest(
                        job_id=f"waits-{number:06}",
                        attempt=1,
                        spec=_shape(number, self._shapes),
                        submitted_at=datetime.now(UTC),
                    )
                    if refusal := await put_into_queue(connection, request):
                        sys.exit(refusal)
        self._waiting = waiting
        await self._eight_under_way(_WARM_UP)
        if unexplained := await self._value("SELECT count(*) FROM queue WHERE decision IS NULL"):
            sys.exit(f"{unexplained} jobs were not looked at")
        await self._value(_MARK_AS_TOLD)
        await self._compiled()
        await self._eight_under_way(_WARM_UP)

    async def _compiled(self) -> None:
        """Wait for what the control worker compiles beside its work after a first long plan."""
        deadline = time.monotonic() + 180
        while any(worker.children() for worker in processes_of(self._stack)["control"]):
            if time.monotonic() > deadline:
                sys.exit("the control worker goes on compiling")
            await asyncio.sleep(0.5)

    async def _eight_under_way(self, jobs: int) -> None:
        left = iter(range(jobs))

        async def keep_one_under_way() -> None:
            for _ in left:
                await self._one_job()

        await asyncio.gather(*(keep_one_under_way() for _ in range(UNDER_WAY)))

    async def _one_job(self) -> float:
        """Run a no-op job to its end; return the seconds from its submit."""
        began = time.perf_counter()
        job_id = (await self._api.submit(SPEC)).job_id
        result = await self._api.wait(job_id)
        if result.state is not JobState.SUCCEEDED:
            sys.exit(f"{job_id} ended as {result.state}: {result.message}")
        return time.perf_counter() - began

    async def _calls(self) -> dict[str, float]:
        """Return what calls about a job that waits take."""
        took: dict[str, list[float]] = {name: [] for name in CALLS}

        async def timed(name: str, call: Awaitable[T]) -> T:
            began = time.perf_counter()
            made = await call
            took[name].append(1000 * (time.perf_counter() - began))
            return made

        for _ in range(_CALLS):
            job_id = (await timed("submit", self._api.submit(WAITS))).job_id
            deadline = time.monotonic() + 60
            while not await self._is_told_why(job_id):
                if time.monotonic() > deadline:
                    sys.exit(f"nobody says why {job_id} waits")
                await asyncio.sleep(0.1)
            await timed("list", self._api.list())
            await timed("pools", self._api.pools())
            await timed("report", self._api.report(job_id))
            await timed("why", self._api.explain(job_id))
            await timed("cancel", self._cancel(job_id))
        return {name: round(statistics.median(each), 1) for name, each in took.items()}

    async def _is_told_why(self, job_id: str) -> bool:
        try:
            return bool((await self._api.job(job_id)).reason)
        except NotFoundError:  # its workflow has not queued it yet
            return False

    async def _cancel(self, job_id: str) -> None:
        await self._api.cancel(job_id)
        await self._api.wait(job_id)

    async def _written(self) -> dict[str, Any]:
        """Return what the database has written, and the cycles that the pool's workflow has run:
        of those that change nothing not each has a row."""
        pool = self._temporal.get_workflow_handle(pool_workflow_id(SPEC.pool))
        cycles = PoolStatus.model_validate(await pool.query("status")).cycles
        async with self._database.transaction() as connection:
            written = (await connection.execute(text(_WRITTEN))).mappings().one()
        return {**written, "cycles": cycles}

    async def _cycle_ms(self, since: datetime) -> dict[str, float]:
        async with self._database.transaction() as connection:
            found = await connection.execute(text(_CYCLES), {"since": since})
            means = found.mappings().one()
        return {part: round(means[part], 2) for part in (*PARTS, "took")}

    async def _value(self, statement: str) -> int:
        async with self._database.transaction() as connection:
            return await connection.scalar(text(statement)) or 0


def _shape(number: int, shapes: int) -> JobSpec:
    """Return a job that waits; of half of the shapes the first ones know when they may start."""
    shape = number % (shapes or SHAPES)
    gpus = GPUS if shape % 2 else 2 * GPUS
    spec = JobSpec(
        name="waits", command=("true",), priority=0, gpus=gpus, cpus=1 + shape // 2,
        vram_per_gpu=10.0 * (1 + shape // 4),
    )  # fmt: skip
    if shapes:
        return spec
    # Scattered, and no two alike: 7919 is a prime.
    own = timedelta(hours=1, seconds=number * 7919 % 36_000)
    return spec.model_copy(update={"expected_duration": own})


def _print_table(rows: Iterable[Row]) -> None:
    print(
        f"{'waiting':>8} {'done p50':>9} {'p95':>6} {'ratio':>6} {'jobs/s':>7} {'ratio':>6} "
        f"{'cycles':>7} {'WAL kB':>7}  of a cycle, ms: "
        + " ".join(f"{part:>8}" for part in (*PARTS, "took"))
    )
    for row in rows:
        print(
            f"{row.waiting:>8} {row.done_p50_ms:>9.0f} {row.done_p95_ms:>6.0f} "
            f"{row.time_ratio:>6.2f} {row.jobs_per_s:>7.1f} {row.rate_ratio:>6.2f} "
            f"{row.cycles:>7.2f} {row.wal_kb:>7.0f}                  "
            + " ".join(f"{row.cycle_ms[part]:>8.1f}" for part in (*PARTS, "took"))
        )
    print("\ncalls, ms")
    for row in rows:
        print(f"{row.waiting:>8} " + ", ".join(f"{n} {ms:.0f}" for n, ms in row.calls_ms.items()))
    print("\nprocessor time, ms a job")
    for row in rows:
        print(f"{row.waiting:>8} " + ", ".join(f"{p} {ms:.1f}" for p, ms in row.cpu_ms.items()))


_MARK_AS_TOLD = """
    WITH told AS (
        UPDATE queue SET told_at = clock_timestamp(), told_reason = decision->>'reason'
         WHERE told_at IS NULL RETURNING 1)
    SELECT count(*) FROM told
"""

_WRITTEN = """
    SELECT clock_timestamp() AS at,
           CAST(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') AS float8) AS wal
"""

_CYCLES = """
    SELECT avg(read_ms) AS read, avg(plan_ms) AS plan, avg(commit_ms) AS commit,
           avg(explain_ms) AS explain, avg(took_ms) AS took
      FROM cycles WHERE committed_at > :since
"""


if __name__ == "__main__":
    main()
