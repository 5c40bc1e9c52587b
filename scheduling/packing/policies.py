# pyright: reportUnknownMemberType=false
# What numba has compiled has no types of its own; `Kernel` says what comes back.
"""Named policies: which node and which GPUs a request gets, one request at a time.

    policy = KeepRoom()
    choice = policy.choose(fleet, request)
    if choice is not None:
        fleet.take(request, choice)

A policy knows the fleet as it is, the request, and what it has been asked before. Nothing here
imports numba before a policy is made.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, cast

import numpy as np

from scheduling.packing.fleet import Choice, Column, Fleet, Request, Stay
from scheduling.packing.outlook import OutlookKeeper
from scheduling.packing.shapes import Weights, typical

Kernel = Callable[..., tuple[int, int]]
"""A compiled choice: a row, or -1, and a mask of GPUs."""


class Policy(Protocol):
    """Chooses for one request at a time, and changes nothing but its own memory."""

    @property
    def name(self) -> str: ...

    def choose(self, fleet: Fleet, request: Request, stay: Stay | None = None) -> Choice | None:
        """Return a node with room and its GPUs, or None when no node has room.

        `stay` says when the job comes and expects to end, where that is known.
        """
        ...


class Rule:
    """A policy without memory: the node with the highest score, the first among equals.

    `seed-score`: VRAM in use, average gap, bonus of size. `best-fit`: least CPU and GPU left.
    `tight`: fewest free GPU-milli, then least free CPU. `pack-to-empty`: shared GPUs, then used
    nodes, then idle ones.
    """

    NAMES = ("seed-score", "best-fit", "tight", "pack-to-empty")

    def __init__(self, name: str) -> None:
        from scheduling.packing import kernels

        self._name = name
        self._rule = self.NAMES.index(name)
        self._choose = cast(Kernel, kernels.choose_by_rule)

    @property
    def name(self) -> str:
        return self._name

    def choose(self, fleet: Fleet, request: Request, stay: Stay | None = None) -> Choice | None:
        return choice_of(*self._choose(self._rule, fleet.columns, tuple(request)))


class FragmentationDescent:
    """The published rule: the node whose fragmentation for typical requests grows least.

    Scores are cut to whole points of 100, and the first node wins, both as published. What is
    typical must be told in advance.
    """

    name = "fgd"

    def __init__(self, requests: Iterable[Request]) -> None:
        from scheduling.packing import kernels

        self._typical = typical(requests)
        self._choose = cast(Kernel, kernels.choose_fgd)
        self._memory: dict[Request, tuple[Column, Weights, Column]] = {}

    def choose(self, fleet: Fleet, request: Request, stay: Stay | None = None) -> Choice | None:
        memory = self._memory.get(request)
        if memory is None:
            size = len(fleet)
            memory = (np.full(size, -1), np.zeros(size), np.zeros(size, np.int64))
            self._memory[request] = memory
        need, weight = self._typical
        return choice_of(*self._choose(fleet.columns, tuple(request), need, weight, *memory))


class Memory(NamedTuple):
    """Answers of `KeepRoom`, with the version of the node that each is of."""

    worth_seen: Column
    worth: Weights
    seen: Column
    loss: Weights
    mask: Column


class KeepRoom:
    """Loses the least worth: room for what is asked here, as learnt from the requests so far.

    Where jobs say how long they stay, those that end together come together.
    See docs/decisions/0015-packing-policies.md. One object belongs to one fleet.
    """

    name = "keep-room"

    def __init__(self) -> None:
        from scheduling.packing import room_kernels

        self.keeper = OutlookKeeper()
        self._choose = cast(Kernel, room_kernels.choose_keep_room)
        self._by_stay = cast(Kernel, room_kernels.choose_by_stay)
        self._rows: dict[Request, int] = {}
        self._memory: Memory | None = None

    def choose(self, fleet: Fleet, request: Request, stay: Stay | None = None) -> Choice | None:
        if stay is not None:
            self.keeper.observe(fleet, request, stay.end - stay.start)
            self._memory = None
            outlook = self.keeper.outlook
            return choice_of(*self._by_stay(fleet.columns, tuple(request), outlook, *stay))
        if self.keeper.observe(fleet, request) or self._memory is None:
            self._rows.clear()
            self._memory = None
        row = self._rows.setdefault(request, len(self._rows))
        memory = self._room_for(row, len(fleet))
        outlook = self.keeper.outlook
        return choice_of(*self._choose(fleet.columns, tuple(request), outlook, memory, row))

    def _room_for(self, row: int, nodes: int) -> Memory:
        """Return the memory, with a row of this number."""
        memory = self._memory
        if memory is None:
            memory = _memory_of(16, nodes)
        elif row >= len(memory.seen):
            larger = _memory_of(2 * len(memory.seen), nodes)
            larger.seen[:row], larger.loss[:row] = memory.seen, memory.loss
            larger.mask[:row] = memory.mask
            memory = larger._replace(worth_seen=memory.worth_seen, worth=memory.worth)
        self._memory = memory
        return memory


def _memory_of(rows: int, nodes: int) -> Memory:
    return Memory(
        worth_seen=np.full(nodes, -1),
        worth=np.zeros(nodes),
        seen=np.full((rows, nodes), -1),
        loss=np.zeros((rows, nodes)),
        mask=np.zeros((rows, nodes), np.int64),
    )


def choice_of(node: int, mask: int) -> Choice | None:
    """Return what a kernel means by a row and a mask of GPUs."""
    if node < 0:
        return None
    return Choice(int(node), tuple(j for j in range(int(mask).bit_length()) if mask >> j & 1))


POLICIES: dict[str, Callable[[Iterable[Request]], Policy]] = {
    **{name: (lambda _requests, name=name: Rule(name)) for name in Rule.NAMES},
    "fgd": FragmentationDescent,
    "keep-room": lambda _requests: KeepRoom(),
}
"""By name: makes a policy for a list of requests, which `fgd` alone looks at in advance."""
