"""Placements per second: Longshore's cycle beside the plain loop of the packing document.

    python -m benchmarks.decisions [--json] [--large]

Both place the same queue on the same nodes of 8 GPUs, of which half are partly in use, until the
queue is through. The plain loop is what one writes down from the document: for each job, filter
all nodes, score them, sort, take the best, note what is used. It explains nothing and keeps no
reservation; the cycle does both. `single` is one `place` call for one job on fresh nodes.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from models.node import GPU, Node
from models.placement import JobRequest, PackingPolicy
from scheduling.cycle import plan
from scheduling.packer import place

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICY = PackingPolicy()
SIZES = ((100, 400), (1_000, 500))
LARGE = (10_000, 200)
REPEATS = 5
SEED = 20261120


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--large", action="store_true", help="also measure 10,000 nodes")
    arguments = parser.parse_args()
    sizes = (*SIZES, LARGE) if arguments.large else SIZES
    results = [measure(node_count, job_count) for node_count, job_count in sizes]
    if arguments.json:
        print(json.dumps({"results": results, "ratio": results[-1]["ratio"]}, indent=2))
        return
    print(f"{'nodes':>7} {'jobs':>5} {'cycle/s':>9} {'plain/s':>9} {'ratio':>6} {'single/s':>9}")
    for row in results:
        print(
            f"{row['nodes']:>7} {row['jobs']:>5} {row['cycle_per_s']:>9.0f} "
            f"{row['plain_per_s']:>9.0f} {row['ratio']:>6.2f} {row['single_per_s']:>9.1f}"
        )


def measure(node_count: int, job_count: int) -> dict[str, float]:
    """Return decisions per second of each way, as medians; `ratio` is cycle / plain."""
    chance = random.Random(SEED)
    nodes = [_node(f"node-{i:05}", chance) for i in range(node_count)]
    queue = [_job(f"job-{i:05}", chance) for i in range(job_count)]
    cycle = _median_seconds(lambda: plan(queue, nodes, [], POLICY, NOW))
    plain = _median_seconds(lambda: plain_loop(queue, [PlainNode.of(node) for node in nodes]))
    single = _median_seconds(lambda: place(queue[0], nodes, POLICY, NOW, explain=False))
    return {
        "nodes": node_count,
        "jobs": job_count,
        "cycle_per_s": job_count / cycle,
        "plain_per_s": job_count / plain,
        "single_per_s": 1 / single,
        "ratio": plain / cycle,
    }


# --- the plain loop -------------------------------------------------------------------------


@dataclass(slots=True)
class PlainGPU:
    index: int
    total: float
    used: float
    job_id: str | None


@dataclass(slots=True)
class PlainNode:
    id: str
    tier: str
    provider: str
    gpus: list[PlainGPU]
    cpus: float
    cpus_used: float
    ram: float
    ram_used: float
    expires_at: datetime | None

    @classmethod
    def of(cls, node: Node) -> "PlainNode":
        gpus = [PlainGPU(gpu.index, gpu.vram, gpu.vram_used, gpu.job_id) for gpu in node.gpus]
        return cls(
            node.id, node.tier, node.provider, gpus, node.cpus, node.cpus_used, node.ram,
            node.ram_used, node.expires_at,
        )  # fmt: skip


def plain_loop(queue: list[JobRequest], nodes: list[PlainNode]) -> list[tuple[str, str | None]]:
    """Return the node of each job, in order; the nodes are changed."""
    answers: list[tuple[str, str | None]] = []
    for job in queue:
        scored: list[tuple[float, PlainNode, list[PlainGPU]]] = []
        for node in nodes:
            possible = plain_filter(node, job)
            if possible is not None:
                scored.append((plain_score(node, job, possible), node, possible))
        if not scored:
            answers.append((job.id, None))
            continue
        scored.sort(key=lambda entry: entry[0], reverse=True)
        _, node, possible = scored[0]
        for gpu in possible[: job.gpus]:
            gpu.job_id = job.id
            gpu.used += job.vram_per_gpu
        node.cpus_used += job.cpus
        node.ram_used += job.ram
        answers.append((job.id, node.id))
    return answers


def plain_filter(node: PlainNode, job: JobRequest) -> list[PlainGPU] | None:
    if node.tier != job.tier:
        return None
    if node.expires_at is not None:
        left = (node.expires_at - NOW).total_seconds()
        if left < job.expected_duration.total_seconds() + 300:
            return None
    if node.cpus - node.cpus_used < job.cpus or node.ram - node.ram_used < job.ram:
        return None
    possible = [
        gpu for gpu in node.gpus if gpu.job_id is None and gpu.total - gpu.used >= job.vram_per_gpu
    ]
    return possible if len(possible) >= job.gpus else None


def plain_score(node: PlainNode, job: JobRequest, possible: list[PlainGPU]) -> float:
    total = sum(gpu.total for gpu in node.gpus)
    used = sum(gpu.used for gpu in node.gpus) + job.vram_per_gpu * job.gpus
    indices = [gpu.index for gpu in possible[: job.gpus]]
    gap = 0.0
    if len(indices) > 1:
        gaps = [after - before - 1 for before, after in pairwise(indices)]
        gap = sum(gaps) / (len(indices) - 1)
    penalty = 0.0
    if node.expires_at is not None:
        left = (node.expires_at - NOW).total_seconds()
        horizon = 2 * job.expected_duration.total_seconds()
        penalty = 1 - left / horizon if left < horizon else 0.0
    bonus = 0.0
    if job.gpus >= 8 and node.provider == "sfcompute":
        bonus = 0.2
    elif job.gpus < 8 and node.provider == "prime":
        bonus = 0.1
    return min(used / total, 1.0) - 0.5 * gap - 0.3 * penalty + 0.2 * bonus


# --- the scene ------------------------------------------------------------------------------


def _node(name: str, chance: random.Random) -> Node:
    busy = set(chance.sample(range(8), chance.randrange(8) if chance.random() < 0.5 else 0))
    hours = chance.choice((None, 2, 6, 24))
    return Node(
        id=name,
        provider=chance.choice(("sfcompute", "prime")),
        gpus=tuple(
            GPU(index=i, vram=80, vram_used=40, job_id="old")
            if i in busy
            else GPU(index=i, vram=80)
            for i in range(8)
        ),
        cpus=64,
        cpus_used=4 * len(busy),
        ram=512,
        ram_used=32 * len(busy),
        expires_at=None if hours is None else NOW + timedelta(hours=hours),
    )


def _job(name: str, chance: random.Random) -> JobRequest:
    gpus = chance.choice((1, 1, 2, 4, 8))
    return JobRequest(
        id=name,
        gpus=gpus,
        vram_per_gpu=chance.choice((20, 40, 80)),
        cpus=4 * gpus,
        ram=32 * gpus,
        expected_duration=timedelta(minutes=chance.choice((10, 30, 60, 120))),
        submitted_at=NOW,
    )


def _median_seconds(run: Callable[[], object]) -> float:
    def once() -> float:
        begin = time.process_time()  # one thread, and other programs may be at work
        run()
        return time.process_time() - begin

    return statistics.median(once() for _ in range(REPEATS))


if __name__ == "__main__":
    main()
