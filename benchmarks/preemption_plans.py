"""How long it takes to plan preemption on a large pool.

    python -m benchmarks.preemption_plans [--nodes 10000] [--waiting 8000] [--gangs 0.02] [--json]

Nodes of 8 GPUs, 16 in a domain, nearly all in use by jobs of 1 to 8 GPUs, of classes 3 to 6, with
durations of their own, of which two thirds save. Jobs of classes 4 to 6 wait, of 1 to 8 GPUs, and
a part of them gangs of 16. The plans are those of a cycle (`plan_preemptions`), with nothing else
running in the process. Beside it in the same run: the cycle's own plan for the same queue on the
same nodes, which starts what fits. Scenes are made from seeds. Nothing runs.
"""

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import PackingPolicy
from longshore.models.preemption import PreemptionPolicy, RunningWork, WorkCheckpoint
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL, Gang
from longshore.scheduling import cycle
from longshore.scheduling.bulk.warm import warm
from longshore.scheduling.placement.state import running_job, with_job
from longshore.scheduling.preemption.plan import plan_preemptions

NOW = datetime(2026, 11, 20, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_GPUS = 8
_OF_A_DOMAIN = 16


@dataclass(frozen=True)
class Report:
    nodes: int
    running: int
    waiting: int
    gangs: int
    """Of those that wait."""
    cycle: float
    """Seconds of the processor for what starts without anybody's stop."""
    plans: float
    """Seconds of the processor for preemption."""
    chosen: int
    """Jobs that have others stopped."""
    stopped: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=8_000, help="jobs")
    parser.add_argument("--gangs", type=float, default=0.02, help="the part of them that are")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    warm()
    made = measure(arguments.nodes, arguments.waiting, arguments.gangs, arguments.seed)
    if arguments.json:
        print(json.dumps(asdict(made), indent=2))
        return
    print(f"{made.nodes} nodes, {made.running} jobs run, {made.waiting} wait, {made.gangs} gangs")
    print(f"what starts now: {made.cycle:.1f} s; who is preempted: {made.plans:.1f} s, "
          f"{made.plans / made.cycle:.1f} times as long")  # fmt: skip
    print(f"{made.stopped} jobs are preempted for {made.chosen}")


def measure(nodes: int, waiting: int, gangs: float, seed: int) -> Report:
    """Return what both plans took for one scene."""
    chance = random.Random(seed)
    pool, works = _crowded(nodes, chance)
    queue = [_waiting(number, gangs, chance) for number in range(waiting)]
    policy = PackingPolicy()
    began = time.process_time()
    shares = [share for work in works for share in work.shares]
    cycle.plan(queue, pool, shares, policy, NOW)
    planned = time.process_time()
    plans = plan_preemptions(queue, pool, works, PreemptionPolicy(), policy, NOW)
    ended = time.process_time()
    return Report(
        nodes, len(works), waiting, sum(job.gang is not None for job in queue),
        planned - began, ended - planned, sum(plan.preempts for plan in plans),
        sum(len(plan.victims) for plan in plans),
    )  # fmt: skip


def _crowded(count: int, chance: random.Random) -> tuple[list[Node], list[RunningWork]]:
    nodes: list[Node] = []
    works: list[RunningWork] = []
    for number in range(count):
        node = _node(number)
        free = list(range(_GPUS))
        while free:
            gpus = min(chance.choice([1, 1, 2, 4, 8]), len(free))
            taken, free = free[:gpus], free[gpus:]
            if chance.random() < 0.03:
                continue  # a few are free
            work = _running(node, tuple(taken), chance)
            node = with_job(node, work.request, taken)
            works.append(work)
        nodes.append(node)
    return nodes, works


def _node(number: int) -> Node:
    domain = f"domain-{number // _OF_A_DOMAIN}"
    return Node(
        id=f"node-{number:05}", gpu_type="H100", cpus=128, ram=1024,
        gpus=tuple(GPU(index=index, vram=80) for index in range(_GPUS)),
        labels={REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: domain},
    )  # fmt: skip


def _running(node: Node, gpus: tuple[int, ...], chance: random.Random) -> RunningWork:
    ran, left = (_MINUTE * chance.randint(5, most) for most in (300, 600))
    request = JobRequest(
        id=f"runs-{node.id}-{gpus[0]}", gpus=len(gpus), vram_per_gpu=40, cpus=len(gpus),
        ram=8 * len(gpus), priority=chance.choice([3, 4, 4, 5, 6, 6]),
        expected_duration=ran + left, submitted_at=NOW - ran,
    )  # fmt: skip
    saves = chance.random() < 2 / 3
    checkpoint = WorkCheckpoint(
        saved_at=NOW - _MINUTE * chance.randint(0, 20), write=timedelta(seconds=5)
    )
    return RunningWork(
        request=request, shares=(running_job(request, node, gpus, 0, NOW + left),),
        started_at=NOW - ran, expected_end=NOW + left, price=2_000_000,
        checkpoint=checkpoint if saves else None,
    )  # fmt: skip


def _waiting(number: int, gangs: float, chance: random.Random) -> JobRequest:
    gang = Gang() if chance.random() < gangs else None
    gpus = 16 if gang else chance.choice([1, 2, 4, 8])
    return JobRequest(
        id=f"waits-{number:05}", gpus=gpus, vram_per_gpu=chance.choice([20, 40, 60]), cpus=gpus,
        ram=8 * gpus, priority=chance.choice([4, 5, 6]), gang=gang,
        expected_duration=timedelta(hours=chance.choice([1, 2, 4, 8])),
        submitted_at=NOW - timedelta(seconds=chance.randint(0, 3600)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
