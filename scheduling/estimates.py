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


def start_errors(told: Iterable[Told], now: datetime) -> tuple[StartErrors, ...]:
    """Return how far off estimates were, by how long before the start they were made.

    A job that waits still counts once its start was to have come, as off by so much at least:
    without those the worst would be left out.
    """
    found: defaultdict[timedelta | None, list[tuple[timedelta, bool]]] = defaultdict(list)
    for each in told:
        if each.started_at is None and each.starts_at >= now:
            continue
        ahead = each.starts_at - each.made_at
        bound = next(bound for bound in BOUNDS if bound is None or ahead <= bound)
        off = (each.started_at or now) - each.starts_at
        found[bound].append((off, each.started_at is None))
    return tuple(_row(bound, found[bound]) for bound in BOUNDS if bound in found)


def _row(within: timedelta | None, found: Sequence[tuple[timedelta, bool]]) -> StartErrors:
    offs = sorted(abs(off) for off, _ in found)
    return StartErrors(
        within=within, jobs=len(found), waiting=sum(waits for _, waits in found),
        median=_quantile(offs, 0.5), p90=_quantile(offs, 0.9),
        earlier=sum(off < -_NEAR for off, _ in found), later=sum(off > _NEAR for off, _ in found),
    )  # fmt: skip


def _quantile(ordered: Sequence[timedelta], part: float) -> timedelta:
    """Return the least of these that so large a part of them is not above."""
    return ordered[max(ceil(part * len(ordered)), 1) - 1]
