"""Streams of jobs that come and go, and what the live cycle refuses of them by a rule."""

import csv
import gzip
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np

from benchmarks.live_pool import START, LivePool
from benchmarks.packing_lists import (
    HOUR,
    WHOLE,
    Nodes,
    NodeSize,
    Pod,
    could_take,
    job_of,
    name_of,
)
from longshore.models.placement import PackingPolicy, PackingRule

HOURS, WARM_UP = 40, 10
JITTER = 600.0
"""Seconds by which a replicate of a trace moves each submit time, either way, at most."""


@dataclass(frozen=True)
class Stream:
    """Jobs in the order that they come: when, for how long (both seconds), and what they ask."""

    nodes: Nodes
    start: Sequence[float]
    seconds: Sequence[float]
    pods: Sequence[Pod]
    counted_from: float = 0.0
    """Jobs that come earlier fill the nodes, and are not counted."""


@dataclass(frozen=True)
class Refusals:
    """Of the jobs that were counted, in per cent."""

    gpu_time: float
    jobs: float
    wide: float
    """Of the jobs with four or more GPUs; 0 when there are none."""


def pod_stream(nodes: Nodes, pods: Sequence[Pod], load: float, seed: int, size: int) -> Stream:
    """Return pods of a list that want GPUs, at random moments, held for exponential times.

    `load` is what they ask for on average, over the GPUs of `size` nodes drawn at random.
    """
    chance = np.random.default_rng([seed, 41])
    drawn = nodes.picked(chance.choice(len(nodes.sizes), size, replace=False))
    asked = [pod._replace(models=(), vram=0) for pod in pods if pod.gpus]
    kinds = set(drawn.sizes)
    possible = [pod for pod in asked if any(could_take(kind, pod) for kind in kinds)]
    mean_gpus = float(np.mean([pod.gpu_milli / WHOLE for pod in possible]))
    hold = HOUR.total_seconds()
    end = HOURS * hold
    count = int(chance.poisson(load * drawn.gpus / (mean_gpus * hold) * end))
    picked = chance.choice(len(possible), count)
    start = np.sort(chance.uniform(0, end, count))
    seconds = chance.exponential(hold, count) + 1.0
    return Stream(
        drawn, start.tolist(), seconds.tolist(), [possible[i] for i in picked], WARM_UP * hold
    )


def trace_stream(path: Path, nodes: int, replicate: int) -> Stream:
    """Return a trace of jobs of at most 8 whole GPUs, on equal nodes of 8 GPUs.

    Replicate 0 is the trace itself; the others move every submit time at random.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = list(csv.DictReader(text.decode().splitlines()))
    rows.sort(key=lambda row: float(row["submit_s"]))
    first = float(rows[0]["submit_s"])
    rows = [row for row in rows if int(row["num_gpu"]) <= 8]
    start = np.array([float(row["submit_s"]) - first for row in rows])
    if replicate:
        chance = np.random.default_rng([replicate, 23])
        start = np.maximum(0.0, start + np.round(chance.uniform(-JITTER, JITTER, len(start))))
    order = np.argsort(start, kind="stable").tolist()
    equal = Nodes(tuple(map(name_of, range(nodes))), (NodeSize(0, 0, 8),) * nodes)
    return Stream(
        equal,
        start[order].tolist(),
        [max(1.0, float(rows[i]["duration_s"])) for i in order],
        [Pod(0, 0, int(rows[i]["num_gpu"]), WHOLE) for i in order],
    )


def refusals(stream: Stream, rule: PackingRule) -> Refusals:
    """Play a stream: each job is a cycle, and one that finds no room is refused for good.

    No job says for how long it stays.
    """
    pool = LivePool(stream.nodes.idle(), PackingPolicy(rule=rule, max_reservations=0))
    running: list[tuple[float, str]] = []
    asked = refused = 0.0
    jobs, wide = [0, 0], [0, 0]
    for i, pod in enumerate(stream.pods):
        now = stream.start[i]
        while running and running[0][0] <= now:
            pool.end(heapq.heappop(running)[1])
        job = job_of(i, pod)
        (decision,) = pool.place([job], START + timedelta(seconds=now))
        lost = decision.node_id is None
        if not lost:
            heapq.heappush(running, (now + stream.seconds[i], job.id))
        if now < stream.counted_from:
            continue
        gpu_time = pod.gpu_milli * stream.seconds[i]
        asked += gpu_time
        refused += lost * gpu_time
        jobs[lost] += 1
        wide[lost] += pod.gpus >= 4
    return Refusals(100 * refused / asked, _per_cent(jobs), _per_cent(wide))


def _per_cent(kept_and_lost: list[int]) -> float:
    return 100 * kept_and_lost[1] / max(1, sum(kept_and_lost))
