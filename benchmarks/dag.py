"""Jobs of DAGs beside the same jobs submitted singly, and beside children of a bare workflow.

    python -m benchmarks.dag [--chain N] [--fan N] [--random N] [--gpus N] [--turns N] [--json]

On an installation of its own no-op jobs (the command `true`) run as a chain, as a fan-out with a
fan-in, and as a random graph in which each job comes after up to three others. The same number of
jobs is then submitted one by one by the client, with as many under way as the DAG had in the mean
from their submit to their end. A third run has a workflow with as many children of the shape of a
job's (`benchmarks.bare.BareJob`: three activities that do nothing, one signal), so many at a time.
The sides take turns, and medians count; the ratio is the median of the ratios of the turns.

Events and actions are those of the DAG's own workflow, for one of its jobs; an action is what
Temporal Cloud bills. Those of the jobs' own workflows stand beside them, with their starts, as the
starts of the children count as the children's own.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client

from benchmarks.bare import CONTROL_QUEUE, BareParent, BareWorkers
from benchmarks.costs import billed
from benchmarks.installation import forget_environment, installed
from longshore.client.api import Longshore
from longshore.client.process import leave, run
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.dag_view import DagState, DagView
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.settings import Settings

NOOP = JobSpec(name="noop", command=("true",))
SEED = 7
_MOST_BEFORE = 3
_SAMPLED = 20
"""Histories of jobs that are read."""


@dataclass(frozen=True)
class Row:
    """One shape."""

    shape: str
    jobs: int
    under_way: float
    """Jobs between their submit and their end, in the mean over the DAG's time."""
    dag_ms: float
    """Of the whole, for one job."""
    single_ms: float
    children_ms: float
    ratio: float
    """dag / single."""
    events: float
    actions: float
    children_events: float
    children_actions: float
    job_actions: float
    """Of a job of the DAG, in its own workflow."""
    single_actions: float


def chain(jobs: int) -> dict[str, list[str]]:
    """Return for each job of a line what it comes after."""
    return {f"j{n}": [f"j{n - 1}"] if n else [] for n in range(jobs)}


def fan(jobs: int) -> dict[str, list[str]]:
    """Return a job, so many behind it, and one behind all of these."""
    middle = [f"j{n}" for n in range(jobs)]
    return {"root": [], **{name: ["root"] for name in middle}, "end": middle}


def random_graph(jobs: int) -> dict[str, list[str]]:
    """Return jobs of which each comes after up to three earlier ones; the same each time."""
    dice = random.Random(SEED)
    return {
        f"j{n}": [f"j{up}" for up in dice.sample(range(n), min(n, dice.randint(0, _MOST_BEFORE)))]
        for n in range(jobs)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, number in (("chain", 200), ("fan", 500), ("random", 1000)):
        parser.add_argument(f"--{name}", type=int, default=number, help="jobs; 0 leaves it out")
    parser.add_argument("--gpus", type=int, default=20, help="jobs that run at a time")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    shapes = {
        "chain": chain(asked.chain), "fan": fan(asked.fan) if asked.fan else {},
        "random": random_graph(asked.random),
    }  # fmt: skip
    forget_environment()
    tell = _keep_quiet if asked.json else _print_row
    rows = run(measure({name: each for name, each in shapes.items() if each}, asked, tell))
    if asked.json:
        print(json.dumps({"results": [asdict(row) for row in rows]}, indent=2))
    leave(0)


async def measure(
    shapes: dict[str, dict[str, list[str]]], asked: argparse.Namespace, tell: Callable[[Row], None]
) -> list[Row]:
    """Return a row for each shape: the jobs of a DAG, and for each what it comes after. `tell`
    hears of each as it is measured: all take long."""
    rows: list[Row] = []
    with installed({"node-1": f"{asked.gpus}xH100-80GB"}) as stack, BareWorkers(stack):
        api = await Longshore.connect(Settings(state_dir=stack.folder))
        try:
            bench = Bench(api, await Client.connect(stack.temporal.address))
            await bench.dag(fan(asked.gpus))  # warm
            await bench.children(asked.gpus, asked.gpus)
            for name, each in shapes.items():
                rows.append(await bench.row(name, each, asked.turns))
                tell(rows[-1])
        finally:
            await api.close()
    return rows


class Bench:
    """The three sides on one installation."""

    def __init__(self, api: Longshore, temporal: Client) -> None:
        self._api = api
        self._temporal = temporal

    async def row(self, shape: str, edges: dict[str, list[str]], turns: int) -> Row:
        jobs = len(edges)
        dag_s, single_s, children_s, under_way = [list[float]() for _ in range(4)]
        dag: DagView | None = None
        parent, singles = "", list[str]()
        for _ in range(turns):
            seconds, dag = await self.dag(edges)
            at_once = _under_way(dag, datetime.now(UTC))
            dag_s.append(seconds)
            under_way.append(at_once)
            seconds, singles = await self.singly(jobs, max(round(at_once), 1))
            single_s.append(seconds)
            seconds, parent = await self.children(jobs, max(round(at_once), 1))
            children_s.append(seconds)
        assert dag is not None
        events, actions = await self._cost_of([dag_workflow_id(dag.id)])
        children_events, children_actions = await self._cost_of([parent])
        of_dag = [job_workflow_id(step.job_id or "") for step in dag.steps]
        _, job_actions = await self._cost_of(of_dag[-_SAMPLED:])
        _, single_actions = await self._cost_of([job_workflow_id(each) for each in singles])
        ratios = [one / other for one, other in zip(dag_s, single_s, strict=True)]
        return Row(
            shape=shape, jobs=jobs, under_way=round(statistics.median(under_way), 1),
            dag_ms=1000 * statistics.median(dag_s) / jobs,
            single_ms=1000 * statistics.median(single_s) / jobs,
            children_ms=1000 * statistics.median(children_s) / jobs,
            ratio=statistics.median(ratios), events=events / jobs, actions=actions / jobs,
            children_events=children_events / jobs, children_actions=children_actions / jobs,
            job_actions=job_actions, single_actions=single_actions,
        )  # fmt: skip

    async def dag(self, edges: dict[str, list[str]]) -> tuple[float, DagView]:
        """Run a DAG; return its seconds, and the DAG as it ended."""
        jobs: dict[str, Any] = {
            name: {"command": ["true"], "after": after} for name, after in edges.items()
        }
        spec = DagSpec.model_validate({"name": "bench", "jobs": jobs})
        began = time.perf_counter()
        dag_id = (await self._api.submit_dag(spec)).dag_id
        found = await self._api.wait_dag(dag_id)
        seconds = time.perf_counter() - began
        if found.state is not DagState.SUCCEEDED:
            sys.exit(f"DAG {dag_id} ended as {found.state}: {found.reason}")
        return seconds, found

    async def singly(self, jobs: int, at_once: int) -> tuple[float, list[str]]:
        """Run jobs that the client submits; return the seconds, and the ids of some."""
        left = iter(range(jobs))

        async def keep_one_under_way() -> list[str]:
            return [await self._one() for _ in left]

        began = time.perf_counter()
        lanes = await asyncio.gather(*(keep_one_under_way() for _ in range(at_once)))
        seconds = time.perf_counter() - began
        return seconds, [job_id for lane in lanes for job_id in lane][-_SAMPLED:]

    async def _one(self) -> str:
        job_id = (await self._api.submit(NOOP)).job_id
        result = await self._api.wait(job_id)
        if result.state is not JobState.SUCCEEDED:
            sys.exit(f"{job_id} ended as {result.state}: {result.message}")
        return job_id

    async def children(self, jobs: int, at_once: int) -> tuple[float, str]:
        """Run a workflow with so many children; return its seconds and its id."""
        name, began = f"bare-{uuid.uuid4().hex}", time.perf_counter()
        asked = [jobs, at_once]
        await self._temporal.execute_workflow(
            BareParent.run, asked, id=name, task_queue=CONTROL_QUEUE
        )
        return time.perf_counter() - began, name

    async def _cost_of(self, workflow_ids: Sequence[str]) -> tuple[float, float]:
        """Return the mean of events and actions over workflows."""
        histories = [
            await self._temporal.get_workflow_handle(each).fetch_history() for each in workflow_ids
        ]
        return (
            statistics.mean(len(history.events) for history in histories),
            statistics.mean(billed(history).total() for history in histories),
        )


def _under_way(dag: DagView, now: datetime) -> float:
    """Return how many of its jobs were between submit and end, in the mean over its time."""
    lives = [
        (step.ended_at - step.submitted_at).total_seconds()
        for step in dag.steps
        if step.submitted_at and step.ended_at
    ]
    return sum(lives) / ((dag.ended_at or now) - dag.submitted_at).total_seconds()


def _keep_quiet(row: Row) -> None:
    """Tell nothing: JSON is printed at the end."""


def _print_row(row: Row) -> None:
    """Print a row below its heads: the shapes differ too much to be compared."""
    children = f"{row.children_events:.1f} / {row.children_actions:.1f}"
    print(
        f"{'shape':<8} {'jobs':>5} {'under way':>9} | {'ms a job':>8} {'singly':>7} {'ratio':>6} "
        f"{'children':>8} | {'events':>6} {'actions':>7} {'children':>13} | {'own actions':>11} "
        f"{'singly':>6}\n"
        f"{row.shape:<8} {row.jobs:>5} {row.under_way:>9.1f} | {row.dag_ms:>8.1f} "
        f"{row.single_ms:>7.1f} {row.ratio:>6.2f} {row.children_ms:>8.1f} | "
        f"{row.events:>6.2f} {row.actions:>7.2f} {children:>13} | {row.job_actions:>11.1f} "
        f"{row.single_actions:>6.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
