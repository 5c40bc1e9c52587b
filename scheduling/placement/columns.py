"""The nodes of a plan as classes, and the classes as columns of numbers.

Nodes that answer every need alike are one class: the same traits, the same GPUs free, as much left
of everything. A need is put to all classes at once, a column at a time, so a plan costs what its
different nodes cost, not what all of them do. What cannot be put in numbers, which GPUs of a node
suit, is asked once for each layout.

A placement moves one node from its class to another. No class ever changes.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from longshore.models.node import NodeState
from longshore.models.placement import RejectionCode
from longshore.models.resources import HostAmounts
from longshore.scheduling.placement.classes import (
    Arranged,
    Layout,
    NodeClass,
    NodeTraits,
    Numbers,
    arrange,
    class_of_view,
    layout_of,
)
from longshore.scheduling.placement.filters import FILTERS, Attributes, LabelNames
from longshore.scheduling.placement.state import EPSILON, Hold, Need, NodeView

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MICROSECOND = timedelta(microseconds=1)
_AMOUNTS = len(HostAmounts._fields)
_POWER = HostAmounts._fields.index("power")


class TraitSets:
    """The traits of the nodes as columns, one entry for each set of them."""

    def __init__(self, trait_sets: Sequence[NodeTraits], now: datetime) -> None:
        self.ready = _bools([traits.state is NodeState.READY for traits in trait_sets])
        self.gone = _bools([traits.state is NodeState.GONE for traits in trait_sets])
        self.host = (
            np.array([traits.host for traits in trait_sets], np.float64).reshape(-1, _AMOUNTS).T
        )
        """What each has beside its GPUs: rows are amounts, columns trait sets."""
        self.limited = [row for row in range(_AMOUNTS) if not np.isinf(self.host[row]).all()]
        """The rows that limit anything."""
        self.gpu_power = _floats([traits.gpu_power for traits in trait_sets])
        self.left = _floats([_microseconds_left(traits.expires_at, now) for traits in trait_sets])
        """Microseconds until the node's time ends; infinite where it never does."""
        self._ends: list[float] = np.sort(self.left[np.isfinite(self.left)]).tolist()
        self.amount = _floats([traits.amount for traits in trait_sets])
        self.unnamed = _bools([traits.unnamed for traits in trait_sets])
        self.some_unnamed = bool(self.unnamed.any())
        self.providers = _Names([traits.provider for traits in trait_sets])
        self._data = [traits.data for traits in trait_sets]
        self._holders: dict[str, list[int]] = {}
        """By name of data: the trait sets that hold it."""
        for number, held in enumerate(self._data):
            for name in held:
                self._holders.setdefault(name, []).append(number)
        numbers: dict[Attributes, int] = {}
        self._attributes_of = np.array(
            [numbers.setdefault(traits.attributes, len(numbers)) for traits in trait_sets], np.intp
        )
        """Of each trait set, the number of its attributes: most differ in other things."""
        self._attributes = tuple(numbers)

    def __len__(self) -> int:
        return len(self.left)

    def wanted(self, need: Need, row: int) -> Floats:
        """Return how much of one amount the need takes on nodes of each trait set."""
        if row != _POWER or need.power is not None:
            return np.full(len(self), need.host(0.0)[row])
        return need.host(1.0).power * self.gpu_power

    @property
    def some_end(self) -> bool:
        """Whether the time of any node ends."""
        return bool(self._ends)

    def ended_before(self, span: timedelta) -> int:
        """Return of how many trait sets the nodes end before so long has passed: always of those
        that end first."""
        return bisect_left(self._ends, microseconds(span)) if self._ends else 0

    def held(self, need: Need) -> Floats:
        """Return which part of the job's data nodes of each trait set hold, 0 to 1."""
        parts = np.zeros(len(self))
        for number in {each for name, _ in need.data for each in self._holders.get(name, ())}:
            held = self._data[number]
            parts[number] = math.fsum(part for name, part in need.data if name in held)
        return parts

    def mismatches(self, need: Need) -> Iterator[tuple[RejectionCode, Bools]]:
        """Yield each filter that fails anywhere, with the trait sets where it does."""
        for each in FILTERS:
            failed = [each.fails(of, need) for of in self._attributes]
            if any(failed):
                yield each.code, np.array(failed, np.bool_)[self._attributes_of]


class Columns:
    """All nodes of a plan. `take`, `replace` and `reserve` change them, and count up `version`.

    `traits`, `layout` and the columns after them have an entry for each class; those beyond
    `class_count` are spare.
    """

    def __init__(
        self,
        views: Sequence[NodeView],
        now: datetime,
        *,
        by_end: bool = False,
        labels: LabelNames = None,
        arranged: Arranged | None = None,
    ) -> None:
        """`by_end` tells nodes apart by when their jobs end, at the price of more classes, and
        `labels` by their labels of these names.

        `arranged` is what `arrange` says of the views, where that is known; it is taken over.
        """
        if arranged is None:
            arranged = arrange(views, by_end=by_end, labels=labels)
        self.views = views
        self.labels = labels
        self.now = now
        self.version = 0
        self.layouts: list[Layout] = list(arranged.layouts)
        """Every layout that a node has or had."""
        self.classes: list[NodeClass] = []
        """Every class that a node is or was in."""
        self.reserved: dict[int, int] = {}
        """Classes of nodes with reservations, each with the position of its node."""
        self.left_class: list[int] = []
        self.joined_class: list[int] = []
        self.moved: list[int] = []
        """The moves of nodes between classes, in order, and the positions of these nodes."""
        self._by_end = by_end
        self._layout_numbers = arranged.layouts
        self._class_numbers = arranged.classes
        self.trait_sets = TraitSets(list(arranged.trait_sets), now)
        self.traits = self.layout = np.zeros(0, np.intp)
        self.host_to_be_had = np.zeros((_AMOUNTS, 0))
        """The most that a job may want, with EPSILON: rows are amounts."""
        self.amount_used = np.zeros(0)
        """GB of GPU memory in use."""
        self.busy_for = np.zeros(0)
        """Microseconds until the last of its jobs ends; 0 without jobs, or where not looked at."""
        self.size = np.zeros(0, np.intp)
        """How many nodes are in the class now."""
        self.first = np.zeros(0, np.intp)
        """The position of its first node, where it has one."""
        self.class_of = arranged.class_of
        for found in arranged.classes:
            self._append(found)
        self._begin_members()

    def __len__(self) -> int:
        return len(self.views)

    @property
    def class_count(self) -> int:
        return len(self.classes)

    @property
    def most_free(self) -> int:
        """The most GPUs that one node has which no job has."""
        lived_in = np.flatnonzero(self.size[: self.class_count])
        layouts: set[int] = set(self.layout[lived_in].tolist())
        return max((self.layouts[number].free.bit_count() for number in layouts), default=0)

    def first_nodes(self, number: int, count: int) -> list[int]:
        """Return the positions of the first `count` nodes of a class."""
        members = self._members_of(number)
        return [-members[-i] for i in range(1, min(count, len(members)) + 1)]

    def take(self, position: int, hold: Hold, vram_per_gpu: float) -> None:
        """Give `hold` to its job from now on."""
        self.views[position].take(hold, vram_per_gpu)
        self._changed(position)

    def replace(self, position: int, view: NodeView) -> None:
        """Have a node hold what a view of it holds."""
        self.views[position].become(view)
        self._changed(position)

    def reserve(self, position: int, hold: Hold) -> None:
        """Keep `hold` for a deferred job."""
        self.views[position].reserved.append(hold)
        self._changed(position)

    def amount_added(self, need: Need, traits: Numbers) -> Floats | float:
        """Return by how much the need raises `amount_used` on nodes of these trait sets."""
        vram = need.vram * need.gpus
        if not self.trait_sets.some_unnamed:
            return vram
        return np.where(self.trait_sets.unnamed[traits], need.gpus, vram)

    def _begin_members(self) -> None:
        """Count the nodes of each class, and order all nodes by class."""
        count = self.class_count
        sizes = np.bincount(self.class_of, minlength=count)
        small = np.uint16 if count < 1 << 16 else np.intp  # sorted five times as fast
        self._by_class = np.argsort(self.class_of.astype(small), kind="stable")
        self._ends = np.cumsum(sizes)
        self._members: dict[int, list[int]] = {}
        """Of classes that were asked for the positions of their nodes: negative, so that the first
        comes last."""
        self.size[:count] = sizes
        self.first[:count] = self._by_class[self._ends - sizes]

    def _members_of(self, number: int) -> list[int]:
        members = self._members.get(number)
        if members is None:
            members = self._members[number] = self._members_at_first(number)
        return members

    def _members_at_first(self, number: int) -> list[int]:
        if number >= len(self._ends):
            return []
        end = int(self._ends[number])
        begin = int(self._ends[number - 1]) if number else 0
        return (-self._by_class[begin:end][::-1]).tolist()

    def _changed(self, position: int) -> None:
        """Move a node to the class that it is in now."""
        self.version += 1
        old = int(self.class_of[position])
        new = self._class_number(self.views[position], self.classes[old].traits, position)
        members = self._members_of(old)
        del members[bisect_left(members, -position)]
        if members:
            self.first[old] = -members[-1]
        joined = self._members_of(new)
        insort(joined, -position)
        self.first[new] = -joined[-1]
        self.size[old] -= 1
        self.size[new] += 1
        self.class_of[position] = new
        self.left_class.append(old)
        self.joined_class.append(new)
        self.moved.append(position)

    def _class_number(self, view: NodeView, traits: int, position: int) -> int:
        alone = self.version if view.reserved else 0
        layout = self.number_of(layout_of(view))
        found = class_of_view(view, traits, layout, alone, by_end=self._by_end)
        number = self._class_numbers.get(found)
        if number is None:
            number = self._class_numbers[found] = self.class_count
            self._append(found)
            if view.reserved:
                self.reserved[number] = position
        return number

    def _append(self, found: NodeClass) -> None:
        number = self.class_count
        if number == len(self.traits):
            self._grow()
        self.classes.append(found)
        self.traits[number] = found.traits
        self.layout[number] = found.layout
        self.host_to_be_had[:, number] = found.host_free
        self.host_to_be_had[:, number] += EPSILON
        self.amount_used[number] = self._amount_used(found)
        self.busy_for[number] = microseconds(found.ends - self.now) if found.ends else 0.0
        self.size[number] = 0

    def _amount_used(self, found: NodeClass) -> float:
        if not self.trait_sets.unnamed[found.traits]:
            return found.vram_used
        layout = self.layouts[found.layout]
        return float(layout.rooms.count - layout.free.bit_count())

    def _grow(self) -> None:
        spare = max(64, len(self.traits))  # twice as many, so that growing stays cheap
        whole, real = np.zeros(spare, np.intp), np.zeros(spare)
        self.traits = np.concatenate([self.traits, whole])
        self.layout = np.concatenate([self.layout, whole])
        self.size = np.concatenate([self.size, whole])
        self.first = np.concatenate([self.first, whole])
        more = np.zeros((_AMOUNTS, spare))
        self.host_to_be_had = np.concatenate([self.host_to_be_had, more], axis=1)
        self.amount_used = np.concatenate([self.amount_used, real])
        self.busy_for = np.concatenate([self.busy_for, real])

    def number_of(self, layout: Layout) -> int:
        """Return the number of a layout, a new one where no node ever had it."""
        number = self._layout_numbers.get(layout)
        if number is None:
            number = self._layout_numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
        return number


def microseconds(span: timedelta) -> float:
    return span / _MICROSECOND


class _Names:
    """A column of words, compared as numbers."""

    def __init__(self, words: list[str]) -> None:
        self._numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
        self._column = np.array([self._numbers[word] for word in words], dtype=np.intp)

    def are(self, word: str) -> Bools:
        return self._column == self._numbers.get(word, -1)


def _microseconds_left(expires_at: datetime | None, now: datetime) -> float:
    return np.inf if expires_at is None else microseconds(expires_at - now)


def _floats(values: list[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _bools(values: list[bool]) -> Bools:
    return np.array(values, dtype=np.bool_)
