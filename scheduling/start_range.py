"""Between when and when a start that is kept will come: what it waits for may end sooner or later.

A start is kept on GPUs that others hold until then. Where it is learnt how long jobs like these
run, each of them has ends that are as likely as each other, and the place is free when the last of
them has ended. So the chance that it is free by a moment is the product of the chances that each
has ended, if they end apart from each other. Nothing is planned again: of all places the one that
is kept is looked at, and who is before the job is taken to stay there. Pure.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple, TypeVar

from longshore.models.durations import Learnt
from longshore.models.job_request import JobRequest
from longshore.models.start_range import StartRange
from longshore.scheduling.durations import (
    EARLY_PART,
    LATE_PART,
    ends_of,
    is_unknown,
    tail_of,
)
from longshore.scheduling.placement.gpus import indices_of
from longshore.scheduling.placement.state import Hold

T = TypeVar("T")
Ends = tuple[datetime, tuple[datetime, ...]]
"""Of a job in the way: when it is planned to end, and when it may, each as likely; none where
that is one moment."""
_POINTS = 20
"""Of when a job that waits may end itself, at most."""
_OWN = 10
"""Parts of its time, and of its start, that these are made of."""


def last_before(start: datetime, place: Hold, holds: Iterable[Hold]) -> list[Hold]:
    """Return whose ends a place waits for that is kept from `start` on: of each of its GPUs the
    last holder until then, and whoever ends just then, for cores."""
    last: dict[int, Hold] = {}
    found: list[Hold] = []
    # Of a GPU that is shared not all have to leave.
    wanted = 0 if place.parts else place.mask
    for hold in holds:
        if hold.end > start:
            continue
        if hold.end == start:
            found.append(hold)
        for gpu in indices_of(hold.mask & wanted):
            if gpu not in last or last[gpu].end < hold.end:
                last[gpu] = hold
    return [*found, *(hold for hold in last.values() if hold.end < start)]


def _ends_in_the_way(hold: Hold, placed: JobRequest | None, now: datetime) -> Ends:
    ends, nobody_knows = hold.ends, hold.nobody_knows
    if placed is not None:
        ends = ends_of(placed.learnt, now, placed.attained)
        nobody_knows = is_unknown(placed)
    if nobody_knows and not (ends and now < ends[-1]):
        ends = tail_of(hold.unlimited or hold.end, hold.start, hold.latest)
    return hold.end, ends


class Coming(NamedTuple):
    """What is known of a start that is kept."""

    between: StartRange | None
    ends: tuple[datetime, ...]
    """When the job may end, each as likely."""
    nobody_knows: bool
    """Whether nobody knows when it ends."""

    @property
    def is_unsure(self) -> bool:
        """Whether nobody knows when it starts."""
        return self.between is not None and self.between.nobody_knows

    def told_of(self, hold: Hold) -> Hold:
        """Return what is kept for the job, for those behind it."""
        return hold._replace(ends=self.ends, nobody_knows=self.nobody_knows)


def coming(
    job: JobRequest,
    start: datetime,
    blockers: Iterable[tuple[Hold, JobRequest | None]],
    now: datetime,
) -> Coming:
    """Return what is known of a start that is kept for a job: it waits for these, of which some
    are of jobs that the plan itself places."""
    found: list[Ends] = []
    unsure = False
    for hold, placed in blockers:
        found.append(_ends_in_the_way(hold, placed, now))
        unsure |= hold.nobody_knows if placed is None else is_unknown(placed)
    learnt, ran = job.learnt, timedelta(0)
    if learnt is not None:
        ran = learnt.ran_before(job.attained)
    between, ends = when(start, found, job.expected_duration, learnt, ran, now)
    if between is not None and unsure:
        between = between.model_copy(update={"nobody_knows": True})
    return Coming(between, ends, unsure or is_unknown(job))


def when(
    start: datetime,
    blockers: Iterable[Ends],
    takes: timedelta,
    learnt: Learnt | None,
    ran: timedelta,
    now: datetime,
) -> tuple[StartRange | None, tuple[datetime, ...]]:
    """Return between when and when a place is free that is kept from `start` on, for eight of ten
    such places, and when a job may end that begins then and probably `takes` so long, each as
    likely; no range, or no ends, where they are known as no more than one moment."""
    free = _free_at(blockers, now)
    return _range_of(start, free), _ends_after(start, free, takes, learnt, ran)


def _range_of(start: datetime, free: "_Chances | None") -> StartRange | None:
    if free is None:
        return None
    early, late = (_by(free, part) for part in (EARLY_PART, LATE_PART))
    return StartRange(earliest=min(early, start), latest=max(late, start))


def _ends_after(
    start: datetime,
    free: "_Chances | None",
    takes: timedelta,
    learnt: Learnt | None,
    ran: timedelta,
) -> tuple[datetime, ...]:
    own = () if learnt is None else [each for each in learnt.seconds if each > ran.total_seconds()]
    if free is None and not own:
        return ()
    starts = [start] if free is None else [_by(free, _middle(place)) for place in range(_OWN)]
    times = [timedelta(seconds=each) - ran for each in _few(own)] or [takes]
    ends = sorted(one + other for one in starts for other in times)
    return tuple(_few_of(ends, _POINTS))


_Chances = tuple[Sequence[datetime], Sequence[float]]
"""Moments, ascending, and the chance that all have ended by each."""


def _free_at(blockers: Iterable[Ends], now: datetime) -> _Chances | None:
    """Return when the last of them may have ended; None where each has one end."""
    times = [tuple(end for end in ends if end > now) or (planned,) for planned, ends in blockers]
    if all(len(ends) == 1 for ends in times):
        return None
    each = sorted((end, number) for number, ends in enumerate(times) for end in ends)
    ended, running, chance = [0] * len(times), len(times), 1.0
    moments: list[datetime] = []
    chances: list[float] = []
    for end, number in each:
        ended[number] += 1
        of = len(times[number])
        if ended[number] == 1:
            running -= 1
            chance /= of
        else:
            chance *= ended[number] / (ended[number] - 1)
        if not running:
            moments.append(end)
            chances.append(chance)
    return moments, chances


def _by(free: _Chances, part: float) -> datetime:
    """Return by when all have ended with so large a chance."""
    moments, chances = free
    small = 1e-9  # sums of products drift
    return moments[min(bisect_left(chances, part - small), len(moments) - 1)]


def _middle(place: int) -> float:
    return (place + 0.5) / _OWN


def _few(seconds: Sequence[int]) -> Sequence[int]:
    return _few_of(seconds, _OWN)


def _few_of(ordered: Sequence[T], most: int) -> Sequence[T]:
    """Return at most so many of them, spread evenly."""
    count = len(ordered)
    if count <= most:
        return ordered
    return [ordered[ceil((place + 0.5) * count / most) - 1] for place in range(most)]
