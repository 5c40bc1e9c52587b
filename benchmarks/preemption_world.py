"""A pool under load on a virtual clock: jobs of three bands arrive, run, save, and are stopped.

All ways to preempt meet the same jobs, the same packer and the same physics: a job that is asked
to stop and can save keeps what it has done, unless the save fails, as one in ten does; one that
cannot begins again where it last saved, or from the beginning. What is simulated is time and
saving; the decisions are the real ones.
"""

import heapq
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import PackingPolicy, PlacementKind, RunningJob
from longshore.models.preemption import (
    GainedGPUs,
    PreemptionLevels,
    PreemptionPolicy,
    PreemptionUnderWay,
    RunningWork,
    WorkCheckpoint,
)
from longshore.scheduling.cycle import plan
from longshore.scheduling.order import queue_order
from longshore.scheduling.preemption.what_if import WhatIfCluster, gains_of

START = datetime(2026, 11, 20, tzinfo=UTC)
PACKING = PackingPolicy()
POLICY = PreemptionPolicy(levels=PreemptionLevels.BANDS)
HIGH = 7
"""From this class on, the start is what matters."""
SAVE_RISK = 0.1
_GRACE = timedelta(minutes=3)
_NODES = 6
_HOUR = timedelta(hours=1)
_NOTHING = timedelta(0)


@dataclass(frozen=True)
class Arrival:
    """A job, how long it really runs, and how it saves."""

    request: JobRequest
    runs: timedelta
    write: timedelta | None
    """How long a save takes; None where it cannot save."""
    interval: timedelta | None
    """How often it saves by itself."""

    @property
    def submitted(self) -> datetime:
        assert self.request.submitted_at is not None
        return self.request.submitted_at


@dataclass
class Run:
    """One attempt of a job."""

    job: Arrival
    shares: tuple[RunningJob, ...]
    started: datetime
    done: timedelta
    """What earlier attempts had saved."""

    @property
    def ends(self) -> datetime:
        return self.started + self.job.runs - self.done

    def saved_at(self, now: datetime) -> datetime | None:
        """Return when it last saved by itself; with earlier attempts' work, when it started."""
        if self.job.interval is None:
            return self.started if self.done else None
        saves = (now - self.started) // self.job.interval
        return self.started + saves * self.job.interval if saves or self.done else None

    def work(self, price: int, now: datetime, stopped: Sequence[datetime]) -> RunningWork:
        """Return the attempt as a decision sees it."""
        checkpoint = None
        if self.job.write is not None:
            saved_at = self.saved_at(now)
            checkpoint = WorkCheckpoint(
                saved_at=saved_at, write=self.job.write if saved_at else None, grace=_GRACE
            )
        return RunningWork(
            request=self.job.request, shares=self.shares, started_at=self.started,
            expected_end=self.started + self.job.request.expected_duration - self.done,
            checkpoint=checkpoint, preempted_at=tuple(stopped), price=price,
        )  # fmt: skip


@dataclass
class Pledge:
    """GPUs that a job gets when the jobs that hold them have left."""

    job: Arrival
    victims: tuple[str, ...]
    gains: tuple[GainedGPUs, ...]
    free_at: datetime


@dataclass
class Tally:
    """What became of a load."""

    preemptions: int = 0
    recompute_seconds: float = 0.0
    """GPU-seconds of work that had to be done again."""
    write_seconds: float = 0.0
    """GPU-seconds that were spent on saves."""
    lost_dollars: float = 0.0
    """Both, at the price of the nodes."""
    waits: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds from submit to first start, of jobs of high classes."""
    looks: list[float] = field(default_factory=list[float])
    """Real seconds of each look at the queue that stopped somebody: what a start takes beyond the
    victims' own saves."""
    most_stopped: int = 0
    """How often the job that was stopped most was stopped."""
    ended: int = 0


Choice = tuple[JobRequest, tuple[str, ...], tuple[GainedGPUs, ...]]
"""A job, the jobs to stop for it, and what it gets."""
Way = Callable[["Pool", Sequence[JobRequest]], list[Choice]]
"""Who is stopped for jobs that wait."""


class Pool:
    """Six nodes of eight GPUs, and what runs there."""

    def __init__(self, arrivals: Sequence[Arrival], *, saves: bool, seed: int) -> None:
        self.now = START
        self.arrivals = {job.request.id: job for job in arrivals}
        self.nodes = [
            Node(
                id=f"node-{i}", gpus=tuple(GPU(index=g, vram=80) for g in range(8)), cpus=64,
                ram=512,
            )
            for i in range(_NODES)
        ]  # fmt: skip
        self.prices = {node.id: 1_800_000 + 300_000 * i for i, node in enumerate(self.nodes)}
        self.runs: dict[str, Run] = {}
        self.pledges: dict[str, Pledge] = {}
        self.stopped: dict[str, list[datetime]] = {}
        self.tally = Tally()
        self._saves = saves
        self._seed = seed
        self._queue: dict[str, None] = {}
        """Waiting jobs."""
        self._done: dict[str, timedelta] = {}
        self._events = [(job.submitted, 0, job.request.id) for job in arrivals]
        heapq.heapify(self._events)

    def run(self, way: Way) -> Tally:
        """Play until every job has ended."""
        while self._events:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                self._happen(heapq.heappop(self._events)[2])
            self._place()
            began = time.perf_counter()
            choices = way(self, self._waiting())
            if choices:
                self.tally.looks.append(time.perf_counter() - began)
            for job, victims, gains in choices:
                self._stop(job, victims, gains)
        self.tally.most_stopped = max(map(len, self.stopped.values()), default=0)
        return self.tally

    def works(self) -> list[RunningWork]:
        """Return what runs and is not being stopped."""
        stopping = {name for pledge in self.pledges.values() for name in pledge.victims}
        return [self.work_of(name) for name in sorted(self.runs) if name not in stopping]

    def work_of(self, name: str) -> RunningWork:
        run = self.runs[name]
        price = sum(self.prices[share.node_id] for share in run.shares) // len(run.shares)
        return run.work(price, self.now, self.stopped.get(name, ()))

    def under_way(self) -> list[PreemptionUnderWay]:
        return [
            PreemptionUnderWay(
                job_id=name, victims=pledge.victims,
                shares=_shares(pledge.job, pledge.gains, self.now),
            )
            for name, pledge in sorted(self.pledges.items())
        ]  # fmt: skip

    def cluster(self) -> WhatIfCluster:
        """Return the nodes with all that holds or will hold them."""
        cluster = WhatIfCluster(self.nodes, (), PACKING, self.now)
        for name in sorted(self.runs):
            cluster.hold(self.runs[name].shares)
        for one in self.under_way():
            cluster.remove(frozenset(one.victims))
            cluster.hold(one.shares)
        return cluster

    def nodes_now(self) -> list[Node]:
        """Return the nodes with all that runs, what is being stopped included."""
        cluster = WhatIfCluster(self.nodes, (), PACKING, self.now)
        for name in sorted(self.runs):
            cluster.hold(self.runs[name].shares)
        return [cluster.node(node.id) for node in self.nodes]

    def all_works(self) -> list[RunningWork]:
        return [self.work_of(name) for name in sorted(self.runs)]

    def _waiting(self) -> list[JobRequest]:
        waiting = (self.arrivals[name].request for name in self._queue if name not in self.pledges)
        return queue_order(waiting, PACKING, self.now)

    def _happen(self, name: str) -> None:
        """Let a job arrive, end, or get the GPUs that were freed for it."""
        run, pledge = self.runs.get(name), self.pledges.get(name)
        if run is not None and run.ends == self.now and not self._is_stopping(name):
            del self.runs[name]
            self.tally.ended += 1
        elif pledge is not None and pledge.free_at == self.now:
            for victim in pledge.victims:
                self._leave(victim)
            del self.pledges[name]
            self._begin(pledge.job, pledge.gains)
        elif self.arrivals[name].submitted == self.now:
            self._queue[name] = None

    def _place(self) -> None:
        """Run a cycle, on what is neither held nor pledged."""
        queue = self._waiting()
        if not queue:
            return
        cluster = self.cluster()
        nodes = [cluster.node(node.id) for node in self.nodes]
        stopping = {name for pledge in self.pledges.values() for name in pledge.victims}
        running = [s for n, run in self.runs.items() if n not in stopping for s in run.shares]
        for decision in plan(queue, nodes, running, PACKING, self.now).placements:
            gains = gains_of(decision)
            if not self._leaving_there(gains):
                self._begin(self.arrivals[decision.job_id], gains)

    def _leaving_there(self, gains: Sequence[GainedGPUs]) -> bool:
        """Return whether a job that is being stopped still holds some of these GPUs."""
        wanted = {(gain.node_id, index) for gain in gains for index in gain.gpu_indices}
        return any(
            (share.node_id, index) in wanted
            for pledge in self.pledges.values()
            for name in pledge.victims
            for share in self.runs[name].shares
            for index in share.gpu_indices
        )

    def _begin(self, job: Arrival, gains: Sequence[GainedGPUs]) -> None:
        name = job.request.id
        del self._queue[name]
        if job.request.priority >= HIGH and name not in self.stopped:
            self.tally.waits[name] = (self.now - job.submitted).total_seconds()
        run = Run(job, _shares(job, gains, self.now), self.now, self._done.get(name, _NOTHING))
        self.runs[name] = run
        heapq.heappush(self._events, (run.ends, 1, name))

    def _stop(
        self, job: JobRequest, victims: tuple[str, ...], gains: tuple[GainedGPUs, ...]
    ) -> None:
        takes = max((self._save_time(name) for name in victims), default=_NOTHING)
        pledge = Pledge(self.arrivals[job.id], victims, gains, self.now + takes)
        self.pledges[job.id] = pledge
        for name in victims:
            self._account(name)
        heapq.heappush(self._events, (pledge.free_at, 2, job.id))

    def _account(self, name: str) -> None:
        """Count what a job loses that is being stopped now, and remember what it keeps."""
        run, work = self.runs[name], self.work_of(name)
        stops = self.stopped.setdefault(name, [])
        stops.append(self.now)
        takes = self._save_time(name)
        chance = random.Random(f"{self._seed}-{name}-{len(stops)}").random()
        since, kept = work.unsaved_since, run.done + (work.unsaved_since - run.started)
        if takes and takes <= _GRACE and chance >= SAVE_RISK:
            since, kept = self.now, run.done + (self.now - run.started)
        if not self._saves:
            since, kept = run.started, _NOTHING
        lost = self.now - since
        if not self._saves:
            lost += run.done
        self._done[name] = kept
        self.tally.preemptions += 1
        self.tally.recompute_seconds += lost.total_seconds() * work.gpus
        self.tally.write_seconds += takes.total_seconds() * work.gpus
        self.tally.lost_dollars += (lost + takes) / _HOUR * work.gpus * work.price / 1e6

    def _leave(self, name: str) -> None:
        del self.runs[name]
        self._queue[name] = None

    def _save_time(self, name: str) -> timedelta:
        write = self.runs[name].job.write
        return min(write, _GRACE) if self._saves and write is not None else _NOTHING

    def _is_stopping(self, name: str) -> bool:
        return any(name in pledge.victims for pledge in self.pledges.values())


def arrivals(hours: float, seed: int) -> list[Arrival]:
    """Return jobs of three bands: long ones of low classes, shorter ones, short urgent ones."""
    chance = random.Random(seed)
    jobs: list[Arrival] = []
    at = START
    while at < START + timedelta(hours=hours):
        at += timedelta(seconds=chance.expovariate(1 / 240))
        jobs.append(_arrival(f"job-{len(jobs):04}", at, chance))
    return jobs


def _arrival(name: str, at: datetime, chance: random.Random) -> Arrival:
    band = chance.choices(("low", "normal", "high"), (50, 32, 18))[0]
    classes, shortest, longest = {
        "low": ((0, 1, 2, 3), 60, 480), "normal": ((4, 5, 6), 20, 150), "high": ((7, 8, 9), 5, 40),
    }[band]  # fmt: skip
    runs = timedelta(seconds=round(60 * shortest * (longest / shortest) ** chance.random()))
    kind = chance.choices(("interval", "asked", "none"), (55, 20, 25))[0]
    gpus = chance.choices((1, 2, 4, 8), (35, 30, 22, 13))[0]
    request = JobRequest(
        id=name, priority=chance.choice(classes), gpus=gpus, vram_per_gpu=60, cpus=4 * gpus,
        ram=32 * gpus, expected_duration=runs * chance.uniform(0.8, 1.5), submitted_at=at,
    )  # fmt: skip
    write = timedelta(seconds=round(5 * 24 ** chance.random()))
    interval = timedelta(minutes=chance.choice((10, 20, 30, 60)))
    return Arrival(
        request, runs, None if kind == "none" else write, interval if kind == "interval" else None
    )


def _shares(job: Arrival, gains: Sequence[GainedGPUs], now: datetime) -> tuple[RunningJob, ...]:
    request = job.request
    return tuple(
        RunningJob(
            job_id=request.id, node_id=gain.node_id, gpu_indices=gain.gpu_indices,
            vram_per_gpu=request.vram_per_gpu, cpus=request.cpus, ram=request.ram,
            expected_end=now + request.expected_duration,
        )
        for gain in gains
    )  # fmt: skip


def fits(cluster: WhatIfCluster, job: JobRequest) -> tuple[GainedGPUs, ...]:
    """Return what the job would get now; nothing where it has to wait."""
    decision = cluster.decide(job)
    return gains_of(decision) if decision.kind is PlacementKind.EXISTING_NODE else ()
