"""When a job could start first if nobody is stopped, on nodes that change one by one.

A node is looked at only where it could hold the job earlier than the best that is known: before
enough of its GPUs are given back it cannot.
"""

from collections.abc import Hashable, Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from longshore.models.node import Node, NodeState
from longshore.scheduling.placement.feasibility import fits_when_empty, when_empty
from longshore.scheduling.placement.filters import LabelNames
from longshore.scheduling.placement.reservations import earliest_start
from longshore.scheduling.placement.state import EPSILON, Hold, Need, NodeView

_TICK = timedelta(microseconds=1)
_NEVER = np.inf
_AMOUNTS = 3
"""Of a host, that may be short while GPUs are empty."""
_FEW = 64
_KEPT = 50_000
"""Needs whose nodes are remembered at one time: bounds memory, not results."""


_Places = tuple[NDArray[np.intp], set[int]]
"""In order, and as a set."""
_First = tuple[int, datetime] | None


class Starts:
    """The nodes by when their GPUs are given back."""

    def __init__(
        self,
        nodes: Sequence[Node],
        views: Sequence[NodeView],
        now: datetime,
        labels: LabelNames = None,
    ) -> None:
        """`views` are those of the nodes, in order; `labels` as in `Columns`."""
        self._now = now
        self._views = list(views)
        groups: dict[Hashable, list[int]] = {}
        for place, node in enumerate(nodes):
            groups.setdefault(when_empty(node, labels), []).append(place)
        self._alike = [(nodes[places[0]], places) for places in groups.values()]
        """Nodes that are the same when they are empty: one of them, and the places of all."""
        self._left = np.array([_left(node, now) for node in nodes])
        """Microseconds for which a node takes jobs: infinite where its time does not end, below 0
        where it takes none."""
        self._suited: dict[Need, _Places] = {}
        self._joined: dict[tuple[int, ...], _Places] = {}
        self._changed: list[int] = []
        """The places of nodes that changed, in order."""
        self._known: dict[Need, tuple[int, _First]] = {}
        """What was found last, and how many of the changes that had seen."""
        most = max((len(node.gpus) for node in nodes), default=0)
        self._given_back = np.full((most, len(views)), _NEVER)
        """Microseconds from now until so many GPUs of a node are empty: rows are counts from 1."""
        self._first_end = np.full(len(views), _NEVER)
        """When the first of its holds ends."""
        self._host_free = np.zeros((_AMOUNTS, len(views)))
        """Rows are amounts of the host but power, which goes with the GPUs."""
        for place in range(len(views)):
            self._read(place)

    def change(self, place: int, view: NodeView) -> None:
        """Have a node hold what this view of it holds."""
        self._views[place] = view
        self._changed.append(place)
        self._read(place)

    def suited(self, need: Need) -> NDArray[np.intp]:
        """Return the places of the nodes that could hold the need when empty, in order."""
        return self._suited_for(need)[0]

    def _suited_for(self, need: Need) -> _Places:
        found = self._suited.get(need)
        if found is None:
            groups = tuple(
                number for number, (node, _) in enumerate(self._alike)
                if fits_when_empty(node, need)
            )  # fmt: skip
            if groups not in self._joined:
                places = {place for number in groups for place in self._alike[number][1]}
                self._joined[groups] = np.array(sorted(places), np.intp), places
            if len(self._suited) >= _KEPT:
                self._suited.clear()
            found = self._suited[need] = self._joined[groups]
        return found

    def lasting(self, places: NDArray[np.intp], need: Need) -> NDArray[np.intp]:
        """Return those of the nodes that take jobs, and last long enough from now on."""
        return places[self._left[places] >= need.must_last / _TICK]

    def first(self, need: Need) -> tuple[int, datetime] | None:
        """Return the node where the need can be held first to its end, and when; ties keep the
        order. None when no node can, by what is known of its holds."""
        seen, first = self._known.get(need, (0, None))
        changed = set(self._changed[seen:])
        if need not in self._known or len(changed) > _FEW or (first and first[0] in changed):
            first = self._look(need)
        elif changed:
            suited = self._suited_for(need)[1]
            for place in sorted(changed & suited):
                first = self._better(place, need, first) or first
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[need] = len(self._changed), first
        return first

    def _look(self, need: Need) -> _First:
        suited = self.suited(need)
        bounds = self._bounds(need, suited)
        first: _First = None
        known = _NEVER
        for at in _ascending(bounds):
            place = int(suited[at])
            if bounds[at] == _NEVER or (first and (bounds[at], place) > (known, first[0])):
                break
            if found := self._better(place, need, first):
                first, known = found, (found[1] - self._now) / _TICK
        return first

    def _better(self, place: int, need: Need, first: _First) -> _First:
        """Return when a node can hold the need; None where that is not before the first known."""
        before = None
        if first:
            before = first[1] + _TICK if place < first[0] else first[1]
        start = earliest_start(self._views[place], need, self._now, before)
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

    def _read(self, place: int) -> None:
        view = self._views[place]
        ends = [self._since(hold) for holds in (view.holds, view.reserved) for hold in holds]
        self._first_end[place] = min(ends, default=_NEVER)
        self._host_free[:, place] = view.host_free[:_AMOUNTS]
        given_back = sorted(self._empty_from(view, index) for index, _ in view.rooms.room)
        self._given_back[: len(given_back), place] = given_back

    def _empty_from(self, view: NodeView, index: int) -> float:
        if view.stuck >> index & 1:
            return _NEVER
        here = (self._since(hold) for hold in view.holds if hold.mask >> index & 1)
        return max(here, default=0.0)

    def _since(self, hold: Hold) -> float:
        return (hold.end - self._now) / _TICK


def _left(node: Node, now: datetime) -> float:
    if node.state is not NodeState.READY:
        return -_NEVER
    return _NEVER if node.expires_at is None else (node.expires_at - now) / _TICK


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
