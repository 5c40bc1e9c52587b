"""Which GPUs of a node a job or a group gets, by what connects them."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

from longshore.models.placement import GPUChoice
from longshore.models.topology import LinkClass, NodeTopology
from longshore.scheduling.placement.gpus import (
    Chosen,
    average_gap,
    choose,
    indices_of,
    mask_of,
    run_lengths,
)

_Set = tuple[int, ...]
"""GPU indices, ascending."""

_FASTEST = max(link.gb_per_second for link in LinkClass)
_MAX_SETS = 13_000
"""Sets that are compared: enough for any 8 of 16 GPUs."""


def choose_gpus(
    topology: NodeTopology | None, usable: int, free: int, count: int, choice: GPUChoice
) -> Chosen:
    """Return `count` GPUs out of `usable`; `free` are all of the node without a job.

    Where the topology is known, the set whose slowest link is fastest; then the one beside the
    most network cards; then, as without a topology, the closest run (`gpus.choose`). Raises
    ValueError when `usable` has fewer than `count`.
    """
    plain = choose(usable, free, count, choice)
    if topology is None or choice is GPUChoice.FIRST_FREE or usable.bit_count() == count:
        return plain
    return _best_connected(topology, usable, free, count)


def choose_linked(
    topology: NodeTopology | None, usable: int, free: int, count: int, choice: GPUChoice
) -> Chosen:
    """Return the same for a job on one node, with the speed of its slowest link: a single GPU is
    chosen without regard to links. Where that link is known no gap of indices counts."""
    if count < 2:
        return choose_gpus(None, usable, free, count, choice)
    return with_link(choose_gpus(topology, usable, free, count, choice), topology)


def with_link(chosen: Chosen, topology: NodeTopology | None) -> Chosen:
    """Return several GPUs of a node with the speed of their slowest link, where that is known."""
    slowest = slowest_link(topology, chosen.indices)
    return chosen._replace(gap=0.0, link=slowest.gb_per_second / _FASTEST) if slowest else chosen


def choose_beside(
    topology: NodeTopology | None, sure: int, usable: int, free: int, count: int
) -> Chosen:
    """Return the GPUs in `sure` with `count` out of `usable`, by the same requests for all of them
    together. Raises ValueError when `usable` has fewer."""
    if not 0 <= count <= usable.bit_count():
        raise ValueError(f"cannot choose {count} of {usable.bit_count()} GPUs")
    return _beside(topology, sure, usable, free, count)


def slowest_link(topology: NodeTopology | None, indices: Sequence[int]) -> LinkClass | None:
    """Return the slowest link between GPUs of the set; None where a link is not known."""
    if topology is None or len(indices) < 2:
        return None
    return _slowest(topology, tuple(indices))


@lru_cache(maxsize=1 << 12)
def _slowest(topology: NodeTopology, indices: _Set) -> LinkClass | None:
    row = {gpu: number for number, gpu in enumerate(topology.gpus)}
    found: list[LinkClass] = []
    for a, b in combinations(indices, 2):
        link = topology.links[row[a]][row[b]] if a in row and b in row else None
        if link is None:
            return None
        found.append(link)
    return min(found, key=lambda link: link.gb_per_second)


@lru_cache(maxsize=1 << 12)
def _best_connected(topology: NodeTopology, usable: int, free: int, count: int) -> Chosen:
    return _best_of(topology, list(_sets(indices_of(usable), count)), free)


@lru_cache(maxsize=1 << 12)
def _beside(
    topology: NodeTopology | None, sure: int, usable: int, free: int, count: int
) -> Chosen:
    some = indices_of(sure)
    sets = [tuple(sorted((*some, *more))) for more in _sets(indices_of(usable), count)]
    return _best_of(topology, sets, free)


def _best_of(topology: NodeTopology | None, sets: list[_Set], free: int) -> Chosen:
    # One request after the other, each for the sets that the ones before leave: they are many.
    if topology is not None:
        sets = _fastest(topology, sets)
        beside = dict(zip(topology.gpus, topology.nics, strict=False))
        sets = _most(sets, lambda gpus: len({card for gpu in gpus if (card := beside.get(gpu))}))
    sets = _most(sets, lambda gpus: gpus[0] - gpus[-1])
    sets = _most(sets, lambda gpus: run_lengths(free & ~mask_of(gpus)))
    best = sets[0]
    return Chosen(mask_of(best), best, average_gap(best))


def _sets(indices: _Set, count: int) -> Iterable[_Set]:
    """Return the sets to compare: all, or where they are too many those of neighbours."""
    if comb(len(indices), count) <= _MAX_SETS:
        return combinations(indices, count)
    return [indices[i : i + count] for i in range(len(indices) - count + 1)]


def _fastest(topology: NodeTopology, sets: list[_Set]) -> list[_Set]:
    """Return the sets whose slowest link is fastest; a link that is not known is the slowest."""
    for speed in sorted({link.gb_per_second for link in LinkClass}, reverse=True):
        near = _near(topology, speed)
        left = [gpus for gpus in sets if _all_near(gpus, near)]
        if left:
            return left
    return sets


def _near(topology: NodeTopology, speed: int) -> dict[int, int]:
    """Return for each GPU the set of those that a link of at least this speed leads to."""
    return {
        gpu: mask_of(
            other
            for other, link in zip(topology.gpus, row, strict=True)
            if other == gpu or (link is not None and link.gb_per_second >= speed)
        )
        for gpu, row in zip(topology.gpus, topology.links, strict=True)
    }


def _all_near(gpus: _Set, near: dict[int, int]) -> bool:
    mask = mask_of(gpus)
    return all(mask & ~near.get(gpu, 1 << gpu) == 0 for gpu in gpus)


def _most(sets: list[_Set], worth: Callable[[_Set], int | tuple[int, ...]]) -> list[_Set]:
    """Return the sets of the highest worth, in order."""
    worths = [worth(gpus) for gpus in sets]
    most = max(worths)
    return [gpus for gpus, found in zip(sets, worths, strict=True) if found == most]
