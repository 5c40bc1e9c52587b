"""A trace of GPU jobs on equal nodes of 8 GPUs, moment by moment, without a database.

A `World` knows time: jobs come, end, and are stopped, and one that was stopped goes on later from
where it was, after a restart that holds its GPUs. Who starts and who is stopped a rule decides:
in `benchmarks.queueing_planner` that of the product, in `benchmarks.queueing_yardsticks` others.
"""

import csv
import gzip
import heapq
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.churn_streams import JITTER

NODE_GPUS = 8
DAY = 86_400.0
FACTORS = {"overstated": (1.0, 5.0), "noisy": (0.2, 5.0)}
"""Between what parts of its duration a job says that it takes: each factor is as likely as its
double, where both are within."""
_PROGRESS_EVERY = 10.0


@dataclass(slots=True)
class Job:
    """A job of the trace, and what has become of it. Times are seconds since the trace began."""

    number: int
    submit: float
    seconds: float
    gpus: int
    tenant: str = "default"
    priority: int = 5
    saves: bool = True
    """Whether it can save, and so be stopped."""
    says: float = 1.0
    """What its user states, as a part of what it runs."""
    piece: float = math.inf
    """Its user runs it as jobs of so long, each submitted as the one before ends, and each begins
    with a restart. It is one job here: all pieces count together."""

    id: str = ""
    left: float = 0.0
    """What it has still to run when its process begins next."""
    after: float = 0.0
    """How much of that is for the pieces after this one."""
    came: float = 0.0
    """When this piece was submitted; of a whole job when that was."""
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
        self.queued = self.came = self.submit
        self.cut(self.piece)

    def cut(self, piece: float) -> None:
        """Make it one that runs in pieces of so long from now on."""
        self.piece, self.after = piece, max(0.0, self.left - piece)

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
    stated: str = "exact",
    seed: int = 0,
) -> list[Job]:
    """Return the jobs of a trace as they come, from its first one on.

    Submit times are those of the first `days`, times `speed_up`; a replicate other than 0 moves
    each by up to ten minutes. A share of the jobs can save, drawn by `seed`; so is what each says
    of its duration where that is `stated` as one of `FACTORS`.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = list(csv.DictReader(text.decode().splitlines()))
    rows.sort(key=lambda row: float(row["submit_s"]))
    submit = np.array([float(row["submit_s"]) for row in rows])
    submit -= submit[0]
    saving = np.random.default_rng([seed, 5]).uniform(size=len(rows)) < can_save
    low, high = FACTORS.get(stated, (1.0, 1.0))
    says = np.exp(np.random.default_rng([seed, 7]).uniform(np.log(low), np.log(high), len(rows)))
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
            int(rows[row]["num_gpu"]), rows[row].get("vc") or "default",
            int(rows[row].get("priority") or 5), bool(saving[row]), float(says[row]),
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

    @abstractmethod
    def joined(self, job: Job) -> None:
        """Note that a job waits from now on."""

    @abstractmethod
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
        job.ends = job.begins + job.left - job.after
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
                job.left = job.after
                self._leave(job)
                if job.left:
                    self._submit_next(job)

    def _submit_next(self, job: Job) -> None:
        """Submit the next piece of a job that runs in pieces: it has not waited yet."""
        job.attempt += 1
        job.waited, job.came = 0.0, self.now
        job.cut(job.piece)
        self._join(job)

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
            assert job.restarting <= (job.attempt - 1) * self.restart + 1e-3
            assert job.wait >= job.restarting - 1e-3
