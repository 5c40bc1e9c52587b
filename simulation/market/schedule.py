"""How many nodes there are in which minutes: what is offered, wanted, bought and held."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

Step = tuple[int, int, int]
"""From minute, to minute (not included), nodes."""


@dataclass(frozen=True)
class Schedule:
    """Nodes over time, in minutes since 1970. Nodes of one schedule are alike."""

    steps: tuple[Step, ...] = ()
    """In order, without overlap, none of zero nodes, none that continues the one before."""

    @classmethod
    def of(cls, start: int, end: int, nodes: int) -> "Schedule":
        return cls(((start, end, nodes),)) if end > start and nodes > 0 else cls()

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def start(self) -> int:
        return self.steps[0][0]

    @property
    def end(self) -> int:
        return self.steps[-1][1]

    @property
    def node_minutes(self) -> int:
        return sum((end - start) * nodes for start, end, nodes in self.steps)

    @property
    def most(self) -> int:
        """Nodes at its highest."""
        return max((nodes for _, _, nodes in self.steps), default=0)

    def at(self, minute: int) -> int:
        return next((n for start, end, n in self.steps if start <= minute < end), 0)

    def least(self, start: int, end: int) -> int:
        """Return how many nodes there are from `start` to `end` without a break."""
        reached, nodes = start, None
        for begin, finish, count in self.steps:
            if finish <= reached:
                continue
            if begin > reached:
                return 0
            nodes = count if nodes is None else min(nodes, count)
            reached = finish
            if reached >= end:
                return nodes
        return 0

    def covers(self, other: "Schedule") -> bool:
        return self.overlap(other) == other

    def plus(self, other: "Schedule") -> "Schedule":
        return _combined(self, other, lambda a, b: a + b)

    def minus(self, other: "Schedule") -> "Schedule":
        """Return what is left. Raises ValueError when `other` has more anywhere."""
        if not self.covers(other):
            raise ValueError("more nodes are taken than there are")
        return _combined(self, other, lambda a, b: a - b)

    def overlap(self, other: "Schedule") -> "Schedule":
        """Return what both have: the smaller count in every minute."""
        return _combined(self, other, min)

    def from_minute(self, minute: int) -> "Schedule":
        """Return what is left of it from `minute` on."""
        if not self.steps or minute <= self.start:
            return self
        kept = ((max(start, minute), end, nodes) for start, end, nodes in self.steps)
        return Schedule(tuple(step for step in kept if step[0] < step[1]))


def _combined(one: Schedule, other: Schedule, op: Callable[[int, int], int]) -> Schedule:
    edges = sorted({edge for step in (*one.steps, *other.steps) for edge in step[:2]})
    steps: list[Step] = []
    for start, end in pairwise(edges):
        nodes = op(one.at(start), other.at(start))
        if nodes <= 0:
            continue
        if steps and steps[-1][1] == start and steps[-1][2] == nodes:
            steps[-1] = (steps[-1][0], end, nodes)
        else:
            steps.append((start, end, nodes))
    return Schedule(tuple(steps))
