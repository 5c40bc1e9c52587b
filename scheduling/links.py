"""Which GPUs of a node a group gets, by what connects them."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

from models.placement import GPUChoice
from models.topology import LinkClass, NodeTopology
from scheduling.gpus import Chosen, average_gap, choose, indices_of, mask_of, run_lengths

_Rows = tuple[tuple[LinkClass | None, ...], ...]
_Key = tuple[tuple[int, ...], _Rows, tuple[str | None, ...]]
"""The parts of a topology."""

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
    links = topology.gpus, topology.links, topology.nics
    return _best_connected(links, usable, free, count)


def slowest_link(topology: NodeTopology | None, indices: Sequence[int]) -> LinkClass | None:
    """Return the slowest link between GPUs of the set; None where a link is not known."""
    if topology is None or len(indices) < 2:
        return None
    row = {gpu: number for number, gpu in enumerate(topology.gpus)}
    found: list[LinkClass] = []
    for a, b in combinations(indices, 2):
        link = topology.links[row[a]][row[b]] if a in row and b in row else None
        if link is None:
            return None
        found.append(link)
    return min(found, key=lambda link: link.gb_per_second)


@lru_cache(maxsize=1 << 12)
def _best_connected(links: _Key, usable: int, free: int, count: int) -> Chosen:
    look_up = _Links(*links)

    def merit(indices: tuple[int, ...]) -> tuple[int, int, float, tuple[int, ...], int]:
        rest = run_lengths(free & ~mask_of(indices))
        slowest, cards = look_up.slowest(indices), look_up.cards(indices)
        return slowest, cards, -average_gap(indices), rest, -indices[0]

    best = max(_sets(indices_of(usable), count), key=merit)
    return Chosen(mask_of(best), best, average_gap(best))


def _sets(indices: tuple[int, ...], count: int) -> Iterable[tuple[int, ...]]:
    """Return the sets to compare: all, or where they are too many those of neighbours."""
    if comb(len(indices), count) <= _MAX_SETS:
        return combinations(indices, count)
    return [indices[i : i + count] for i in range(len(indices) - count + 1)]


class _Links:
    """A node's topology, looked up by GPU index."""

    def __init__(self, gpus: tuple[int, ...], rows: _Rows, nics: tuple[str | None, ...]) -> None:
        self._speed = {
            (a, b): link.gb_per_second
            for a, row in zip(gpus, rows, strict=True)
            for b, link in zip(gpus, row, strict=True)
            if link is not None
        }
        self._cards = dict(zip(gpus, nics, strict=False))

    def slowest(self, indices: tuple[int, ...]) -> int:
        """Return GB/s of the slowest link within the set; 0 where one is not known."""
        pairs = combinations(indices, 2)
        return min((self._speed.get(pair, 0) for pair in pairs), default=0)

    def cards(self, indices: tuple[int, ...]) -> int:
        """Return how many network cards stand beside GPUs of the set."""
        return len({card for index in indices if (card := self._cards.get(index))})
