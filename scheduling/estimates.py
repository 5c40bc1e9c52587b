"""How far off the starts were that waiting jobs were told in advance. Pure.

An estimate supposes that running jobs end when they are expected to, and that nobody comes who
goes first. So it is held against what happened, by how long before the start it was made.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

from longshore.models.queue_view import StartErrors
from longshore.models.start_range import StartRange

BOUNDS: tuple[timedelta | None, ...] = (
    timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), timedelta(days=1), None,
)  # fmt: skip
"""Of how long before the start estimates were made, the soonest first; the last has the rest."""
_NEAR = timedelta(minutes=1)
"""A start that is off by no more came as it was told."""


class Told(NamedTuple):
    """The first estimate of an attempt, and when it started."""

    made_at: datetime
    starts_at: datetime
    started_at: datetime | None
    """None where it waits still."""
    between: StartRange | None = None
    """Between when and when it was told to start, where that was told."""


def start_errors(told: Iterable[Told], now: datetime) -> tuple[StartErrors, ...]:
    """Return how far off estimates were, by how long before the start they were made.

    A job that waits still counts once its start was to have come, as off by so much at least:
    without those the worst would be left out.
    """
    found: defaultdict[timedelta | None, list[_Off]] = defaultdict(list)
    for each in told:
        if each.started_at is None and each.starts_at >= now:
            continue
        ahead = each.starts_at - each.made_at
        bound = next(bound for bound in BOUNDS if bound is None or ahead <= bound)
        off = (each.started_at or now) - each.starts_at
        found[bound].append(_Off(off, each.started_at is None, _side(each, now)))
    return tuple(_row(bound, found[bound]) for bound in BOUNDS if bound in found)


class _Off(NamedTuple):
    off: timedelta
    waits: bool
    side: int | None
    """Before its range, in it, or after it: -1, 0 or 1; None without one."""


def _side(told: Told, now: datetime) -> int | None:
    between, came = told.between, told.started_at or now
    if between is None or (told.started_at is None and came <= between.latest):
        return None  # it waits, and may start in its range yet
    if came + _NEAR < between.earliest:
        return -1
    return int(came > between.latest + _NEAR)


def _row(within: timedelta | None, found: Sequence[_Off]) -> StartErrors:
    offs = sorted(abs(each.off) for each in found)
    sides = [each.side for each in found if each.side is not None]
    return StartErrors(
        within=within, jobs=len(found), waiting=sum(each.waits for each in found),
        median=_quantile(offs, 0.5), p90=_quantile(offs, 0.9),
        earlier=sum(each.off < -_NEAR for each in found),
        later=sum(each.off > _NEAR for each in found),
        with_range=len(sides), in_range=sides.count(0), before_range=sides.count(-1),
    )  # fmt: skip


def _quantile(ordered: Sequence[timedelta], part: float) -> timedelta:
    """Return the least of these that so large a part of them is not above."""
    return ordered[max(ceil(part * len(ordered)), 1) - 1]
