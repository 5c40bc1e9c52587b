"""Decisions per second: Longshore's cycle beside the plain loop of the packing document.

    python -m benchmarks.decisions [--json] [--large]

One decision is the answer to one job of a queue: the node and the GPUs that it gets, as the jobs
before it have left them, or that no node can take it. Both sides answer the same queue on the
same nodes of 8 GPUs, of which half are partly in use, and must end in the same state: the program
stops with an error when one job got another node or other GPUs.

The plain loop is what one writes down from the document: for each job, filter all nodes, score
them, sort, take the best and its first free GPUs, note what is used. `cycle` is one call of
`scheduling.cycle.plan` by the same rules (first free GPUs, no reservations), views of the nodes
included; it also says why, with the best alternatives. `shipped` is that call with the seed's
score, contiguous GPUs, and reservations for jobs that wait; `keep-room` is the call by the rules
of a pool that names none.

`scan` is the plain loop as one writes it with numpy, over all nodes for each job
(`benchmarks/plain_scan.py`); it answers the same too. `place` and `one job` are the milliseconds
of a single `place(explain=False)`, and of a cycle with one job in its queue. All times are the
processor's; the sides take turns, and medians count. Long queues: `benchmarks.long_queues`.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from benchmarks.plain_scan import PlainScan
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import CyclePlan, GPUChoice, PackingPolicy, PackingRule
from longshore.scheduling.bulk.warm import warm
from longshore.scheduling.cycle import plan
from longshore.scheduling.packer import place

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SHIPPED = PackingPolicy()
KEEP_ROOM = PackingPolicy(rule=PackingRule.KEEP_ROOM)
PLAIN_RULES = PackingPolicy(gpu_choice=GPUChoice.FIRST_FREE, max_reservations=0)
SIZES = ((100, 400), (1_000, 500))
LARGE = (10_000, 100)
REPEATS = {100: 21, 1_000: 7, 10_000: 3}
"""By nodes: what is over soon is disturbed most, and measured most often."""
SEED = 20261120

Scene = tuple[list[Node], list[JobRequest]]
Answer = tuple[str, str | None, tuple[int, ...]]
"""A job, its node if it got one, and its GPUs there."""


@dataclass(frozen=True)
class Row:
    """What was measured on one number of nodes."""

    nodes: int
    jobs: int
    placed: int
    load_before: float
    """Share of the GPUs in use."""
    load_after: float
    plain_per_s: float
    scan_per_s: float
    cycle_per_s: float
    ratio: float
    """cycle / plain, for the same decisions."""
    shipped_placed: int
    shipped_per_s: float
    shipped_ratio: float
    keep_room_per_s: float
    place_ms: float
    one_job_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--large", action="store_true", help="also measure 10,000 nodes")
    arguments = parser.parse_args()
    sizes = (*SIZES, LARGE) if arguments.large else SIZES
    warm()
    rows = [measure(node_count, job_count) for node_count, job_count in sizes]
    if arguments.json:
        ratio = next(row.ratio for row in rows if row.nodes == 1_000)
        print(
            json.dumps(
                {
                    "results": [asdict(row) for row in rows],
                    "ratio": ratio,
                },
                indent=2,
            )
        )
        return
    print(
        f"{'nodes':>6} {'jobs':>5} {'placed':>6} {'GPUs in use':>11} {'plain/s':>8} {'scan/s':>8} "
        f"{'cycle/s':>8} {'ratio':>6} {'shipped/s':>9} {'ratio':>6} "
        f"{'keep-room':>9} {'place':>8} {'one job':>8}"
    )
    for row in rows:
        print(
            f"{row.nodes:>6} {row.jobs:>5} {row.placed:>6} "
            f"{row.load_before:>4.0%} to {row.load_after:>3.0%} {row.plain_per_s:>8.0f} "
            f"{row.scan_per_s:>8.0f} {row.cycle_per_s:>8.0f} {row.ratio:>6.1f} "
            f"{row.shipped_per_s:>9.0f} {row.shipped_ratio:>6.1f} "
            f"{row.keep_room_per_s:>9.0f} {row.place_ms:>5.1f} ms {row.one_job_ms:>5.1f} ms"
        )


def measure(node_count: int, job_count: int) -> Row:
    """Return what each way takes, as medians. Ends the program when the answers differ."""
    nodes, queue = equal_scene(node_count, job_count)
    made = plan(queue, nodes, [], PLAIN_RULES, NOW)
    expected = plain_loop(queue, _plain(nodes))
    if _answers(made) != expected or scan_all(queue, PlainScan(nodes, NOW)) != expected:
        sys.exit(f"{node_count} nodes: the sides decided differently")

    repeats = REPEATS[node_count]
    copies = [_plain(nodes) for _ in range(repeats)]
    scans = [PlainScan(nodes, NOW) for _ in range(repeats)]
    times = _medians(
        repeats,
        {
            "scan": lambda: scan_all(queue, scans.pop()),
            "plain": lambda: plain_loop(queue, copies.pop()),
            "cycle": lambda: plan(queue, nodes, [], PLAIN_RULES, NOW),
            "shipped": lambda: plan(queue, nodes, [], SHIPPED, NOW),
            "keep-room": lambda: plan(queue, nodes, [], KEEP_ROOM, NOW),
            "place": lambda: place(queue[0], nodes, SHIPPED, NOW, explain=False),
            "one job": lambda: plan(queue[:1], nodes, [], SHIPPED, NOW),
        },
    )
    before = sum(gpu.job_id is not None for node in nodes for gpu in node.gpus)
    taken = sum(len(decision.gpu_indices) for decision in made.placements)
    return Row(
        nodes=node_count,
        jobs=job_count,
        placed=len(made.placements),
        load_before=before / (8 * node_count),
        load_after=(before + taken) / (8 * node_count),
        plain_per_s=job_count / times["plain"],
        scan_per_s=job_count / times["scan"],
        cycle_per_s=job_count / times["cycle"],
        ratio=times["plain"] / times["cycle"],
        shipped_placed=len(plan(queue, nodes, [], SHIPPED, NOW).placements),
        shipped_per_s=job_count / times["shipped"],
        shipped_ratio=times["plain"] / times["shipped"],
        keep_room_per_s=job_count / times["keep-room"],
        place_ms=1_000 * times["place"],
        one_job_ms=1_000 * times["one job"],
    )


def equal_scene(node_count: int, job_count: int) -> Scene:
    """Return nodes of one make, half of them partly in use, and jobs of 48 needs."""
    chance = random.Random(SEED)
    nodes = [_node(f"node-{i:05}", chance) for i in range(node_count)]
    queue = [_job(f"job-{i:05}", chance) for i in range(job_count)]
    gc.collect()
    gc.freeze()  # what lives on is not looked at again, whoever is measured
    return nodes, queue


def _answers(made: CyclePlan) -> list[Answer]:
    return [(d.job_id, d.node_id, d.gpu_indices) for d in made.decisions]


def _medians(repeats: int, sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each side, which take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            seconds[name].append(_seconds(run))
    return {name: statistics.median(measured) for name, measured in seconds.items()}


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


def plain_loop(queue: list[JobRequest], nodes: list[PlainNode]) -> list[Answer]:
    """Return the answer to each job, in order; the nodes are changed."""
    answers: list[Answer] = []
    for job in queue:
        scored: list[tuple[float, PlainNode, list[PlainGPU]]] = []
        for node in nodes:
            possible = plain_filter(node, job)
            if possible is not None:
                scored.append((plain_score(node, job, possible), node, possible))
        if not scored:
            answers.append((job.id, None, ()))
            continue
        scored.sort(key=lambda entry: entry[0], reverse=True)
        _, node, possible = scored[0]
        taken = possible[: job.gpus]
        for gpu in taken:
            gpu.job_id = job.id
            gpu.used += job.vram_per_gpu
        node.cpus_used += job.cpus
        node.ram_used += job.ram
        answers.append((job.id, node.id, tuple(gpu.index for gpu in taken)))
    return answers


def scan_all(queue: list[JobRequest], nodes: PlainScan) -> list[Answer]:
    """Return the answers of the plain loop, by numpy; the nodes are changed."""
    return [nodes.place(job) for job in queue]


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


def _plain(nodes: list[Node]) -> list[PlainNode]:
    return [PlainNode.of(node) for node in nodes]


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


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()  # nobody pays for what the other left behind
    begin = time.process_time()  # one thread, and other programs may be at work
    run()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
