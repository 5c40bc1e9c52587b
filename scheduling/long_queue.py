"""Which jobs of a long queue a cycle has to plan: of those that ask alike, the first few.

A plan gives GPUs to no more jobs than there are GPUs open, and keeps starts for a given number of
those that wait. So of jobs that ask alike it is enough to plan as many as could start, and as many
more as starts are kept: by then no start is left for a job behind them, and there is no room for
it, as there was none for one like it before. A plan of these alone places and keeps the same as
one of the whole queue, unless jobs change their places for others in it (`CyclePlan.rearranged`):
that can make room for a job of which an earlier one like it found none. Gangs are all planned:
their starts are looked for at some moments, so a later one may have one and the first none. So are
malleable jobs, which may take fewer GPUs than they ask for.

Jobs that ask alike may differ in their expected duration. Where a job finds no room and no start,
a longer one like it finds none either: it needs the node for longer, and meets more of what is
kept there for others. A shorter one may find some. So a job is left out when there are as many
before it that are as short or shorter. The data that a job reads say where it goes, not whether.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from longshore.models.mig import profile_slices
from longshore.models.packing import PackingPolicy
from longshore.models.placement import JobRequest
from longshore.scheduling.order import HIGHEST, by_age, seconds_ahead
from longshore.scheduling.placement.mix import SLICE_MILLI

_ITS_OWN = {"id", "submitted_at", "waits_since", "attempt", "path_behind", "expected_duration",
            "data", "attained", "can_stop", "duration_known", "learnt", "tenant"}  # fmt: skip
_asked = attrgetter(*(name for name in JobRequest.model_fields if name not in _ITS_OWN))

LONG = 500
"""Jobs from which on a cycle need not plan all."""
_FEW = 8
"""Answers about jobs that ask alike which are kept."""


_Order = tuple[bool, float, str, int]


class _Queued(NamedTuple):
    """Sorts as a queue of one class does; no two have the same id."""

    order: _Order
    job: JobRequest


class _Alike:
    """The jobs that ask alike, by their duration."""

    def __init__(self) -> None:
        self._durations: list[timedelta] = []
        self._jobs: list[list[_Queued]] = []
        """Of each duration, in order; the durations ascend."""
        self._first: dict[int, list[JobRequest]] = {}
        """What `first` found last, by `most`: a queue changes in few places between two cycles."""

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, queued: _Queued) -> None:
        self._first.clear()
        at = bisect_left(self._durations, queued.job.expected_duration)
        if self._durations[at : at + 1] != [queued.job.expected_duration]:
            self._durations.insert(at, queued.job.expected_duration)
            self._jobs.insert(at, [])
        insort(self._jobs[at], queued)

    def remove(self, queued: _Queued) -> None:
        self._first.clear()
        at = bisect_left(self._durations, queued.job.expected_duration)
        del self._jobs[at][bisect_left(self._jobs[at], queued)]
        if not self._jobs[at]:
            del self._durations[at], self._jobs[at]

    def one(self) -> JobRequest:
        """Return any of the jobs."""
        return self._jobs[0][0].job

    def first(self, most: int, without: Collection[str]) -> list[JobRequest]:
        """Return the jobs that have fewer than `most` before them that are as short or shorter."""
        if without:
            return self._find_first(most, without)
        if most not in self._first:
            if len(self._first) == _FEW:
                self._first.clear()
            self._first[most] = self._find_first(most)
        return self._first[most]

    def _find_first(self, most: int, without: Collection[str] = ()) -> list[JobRequest]:
        found: list[JobRequest] = []
        first: list[_Queued] = []
        """Of those as short as what comes, or shorter: as many as count."""
        last: _Order | None = None
        """Where the last of them stands, once they are so many."""
        for jobs in self._jobs:
            for queued in jobs:
                if last and queued.order > last:
                    break
                if queued.job.id not in without:
                    found.append(queued.job)
                    insort(first, queued)
                    del first[most:]
                    last = first[-1].order if len(first) == most else None
        return found

    def all(self, without: Collection[str]) -> list[JobRequest]:
        """Return all jobs."""
        return [each.job for jobs in self._jobs for each in jobs if each.job.id not in without]


class Part(NamedTuple):
    """What a cycle plans of a long queue."""

    jobs: list[JobRequest]
    """In no order."""
    wanted: Collection[str]
    """Those that are to be told why they wait; the others where that is not known."""


class LongQueue:
    """The jobs that wait in a pool, by what they ask, changed a few at a time."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, _Alike] = {}
        self._key_of: dict[str, tuple[Hashable, _Queued]] = {}
        self._waits_since: list[datetime] = []
        self._policy = PackingPolicy()
        """By which the jobs that ask alike are in order."""

    def __len__(self) -> int:
        return len(self._key_of)

    def put(self, job: JobRequest) -> None:
        """Take in a job as it is now."""
        self.remove(job.id)
        key = _asked(job)
        queued = _Queued(by_age(job, self._policy), job)
        self._alike.setdefault(key, _Alike()).put(queued)
        self._key_of[job.id] = key, queued
        if (since := _may_rise_from(job)) is not None:
            insort(self._waits_since, since)

    def remove(self, job_id: str) -> None:
        """Forget a job, where it is known."""
        if (known := self._key_of.pop(job_id, None)) is None:
            return
        key, queued = known
        alike = self._alike[key]
        alike.remove(queued)
        if not alike:
            del self._alike[key]
        if (since := _may_rise_from(queued.job)) is not None:
            del self._waits_since[bisect_left(self._waits_since, since)]

    def to_plan(
        self,
        open_gpus: int,
        policy: PackingPolicy,
        now: datetime,
        *,
        wanted: Collection[str],
        without: Collection[str] = (),
        whole: bool = False,
    ) -> Part | None:
        """Return what a plan has to have, with the jobs that are `wanted`; None where that is
        everything: the queue is short, or they are half of it.

        `open_gpus` are those of nodes that take jobs which nobody holds whole. Those `without` are
        as good as not there. All jobs may start where the `whole` is asked for, where the pool's
        order is not by age, or holds some back, or where some count as more than their class: then
        jobs that ask alike are not in the order kept here.
        """
        wanted = {job_id for job_id in wanted if job_id in self._key_of} - set(without)
        if len(self) < LONG or 2 * len(wanted) >= len(self):
            return None
        if whole or policy.moves or self._has_risen(policy, now):
            known = self._key_of.items()
            jobs = [queued.job for job_id, (_, queued) in known if job_id not in without]
            return Part(jobs, wanted)
        jobs = self.first_alike(open_gpus, policy, without)
        there = {job.id for job in jobs}
        jobs += (self._key_of[job_id][1].job for job_id in wanted if job_id not in there)
        return Part(jobs, wanted)

    def first_alike(
        self, open_gpus: int, policy: PackingPolicy, without: Collection[str] = ()
    ) -> list[JobRequest]:
        """Return of those that ask alike the first ones, as many as a plan has to have."""
        self._put_in_order(policy)
        found: list[JobRequest] = []
        lacks = {self._key_of[job_id][0] for job_id in without if job_id in self._key_of}
        for key, alike in self._alike.items():
            one, left_out = alike.one(), without if key in lacks else ()
            if one.gang or one.malleable:
                found += alike.all(left_out)
                continue
            starts = open_gpus * 1000 // _milli(one)
            found += alike.first(starts + policy.starts_kept + 1, left_out)
        return found

    def _put_in_order(self, policy: PackingPolicy) -> None:
        """Change the order where another policy has another."""
        if seconds_ahead(policy) == seconds_ahead(self._policy):
            return
        self._policy = policy
        for _, queued in tuple(self._key_of.values()):
            if queued.job.path_behind:
                self.put(queued.job)

    def _has_risen(self, policy: PackingPolicy, now: datetime) -> bool:
        """Return whether a job may count as more than its own class."""
        every = policy.class_rises_every
        return bool(every and self._waits_since) and now - self._waits_since[0] >= every


def _may_rise_from(job: JobRequest) -> datetime | None:
    """Return since when its wait counts; None where its class is the highest anyway."""
    return None if job.priority >= HIGHEST else job.waits_since or job.submitted_at


def _milli(job: JobRequest) -> int:
    """Return the thousandths of GPUs that it takes at least, counting an eighth for a slice."""
    return SLICE_MILLI * profile_slices(job.mig) if job.mig else job.gpus * job.milli
