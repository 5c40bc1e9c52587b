"""When a job could start first if nobody is stopped, on nodes that change one by one."""

from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from longshore.models.node import Node, NodeState
from longshore.scheduling.placement.feasibility import fits_when_empty, when_empty
from longshore.scheduling.placement.filters import LabelNames
from longshore.scheduling.placement.given_back import First, GivenBack
from longshore.scheduling.placement.state import Need, NodeView

_TICK = timedelta(microseconds=1)
_NEVER = np.inf
_FEW = 64
_KEPT = 50_000
"""Needs whose nodes are remembered at one time: bounds memory, not results."""


_Places = tuple[NDArray[np.intp], set[int]]
"""In order, and as a set."""


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
        self._views = list(views)
        self.given_back = GivenBack(self._views, now)
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
        self._known: dict[Need, tuple[int, First]] = {}
        """What was found last, and how many of the changes that had seen."""

    def change(self, place: int, view: NodeView) -> None:
        """Have a node hold what this view of it holds."""
        self._views[place] = view
        self._changed.append(place)
        self.given_back.read(place)

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
            first = self.given_back.first(need, self.suited(need))
        elif changed:
            suited = self._suited_for(need)[1]
            for place in sorted(changed & suited):
                first = self.given_back.better(place, need, first) or first
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[need] = len(self._changed), first
        return first


def _left(node: Node, now: datetime) -> float:
    if node.state is not NodeState.READY:
        return -_NEVER
    return _NEVER if node.expires_at is None else (node.expires_at - now) / _TICK
