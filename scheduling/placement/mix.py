"""What jobs a pool is asked for, in kinds: learnt from its queue and what it placed lately."""

import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NamedTuple

from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.mig import profile_slices
from longshore.models.placement import PackingPolicy
from longshore.scheduling.placement.filters import asked
from longshore.scheduling.placement.parts import WHOLE
from longshore.scheduling.placement.state import Need

MOST_KINDS = 64
"""Of the most demand; every node is asked about each of them."""
SLICE_MILLI = WHOLE // 8
"""What a slice of a GPU in MIG mode counts."""


LEAST_PLACEMENTS, MOST_PLACEMENTS = 400, 4000
_FOR_EACH_NODE = 2


def remembered(nodes: int) -> int:
    """Return how many of its latest placements say what a pool of so many nodes is asked for: as
    many as say which types are scarce there, and whether jobs end as others start. More are a
    longer query."""
    return min(max(_FOR_EACH_NODE * nodes, LEAST_PLACEMENTS), MOST_PLACEMENTS)


class Kind(NamedTuple):
    """Jobs that ask alike."""

    need: Need
    """Of its GPUs exactly; cores, RAM and duration are means. Storage bandwidth and power are left
    out: few nodes limit them."""
    frequency: float
    """Its share of the jobs."""

    @property
    def milli(self) -> int:
        """What one of its jobs takes of the GPUs of a node, in thousandths."""
        return milli_of(self.need)


class Mix(NamedTuple):
    """What is to be expected."""

    kinds: tuple[Kind, ...]
    churn: float
    """Jobs that have ended for each that runs, at most 1: 0 while a pool only fills."""
    cpus_per_milli: float
    ram_per_milli: float
    """Asked for with each thousandth of a GPU, on average."""


NO_MIX = Mix((), 0.0, 0.0, 0.0)


def mix_of(
    queue: Iterable[JobRequest],
    recent: Iterable[RecentJobs],
    running: int,
    policy: PackingPolicy,
    need_of: Callable[[JobRequest], Need] | None = None,
) -> Mix:
    """Return the mix of the jobs that wait and of those placed lately, in whatever order;
    an empty one for a rule that does not look at it.

    `running` is how many run now. Gangs are left out: they choose their nodes by other rules.
    `need_of` is what says `Need.of` for the jobs of the queue, where that is known.
    """
    if not policy.rule.learns:
        return NO_MIX
    groups: dict[tuple[object, ...], list[tuple[int, Need]]] = {}
    members_of: dict[int, list[tuple[int, Need]]] = {}
    """By need, the object: all that came stay in `groups`."""
    recent = tuple(recent)

    def add(count: int, need: Need) -> None:
        members = members_of.get(id(need))
        if members is None:
            members = members_of[id(need)] = groups.setdefault(_group(need), [])
        members.append((count, need))

    for job in queue:
        if job.gang is None:
            add(1, need_of(job) if need_of else Need.of(job, policy))
    for jobs in recent:
        if jobs.request.gang is None:
            add(jobs.count, Need.of(jobs.request, policy))
    if not groups:
        return NO_MIX
    jobs = sum(count for members in groups.values() for count, _ in members)
    kinds = [_kind(members, jobs) for members in groups.values()]
    kinds.sort(key=_most_demand)
    milli = math.fsum(kind.frequency * kind.milli for kind in kinds)
    ended = sum(jobs.ended for jobs in recent)
    return Mix(
        kinds=tuple(kinds[:MOST_KINDS]),
        churn=min(ended / max(running, 1), 1.0),
        cpus_per_milli=math.fsum(kind.frequency * kind.need.cpus for kind in kinds) / milli,
        ram_per_milli=math.fsum(kind.frequency * kind.need.ram for kind in kinds) / milli,
    )


def milli_of(need: Need) -> int:
    """Return what a job takes of the GPUs of a node, in thousandths."""
    if need.mig is not None:
        return SLICE_MILLI * profile_slices(need.mig)
    return need.gpus * need.milli


def _most_demand(kind: Kind) -> tuple[float, Need]:
    return -kind.frequency * kind.milli, kind.need._replace(mig=kind.need.mig or "", power=0.0)


def _group(need: Need) -> tuple[object, ...]:
    """Return what jobs of one kind have in common: cores for each GPU within a factor of the
    root of 2, durations within a factor of 4, the rest exactly; RAM does not matter."""
    cores = math.floor(2 * math.log2(max(need.cpus / need.gpus, 0.01)))
    hours = math.floor(math.log2(max(need.duration / timedelta(hours=1), 0.001)) / 2)
    return (
        asked(need), need.gpus, need.vram, need.milli, need.mig, cores, hours,
    )  # fmt: skip


def _kind(members: list[tuple[int, Need]], jobs: int) -> Kind:
    count = sum(count for count, _ in members)
    # fsum and timedelta are exact, so that no order of the jobs matters.
    duration = sum((count * need.duration for count, need in members), timedelta()) / count
    must_last = sum((count * need.must_last for count, need in members), timedelta()) / count
    need = members[0][1]._replace(
        cpus=math.fsum(count * need.cpus for count, need in members) / count,
        ram=math.fsum(count * need.ram for count, need in members) / count,
        duration=duration,
        must_last=must_last,
        storage=0.0,
        power=None,
        data=(),
        stay=None,
    )
    return Kind(need, count / jobs)
