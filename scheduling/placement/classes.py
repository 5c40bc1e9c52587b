"""Which nodes answer every need alike: what a plan looks at of a node, in classes."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.models.node import NodeState
from longshore.models.resources import HostAmounts
from longshore.models.topology import NodeTopology
from longshore.scheduling.placement.filters import Attributes, LabelNames, attributes_of
from longshore.scheduling.placement.parts import Parts
from longshore.scheduling.placement.state import NodeView, Rooms

Numbers = NDArray[np.intp]


class Layout(NamedTuple):
    """The GPUs of a node as they are now. Nodes with equal layouts suit the same jobs."""

    rooms: Rooms
    free: int
    parts: Parts = ()
    """What jobs have of GPUs that they share."""
    topology: NodeTopology | None = None
    """What connects them, where that is known."""


class NodeTraits(NamedTuple):
    """What no placement changes of a node."""

    state: NodeState
    attributes: Attributes
    """What the filters look at."""
    provider: str
    host: HostAmounts
    """What it has beside its GPUs."""
    expires_at: datetime | None
    amount: float
    """GB of GPU memory; on a node that names no memory, GPUs."""
    unnamed: bool
    """Whether it names no memory."""
    gpu_power: float
    """Watts that one of its GPUs may draw."""
    data: frozenset[str]
    """Names of the data that it holds."""


class NodeClass(NamedTuple):
    """All that the answer of a node depends on."""

    traits: int
    layout: int
    """Numbers of its trait set and its layout."""
    host_free: HostAmounts
    vram_used: float
    jobs: int
    """Jobs on the node, as far as they are known; a GPU with an unknown holder counts as one."""
    alone: int = 0
    """Of a node with reservations: the version of its last change. No other node is like it."""
    ends: datetime | None = None
    """When the last of its jobs ends, where a plan looks at that."""


class Arranged(NamedTuple):
    """Nodes in classes. Traits, layouts and classes are numbered as they first occur, in order."""

    trait_sets: dict[NodeTraits, int]
    layouts: dict[Layout, int]
    classes: dict[NodeClass, int]
    class_of: Numbers
    """By position of the node."""


def arrange(
    views: Sequence[NodeView], *, by_end: bool = False, labels: LabelNames = None
) -> Arranged:
    """Put nodes into classes; `by_end` and `labels` as in `Columns`. None of them has
    reservations."""
    trait_sets: dict[NodeTraits, int] = {}
    layouts: dict[Layout, int] = {}
    classes: dict[NodeClass, int] = {}
    made = [trait_sets.setdefault(traits_of(view, labels), len(trait_sets)) for view in views]
    class_of: list[int] = []
    for view, traits in zip(views, made, strict=True):
        layout = layouts.setdefault(layout_of(view), len(layouts))
        found = class_of_view(view, traits, layout, by_end=by_end)
        class_of.append(classes.setdefault(found, len(classes)))
    return Arranged(trait_sets, layouts, classes, np.array(class_of, dtype=np.intp))


def traits_of(view: NodeView, labels: LabelNames = None) -> NodeTraits:
    """Return what no placement changes of the node, of its labels those of these names."""
    node = view.node
    # Nothing is ever used of a node without GPUs.
    amount = view.vram_total or float(view.rooms.count) or np.inf
    return NodeTraits(
        node.state, attributes_of(node, labels), node.provider, view.host, node.expires_at, amount,
        not view.vram_total, node.gpu_power, frozenset(node.data),
    )  # fmt: skip


def layout_of(view: NodeView) -> Layout:
    """Return its GPUs as they are now."""
    return Layout(view.rooms, view.free, view.parts, view.node.topology)


def class_of_view(
    view: NodeView, traits: int, layout: int, alone: int = 0, *, by_end: bool = False
) -> NodeClass:
    """Return its class, by the numbers of its trait set and its layout."""
    return NodeClass(
        traits, layout, view.host_free, view.vram_used, len(view.holds) + view.stuck.bit_count(),
        alone, _last_end(view) if by_end else None,
    )  # fmt: skip


def _last_end(view: NodeView) -> datetime | None:
    return max((hold.end for hold in view.holds), default=None)
