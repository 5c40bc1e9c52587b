"""The nodes of a plan as columns of numbers, one entry for each node.

A need is put to all nodes at once, a column at a time; what cannot be put in numbers, which GPUs
of a node suit, is asked once for each layout: most nodes of a pool look like others.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.job import Tier
from models.node import NodeState
from models.placement import RejectionCode
from scheduling.parts import Parts
from scheduling.state import EPSILON, Hold, Need, NodeView, Rooms

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MICROSECOND = timedelta(microseconds=1)


class Layout(NamedTuple):
    """The GPUs of a node as they are now. Nodes with equal layouts suit the same jobs."""

    rooms: Rooms
    free: int
    parts: Parts = ()
    """What jobs have of GPUs that they share."""


class Columns:
    """All nodes of a plan. Changes go through `take` and `reserve`, and count up `version`."""

    def __init__(self, views: Sequence[NodeView], now: datetime) -> None:
        self.views = views
        self.now = now
        self.version = 0
        self.changed_at = [0] * len(views)
        """The version that brought the last change of each node."""
        self.reserved: set[int] = set()
        """Positions of nodes with reservations."""
        nodes = [view.node for view in views]
        self.ready = _bools([node.state is NodeState.READY for node in nodes])
        self.gone = _bools([node.state is NodeState.GONE for node in nodes])
        self._fast = _bools([node.tier is Tier.FAST for node in nodes])
        self._container = _bools([node.container_runtime is not None for node in nodes])
        self._gpu_types = _Names([node.gpu_type.casefold() for node in nodes])
        self.providers = _Names([node.provider for node in nodes])
        self.cpus = _floats([node.cpus for node in nodes])
        self.ram = _floats([node.ram for node in nodes])
        self.left = _floats([_microseconds_left(node.expires_at, now) for node in nodes])
        """Microseconds until the node's time ends; infinite where it never does."""
        self.layouts: list[Layout] = []
        """Every layout that a node has or had."""
        self._layout_numbers: dict[Layout, int] = {}
        self.layout = np.array([self._layout_number(view) for view in views], dtype=np.intp)
        """The number of each node's layout."""
        self.cpus_to_be_had = _floats([view.cpus_free for view in views]) + EPSILON
        self.ram_to_be_had = _floats([view.ram_free for view in views]) + EPSILON
        """The most that a job may want, with EPSILON."""
        self.amount_used = _floats([_amount_used(view) for view in views])
        """GB of GPU memory; on a node that names no memory, GPUs."""
        self.amount_total = _floats([_amount_total(view) for view in views])
        self._unnamed = _bools([not view.vram_total for view in views])
        self._some_unnamed = bool(self._unnamed.any())

    def __len__(self) -> int:
        return len(self.views)

    def take(self, position: int, hold: Hold, vram_per_gpu: float) -> None:
        """Give `hold` to its job from now on."""
        view = self.views[position]
        view.take(hold, vram_per_gpu)
        self.layout[position] = self._layout_number(view)
        self.cpus_to_be_had[position] = view.cpus_free + EPSILON
        self.ram_to_be_had[position] = view.ram_free + EPSILON
        self.amount_used[position] = _amount_used(view)
        self._changed(position)

    def reserve(self, position: int, hold: Hold) -> None:
        """Keep `hold` for a deferred job."""
        self.views[position].reserved.append(hold)
        self.reserved.add(position)
        self._changed(position)

    def amount_added(self, need: Need) -> Floats | float:
        """Return by how much the need raises `amount_used` of each node."""
        vram = need.vram * need.gpus
        return np.where(self._unnamed, need.gpus, vram) if self._some_unnamed else vram

    def mismatches(self, need: Need) -> Iterator[tuple[RejectionCode, Bools]]:
        """Yield each constraint on the make of a node, with the nodes where it fails."""
        yield RejectionCode.TIER, ~self._fast if need.tier is Tier.FAST else self._fast
        if need.gpu_type:
            yield RejectionCode.GPU_TYPE, ~self._gpu_types.are(need.gpu_type)
        if need.container:
            yield RejectionCode.CONTAINER_RUNTIME, ~self._container

    def _changed(self, position: int) -> None:
        self.version += 1
        self.changed_at[position] = self.version

    def _layout_number(self, view: NodeView) -> int:
        layout = Layout(view.rooms, view.free, view.parts)
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


def _amount_used(view: NodeView) -> float:
    if view.vram_total:
        return view.vram_used
    return float(view.rooms.count - view.free.bit_count())


def _amount_total(view: NodeView) -> float:
    # Nothing is ever used of a node without GPUs.
    return view.vram_total or float(view.rooms.count) or np.inf


def _floats(values: list[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _bools(values: list[bool]) -> Bools:
    return np.array(values, dtype=np.bool_)
