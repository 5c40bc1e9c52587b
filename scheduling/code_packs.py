"""Which contents of a folder are sent, and in which objects: packs of small ones, chunks of large
ones. What lies in an object already stays there."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from longshore.models.snapshot import Part

LARGE = 8_000_000
"""A file of so many bytes lies in chunks of its own, and a smaller one in a pack."""
LARGEST_OBJECT = 16_000_000
"""Bytes of a chunk, and of a pack at most. A pack that is not the last has more than half."""
SPARSE = 1_000_000
"""An object of which a snapshot needs fewer bytes is sparse."""
MOST_SPARSE = 64
"""With more sparse objects a snapshot has what lies in them packed anew: each costs a node a
request. So many of them hold 64 MB at most."""

Placed = Mapping[int, Part]
"""Parts of a content, by their position in it."""


class Chunk(NamedTuple):
    """A range of a large content, which is to become an object."""

    sha256: str
    at: int
    size: int


class PackPlan(NamedTuple):
    """What is sent, and what stays."""

    kept: Mapping[str, Placed]
    """By content: the parts that are stored already."""
    packs: tuple[tuple[str, ...], ...]
    """Contents that become one object together."""
    chunks: tuple[Chunk, ...]

    @property
    def anew(self) -> frozenset[str]:
        """The contents of which something is sent."""
        packed = {sha256 for pack in self.packs for sha256 in pack}
        return frozenset(packed | {chunk.sha256 for chunk in self.chunks})


def plan_packs(contents: Mapping[str, int], known: Mapping[str, Placed]) -> PackPlan:
    """Return what has to be sent of `contents`, whose sizes in bytes are given in the order of
    their paths, where parts are `known` to be stored."""
    kept: dict[str, Placed] = {}
    for sha256, size in contents.items():
        if size:
            kept[sha256] = _usable(known.get(sha256, {}), size)
    sparse = _too_many_sparse(kept)
    if sparse:
        for sha256, placed in kept.items():
            if any(part.object in sparse for part in placed.values()):
                kept[sha256] = {}
    small = [sha256 for sha256, size in contents.items()
             if 0 < size < LARGE and not kept[sha256]]  # fmt: skip
    chunks = [
        Chunk(sha256, at, min(LARGEST_OBJECT, size - at))
        for sha256, size in contents.items() if size >= LARGE
        for at in range(0, size, LARGEST_OBJECT) if at not in kept[sha256]
    ]  # fmt: skip
    return PackPlan(kept, _packs(small, contents), tuple(chunks))


def _usable(placed: Placed, size: int) -> Placed:
    """Return the parts that lie where the plan would have them."""
    if size < LARGE:
        only = placed.get(0) if len(placed) == 1 else None
        return placed if only is not None and only.size == size else {}
    return {
        at: part for at, part in placed.items()
        if at % LARGEST_OBJECT == 0 and part.size == min(LARGEST_OBJECT, size - at)
    }  # fmt: skip


def _too_many_sparse(kept: Mapping[str, Placed]) -> frozenset[str]:
    needed = defaultdict[str, int](int)  # a Counter takes twice the time for each
    for placed in kept.values():
        for part in placed.values():
            needed[part.object] += part.size
    sparse = frozenset(name for name, size in needed.items() if size < SPARSE)
    return sparse if len(sparse) > MOST_SPARSE else frozenset()


def _packs(small: Sequence[str], sizes: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    packs: list[list[str]] = []
    filled = LARGEST_OBJECT
    for sha256 in small:
        if filled + sizes[sha256] > LARGEST_OBJECT:
            packs.append([])
            filled = 0
        packs[-1].append(sha256)
        filled += sizes[sha256]
    return tuple(map(tuple, packs))
