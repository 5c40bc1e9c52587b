"""A trace replayed with a queue: how long jobs wait by each packing policy.

    python -m benchmarks.queues --trace FILE [--nodes 64] [--order skip|fifo]
        [--seeds 0-4] [--json]

The trace has jobs with submit_s, duration_s and num_gpu, for equal nodes of 8 GPUs; seed 0 is the
trace itself, others move its submit times a little. Nothing is refused, stopped or moved. `skip`
starts whatever fits, in the order that jobs came; `fifo` starts nothing before the first that
waits. A job of more than 8 GPUs takes idle nodes, and the rest on one more. The replay ends with
the last job. `keep-room` is played three times, as in `benchmarks.churn`.
"""

import argparse
import heapq
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.churn import OURS, RIVAL, TOLD
from benchmarks.churn_streams import estimates_of, read_trace
from benchmarks.packing_lists import WHOLE, parse_seeds
from scheduling.packing.fleet import Choice, Fleet, NodeSize, Request, Stay
from scheduling.packing.policies import POLICIES, Policy

NODE_GPUS = 8
Taken = list[tuple[Request, Choice, Stay | None]]


@dataclass(frozen=True)
class Result:
    """One policy, means over seeds; seconds."""

    policy: str
    wait: float
    wait_95: float
    wide: float
    """Mean wait of the jobs of 8 and more GPUs."""
    versus_tight: float
    """Mean wait less that of `tight` with the same jobs."""
    error: float
    """Standard error of that difference."""


class Queue:
    """Jobs that wait, by width: a width that finds no room need not be tried again."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[int]] = {}

    def add(self, job: int, gpus: int) -> None:
        self._waiting.setdefault(gpus, deque()).append(job)

    def first(self, without: set[int]) -> tuple[int, int] | None:
        """Return the job that came first, and its width, of the widths not in `without`."""
        heads = [(jobs[0], g) for g, jobs in self._waiting.items() if jobs and g not in without]
        return min(heads, default=None)

    def remove_first(self, gpus: int) -> None:
        self._waiting[gpus].popleft()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, required=True, help="a trace of jobs")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--order", choices=("skip", "fifo"), default="skip")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--policies", help="names, with semicolons; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    names = arguments.policies.split(";") if arguments.policies else [*POLICIES, *TOLD]
    results = compare(
        arguments.trace, arguments.nodes, parse_seeds(arguments.seeds), names,
        skip=arguments.order == "skip",
    )  # fmt: skip
    if arguments.json:
        print(json.dumps({"results": [asdict(r) for r in results]}, indent=2))
        return
    print(f"{'policy':16} {'mean wait':>9} {'p95':>8} {'wide':>8} {'to tight':>16}")
    for r in results:
        print(
            f"{r.policy:16} {r.wait:9,.0f} {r.wait_95:8,.0f} {r.wide:8,.0f} "
            f"{r.versus_tight:+8,.0f} ± {r.error:5,.0f}"
        )


def compare(
    trace: Path, nodes: int, seeds: Sequence[int], names: Sequence[str], *, skip: bool
) -> list[Result]:
    """Replay the same jobs by every policy."""
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for seed in seeds:
        start, seconds, gpus = read_trace(trace, seed)
        wide = np.array(gpus) >= NODE_GPUS
        for name, rows in measured.items():
            policy = POLICIES[OURS if name in TOLD else name]([_request(g) for g in gpus])
            estimates = estimates_of(seconds, TOLD.get(name, "none"), seed)
            wait = waits(start, seconds, gpus, nodes, policy, estimates, skip=skip)
            mean_wide = float(wait[wide].mean()) if wide.any() else 0.0
            rows.append((float(wait.mean()), float(np.percentile(wait, 95)), mean_wide))
    rival = np.array(measured.get(RIVAL) or measured[names[0]])[:, 0]
    results: list[Result] = []
    for name, rows in measured.items():
        table = np.array(rows)
        more = table[:, 0] - rival
        error = float(more.std(ddof=1) / len(more) ** 0.5) if len(more) > 1 else 0.0
        wait, wait_95, wide_wait = (float(mean) for mean in table.mean(axis=0))
        results.append(Result(name, wait, wait_95, wide_wait, float(more.mean()), error))
    return results


def waits(
    start: Sequence[float],
    seconds: Sequence[float],
    gpus: Sequence[int],
    nodes: int,
    policy: Policy,
    estimates: Sequence[float] | None = None,
    *,
    skip: bool,
) -> np.ndarray:
    """Return for how many seconds each job waits. All jobs must fit on the idle nodes."""
    fleet, queue = Fleet.of([NodeSize(0, 0, NODE_GPUS, 0)] * nodes), Queue()
    running: list[tuple[float, int]] = []
    taken: dict[int, Taken] = {}
    wait = np.zeros(len(start))
    arrived = 0
    while arrived < len(start) or running:
        next_end = running[0][0] if running else np.inf
        now = min(next_end, start[arrived] if arrived < len(start) else np.inf)
        while running and running[0][0] <= now:
            for part in taken.pop(heapq.heappop(running)[1]):
                fleet.give_back(*part)
        while arrived < len(start) and start[arrived] <= now:
            queue.add(arrived, gpus[arrived])
            arrived += 1
        blocked: set[int] = set()
        while (head := queue.first(blocked)) is not None and (skip or not blocked):
            job, wide = head
            if not has_room(fleet, wide):
                blocked.add(wide)
                continue
            stay = Stay(now, now + estimates[job]) if estimates else None
            taken[job] = place(fleet, policy, wide, stay)
            queue.remove_first(wide)
            wait[job] = now - start[job]
            heapq.heappush(running, (now + seconds[job], job))
    return wait


def has_room(fleet: Fleet, gpus: int) -> bool:
    """Say whether a job finds its GPUs: on one node, or on idle nodes and one more."""
    free = np.sort((fleet.columns.milli == WHOLE).sum(axis=1))[::-1]
    whole, rest = divmod(gpus, NODE_GPUS)
    if len(free) < whole + (rest > 0) or (whole and free[whole - 1] < NODE_GPUS):
        return False
    return not rest or bool(free[whole] >= rest)


def place(fleet: Fleet, policy: Policy, gpus: int, stay: Stay | None) -> Taken:
    """Take the GPUs of a job that has room, idle nodes first, and return what was taken."""
    taken: Taken = []
    whole, rest = divmod(gpus, NODE_GPUS)
    for part in [NODE_GPUS] * whole + [rest] * (rest > 0):
        request = _request(part)
        choice = policy.choose(fleet, request, stay)
        if choice is None:
            raise ValueError(f"no room for {part} GPUs")
        fleet.take(request, choice, stay)
        taken.append((request, choice, stay))
    return taken


def _request(gpus: int) -> Request:
    return Request(0, 0, min(gpus, NODE_GPUS), WHOLE)


if __name__ == "__main__":
    main()
