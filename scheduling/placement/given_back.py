"""When a need can be held first on nodes, by when what they hold is given back.

A node is looked at only where it could hold the need earlier than the best that is known: before
enough of its GPUs are given back it cannot. What is kept there for others only makes that later.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from longshore.scheduling.placement.reservations import earliest_start
from longshore.scheduling.placement.state import EPSILON, Hold, Need, NodeView

First = tuple[int, datetime] | None
"""The place of a node, and when it can hold a need."""
_TICK = timedelta(microseconds=1)
_NEVER = np.inf
_AMOUNTS = 3
"""Of a host, that may be short while GPUs are empty."""
_FEW = 64


class GivenBack:
    """Nodes by when their GPUs are given back."""

    def __init__(self, views: Sequence[NodeView], now: datetime) -> None:
        """`views` may change, or others be put into them: `read` says of which place."""
        self._views = views
        self._now = now
        most = max((view.rooms.count for view in views), default=0)
        self._given_back = np.full((most, len(views)), _NEVER)
        """Microseconds from now until so many GPUs of a node are empty: rows are counts from 1."""
        self._first_end = np.full(len(views), _NEVER)
        """When the first of its holds ends."""
        self._host_free = np.zeros((_AMOUNTS, len(views)))
        """Rows are amounts of the host but power, which goes with the GPUs."""
        for place in range(len(views)):
            self.read(place)

    def read(self, place: int) -> None:
        """Take in what a node holds now."""
        view = self._views[place]
        ends = [self._since(hold) for holds in (view.holds, view.reserved) for hold in holds]
        self._first_end[place] = min(ends, default=_NEVER)
        self._host_free[:, place] = view.host_free[:_AMOUNTS]
        empty = {index: _NEVER if view.stuck >> index & 1 else 0.0 for index, _ in view.rooms.room}
        for hold, end in zip(view.holds, ends, strict=False):
            mask = hold.mask
            while mask:
                index = (mask & -mask).bit_length() - 1
                mask &= mask - 1
                if empty.get(index, _NEVER) < end:
                    empty[index] = end
        self._given_back[:, place] = _NEVER
        self._given_back[: len(empty), place] = sorted(empty.values())

    def empty_by(self, ticks: float) -> NDArray[np.intp]:
        """Return how many GPUs of each node are empty so many microseconds from now, if nothing is
        begun there."""
        return (self._given_back <= ticks).sum(axis=0)

    def first(self, need: Need, places: NDArray[np.intp], *, not_now: bool = False) -> First:
        """Return the node of these where the need can be held first to its end, and when; ties
        keep the order. None when no node can, by what is known of its holds. With `not_now` it is
        known that none can now."""
        bounds = self._bounds(need, places)
        first: First = None
        known = _NEVER
        for at in _ascending(bounds):
            place = int(places[at])
            if bounds[at] == _NEVER or (first and (bounds[at], place) > (known, first[0])):
                break
            if found := self.better(place, need, first, not_now=not_now):
                first, known = found, (found[1] - self._now) / _TICK
        return first

    def better(self, place: int, need: Need, first: First, *, not_now: bool = False) -> First:
        """Return when a node can hold the need; None where that is not before the first known."""
        before = None
        if first:
            before = first[1] + _TICK if place < first[0] else first[1]
        start = earliest_start(self._views[place], need, self._now, before, not_now=not_now)
        return None if start is None else (place, start)

    def _bounds(self, need: Need, places: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return before when, in microseconds from now, each of these nodes cannot start it."""
        if not need.whole:
            bounds = np.zeros(len(places))
        elif need.gpus > len(self._given_back):
            return np.full(len(places), _NEVER)
        else:
            bounds = self._given_back[need.gpus - 1, places]
        short = np.zeros(len(places), np.bool_)
        for free, wanted in zip(self._host_free, need.host(0.0), strict=False):
            if wanted:
                short |= free[places] + EPSILON < wanted
        return np.where(short, np.maximum(bounds, self._first_end[places]), bounds)

    def _since(self, hold: Hold) -> float:
        return (hold.end - self._now) / _TICK


def _ascending(bounds: NDArray[np.float64]) -> Iterator[int]:
    """Yield the positions by value; equal ones in order. Mostly the first few are enough."""
    if len(bounds) > _FEW:
        limit = np.partition(bounds, _FEW)[_FEW]
        few = np.flatnonzero(bounds < limit)
        yield from few[np.argsort(bounds[few], kind="stable")].tolist()
        rest = np.flatnonzero(bounds >= limit)
    else:
        rest = np.arange(len(bounds))
    yield from rest[np.argsort(bounds[rest], kind="stable")].tolist()
