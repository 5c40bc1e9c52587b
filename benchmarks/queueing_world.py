"""A trace of GPU jobs on equal nodes of 8 GPUs, moment by moment, without a database.

A `World` knows time: jobs come, end, and are stopped, and one that was stopped goes on later from
where it was, after a restart that holds its GPUs. Who starts and who is stopped a rule decides:
`Shipped` asks the planner of the product, `benchmarks.queueing_yardsticks` has others.
"""

import csv
import gzip
import heapq
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from benchmarks.churn_streams import JITTER
from benchmarks.live_pool import START, LivePool
from longshore.models.node import GPU, Node
from longshore.models.placement import JobRequest, PackingPolicy
from longshore.models.preemption import (
    GainedGPUs,
    PreemptionPlan,
    PreemptionPolicy,
    RunningWork,
    WorkCheckpoint,
)
from longshore.models.topology import Gang
from longshore.scheduling.long_queue import LongQueue
from longshore.scheduling.placement.mix import Mix
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.preemption.what_if import gains_of

NODE_GPUS = 8
VRAM = 80.0
"""GB of each GPU."""
DAY = 86_400.0
_MIX_FOR = 30.0
"""Seconds for which what a long queue asks for is not learnt anew, as in a live pool."""
_GANG = Gang(group_gpus=NODE_GPUS, unlabelled_nodes=True)
"""Each node is a domain of its own: a group of 8 GPUs takes a whole one."""
_PROGRESS_EVERY = 10.0
_NOTHING = timedelta(0)


@dataclass(slots=True)
class Job:
    """A job of the trace, and what has become of it. Times are seconds since the trace began."""

    number: int
    submit: float
    seconds: float
    gpus: int
    vram: float = VRAM
    """GB that it asks of each of its GPUs."""
    tenant: str = "default"
    priority: int = 5
    saves: bool = True
    """Whether it can save, and so be stopped."""

    id: str = ""
    left: float = 0.0
    """What it has still to run when its process begins next."""
    attempt: int = 1
    queued: float = 0.0
    """Since when it waits, or did last."""
    waited: float = 0.0
    """In the queue, before its last start."""
    started: float = 0.0
    begins: float = 0.0
    """When its process does: a restart comes before it."""
    ends: float = -1.0
    stopped_at: list[float] = field(default_factory=list[float])
    held: float = 0.0
    """For how long it has had its GPUs, up to its last stop or end."""
    restarting: float = 0.0
    """How much of that went into restarts."""

    def __post_init__(self) -> None:
        self.id = f"{self.number:07}"
        self.left = self.seconds
        self.queued = self.submit

    @property
    def wait(self) -> float:
        """What it took longer than it had to run, pauses and restarts included."""
        return self.ends - self.submit - self.seconds


def read_jobs(
    path: Path,
    *,
    days: float | None = None,
    speed_up: float = 1.0,
    replicate: int = 0,
    can_save: float = 1.0,
    seed: int = 0,
) -> list[Job]:
    """Return the jobs of a trace as they come, from its first one on.

    Submit times are those of the first `days`, times `speed_up`; a replicate other than 0 moves
    each by up to ten minutes. A share of the jobs can save, drawn by `seed`.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = list(csv.DictReader(text.decode().splitlines()))
    rows.sort(key=lambda row: float(row["submit_s"]))
    submit = np.array([float(row["submit_s"]) for row in rows])
    submit -= submit[0]
    saving = np.random.default_rng([seed, 5]).uniform(size=len(rows)) < can_save
    if replicate:
        chance = np.random.default_rng([replicate, 23])
        moved = submit + np.round(chance.uniform(-JITTER, JITTER, len(rows)))
        submit = np.maximum(0.0, moved)
    wanted = submit < (DAY * days if days else np.inf)
    submit = np.round(submit * speed_up)
    order: list[int] = np.argsort(submit, kind="stable").tolist()
    order = [row for row in order if wanted[row]]
    return [
        Job(
            number, float(submit[row]), max(1.0, float(rows[row]["duration_s"])),
            int(rows[row]["num_gpu"]), round(VRAM * float(rows[row].get("vram_frac") or 1), 1),
            rows[row].get("vc") or "default", int(rows[row].get("priority") or 5),
            bool(saving[row]),
        )
        for number, row in enumerate(order)
    ]  # fmt: skip


class World(ABC):
    """Jobs that wait and run, and the moments when something happens."""

    def __init__(
        self, jobs: Sequence[Job], nodes: int, restart: float, *, check: bool = False
    ) -> None:
        if wide := next((job for job in jobs if job.gpus > NODE_GPUS * nodes), None):
            raise ValueError(f"job {wide.id} wants {wide.gpus} GPUs: more than there are")
        self.jobs = jobs
        self.nodes = nodes
        self.restart = restart
        self.now = 0.0
        self.waiting: dict[str, Job] = {}
        self.running: dict[str, Job] = {}
        self.cycles = 0
        """Decisions about the whole queue."""
        self.used = 0.0
        """GPU-seconds held until the last job came."""
        self._busy = 0
        self._check = check
        self._events: list[tuple[float, int, int]] = []
        """When, the number of a job, and its attempt."""

    @abstractmethod
    def decide(self) -> None:
        """Start, and stop, what is to be started and stopped now."""

    @abstractmethod
    def in_use(self) -> list[int]:
        """Return how many GPUs of each node are held."""

    def joined(self, job: Job) -> None:
        """Note that a job waits from now on."""

    def left(self, job: Job) -> None:
        """Note that a job has given its GPUs back."""

    def play(self, name: str = "") -> None:
        """Let all jobs run to their ends. With a name progress is told on stderr."""
        last = self.jobs[-1].submit if self.jobs else 0.0
        told, arrived = time.monotonic(), 0
        while True:
            while self._events and self._is_stale(self._events[0]):
                heapq.heappop(self._events)  # what a job that was stopped would have done then
            coming = self.jobs[arrived].submit if arrived < len(self.jobs) else np.inf
            now = min(coming, self._events[0][0] if self._events else np.inf)
            if now == np.inf:
                break
            self.used += self._busy * max(0.0, min(now, last) - self.now)
            self.now = float(now)
            self._let_end()
            while arrived < len(self.jobs) and self.jobs[arrived].submit <= now:
                self._join(self.jobs[arrived])
                arrived += 1
            self.decide()
            if self._check:
                self._check_now()
            if name and time.monotonic() - told > _PROGRESS_EVERY:
                told = time.monotonic()
                self._tell(name, arrived)
        assert not self.waiting, f"{len(self.waiting)} jobs never start"
        if self._check:
            self._check_ends()

    def begin(self, job: Job) -> None:
        """Let a job that waits run from now on."""
        del self.waiting[job.id]
        self.running[job.id] = job
        job.waited += self.now - job.queued
        job.started = self.now
        job.begins = self.now + (self.restart if job.attempt > 1 else 0.0)
        job.ends = job.begins + job.left
        self._busy += job.gpus
        heapq.heappush(self._events, (job.ends, job.number, job.attempt))
        if job.begins > self.now:
            heapq.heappush(self._events, (job.begins, job.number, job.attempt))

    def stop(self, job: Job) -> None:
        """Stop a job: it keeps what it has done since its process began, and waits again."""
        done = max(0.0, self.now - job.begins)
        job.restarting += self.now - job.started - done
        job.left -= done
        job.attempt += 1
        job.stopped_at.append(self.now)
        self._leave(job)
        self._join(job)

    def _let_end(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            event = heapq.heappop(self._events)
            job = self.jobs[event[1]]
            if not self._is_stale(event) and job.ends <= self.now:
                job.restarting += job.begins - job.started
                job.left = 0.0
                self._leave(job)

    def _is_stale(self, event: tuple[float, int, int]) -> bool:
        job = self.jobs[event[1]]
        return job.attempt != event[2] or job.id not in self.running

    def _leave(self, job: Job) -> None:
        del self.running[job.id]
        job.held += self.now - job.started
        self._busy -= job.gpus
        self.left(job)

    def _join(self, job: Job) -> None:
        job.queued = self.now
        self.waiting[job.id] = job
        self.joined(job)

    def _tell(self, name: str, arrived: int) -> None:
        waits, total = len(self.waiting), len(self.jobs)
        print(
            f"{name}: day {self.now / DAY:.2f}, {arrived:,} of {total:,} jobs came, "
            f"{waits:,} wait, {self.cycles:,} cycles",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def _check_now(self) -> None:
        in_use = self.in_use()
        assert len(in_use) == self.nodes
        assert max(in_use) <= NODE_GPUS, f"a node has given {max(in_use)} GPUs at {self.now}"
        assert sum(in_use) == self._busy == sum(job.gpus for job in self.running.values())

    def _check_ends(self) -> None:
        for job in self.jobs:
            assert abs(job.held - job.seconds - job.restarting) < 1e-3, f"job {job.id} ran wrong"
            assert job.restarting <= len(job.stopped_at) * self.restart + 1e-3
            assert job.wait >= job.restarting - 1e-3


@dataclass(frozen=True)
class Policies:
    """What a pool is told."""

    packing: PackingPolicy
    preemption: PreemptionPolicy
    within_class: bool = False
    """Whether jobs may be stopped for others of their class: else nobody is asked where all
    that runs is of the class of what waits, or of a higher one."""


class Shipped(World):
    """The planner of the product: a cycle at each moment, and then preemption."""

    def __init__(
        self,
        jobs: Sequence[Job],
        nodes: int,
        restart: float,
        policies: Policies,
        *,
        exact: bool = True,
        check: bool = False,
    ) -> None:
        """With `exact` each job says how long it will hold its GPUs, else nothing."""
        super().__init__(jobs, nodes, restart, check=check)
        self.policies = policies
        self.pool = LivePool(idle_nodes(nodes), policies.packing)
        self.plans = 0
        """Times that preemption was planned."""
        self._exact = exact
        self._requests: dict[str, JobRequest] = {}
        """Of what waits, and of what runs as it was placed."""
        self._long = LongQueue()
        self._mix: tuple[float, Mix] | None = None

    def decide(self) -> None:
        while True:
            self._cycle()
            if not self._stop_some():
                return

    def in_use(self) -> list[int]:
        given = [(share.node_id, gpu) for share in self.pool.running() for gpu in share.gpu_indices]
        assert len(given) == len(set(given)), "a GPU is given twice"
        nodes = self.pool.nodes.values()
        return [sum(not gpu.is_free for gpu in node.gpus) for node in nodes]

    def joined(self, job: Job) -> None:
        request = self._request_of(job)
        self._requests[job.id] = request
        self._long.put(request)

    def left(self, job: Job) -> None:
        self.pool.end(job.id)
        del self._requests[job.id]

    def _request_of(self, job: Job) -> JobRequest:
        """Return a job that begins to wait as its queue has it."""
        said: dict[str, timedelta] = {}
        if self._exact:
            restart = self.restart if job.attempt > 1 else 0.0
            said["expected_duration"] = timedelta(seconds=job.left + restart)
        return JobRequest(
            id=job.id, gpus=job.gpus, vram_per_gpu=job.vram, priority=job.priority,
            submitted_at=_at(job.submit), waits_since=_at(self.now - job.waited),
            attempt=job.attempt, saves=job.saves,
            gang=_GANG if job.gpus > NODE_GPUS else None, **said,
        )  # fmt: skip

    def _cycle(self) -> None:
        """Run a cycle as a live pool does. Where nobody waits or no GPU is free none is run: it
        would start nothing."""
        if not self.waiting or not self.pool.open_gpus:
            return
        self.cycles += 1
        packing, now = self.policies.packing, _at(self.now)
        part = self._long.to_plan(self.pool.open_gpus, packing, now, wanted=())
        queue = [self._requests[name] for name in self.waiting]
        mix = self._mix_of(queue) if part else None
        made = self.pool.plan(part.jobs if part else queue, now, mix=mix, wanted=())
        if part and made.rearranged:
            made = self.pool.plan(queue, now, wanted=())
        for decision in made.placements:
            self._start(decision.job_id, gains_of(decision))

    def _mix_of(self, queue: Sequence[JobRequest]) -> Mix:
        if self._mix is None or self.now - self._mix[0] >= _MIX_FOR:
            self._mix = self.now, self.pool.mix(queue)
        return self._mix[1]

    def _start(self, job_id: str, gains: Iterable[GainedGPUs]) -> None:
        self.pool.start(self._requests[job_id], gains, _at(self.now))
        self._long.remove(job_id)
        self.begin(self.waiting[job_id])

    def _stop_some(self) -> bool:
        """Stop whom the plans name, and start for whom they stop; return whether there was
        anybody."""
        if not self._might_help():
            return False
        self.plans += 1
        chosen = [plan for plan in self._plans() if plan.preempts]
        for plan in chosen:
            for victim in plan.victims:
                self.stop(self.running[victim.job_id])
            self._start(plan.job_id, plan.gains)
        return bool(chosen)

    def _might_help(self) -> bool:
        if not self.policies.preemption.enabled or not self.waiting or not self.running:
            return False
        if self.policies.within_class:
            return True
        lowest = min(job.priority for job in self.running.values())
        return any(job.priority > lowest for job in self.waiting.values())

    def _plans(self) -> tuple[PreemptionPlan, ...]:
        now = _at(self.now)
        saved = WorkCheckpoint.trusted(saved_at=now, write=_NOTHING, saves_while_running=True)
        works = [self._work_of(job, saved) for job in self.running.values()]
        queue = [self._requests[name] for name in self.waiting]
        return plan_preemptions(
            queue, list(self.pool.nodes.values()), works, self.policies.preemption,
            self.policies.packing, now, recent=self.pool.recent(),
        )  # fmt: skip

    def _work_of(self, job: Job, saved: WorkCheckpoint) -> RunningWork:
        """Return what runs as a plan sees it."""
        shares = self.pool.shares_of(job.id)
        return RunningWork.trusted(
            request=self._requests[job.id], tenant=job.tenant, shares=shares,
            started_at=_at(job.started), expected_end=shares[0].expected_end,
            checkpoint=saved if job.saves else None, preemptible=job.saves,
            preempted_at=tuple(map(_at, job.stopped_at)),
            price=self.policies.preemption.owned_gpu_price,
        )  # fmt: skip


def idle_nodes(count: int) -> list[Node]:
    """Return equal nodes of a pool."""
    gpus = tuple(GPU(index=i, vram=VRAM) for i in range(NODE_GPUS))
    return [Node(id=f"node-{row:05}", gpus=gpus, cpus=64, ram=512) for row in range(count)]


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)
