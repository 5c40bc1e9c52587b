"""Which of a node's GPUs a job gets.

A set of GPUs is an int here, bit i for the GPU with index i: sets compare, combine and cache
quickly, and the same question is asked thousands of times in a cycle.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from longshore.models.placement import GPUChoice


class Chosen(NamedTuple):
    """GPUs of one node for one job."""

    mask: int
    """All that it holds: more than `indices` where it holds the node alone."""
    indices: tuple[int, ...]
    """Ascending."""
    gap: float
    """Average gap between neighbours: the fragmentation of the choice. 0 where `link` is known."""
    slices: int = 0
    """Of a MIG instance: its set of slices."""
    vram: float = 0.0
    """Of a MIG instance: its GB."""
    link: float = 0.0
    """Of several for a job on one node: how fast the slowest link between them is, as a part of
    the fastest class; 0 where one is not known."""


@lru_cache(maxsize=1 << 16)
def choose(usable: int, free: int, count: int, choice: GPUChoice) -> Chosen:
    """Return `count` GPUs out of `usable`.

    `free` are all GPUs of the node without a job, also those that this job cannot use: what is
    left of them decides between equally close choices. Raises ValueError when `usable` has fewer
    than `count`.
    """
    indices = indices_of(usable)
    if not 1 <= count <= len(indices):
        raise ValueError(f"cannot choose {count} of {len(indices)} GPUs")
    if choice is GPUChoice.FIRST_FREE:
        return _chosen(indices[:count])
    # The average gap of a fixed number of GPUs grows with the distance from first to last, and a
    # choice that skips a usable GPU is never closer than the one that takes it instead: so the
    # closest choices are all among the windows of neighbouring usable GPUs.
    windows = [indices[i : i + count] for i in range(len(indices) - count + 1)]
    closest = min(window[-1] - window[0] for window in windows)
    best = max(
        (window for window in windows if window[-1] - window[0] == closest),
        key=lambda window: (run_lengths(free & ~mask_of(window)), -window[0]),
    )
    return _chosen(best)


def average_gap(indices: Iterable[int]) -> float:
    """Return sum(gaps) / (n - 1) of GPU indices; 0 for fewer than two."""
    ordered = sorted(indices)
    neighbours = len(ordered) - 1
    if neighbours < 1:
        return 0.0
    return (ordered[-1] - ordered[0] - neighbours) / neighbours


def mask_of(indices: Iterable[int]) -> int:
    """Return the set of these GPU indices."""
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


def indices_of(mask: int) -> tuple[int, ...]:
    """Return the GPU indices of a set, ascending."""
    # From one to the next: a look at each bit takes longer, by the square of the highest index.
    found: list[int] = []
    while mask:
        found.append(mask.bit_length() - 1)
        mask ^= 1 << found[-1]
    return tuple(found[::-1])


def run_lengths(mask: int) -> tuple[int, ...]:
    """Return the lengths of the runs of neighbouring GPUs in a set, longest first."""
    runs = f"{mask:b}".split("0")
    return tuple(sorted((len(run) for run in runs if run), reverse=True))


def _chosen(indices: tuple[int, ...]) -> Chosen:
    return Chosen(mask_of(indices), indices, average_gap(indices))
