"""Jobs for minutes or hours: does anything grow that should not?

    python -m benchmarks.soak [--minutes M] [--rate R] [--keep-runs N] [--json]

An installation of its own with two nodes of 8 simulated GPUs gets jobs at random moments, R a
second on average, that write a line and sleep for up to two seconds. So that pruning is seen
within minutes, the agents keep N ended runs in place of the default.

Memory and counts are sampled sixty times. A quantity is flat when the line through its samples,
the first third left out, rises until the end by less than a tenth of their mean, or by less than
the slack that `QUANTITIES` gives it where that is more. What rises and falls by design is judged
by its peaks: what agents prune once a minute by those of the second and the last third (a fifth
is allowed), histories by the longest, against Temporal's first warning.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from sqlalchemy import text

from benchmarks.installation import forget_environment, installed
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.client.process import leave, run
from longshore.models.job import JobSpec
from longshore.models.messages import node_workflow_id, pool_workflow_id
from longshore.models.settings import Settings
from longshore.workers.local import CONTROL
from longshore.workers.stack import Stack, agent_process

NODES = {"node-1": "8xH100-80GB", "node-2": "8xH100-80GB"}
SAMPLES = 60
SEED = 20261120
LONGEST_HISTORY = 10_240
"""Events after which Temporal warns."""
DRAIN = 120.0
"""Seconds that the last jobs may take to end."""

QUANTITIES = {
    "control worker, MB": 8.0,
    "agents, MB": 8.0,
    "open files, control worker": 8.0,
    "open files, agents": 8.0,
    "database connections": 4.0,
    "open leases": 4.0,
    "queue": 8.0,
    "files of runs": 60.0,
    "private job folders": 10.0,
}
"""What is judged by its growth, each with its slack."""
PRUNED = ("files of runs", "private job folders")
HISTORIES = ("history of the pool, events", "longest history of a node, events")

Sample = dict[str, float]


@dataclass(frozen=True)
class Line:
    """One quantity over the whole run."""

    name: str
    first: float
    last: float
    highest: float
    growth: float
    """Of the line through the samples after the first third, or of the peaks, up to the end."""
    flat: bool


@dataclass(frozen=True)
class Report:
    verdict: str
    """``flat``, or what is not."""
    minutes: float
    rate: float
    submitted: int
    succeeded: int
    results: tuple[Line, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=3.0, help="jobs a second")
    parser.add_argument("--keep-runs", type=int, default=50, help="ended runs that a node keeps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    forget_environment()
    report = run(soak(arguments.minutes, arguments.rate, arguments.keep_runs))
    if arguments.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        _print_table(report)
    leave(0)


async def soak(minutes: float, rate: float, keep_runs: int) -> Report:
    """Run jobs for so many minutes, and say what became of the quantities."""
    with installed(NODES, env={"LONGSHORE_KEEP_RUNS": str(keep_runs)}) as stack:
        settings = Settings(state_dir=stack.folder)
        api = await Longshore.connect(settings)
        database = Database(settings.resolve_database_url(), pool_size=1)
        try:
            bench = Soak(stack, api, database)
            arrivals = asyncio.create_task(bench.submit_for(60 * minutes, rate))
            samples = await bench.sample_for(60 * minutes)
            submitted = await arrivals
            succeeded = await bench.succeeded_of(submitted)
        finally:
            await database.close()
            await api.close()
    lines = tuple(judge(name, [sample[name] for sample in samples]) for name in samples[0])
    growing = [line.name for line in lines if not line.flat]
    if succeeded != submitted:
        growing.append(f"{submitted - succeeded} jobs did not succeed")
    return Report("; ".join(growing) or "flat", minutes, rate, submitted, succeeded, lines)


class Soak:
    """An installation under a steady load."""

    def __init__(self, stack: Stack, api: Longshore, database: Database) -> None:
        self._stack = stack
        self._api = api
        self._database = database
        self._chance = random.Random(SEED)

    async def submit_for(self, seconds: float, rate: float) -> int:
        """Submit jobs at random moments; return how many."""
        end, submitted = time.monotonic() + seconds, 0
        async with asyncio.TaskGroup() as submits:
            while time.monotonic() < end:
                command = f"echo working; sleep {self._chance.uniform(0, 2):.2f}"
                submits.create_task(self._api.submit(JobSpec(name="soak", command=command)))
                submitted += 1
                await asyncio.sleep(self._chance.expovariate(rate))
        return submitted

    async def sample_for(self, seconds: float) -> list[Sample]:
        """Return samples at equal distances."""
        began, samples = time.monotonic(), [await self._sample()]
        for number in range(1, SAMPLES + 1):
            await asyncio.sleep(began + seconds * number / SAMPLES - time.monotonic())
            samples.append(await self._sample())
        return samples

    async def succeeded_of(self, submitted: int) -> int:
        """Wait until all jobs have ended; return how many succeeded."""
        deadline, ended, succeeded = time.monotonic() + DRAIN, 0, 0
        while ended < submitted and time.monotonic() < deadline:
            ended = await self._count("jobs WHERE ended_at IS NOT NULL")
            succeeded = await self._count("jobs WHERE end_state = 'SUCCEEDED'")
            await asyncio.sleep(0.5)
        return succeeded

    async def _sample(self) -> Sample:
        control = self._process(CONTROL)
        agents = [self._process(agent_process(node)) for node in NODES]
        # Not those below a fork server: they are as many as the jobs that run.
        children = [child for agent in agents for child in agent.children()]
        runs, folders = await asyncio.to_thread(_count_files, self._stack.folder / "agents")
        values = (
            control.memory_info().rss / 1e6,
            sum(agent.memory_info().rss for agent in agents) / 1e6 + sum(map(_memory, children)),
            control.num_fds(),
            sum(agent.num_fds() for agent in agents),
            await self._count("pg_stat_activity WHERE datname = current_database()"),
            await self._count("leases WHERE ended_at IS NULL"),
            await self._count("queue"),
            runs,
            folders,
        )
        histories = (
            await self._events(pool_workflow_id("default")),
            max([await self._events(node_workflow_id(node)) for node in NODES]),
        )
        return {
            **dict(zip(QUANTITIES, values, strict=True)),
            **dict(zip(HISTORIES, histories, strict=True)),
        }

    def _process(self, name: str) -> psutil.Process:
        entry = self._stack.processes.running(name)
        assert entry, f"{name} has ended"
        return psutil.Process(entry.pid)

    async def _count(self, what: str) -> int:
        async with self._database.transaction() as connection:
            return await connection.scalar(text(f"SELECT count(*) FROM {what}")) or 0

    async def _events(self, workflow_id: str) -> int:
        return (
            await self._api.temporal.get_workflow_handle(workflow_id).describe()
        ).history_length


def judge(name: str, values: Sequence[float]) -> Line:
    """Return what became of one quantity, from its samples at equal distances."""
    third = len(values) // 3
    late = values[third:]
    if name in HISTORIES:
        growth = max(late) - max(values[:third])
        flat = max(values) < LONGEST_HISTORY
    else:
        growth = max(late[third:]) - max(late[:third]) if name in PRUNED else _rise(late)
        share = 5 if name in PRUNED else 10  # no minute has as many arrivals as the other
        flat = growth < max(QUANTITIES[name], statistics.mean(late) / share)
    return Line(name, values[0], values[-1], max(values), growth, flat)


def _rise(values: Sequence[float]) -> float:
    """Return how far the line through the values rises from the first to the last."""
    slope, _ = statistics.linear_regression(range(len(values)), values)
    return slope * (len(values) - 1)


def _memory(child: psutil.Process) -> float:
    """Return the MB of a child of an agent; those that ended since they were listed have none."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return child.memory_info().rss / 1e6
    return 0.0


def _count_files(agents: Path) -> tuple[int, int]:
    """Return how many files the run folders hold, and how many private job folders there are."""
    walks = (os.walk(runs) for runs in agents.glob("*/runs"))  # what goes meanwhile is no error
    files = sum(len(names) for walk in walks for _, _, names in walk)
    return files, sum(1 for _ in agents.glob("*/jobs/*"))


def _print_table(report: Report) -> None:
    print(f"{'':<36} {'first':>7} {'last':>7} {'highest':>8} {'growth':>7}")
    for line in report.results:
        print(
            f"{line.name:<36} {line.first:>7.0f} {line.last:>7.0f} {line.highest:>8.0f} "
            f"{line.growth:>7.1f} {'flat' if line.flat else 'GROWS'}"
        )
    print(f"\n{report.submitted} jobs in {report.minutes:g} minutes, {report.succeeded} succeeded")
    print(f"verdict: {report.verdict}")


if __name__ == "__main__":
    main()
