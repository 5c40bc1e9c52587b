"""Which jobs of a long queue a cycle has to plan: of those that ask alike, the first few.

A plan gives GPUs to no more jobs than there are GPUs open, and keeps starts for a given number of
those that wait. So of jobs that ask alike it is enough to plan as many as could start, and as many
more as starts are kept: by then no start is left for a job behind them, and there is no room for
it, as there was none for one like it before. A plan of these alone places and keeps the same as
one of the whole queue, unless jobs change their places for others in it (`CyclePlan.rearranged`):
that can make room for a job of which an earlier one like it found none. Gangs are all planned:
their starts are looked for at some moments, so a later one may have one and the first none. So are
malleable jobs, which may take fewer GPUs than they ask for, and replicas of services: of those
that only fill what is free others come first as copies of what they serve come and go, and of the
others those for which one has been stopped.

Jobs that ask alike may differ in their expected duration. Where a job finds no room and no start,
a longer one like it finds none either: it needs the node for longer, and meets more of what is
kept there for others. A shorter one may find some. So a job is left out when there are as many
before it that are as short or shorter. The data that a job reads say where it goes, not whether.

Of those behind these that are told when they may start later as many may count of each kind, and
few of all: so the first `FURTHER` of them in the order of the queue are planned, and nobody behind
the last of these is told. Kinds that no node of the pool could hold have no start, and do not
count.

Where the order is not by age alone, jobs pass each other as time goes by. Those of one lane do not
(`scheduling.order.Lanes`), so a job is left out for those of its own lane. Who comes first for
having waited long is planned in any case.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from longshore.models.job_request import JobRequest
from longshore.models.mig import profile_slices
from longshore.models.packing import PackingPolicy
from longshore.scheduling.order import HIGHEST, Lanes
from longshore.scheduling.placement.mix import SLICE_MILLI
from longshore.scheduling.rank import (
    GUARANTEED_AFTER,
    GUARANTEED_SHARE,
    first_of_long,
    gpus_of_job,
    waits_since,
)

_ITS_OWN = {"id", "submitted_at", "waits_since", "attempt", "path_behind", "expected_duration",
            "data", "attained", "can_stop", "duration_known", "learnt", "tenant"}  # fmt: skip
_asked = attrgetter(*(name for name in JobRequest.model_fields if name not in _ITS_OWN))

LONG = 500
"""Jobs from which on a cycle need not plan all."""
FURTHER = 1_000
"""Jobs that are planned since they may be told of a later start, at most: not all have one."""
_KINDS = 64
"""Kinds of which it is asked whether any node could hold them: each may ask many nodes."""
_FEW = 8
"""Answers about jobs that ask alike which are kept."""


_Order = tuple[Any, ...]


def _anybody(job: JobRequest) -> bool:
    return True


class _Queued(NamedTuple):
    """Sorts as the jobs of a lane do; no two have the same id."""

    order: _Order
    time: timedelta
    """In its lane."""
    job: JobRequest


class _Alike:
    """The jobs of a lane that ask alike, by their times."""

    def __init__(self) -> None:
        self._times: list[timedelta] = []
        self._jobs: list[list[_Queued]] = []
        """Of each time, in order; the times ascend."""
        self._first: dict[int, list[JobRequest]] = {}
        """What `first` found last, by `most`: a queue changes in few places between two cycles."""
        self._further: dict[tuple[int, int], list[_Queued]] = {}
        """Likewise of `further`."""

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, queued: _Queued) -> None:
        self._forget()
        at = bisect_left(self._times, queued.time)
        if self._times[at : at + 1] != [queued.time]:
            self._times.insert(at, queued.time)
            self._jobs.insert(at, [])
        insort(self._jobs[at], queued)

    def remove(self, queued: _Queued) -> None:
        self._forget()
        at = bisect_left(self._times, queued.time)
        del self._jobs[at][bisect_left(self._jobs[at], queued)]
        if not self._jobs[at]:
            del self._times[at], self._jobs[at]

    def _forget(self) -> None:
        self._first.clear()
        self._further.clear()

    def one(self) -> JobRequest:
        """Return any of the jobs."""
        return self._jobs[0][0].job

    def first(self, most: int, without: Collection[str]) -> list[JobRequest]:
        """Return the jobs that have fewer than `most` before them whose times are as long, or
        shorter."""
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
        """Of those with times as long as what comes, or shorter: as many as count."""
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

    def further(self, most: int, more: int, without: Collection[str]) -> list[_Queued]:
        """Return those that have `most` such jobs before them, and fewer than so many `more`, in
        order."""
        if without or (most, more) not in self._further:
            first = {job.id for job in self.first(most, without)}
            there = {job.id for job in self.first(most + more, without)} - first
            found = sorted(each for jobs in self._jobs for each in jobs if each.job.id in there)
            if without:
                return found
            if len(self._further) == _FEW:
                self._further.clear()
            self._further[most, more] = found
        return self._further[most, more]

    def all(self, without: Collection[str]) -> list[JobRequest]:
        """Return all jobs."""
        return [each.job for jobs in self._jobs for each in jobs if each.job.id not in without]


class Part(NamedTuple):
    """What a cycle plans of a long queue."""

    jobs: list[JobRequest]
    """In no order."""
    wanted: Collection[str]
    """Those that are to be told why they wait; the others where that is not known."""
    later_until: str | None = None
    """The last job that may be told a later start, where jobs behind it are left out."""


class LongQueue:
    """The jobs that wait in a pool, by what they ask, changed a few at a time."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, _Alike] = {}
        self._key_of: dict[str, tuple[Hashable, _Queued]] = {}
        self._waits_since: list[tuple[datetime, str]] = []
        self._lanes = Lanes.under(PackingPolicy())

    def __len__(self) -> int:
        return len(self._key_of)

    def put(self, job: JobRequest) -> None:
        """Take in a job as it is now."""
        self.remove(job.id)
        lane, time = self._lanes.of(job)
        key = lane, _asked(job)
        queued = _Queued(self._lanes.key(job), time, job)
        self._alike.setdefault(key, _Alike()).put(queued)
        self._key_of[job.id] = key, queued
        if (since := waits_since(job)) is not None:
            insort(self._waits_since, (since, job.id))

    def remove(self, job_id: str) -> None:
        """Forget a job, where it is known."""
        if (known := self._key_of.pop(job_id, None)) is None:
            return
        key, queued = known
        alike = self._alike[key]
        alike.remove(queued)
        if not alike:
            del self._alike[key]
        if (since := waits_since(queued.job)) is not None:
            del self._waits_since[bisect_left(self._waits_since, (since, job_id))]

    def to_plan(
        self,
        open_gpus: int,
        gpus: int,
        policy: PackingPolicy,
        now: datetime,
        *,
        wanted: Collection[str],
        without: Collection[str] = (),
        whole: bool = False,
        later: int = 0,
        may_start: Callable[[JobRequest], bool] = _anybody,
    ) -> Part | None:
        """Return what a plan has to have, with the jobs that are `wanted`; None where that is
        everything: the queue is short, or they are half of it.

        `open_gpus` are those of nodes that take jobs which nobody holds whole, `gpus` those of the
        pool. Those `without` are as good as not there. All jobs may start where the `whole` is
        asked for, where the pool holds some back by their score, where a tenant has a budget, or
        where some count as more than their class: then jobs that ask alike are not in the order
        kept here. So many behind those for which starts are kept are to be told when they may
        start `later`. Who `may_start` on some node, and has waited long, is planned in any case
        where that counts; who may not is told no later start.
        """
        wanted = {job_id for job_id in wanted if job_id in self._key_of} - set(without)
        if len(self) < LONG or 2 * len(wanted) >= len(self):
            return None
        holds_back = policy.score is not None and policy.score.holds_back
        if whole or holds_back or policy.funding or self._has_risen(policy, now):
            known = self._key_of.items()
            jobs = [queued.job for job_id, (_, queued) in known if job_id not in without]
            return Part(jobs, wanted)
        further: list[_Queued] = []
        passes = policy.by_rank or policy.by_terms
        # What passes each other is in no order that is kept: all that may count are planned. A
        # plan that weighs ends is of its whole queue.
        all_further = passes or bool(policy.weights.separation)
        jobs = self.first_alike(open_gpus, policy, without, later if all_further else 0)
        if later and not all_further:
            ordered = self._in_order(open_gpus, policy, without, later, may_start)
            further = list(islice(ordered, FURTHER + 1))
        until = further[FURTHER - 1].job.id if len(further) > FURTHER else None
        jobs += (each.job for each in further[:FURTHER])
        more = dict.fromkeys(wanted)
        if passes:
            more |= dict.fromkeys(self._guaranteed(gpus, now, without, may_start))
        for job in jobs:
            more.pop(job.id, None)
        jobs += (self._key_of[job_id][1].job for job_id in more)
        return Part(jobs, wanted, until)

    def first_alike(
        self,
        open_gpus: int,
        policy: PackingPolicy,
        without: Collection[str] = (),
        later: int = 0,
    ) -> list[JobRequest]:
        """Return of those that ask alike the first ones, as many as a plan has to have."""
        self._put_in_order(policy)
        found: list[JobRequest] = []
        lacks = {self._key_of[job_id][0] for job_id in without if job_id in self._key_of}
        for key, alike in self._alike.items():
            one, left_out = alike.one(), without if key in lacks else ()
            if _all_count(one):
                found += alike.all(left_out)
                continue
            found += alike.first(_count(one, open_gpus, policy) + later, left_out)
        return found

    def _in_order(
        self,
        open_gpus: int,
        policy: PackingPolicy,
        without: Collection[str],
        later: int,
        may_start: Callable[[JobRequest], bool],
    ) -> Iterator[_Queued]:
        """Yield those behind the first ones of those that ask alike, of each kind as many as count
        where so many are told a later start, in the order of the queue by age. Where that is more
        than are planned, those of the first kinds that may not start are left out."""
        kinds: list[list[_Queued]] = []
        lacks = {self._key_of[job_id][0] for job_id in without if job_id in self._key_of}
        for key, alike in self._alike.items():
            if not _all_count(one := alike.one()):
                left_out = without if key in lacks else ()
                kinds.append(alike.further(_count(one, open_gpus, policy), later, left_out))
        if sum(map(len, kinds)) > FURTHER:
            kinds = sorted(filter(None, kinds), key=lambda kind: _by_age(kind[0]))
            asked = [kind for kind in kinds[:_KINDS] if may_start(kind[0].job)]
            kinds = asked + kinds[_KINDS:]
        return merge(*kinds, key=_by_age)

    def _put_in_order(self, policy: PackingPolicy) -> None:
        """Divide the jobs anew where another policy has other lanes."""
        if (lanes := Lanes.under(policy)) == self._lanes:
            return
        jobs = [queued.job for _, queued in self._key_of.values()]
        self._alike.clear()
        self._key_of.clear()
        self._waits_since.clear()
        self._lanes = lanes
        for job in jobs:  # into empty lanes: what orders those of before does not compare with it
            self.put(job)

    def _has_risen(self, policy: PackingPolicy, now: datetime) -> bool:
        """Return whether a job may count as more than its own class."""
        every = policy.class_rises_every
        longest = (self._key_of[job_id][1].job for _, job_id in self._longest(now, every))
        return bool(every) and any(job.priority < HIGHEST for job in longest)

    def _guaranteed(
        self,
        gpus: int,
        now: datetime,
        without: Collection[str],
        may: Callable[[JobRequest], bool],
    ) -> Iterator[str]:
        """Yield who comes first for having waited long where nobody runs who did."""
        longest = (job_id for _, job_id in self._longest(now, GUARANTEED_AFTER))
        there = (self._key_of[job_id][1].job for job_id in longest if job_id not in without)
        asked = ((job.id, gpus_of_job(job)) for job in there if may(job))
        return first_of_long(asked, gpus * GUARANTEED_SHARE)

    def _longest(self, now: datetime, wait: timedelta) -> Iterable[tuple[datetime, str]]:
        """Return who has waited for so long, the longest first."""
        return takewhile(lambda waits: now - waits[0] >= wait, self._waits_since)


def _by_age(queued: _Queued) -> tuple[int, _Order]:
    return -queued.job.priority, queued.order


def _all_count(job: JobRequest) -> bool:
    """Return whether all jobs that ask like this one are planned."""
    return bool(job.gang or job.malleable or job.loads_within is not None)


def _count(job: JobRequest, open_gpus: int, policy: PackingPolicy) -> int:
    """Return how many jobs that ask like this one may start or keep a start, and one."""
    return open_gpus * 1000 // _milli(job) + policy.starts_kept + 1


def _milli(job: JobRequest) -> int:
    """Return the thousandths of GPUs that it takes at least, counting an eighth for a slice."""
    return SLICE_MILLI * profile_slices(job.mig) if job.mig else job.gpus * job.milli
