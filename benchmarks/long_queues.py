"""Decisions per second for queues of thousands of jobs, on up to 100,000 nodes.

    python -m benchmarks.long_queues [--nodes 10000] [--jobs 5000] [--rule keep-room] [--turns 3]
                                     [--json]

Two queues. `equal`: that of `benchmarks.decisions`, 48 different needs on one make of nodes.
`mixed`: all constraints at once: types of GPUs and two tiers, with and without containers, four
ends, jobs that name a type or none, that are heavy in cores or RAM, and every tenth wants a part
of a GPU; several hundred needs.

`one by one` is the plan without the compiled pass (on up to 10,000 nodes), `compiled` with it, and
both are checked to be the same plan. `arrays` is what the compiled pass needs to answer all jobs:
node, GPUs, terms, the best alternatives and the counts of rejections, as arrays; the rest of
`compiled` is the models with their sentences. Each is the microseconds of a decision beyond
reading the nodes (`read`, ms), in processor time of one thread; the least of the turns.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial

from benchmarks.decisions import KEEP_ROOM, NOW, SHIPPED, Scene, equal_scene
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import PackingPolicy
from longshore.scheduling import bulk
from longshore.scheduling.bulk.warm import warm
from longshore.scheduling.cycle import plan
from longshore.scheduling.order import queue_order
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.mix import mix_of
from longshore.scheduling.placement.state import Need, view_nodes

SIZES = ((100, 400), (1_000, 1_000), (10_000, 5_000), (100_000, 5_000))
MOST_ONE_BY_ONE = 10_000
"""Nodes."""


@dataclass(frozen=True)
class Row:
    scene: str
    nodes: int
    jobs: int
    needs: int
    rule: str
    placed: int
    read_ms: float
    one_by_one_us: float | None
    compiled_us: float
    arrays_us: float | None
    """None where some jobs wait: then the pass alone does not answer all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, help="only so many")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--rule", help="only this one")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    warm()
    rows: list[Row] = []
    for nodes, jobs in SIZES:
        if arguments.nodes not in (None, nodes):
            continue
        for name, make in (("equal", equal_scene), ("mixed", mixed_scene)):
            scene = make(nodes, arguments.jobs or jobs)
            for policy in (SHIPPED, KEEP_ROOM):
                if arguments.rule in (None, policy.rule.value):
                    rows.append(measure(name, scene, policy, arguments.turns))
                    if not arguments.json:
                        print(line(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


def line(row: Row) -> str:
    one = "" if row.one_by_one_us is None else f"one by one {row.one_by_one_us:.1f} us, "
    arrays = "" if row.arrays_us is None else f", arrays {row.arrays_us:.1f} us"
    return (
        f"{row.scene} {row.nodes} nodes {row.jobs} jobs ({row.needs} needs, {row.placed} placed) "
        f"{row.rule}: read {row.read_ms:.0f} ms, {one}compiled {row.compiled_us:.1f} us{arrays}"
    )


def measure(name: str, scene: Scene, policy: PackingPolicy, turns: int) -> Row:
    """Return what a decision takes each way. Ends the program when plans differ."""
    nodes, queue = scene
    both = len(nodes) <= MOST_ONE_BY_ONE
    made = plan(queue, nodes, [], policy, NOW, compiled=True)
    if both and plan(queue, nodes, [], policy, NOW, compiled=False) != made:
        sys.exit(f"{len(nodes)} nodes, {policy.rule}: the two ways decided differently")
    read: list[float] = []
    one_by_one: list[float] = []
    compiled: list[float] = []
    arrays: list[float] = []
    whole = len(made.placements) == len(queue)
    for _ in range(turns):
        read.append(_seconds(lambda: Columns(view_nodes(nodes, (), NOW), NOW)))
        compiled.append(_seconds(lambda: plan(queue, nodes, [], policy, NOW, compiled=True)))
        if both:
            one_by_one.append(
                _seconds(lambda: plan(queue, nodes, [], policy, NOW, compiled=False))
            )
        if whole:
            arrays.append(answer(queue, nodes, policy))
    each = 1e6 / len(queue)
    return Row(
        scene=name,
        nodes=len(nodes),
        jobs=len(queue),
        needs=len({Need.of(job, policy) for job in queue}),
        rule=policy.rule.value,
        placed=len(made.placements),
        read_ms=1_000 * min(read),
        one_by_one_us=each * (min(one_by_one) - min(read)) if both else None,
        compiled_us=each * (min(compiled) - min(read)),
        arrays_us=each * min(arrays) if whole else None,
    )


def answer(queue: list[JobRequest], nodes: list[Node], policy: PackingPolicy) -> float:
    """Return the seconds until all jobs are answered in arrays, beyond reading the nodes."""
    columns = Columns(view_nodes(nodes, (), NOW), NOW)

    def run() -> None:
        jobs = queue_order(queue, policy, NOW)
        mix = mix_of(jobs, (), 0, policy)
        keeper = HeadroomKeeper(columns, mix) if policy.rule.learns else None
        need_of = partial(Need.of, policy=policy)
        answered = bulk.run_of(jobs, columns, policy, keeper, NOW, need_of).forward()
        assert answered == len(jobs)

    return _seconds(run)


def mixed_scene(node_count: int, job_count: int) -> Scene:
    """Return nodes and jobs with every constraint that is not a gang's."""
    chance = random.Random(20261120)
    nodes = [_node(f"node-{i:06}", chance) for i in range(node_count)]
    queue = [_job(f"job-{i:05}", chance) for i in range(job_count)]
    gc.collect()
    gc.freeze()
    return nodes, queue


def _node(name: str, chance: random.Random) -> Node:
    busy = set(chance.sample(range(8), chance.randrange(8) if chance.random() < 0.5 else 0))
    gpu_type, vram = chance.choice((("A100", 80), ("H100", 80), ("H200", 141)))
    hours = chance.choice((None, 2, 6, 24))
    return Node(
        id=name,
        tier=chance.choice((Tier.FAST, Tier.FAST, Tier.FAST, Tier.FLEX)),
        provider=chance.choice(("sfcompute", "prime", "own")),
        gpu_type=gpu_type,
        gpus=tuple(
            GPU(index=i, vram=vram, vram_used=40, job_id="old")
            if i in busy
            else GPU(index=i, vram=vram)
            for i in range(8)
        ),
        cpus=chance.choice((64, 128)),
        cpus_used=4 * len(busy),
        ram=chance.choice((512, 1024)),
        ram_used=32 * len(busy),
        container_runtime=chance.choice(("docker", None)),
        expires_at=None if hours is None else NOW + timedelta(hours=hours),
    )


def _job(name: str, chance: random.Random) -> JobRequest:
    part = chance.random() < 0.1
    gpus = 1 if part else chance.choice((1, 1, 2, 4, 8))
    return JobRequest(
        id=name,
        tier=chance.choice((Tier.FAST, Tier.FAST, Tier.FAST, Tier.FLEX)),
        priority=chance.randrange(3),
        gpus=gpus,
        gpu_type=chance.choice((None, None, "A100", "H100")),
        vram_per_gpu=20 if part else chance.choice((20, 40, 80)),
        milli=chance.choice((250, 500)) if part else 1000,
        cpus=chance.choice((4, 8)) * gpus,
        ram=chance.choice((32, 64)) * gpus,
        needs_container=chance.random() < 0.3,
        expected_duration=timedelta(minutes=chance.choice((10, 60, 120))),
        submitted_at=NOW,
    )


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


if __name__ == "__main__":
    main()
