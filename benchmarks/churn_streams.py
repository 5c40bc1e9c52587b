"""Streams of jobs that come and go, and what a policy refuses of them."""

import csv
import gzip
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.packing_lists import WHOLE, Nodes, Pod, could_take
from scheduling.packing.fleet import Choice, Fleet, NodeSize, Request, Stay
from scheduling.packing.policies import Policy

HOLD = 3600.0
"""Seconds that a pod is held, on average."""
HOURS, WARM_UP = 40, 10
JITTER = 600.0
"""Seconds by which a replicate of a trace moves each submit time, either way, at most."""


@dataclass(frozen=True)
class Stream:
    """Jobs in the order that they come: when, for how long (both seconds), and what they ask."""

    fleet: Fleet
    start: Sequence[float]
    seconds: Sequence[float]
    requests: Sequence[Request]
    counted_from: float = 0.0
    """Jobs that come earlier fill the fleet, and are not counted."""


@dataclass(frozen=True)
class Refusals:
    """Of the jobs that were counted, in per cent."""

    gpu_time: float
    jobs: float
    wide: float
    """Of the jobs with four or more GPUs; 0 when there are none."""


def pod_stream(nodes: Nodes, pods: Sequence[Pod], load: float, seed: int, size: int) -> Stream:
    """Return pods of a list at random moments, held for exponential times.

    `load` is what they ask for on average, over the GPUs of `size` nodes drawn at random.
    """
    chance = np.random.default_rng([seed, 41])
    drawn = nodes.picked(chance.choice(len(nodes.sizes), size, replace=False))
    requests = [pod.request._replace(models=0, vram=0) for pod in pods]
    kinds = set(drawn.sizes)
    possible = [r for r in requests if any(could_take(kind, r) for kind in kinds)]
    mean_gpus = float(np.mean([r.gpu_milli / WHOLE for r in possible]))
    end = HOURS * HOLD
    count = int(chance.poisson(load * drawn.gpus / (mean_gpus * HOLD) * end))
    picked = chance.choice(len(possible), count)
    start = np.sort(chance.uniform(0, end, count))
    seconds = chance.exponential(HOLD, count) + 1.0
    return Stream(
        drawn.fleet(), start.tolist(), seconds.tolist(), [possible[i] for i in picked],
        WARM_UP * HOLD,
    )  # fmt: skip


def trace_stream(path: Path, nodes: int, replicate: int) -> Stream:
    """Return a trace of jobs of at most 8 whole GPUs, on equal nodes of 8 GPUs.

    Replicate 0 is the trace itself; the others move every submit time at random.
    """
    start, seconds, gpus = read_trace(path, replicate, widest=8)
    requests = [Request(0, 0, wide, WHOLE) for wide in gpus]
    return Stream(Fleet.of([NodeSize(0, 0, 8, 0)] * nodes), start, seconds, requests)


def read_trace(
    path: Path, replicate: int, widest: int | None = None
) -> tuple[list[float], list[float], list[int]]:
    """Return when jobs come, how long they run (seconds) and their GPUs, at most so many.

    In the order that they come; replicates move every submit time at random, but for 0.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = list(csv.DictReader(text.decode().splitlines()))
    rows.sort(key=lambda row: float(row["submit_s"]))
    first = float(rows[0]["submit_s"])
    rows = [row for row in rows if widest is None or int(row["num_gpu"]) <= widest]
    start = np.array([float(row["submit_s"]) - first for row in rows])
    if replicate:
        chance = np.random.default_rng([replicate, 23])
        start = np.maximum(0.0, start + np.round(chance.uniform(-JITTER, JITTER, len(start))))
    order = np.argsort(start, kind="stable")
    seconds = [max(1.0, float(rows[i]["duration_s"])) for i in order]
    return start[order].tolist(), seconds, [int(rows[i]["num_gpu"]) for i in order]


def estimates_of(seconds: Sequence[float], how: str, seed: int) -> list[float] | None:
    """Return for how long each job says that it will stay: not at all, exactly or roughly.

    Rough ones are off by a lognormal factor, sigma 1, at most ten times either way.
    """
    if how == "none":
        return None
    if how == "exact":
        return list(seconds)
    chance = np.random.default_rng([seed, 77])
    factors = np.exp(chance.normal(0.0, 1.0, len(seconds)))
    return (np.array(seconds) * np.clip(factors, 0.1, 10.0)).tolist()


def refusals(stream: Stream, policy: Policy, estimates: Sequence[float] | None = None) -> Refusals:
    """Play a stream: a job that finds no room when it comes is refused for good.

    The policy is told the estimates, one a job in seconds, where there are any.
    """
    fleet = stream.fleet.copy()
    running: list[tuple[float, int, Choice]] = []
    stays: list[Stay | None] = [None] * len(stream.requests)
    asked = refused = 0.0
    jobs = [0, 0]
    wide = [0, 0]
    for i, request in enumerate(stream.requests):
        now = stream.start[i]
        while running and running[0][0] <= now:
            _, ended, choice = heapq.heappop(running)
            fleet.give_back(stream.requests[ended], choice, stays[ended])
        stays[i] = Stay(now, now + estimates[i]) if estimates else None
        choice = policy.choose(fleet, request, stays[i])
        if choice is not None:
            fleet.take(request, choice, stays[i])
            heapq.heappush(running, (now + stream.seconds[i], i, choice))
        if now < stream.counted_from:
            continue
        gpu_time = request.gpu_milli * stream.seconds[i]
        lost = choice is None
        asked += gpu_time
        refused += lost * gpu_time
        jobs[lost] += 1
        wide[lost] += request.gpus >= 4
    return Refusals(100 * refused / asked, _per_cent(jobs), _per_cent(wide))


def _per_cent(kept_and_lost: list[int]) -> float:
    return 100 * kept_and_lost[1] / max(1, sum(kept_and_lost))
