"""Arrays whose elements come after those of other arrays: who has a partner, and what follows."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from longshore.models.array import ArraySpec, IndexRange, expanded, ranges_text
from longshore.models.dag import DagSpec, Join
from longshore.models.dag_edges import Extra
from longshore.models.elements import ElementState
from longshore.scheduling.dag import EdgeState, Elements, Graph, joined, partners_of

Ranges = tuple[IndexRange, ...]


@lru_cache(maxsize=64)
def _expanded(ranges: Ranges) -> tuple[int, ...]:
    return expanded(ranges)


def indices_of(array: ArraySpec) -> tuple[int, ...]:
    """Return the indices of an array in order; none of a table that was not read."""
    return _expanded(array.ranges)


class Then(Enum):
    """What an index without a partner does."""

    START = "start"
    """It starts at once: it waits for nothing else."""
    PASS = "pass"
    """It does not wait for that array, but for others."""
    WAIT = "wait"
    """It waits for all of that array."""


_DOES = {
    Then.START: ("start at once", "starts at once"),
    Then.PASS: ("do not wait for it", "does not wait for it"),
    Then.WAIT: ("wait for all of {} (extra: wait)", "waits for all of {} (extra: wait)"),
}
"""Of several, and of one."""


@dataclass(frozen=True)
class Alone:
    """Indices of an array that have no partner in one that it comes after."""

    name: str
    upstream: str
    indices: tuple[int, ...]
    then: Then

    def __str__(self) -> str:
        """Return ``indices 10-19 of train have no partner in prepare: they start at once``."""
        one = len(self.indices) == 1
        which = f"{'index' if one else 'indices'} {ranges_text(self.indices)} of {self.name}"
        has, they = ("has", "it") if one else ("have", "they")
        then = _DOES[self.then][one].format(self.upstream)
        return f"{which} {has} no partner in {self.upstream}: {they} {then}"


def without_partner(spec: DagSpec) -> tuple[Alone, ...]:
    """Return the indices without a partner, for each edge from element to element."""
    found: list[Alone] = []
    for name, ups in Graph.of(spec).partners.items():
        after = spec.jobs[name].after
        for up in ups:
            own, theirs = (spec.jobs[each].array for each in (name, up))
            if own is None or theirs is None or not own.ranges or not theirs.ranges:
                continue
            partners = frozenset(indices_of(theirs))
            alone = tuple(index for index in indices_of(own) if index not in partners)
            then = Then.START if len(after) == 1 else Then.PASS
            if after[up].extra is Extra.WAIT:
                then = Then.WAIT
            if alone:
                found.append(Alone(name, up, alone, then))
    return tuple(found)


def elements_at_first(spec: DagSpec, name: str) -> Elements:
    """Return the elements of an array before any of those that they come after is on record."""
    arrays = [spec.jobs[each].array for each in (name, *partners_of(spec.jobs[name]))]
    own, *theirs = [array.ranges if array else () for array in arrays]
    return _at_first(own, tuple(theirs))


@lru_cache(maxsize=64)
def _at_first(own: Ranges, theirs: tuple[Ranges, ...]) -> Elements:
    sets = [frozenset(_expanded(ranges)) for ranges in theirs]
    alike = Counter(
        tuple(EdgeState.OPEN if index in some else None for some in sets)
        for index in _expanded(own)
    )
    return Elements(dict(alike))


@dataclass(frozen=True)
class Ruling:
    """What becomes of elements with partners like these."""

    satisfied: bool
    """A partner has succeeded."""
    open: bool
    """One may yet."""
    dead: bool
    """One never will."""
    state: ElementState
    """WAITING for a slot, or SKIPPED."""


def rulings(join: Join, others: EdgeState | None) -> tuple[Ruling, ...]:
    """Return what becomes of elements, for each mixture of their partners' ends that settles it.

    `others` is what the edges are worth together that count for all elements alike; None where
    there are none.
    """
    found: list[Ruling] = []
    for mixture in range(8):
        satisfied, open_, dead = (bool(mixture & bit) for bit in (1, 2, 4))
        edges = [EdgeState.SATISFIED] * satisfied + [EdgeState.OPEN] * open_
        edges += [EdgeState.DEAD] * dead
        worth = joined(join, edges if others is None else [*edges, others])
        if worth is not EdgeState.OPEN:
            waits = worth is EdgeState.SATISFIED
            state = ElementState.WAITING if waits else ElementState.SKIPPED
            found.append(Ruling(satisfied, open_, dead, state))
    return tuple(found)
