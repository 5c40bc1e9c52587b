"""Which jobs of a long queue a cycle has to plan: of those that ask alike, the first few.

A plan gives GPUs to no more jobs than there are GPUs open, and keeps starts for a given number of
those that wait. So of jobs that ask alike it is enough to plan as many as could start, and as many
more as starts are kept: by then no start is left for a job behind them, and there is no room for
it, as there was none for one like it before. A plan of these alone places and keeps the same as
one of the whole queue, unless jobs change their places for others in it (`CyclePlan.rearranged`):
that can make room for a job of which an earlier one like it found none. Gangs are all planned:
their starts are looked for at some moments, so a later one may have one and the first none.
"""

import itertools
from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from models.mig import profile_slices
from models.packing import PackingPolicy
from models.placement import JobRequest
from scheduling.order import HIGHEST, order_in_class
from scheduling.placement.mix import SLICE_MILLI

_ITS_OWN = {"id", "submitted_at", "waits_since", "attempt", "data"}
_asked = attrgetter(*(name for name in JobRequest.model_fields if name not in _ITS_OWN))

LONG = 500
"""Jobs from which on a cycle need not plan all."""


class _Queued(NamedTuple):
    """Sorts as a queue of one class does; no two have the same id."""

    order: tuple[bool, float, str, int]
    job: JobRequest


class LongQueue:
    """The jobs that wait in a pool, by what they ask, changed a few at a time."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, list[_Queued]] = {}
        self._key_of: dict[str, tuple[Hashable, _Queued]] = {}
        self._waits_since: list[datetime] = []

    def __len__(self) -> int:
        return len(self._key_of)

    def put(self, job: JobRequest) -> None:
        """Take in a job as it is now."""
        self.remove(job.id)
        key = _asked(job), tuple(sorted(job.data.items()))
        queued = _Queued(order_in_class(job), job)
        insort(self._alike.setdefault(key, []), queued)
        self._key_of[job.id] = key, queued
        if (since := _may_rise_from(job)) is not None:
            insort(self._waits_since, since)

    def remove(self, job_id: str) -> None:
        """Forget a job, where it is known."""
        if (known := self._key_of.pop(job_id, None)) is None:
            return
        key, queued = known
        alike = self._alike[key]
        del alike[bisect_left(alike, queued)]
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
        without: Collection[str] = (),
        beside: Iterable[JobRequest] = (),
    ) -> list[JobRequest] | None:
        """Return the jobs that a plan has to have, and those `beside`, in no order; None where
        that should be all: the queue is short, they are half of it, or its order is another one.

        `open_gpus` are those of nodes that take jobs which nobody holds whole. Those `without` are
        as good as not there.
        """
        if len(self) < LONG or self._has_risen(policy, now):
            return None
        found = {job.id: job for job in self.first_alike(open_gpus, policy, without)}
        found.update((job.id, job) for job in beside if job.id not in without)
        return list(found.values()) if 2 * len(found) < len(self) else None

    def first_alike(
        self, open_gpus: int, policy: PackingPolicy, without: Collection[str] = ()
    ) -> list[JobRequest]:
        """Return of those that ask alike the first ones, as many as a plan has to have."""
        found: list[JobRequest] = []
        for alike in self._alike.values():
            first = alike[0].job
            starts = open_gpus * 1000 // _milli(first)
            most = None if first.gang else starts + policy.max_reservations + 1
            there = (queued.job for queued in alike if queued.job.id not in without)
            found += itertools.islice(there, most)
        return found

    def _has_risen(self, policy: PackingPolicy, now: datetime) -> bool:
        """Return whether a job may count as more than its own class: then jobs that ask alike are
        not in the order that is kept here."""
        every = policy.class_rises_every
        return bool(every and self._waits_since) and now - self._waits_since[0] >= every


def _may_rise_from(job: JobRequest) -> datetime | None:
    """Return since when its wait counts; None where its class is the highest anyway."""
    return None if job.priority >= HIGHEST else job.waits_since or job.submitted_at


def _milli(job: JobRequest) -> int:
    """Return the thousandths of GPUs that it takes at least, counting an eighth for a slice."""
    return SLICE_MILLI * profile_slices(job.mig) if job.mig else job.gpus * job.milli
