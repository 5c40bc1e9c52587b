"""Jobs per second through the whole system, beside a bare Temporal workflow of the same shape.

    python -m benchmarks.end_to_end [--jobs N] [--concurrency 1,20,100] [--agents N] [--json]

An installation of its own (Temporal, PostgreSQL, control worker, agents of simulated GPUs) runs
no-op jobs (the command `true`): submitted by the client, packed by a cycle, started by an agent
under a supervisor, their logs closed, their end recorded and waited for. So many are under way
at a time as `concurrency` says; with 1 the system is idle before each of them.

The other side is `benchmarks.bare`: the same server, two worker processes, three activities that
do nothing, one signal. The sides take turns, three times; medians count, and the ratio is the
median of the three ratios.

Times are from just before the submit to the start of the process, as its supervisor saw it, and
to the client's hearing of the end. Actions are what Temporal Cloud bills for the job's own
workflow; those of the pool, which many jobs share, stand beside them.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from temporalio.client import Client

from benchmarks.bare import CONTROL_QUEUE, BareJob, BareWorkers
from benchmarks.costs import billed
from benchmarks.installation import cpu_seconds, forget_environment, installed
from longshore.activities.node.runs import RunStore
from longshore.client.api import Longshore
from longshore.client.process import leave, run
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import PoolStatus, job_workflow_id, pool_workflow_id
from longshore.models.placement import PlacementKey
from longshore.models.settings import Settings
from longshore.workers.stack import Stack

TURNS = 3
RATIO_AT = 20
"""Jobs under way for which the ratio is the one to look at."""
SAMPLED = 20
"""Histories that are read for events and actions."""
SPEC = JobSpec(name="noop", command=("true",))


@dataclass(frozen=True)
class Done:
    """One job or bare workflow; times are Unix time."""

    id: str
    submitted: float
    done: float


@dataclass(frozen=True)
class Turn:
    """One side once: what came of so many jobs."""

    jobs: tuple[Done, ...]
    seconds: float
    cpu_ms: dict[str, float]
    """Processor time of each part, for one job."""

    @property
    def per_s(self) -> float:
        return len(self.jobs) / self.seconds


@dataclass(frozen=True)
class Row:
    """What was measured with so many jobs under way."""

    concurrency: int
    jobs: int
    """In each of the turns."""
    jobs_per_s: float
    bare_per_s: float
    ratio: float
    """jobs / bare."""
    start_p50_ms: float
    start_p95_ms: float
    done_p50_ms: float
    done_p95_ms: float
    bare_p50_ms: float
    cpu_ms: dict[str, float]
    bare_cpu_ms: dict[str, float]
    events: float
    actions: float
    bare_events: float
    bare_actions: float
    cycles: float
    """Cycles of the pool for one job."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=200, help="jobs a turn (fewer one by one)")
    parser.add_argument("--concurrency", default="1,20,100", help="jobs under way at a time")
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    levels = [int(level) for level in arguments.concurrency.split(",")]
    forget_environment()
    rows = run(measure(levels, arguments.jobs, arguments.agents))
    if arguments.json:
        at = next((row for row in rows if row.concurrency == RATIO_AT), rows[-1])
        print(json.dumps({"results": [asdict(row) for row in rows], "ratio": at.ratio}, indent=2))
    else:
        _print_table(rows)
    leave(0)


async def measure(levels: Sequence[int], jobs: int, agents: int) -> list[Row]:
    """Return a row for each number of jobs under way."""
    gpus = -(-max(levels) // agents)
    nodes = {f"node-{number}": f"{gpus}xH100-80GB" for number in range(1, agents + 1)}
    with installed(nodes) as stack, BareWorkers(stack):
        api = await Longshore.connect(Settings(state_dir=stack.folder))
        bare = await Client.connect(stack.temporal.address)
        try:
            bench = Bench(stack, api, bare)
            await bench.warm_up(max(levels))
            return [await bench.row(level, max(jobs // 4, 1) if level == 1 else jobs)
                    for level in levels]  # fmt: skip
        finally:
            await api.close()


class Bench:
    """Both sides on one installation."""

    def __init__(self, stack: Stack, api: Longshore, bare: Client) -> None:
        self._stack = stack
        self._api = api
        self._bare = bare

    async def warm_up(self, concurrency: int) -> None:
        await self._turn(self._one_job, concurrency, concurrency)
        await self._turn(self._one_bare, concurrency, concurrency)

    async def row(self, concurrency: int, jobs: int) -> Row:
        ours: list[Turn] = []
        bare: list[Turn] = []
        before = await self._cycles()
        for _ in range(TURNS):
            ours.append(await self._turn(self._one_job, jobs, concurrency))
            bare.append(await self._turn(self._one_bare, jobs, concurrency))
        cycles = await self._cycles() - before
        events, actions = await self._costs([job_workflow_id(job.id) for job in ours[-1].jobs])
        bare_events, bare_actions = await self._costs([job.id for job in bare[-1].jobs])
        started = self._started([job.id for turn in ours for job in turn.jobs])
        to_start = [started[job.id] - job.submitted for turn in ours for job in turn.jobs]
        to_done = [job.done - job.submitted for turn in ours for job in turn.jobs]
        bare_done = [job.done - job.submitted for turn in bare for job in turn.jobs]
        return Row(
            concurrency=concurrency,
            jobs=jobs,
            jobs_per_s=statistics.median(turn.per_s for turn in ours),
            bare_per_s=statistics.median(turn.per_s for turn in bare),
            ratio=statistics.median(o.per_s / b.per_s for o, b in zip(ours, bare, strict=True)),
            start_p50_ms=1000 * _percentile(to_start, 50),
            start_p95_ms=1000 * _percentile(to_start, 95),
            done_p50_ms=1000 * _percentile(to_done, 50),
            done_p95_ms=1000 * _percentile(to_done, 95),
            bare_p50_ms=1000 * _percentile(bare_done, 50),
            cpu_ms=_medians(turn.cpu_ms for turn in ours),
            bare_cpu_ms=_medians(turn.cpu_ms for turn in bare),
            events=events,
            actions=actions,
            bare_events=bare_events,
            bare_actions=bare_actions,
            cycles=cycles / (TURNS * jobs),
        )

    async def _turn(self, one: Callable[[], Awaitable[Done]], jobs: int, concurrency: int) -> Turn:
        left = iter(range(jobs))

        async def keep_one_under_way() -> list[Done]:
            return [await one() for _ in left]

        cpu = self._cpu()
        began = time.perf_counter()
        lanes = await asyncio.gather(*(keep_one_under_way() for _ in range(concurrency)))
        seconds = time.perf_counter() - began
        spent = {part: 1000 * (after - cpu[part]) / jobs for part, after in self._cpu().items()}
        return Turn(tuple(done for lane in lanes for done in lane), seconds, spent)

    async def _one_job(self) -> Done:
        submitted = time.time()
        job_id = (await self._api.submit(SPEC)).job_id
        result = await self._api.wait(job_id)
        if result.state is not JobState.SUCCEEDED:
            sys.exit(f"{job_id} ended as {result.state}: {result.message}")
        return Done(job_id, submitted, time.time())

    async def _one_bare(self) -> Done:
        name = f"bare-{uuid.uuid4().hex}"
        submitted = time.time()
        await self._bare.execute_workflow(BareJob.run, name, id=name, task_queue=CONTROL_QUEUE)
        return Done(name, submitted, time.time())

    def _cpu(self) -> dict[str, float]:
        return {**cpu_seconds(self._stack), "client": time.process_time()}

    async def _cycles(self) -> int:
        pool = self._bare.get_workflow_handle(pool_workflow_id(SPEC.pool))
        return PoolStatus.model_validate(await pool.query("status")).cycles

    async def _costs(self, workflow_ids: Sequence[str]) -> tuple[float, float]:
        """Return the mean of events and actions over some of the workflows."""
        histories = [
            await self._bare.get_workflow_handle(workflow_id).fetch_history()
            for workflow_id in workflow_ids[:SAMPLED]
        ]
        return (
            statistics.mean(len(history.events) for history in histories),
            statistics.mean(billed(history).total() for history in histories),
        )

    def _started(self, job_ids: Sequence[str]) -> dict[str, float]:
        """Return when each job's process started, from what its agent stored."""
        stores = [RunStore(folder) for folder in self._run_folders()]
        found: dict[str, float] = {}
        for job_id in job_ids:
            key = PlacementKey(job_id=job_id, attempt=1)
            starts = [said["at"] for store in stores if (said := store.started(key))]
            found[job_id] = starts[0]
        return found

    def _run_folders(self) -> list[Path]:
        return sorted((self._stack.folder / "agents").glob("*/runs"))


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def _medians(turns: Iterable[dict[str, float]]) -> dict[str, float]:
    known = list(turns)
    return {part: round(statistics.median(turn[part] for turn in known), 2) for part in known[0]}


def _print_table(rows: Sequence[Row]) -> None:
    print(
        f"{'under way':>9} {'jobs/s':>7} {'bare/s':>7} {'ratio':>6} {'start p50':>9} {'p95':>6} "
        f"{'done p50':>8} {'p95':>6} {'bare p50':>8} {'events':>6} {'bare':>5} {'actions':>7} "
        f"{'bare':>5} {'cycles':>6}"
    )
    for row in rows:
        print(
            f"{row.concurrency:>9} {row.jobs_per_s:>7.1f} {row.bare_per_s:>7.1f} "
            f"{row.ratio:>6.2f} {row.start_p50_ms:>9.0f} {row.start_p95_ms:>6.0f} "
            f"{row.done_p50_ms:>8.0f} {row.done_p95_ms:>6.0f} {row.bare_p50_ms:>8.0f} "
            f"{row.events:>6.1f} {row.bare_events:>5.1f} {row.actions:>7.1f} "
            f"{row.bare_actions:>5.1f} {row.cycles:>6.2f}"
        )
    print("\nprocessor time, ms a job")
    for row in rows:
        ours = ", ".join(f"{part} {ms:.1f}" for part, ms in row.cpu_ms.items())
        bare = ", ".join(f"{part} {ms:.1f}" for part, ms in row.bare_cpu_ms.items() if ms)
        print(f"{row.concurrency:>9} {ours}; bare: {bare}")


if __name__ == "__main__":
    main()
