"""The cycles of a graph: so many that each edge that lies on a cycle lies on one of these."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

_Sets = Mapping[str, AbstractSet[str]]


@dataclass(frozen=True)
class Cycles:
    found: tuple[tuple[str, ...], ...]
    """Each from its first job on, in which each job comes after the next, and the last after the
    first."""
    left_out: tuple[str, str] | None = None
    """The first edge that lies on a cycle and on none of these, where there would be too many."""
    beside: frozenset[str] = frozenset()
    """The jobs that come before and after each other with those of that edge."""


def cycles(after: Mapping[str, Sequence[str]], most: int) -> Cycles:
    """Return at most so many cycles of jobs, given what each comes after, none itself.

    All cycles may be exponentially many. These are a shortest one for each edge that is on none of
    those before, in the order of the edges.
    """
    sets = {name: frozenset(ups) for name, ups in after.items()}
    position = {name: number for number, name in enumerate(after)}
    components = _components(sets)
    found: list[tuple[str, ...]] = []
    named: set[tuple[str, str]] = set()
    for name, ups in after.items():
        inside = components[name]
        for up in ups:
            if up not in inside or (name, up) in named:
                continue
            if len(found) == most:
                return Cycles(tuple(found), (name, up), inside)
            cycle = (name, *_way(up, name, sets, inside, position))
            named.update(zip(cycle, (*cycle[1:], name), strict=True))
            first = cycle.index(min(cycle, key=position.__getitem__))
            found.append((*cycle[first:], *cycle[:first]))
    return Cycles(tuple(found))


def _way(
    start: str, goal: str, after: _Sets, inside: AbstractSet[str], position: Mapping[str, int]
) -> list[str]:
    """Return the jobs of a shortest way between two of a component, without the goal."""
    came_from: dict[str, str] = {}
    left = set(inside) - {start}
    ahead = [start]
    for job in ahead:  # it grows
        # One operation on sets for each job, and none for each edge.
        new = after[job] & left
        left -= new
        came_from |= dict.fromkeys(new, job)
        if goal in new:
            break
        ahead += sorted(new, key=position.__getitem__)
    way = [goal]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[:0:-1]


def _components(after: _Sets) -> dict[str, frozenset[str]]:
    """Return for each job those that come before and after it, with itself (Kosaraju)."""
    before: dict[str, set[str]] = {name: set() for name in after}
    for name, ups in after.items():
        for up in ups:
            before[up].add(name)
    found: dict[str, frozenset[str]] = {}
    left_last = [job for tree in _trees(after, after) for job in tree][::-1]
    for tree in _trees(left_last, before):
        found |= dict.fromkeys(tree, frozenset(tree))
    return found


def _trees(roots: Iterable[str], following: _Sets) -> Iterator[list[str]]:
    """Yield for each root what is reached from it and from none before, the last left first."""
    left = set(following)
    for root in roots:
        if root not in left:
            continue
        left.remove(root)
        tree: list[str] = []
        way = [root]  # without recursion: a chain may have a thousand jobs
        while way:
            new = following[way[-1]] & left
            if new:
                way.append(next(iter(new)))
                left.remove(way[-1])
            else:
                tree.append(way.pop())
        yield tree
