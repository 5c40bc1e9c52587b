"""The rules of the live cycle on one stream of jobs that come and go: who waits, who is refused.

    python -m benchmarks.live_packing [--load 0.9] [--seeds 0-4] [--queue] [--separation 0.3]
        [--json]

Every decision is one of `scheduling.cycle.plan`, with all that it looks at: expiring nodes, GPUs
of three sizes, cores and RAM, shares, and what was placed lately. Jobs come at random moments and
run for the time that they take, which is at most what they said. Three of ten nodes belong to
blocks that end and are followed by another block; a job that would outlive its node is not put
there.

Without `--queue` a job that finds no room at once is refused: what counts is the GPU time refused.
With it jobs wait, with the reservations of a pool that names nothing: what counts is how long.
Only the order of the rules says something about a real pool, not the numbers. Nothing is run.
"""

import argparse
import heapq
import json
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import GPU, Node
from longshore.models.placement import PackingPolicy, PackingRule, RunningJob, ScoreWeights
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.mix import remembered
from longshore.scheduling.placement.state import with_job, without_job

START = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
MAKES = (("A100", 40, 8, 96, 1000), ("H100", 80, 8, 192, 2000), ("H100", 80, 4, 64, 500),
         ("H200", 141, 8, 192, 2000))  # fmt: skip
"""Type, GB, GPUs, cores, GB of RAM."""
SHAPES = (
    (0.30, 1, 1000), (0.15, 1, 500), (0.10, 1, 250), (0.15, 2, 1000), (0.15, 4, 1000),
    (0.15, 8, 1000),
)  # fmt: skip
"""Frequency, GPUs, thousandths."""


@dataclass
class Job:
    """A job with the time that it really takes."""

    request: JobRequest
    takes: timedelta

    @property
    def gpu_hours(self) -> float:
        request = self.request
        return request.gpus * request.milli / 1000 * (self.takes / HOUR)


@dataclass
class Outcome:
    """What one rule made of one stream."""

    asked: float = 0.0
    refused: float = 0.0
    """GPU-hours."""
    waits: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Hours waited, and the GPU-hours of the job."""
    wide_waits: list[float] = field(default_factory=list[float])


class Pool:
    """Nodes with what runs there, and the moments when that ends."""

    def __init__(self, nodes: list[Node], policy: PackingPolicy) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.policy = policy
        self.running: dict[str, RunningJob] = {}
        self.recent: deque[JobRequest] = deque(maxlen=remembered(len(nodes)))
        self.ended: deque[str] = deque(maxlen=remembered(len(nodes)))
        self.ends: list[tuple[datetime, str]] = []

    def place(self, jobs: dict[str, Job], now: datetime) -> list[str]:
        """Run one cycle and return the jobs that it placed."""
        queue = [job.request for job in jobs.values()]
        ended = set(self.ended)
        recent = [
            RecentJobs.model_construct(request=request, count=1, ended=int(request.id in ended))
            for request in self.recent
        ]
        running = self.running.values()
        made = plan(queue, list(self.nodes.values()), running, self.policy, now, recent)
        for decision in made.placements:
            job = jobs[decision.job_id]
            assert decision.node_id is not None
            node = self.nodes[decision.node_id]
            self.nodes[node.id] = with_job(node, job.request, decision.gpu_indices)
            self.running[job.request.id] = RunningJob(
                job_id=job.request.id, node_id=node.id, gpu_indices=decision.gpu_indices,
                vram_per_gpu=job.request.vram_per_gpu, milli=job.request.milli,
                cpus=job.request.cpus, ram=job.request.ram,
                expected_end=now + job.request.expected_duration,
            )  # fmt: skip
            self.recent.append(job.request)
            heapq.heappush(self.ends, (now + job.takes, job.request.id))
        return [decision.job_id for decision in made.placements]

    def end_until(self, now: datetime) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, job_id = heapq.heappop(self.ends)
            job = self.running.pop(job_id)
            self.nodes[job.node_id] = without_job(self.nodes[job.node_id], job)
            self.ended.append(job_id)

    def renew(self, now: datetime, chance: random.Random) -> None:
        """Put the next block in the place of each node whose time is over."""
        for node in list(self.nodes.values()):
            if node.expires_at is not None and node.expires_at <= now:
                ends = node.expires_at + chance.choice((12, 24, 48)) * HOUR
                self.nodes[node.id] = node.model_copy(update={"expires_at": ends})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--load", type=float, default=0.9, help="asked for, over what there is")
    parser.add_argument("--seeds", default="0-4", help="first and last seed")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--queue", action="store_true", help="let jobs wait")
    parser.add_argument("--rules", default=",".join(PackingRule), help="names of rules")
    parser.add_argument("--separation", type=float, default=0.0, help="weight of that term")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    rows: list[dict[str, object]] = []
    for rule in arguments.rules.split(","):
        weights = ScoreWeights(separation=arguments.separation)
        policy = PackingPolicy(rule=PackingRule(rule), weights=weights)
        if not arguments.queue:
            policy = policy.model_copy(update={"max_reservations": 0})
        found = [
            run(policy, arguments.nodes, arguments.jobs, arguments.load, arguments.queue, seed)
            for seed in seeds
        ]
        rows.append({"rule": rule, **summary(found, queue=arguments.queue)})
        if not arguments.json:
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps({"results": rows}, indent=2))


def run(
    policy: PackingPolicy, node_count: int, job_count: int, load: float, queue: bool, seed: int
) -> Outcome:
    """Return what a policy makes of the stream of a seed; the first fifth only fills the pool."""
    chance = random.Random(seed)
    nodes = [_node(f"node-{i:03}", chance) for i in range(node_count)]
    jobs = [_job(f"job-{i:05}", chance) for i in range(job_count)]
    gpus = sum(len(node.gpus) for node in nodes)
    pause = sum(job.gpu_hours for job in jobs) / len(jobs) / (load * gpus)
    pool, outcome, now = Pool(nodes, policy), Outcome(), START
    waiting: dict[str, Job] = {}
    for number, job in enumerate(jobs):
        now += chance.expovariate(1 / pause) * HOUR
        pool.end_until(now)
        pool.renew(now, chance)
        request = job.request.model_copy(update={"submitted_at": now})
        waiting[request.id] = Job(request, job.takes)
        if number >= job_count // 5:
            outcome.asked += job.gpu_hours
        for job_id in pool.place(waiting, now):
            placed = waiting.pop(job_id)
            submitted = placed.request.submitted_at
            assert submitted is not None
            wait = (now - submitted) / HOUR
            outcome.waits.append((wait, placed.gpu_hours))
            if placed.request.gpus == 8:
                outcome.wide_waits.append(wait)
        if not queue and waiting:
            if number >= job_count // 5:
                outcome.refused += sum(left.gpu_hours for left in waiting.values())
            waiting.clear()
    for left in waiting.values():
        submitted = left.request.submitted_at
        assert submitted is not None
        outcome.waits.append(((now - submitted) / HOUR, left.gpu_hours))
    return outcome


def summary(found: list[Outcome], *, queue: bool) -> dict[str, object]:
    if not queue:
        shares = [100 * outcome.refused / outcome.asked for outcome in found]
        spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
        return {
            "refused_percent": round(statistics.mean(shares), 2),
            "spread": round(spread, 2),
            "by_seed": [round(share, 2) for share in shares],
        }
    mean = [statistics.mean(wait for wait, _ in outcome.waits) for outcome in found]
    heavy = [sum(w * g for w, g in o.waits) / sum(g for _, g in o.waits) for o in found]
    wide = [statistics.mean(outcome.wide_waits) for outcome in found]
    return {
        "wait_hours": round(statistics.mean(mean), 3),
        "by_gpu_hours": round(statistics.mean(heavy), 3),
        "wide": round(statistics.mean(wide), 3),
        "by_seed": [round(hours, 2) for hours in heavy],
    }


def _node(name: str, chance: random.Random) -> Node:
    gpu_type, vram, gpus, cpus, ram = chance.choice(MAKES)
    ends = START + chance.uniform(6, 48) * HOUR if chance.random() < 0.3 else None
    return Node(
        id=name, provider=chance.choice(("own", "prime", "sfcompute")), gpu_type=gpu_type,
        gpus=tuple(GPU(index=i, vram=vram) for i in range(gpus)), cpus=cpus, ram=ram,
        expires_at=ends,
    )  # fmt: skip


def _job(name: str, chance: random.Random) -> Job:
    weights = [share for share, _, _ in SHAPES]
    _, gpus, milli = chance.choices(SHAPES, weights)[0]
    vram = chance.choice((10, 20)) if milli < 1000 else chance.choice((0, 30, 30, 60, 120))
    cores = chance.choice((1, 4, 8, 16)) * gpus * (milli / 1000)
    takes = min(chance.lognormvariate(0.0, 1.2) * (1 + gpus / 4), 24.0) * HOUR
    request = JobRequest(
        id=name, gpus=gpus, milli=milli, vram_per_gpu=vram, cpus=min(cores, 96),
        ram=cores * 8, expected_duration=takes * chance.choice((1.0, 1.5, 2.0)),
        gpu_type=chance.choice((None, None, None, "H100")) if vram <= 60 else None,
    )  # fmt: skip
    return Job(request, takes)


if __name__ == "__main__":
    main()
