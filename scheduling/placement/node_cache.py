"""The nodes of a pool between two plans, as views and classes: a plan begins from what changed.

What is kept is a function of nodes and what runs there, and of no moment. Views at a plan's moment
are made when the plan looks at them, and classes are numbered anew for each plan, so that its
columns are, entry by entry, those of a plan that begins from nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, overload

import numpy as np

from longshore.models.node import Node, NodeState
from longshore.models.placement import RunningJob
from longshore.scheduling.placement.classes import (
    Arranged,
    Layout,
    NodeClass,
    NodeTraits,
    Numbers,
    class_of_view,
    layout_of,
    traits_of,
)
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.filters import LabelNames
from longshore.scheduling.placement.needs import KnownNeeds
from longshore.scheduling.placement.state import NodeView, order_on_node, view_at, view_node

Kind = TypeVar("Kind")
_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
"""No job is overdue then."""
_FEW = 1_000
"""Classes without a node that are never too many."""


class NodeCache:
    """A pool's nodes and what runs there, changed a few nodes at a time."""

    def __init__(self) -> None:
        self._cached: dict[str, _Cached] = {}
        self._running: dict[str, tuple[RunningJob, ...]] = {}
        """By node, also by nodes that are not among these; in the order of views."""
        self._data: dict[str, tuple[str, ...]] = {}
        self._kinds = _Kinds()
        self._by_id = _ByPosition(())
        self._complete = True
        """Whether `_by_id` has all nodes, and no other."""
        self.needs = KnownNeeds()
        """Those of the jobs that were planned on these nodes."""
        self.running_count = 0
        """Jobs that run, by node."""
        self.gpus = self.free_gpus = 0
        """Of nodes that take jobs; free are those that nobody has a part of."""
        self.open_gpus = 0
        """Of these those that nobody has whole."""

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, by id."""
        return tuple(cached.node for cached in self._ordered().cached)

    @property
    def nodes_with_data(self) -> tuple[Node, ...]:
        """All nodes, by id, with what `hold_data` said last."""
        return tuple(cached.view.node for cached in self._ordered().cached)

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """All that runs, node by node."""
        return tuple(job for jobs in self._running.values() for job in jobs)

    @property
    def cached_classes(self) -> int:
        """Classes that are known, also without a node."""
        return self._kinds.count

    def named(self, ids: Iterable[str]) -> tuple[Node, ...]:
        """Return the nodes with these ids, in their order. Raises KeyError for another."""
        return tuple(self._cached[node_id].node for node_id in ids)

    def update(
        self, changed: Collection[str], nodes: Iterable[Node], running: Iterable[RunningJob]
    ) -> None:
        """Take in the nodes with the ids `changed` as they are now, and all that runs on them.

        One that is not among `nodes` has left.
        """
        by_id = {node.id: node for node in nodes}
        by_node: dict[str, list[RunningJob]] = {}
        for job in running:
            by_node.setdefault(job.node_id, []).append(job)
        for node_id in changed:
            self._put_running(node_id, by_node.get(node_id, ()))
            if node := by_id.get(node_id):
                self._put(node)
            elif left := self._cached.pop(node_id, None):
                self._count(left.node, -1)
                self._complete = False

    def hold_data(self, data: Mapping[str, tuple[str, ...]]) -> None:
        """Say which data each node holds, as far as a plan wants it; all others hold none."""
        before, self._data = self._data, dict(data)
        for node_id in before.keys() | data.keys():
            cached = self._cached.get(node_id)
            if cached and cached.view.node.data != self._data.get(node_id, cached.node.data):
                self._put(cached.node)

    def columns(self, now: datetime, labels: LabelNames = None) -> Columns:
        """Return the columns of a plan at `now`, for it to change as it likes; `labels` are those
        that its jobs ask for."""
        if labels != self._kinds.labels:
            self._begin_anew(labels)
        order = self._ordered()
        arranged = self._kinds.arranged(order.numbers)
        if self.cached_classes > 2 * len(arranged.classes) + _FEW:
            self._begin_anew(labels)
        views = _ViewsAt(list(order.views), now)
        return Columns(views, now, labels=labels, arranged=arranged)

    def _put_running(self, node_id: str, jobs: Sequence[RunningJob]) -> None:
        before = self._running.pop(node_id, ())
        self.running_count += len(jobs) - len(before)
        if jobs:
            self._running[node_id] = tuple(sorted(jobs, key=order_on_node))

    def _put(self, node: Node) -> None:
        data = self._data.get(node.id)
        seen = node.model_copy(update={"data": data}) if data else node
        view = view_node(seen, self._running.get(node.id, ()), _BEFORE_ALL)
        cached = _Cached(node, view, self._kinds.number_of(view))
        if before := self._cached.get(node.id):
            self._count(before.node, -1)
            if self._complete:
                self._by_id.put(cached)
        else:
            self._complete = False
        self._count(node, 1)
        self._cached[node.id] = cached

    def _count(self, node: Node, times: int) -> None:
        if node.state is NodeState.READY:
            self.gpus += times * len(node.gpus)
            self.free_gpus += times * sum(gpu.is_free for gpu in node.gpus)
            self.open_gpus += times * sum(gpu.job_id is None for gpu in node.gpus)

    def _ordered(self) -> "_ByPosition":
        if not self._complete:
            self._by_id = _ByPosition(self._cached[node_id] for node_id in sorted(self._cached))
            self._complete = True
        return self._by_id

    def _begin_anew(self, labels: LabelNames) -> None:
        """Forget the classes that no node is in, and tell nodes apart by these labels."""
        self._kinds = _Kinds(labels)
        for cached in self._cached.values():
            cached.number = self._kinds.number_of(cached.view)
        self._complete = False


@dataclass(slots=True)
class _Cached:
    node: Node
    view: NodeView
    """As of no moment: jobs end when they should."""
    number: int
    """Of its class."""


class _ByPosition:
    """All nodes, by id: a plan knows them by position."""

    def __init__(self, cached: Iterable[_Cached]) -> None:
        self.cached = list(cached)
        self.views = [each.view for each in self.cached]
        self.numbers = np.array([each.number for each in self.cached], np.intp)
        self._positions = {each.node.id: i for i, each in enumerate(self.cached)}

    def put(self, cached: _Cached) -> None:
        """Put a node in place of what it was before."""
        position = self._positions[cached.node.id]
        self.cached[position] = cached
        self.views[position] = cached.view
        self.numbers[position] = cached.number


class _Kinds:
    """Traits, layouts and classes, numbered as they come; also those that no node has any more."""

    def __init__(self, labels: LabelNames = ()) -> None:
        self.labels = labels
        """That tell them apart."""
        self._trait_sets: dict[NodeTraits, int] = {}
        self._layouts: dict[Layout, int] = {}
        self._classes: dict[NodeClass, int] = {}
        self._by_number: tuple[list[NodeTraits], list[Layout], list[NodeClass]] = [], [], []

    @property
    def count(self) -> int:
        return len(self._classes)

    def number_of(self, view: NodeView) -> int:
        """Return the number of a node's class."""
        trait_sets, layouts, classes = self._by_number
        traits = _number(traits_of(view, self.labels), self._trait_sets, trait_sets)
        layout = _number(layout_of(view), self._layouts, layouts)
        return _number(class_of_view(view, traits, layout), self._classes, classes)

    def arranged(self, numbers: Numbers) -> Arranged:
        """Return the nodes with these classes as `arrange` would.

        A class first occurs where its first node does, traits or a layout where their first class
        does.
        """
        count = len(numbers)
        first = np.full(self.count, count, np.intp)
        first[numbers[::-1]] = np.arange(count - 1, -1, -1)  # the last one written stays
        present = np.flatnonzero(first < count)
        present = present[np.argsort(first[present])]
        anew = np.zeros(self.count, np.intp)
        anew[present] = np.arange(len(present))
        trait_sets, layouts, classes = self._by_number
        new_trait_sets: dict[int, int] = {}
        new_layouts: dict[int, int] = {}
        found: dict[NodeClass, int] = {}
        numbers_present: list[int] = present.tolist()
        for number in numbers_present:
            of = classes[number]
            traits = new_trait_sets.setdefault(of.traits, len(new_trait_sets))
            layout = new_layouts.setdefault(of.layout, len(new_layouts))
            if (traits, layout) != (of.traits, of.layout):
                of = of._replace(traits=traits, layout=layout)
            found[of] = len(found)
        return Arranged(
            {trait_sets[old]: new for old, new in new_trait_sets.items()},
            {layouts[old]: new for old, new in new_layouts.items()},
            found,
            anew[numbers],
        )


class _ViewsAt(Sequence[NodeView]):
    """Kept views as a plan sees them, each made when it is first looked at."""

    def __init__(self, cached: Sequence[NodeView], now: datetime) -> None:
        self._cached = cached
        self._now = now
        self._made: dict[int, NodeView] = {}

    def __len__(self) -> int:
        return len(self._cached)

    @overload
    def __getitem__(self, position: int) -> NodeView: ...
    @overload
    def __getitem__(self, position: slice) -> list[NodeView]: ...
    def __getitem__(self, position: int | slice) -> NodeView | list[NodeView]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        made = self._made.get(position)
        if made is None:
            made = self._made[position] = view_at(self._cached[position], self._now)
        return made

    def __iter__(self) -> Iterator[NodeView]:
        return (self[position] for position in range(len(self)))


def _number(kind: Kind, numbers: dict[Kind, int], kinds: list[Kind]) -> int:
    number = numbers.get(kind)
    if number is None:
        number = numbers[kind] = len(kinds)
        kinds.append(kind)
    return number
