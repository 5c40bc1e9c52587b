"""Parts of GPUs: what jobs that share one have of it, and which part a job gets.

A GPU is held whole, or shared by thousandths and memory, or it is in MIG mode and jobs have
slices of it. Each GPU is looked at for itself: what two have left together helps nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from longshore.models.mig import slices_gb
from longshore.models.placement import GPUChoice
from longshore.models.resources import WHOLE
from longshore.scheduling.placement.gpus import Chosen, choose, mask_of

_DIGITS = 6
"""Of GB: sums of decimal fractions drift, and the fullest GPU must be the same in any order."""


class Part(NamedTuple):
    """What a job, or all jobs together, have of one GPU."""

    gpu: int
    """Its index."""
    milli: int
    vram: float
    slices: int = 0
    """In MIG mode: the set of slices; thousandths and GB are then 0."""


Parts = tuple[Part, ...]
"""At most one for each GPU, in the order of indices."""


class MigGPU(NamedTuple):
    """A GPU in MIG mode."""

    gpu: int
    """Its index."""
    vram: float
    positions: tuple[tuple[str, tuple[int, ...]], ...]
    """Its profiles, each with the sets of slices that an instance can take."""

    def of(self, profile: str) -> tuple[int, ...]:
        """Return the positions of a profile; none where the GPU cannot have it."""
        return next((masks for name, masks in self.positions if name == profile), ())


class Left(NamedTuple):
    """What of a GPU nobody has."""

    milli: int
    vram: float
    gpu: int
    """Its index."""


def with_part(parts: Parts, more: Part) -> Parts:
    """Return the parts with one more."""
    by_index = {part.gpu: part for part in parts}
    old = by_index.get(more.gpu, Part(more.gpu, 0, 0.0))
    by_index[more.gpu] = Part(
        more.gpu, old.milli + more.milli, old.vram + more.vram, old.slices | more.slices
    )
    return tuple(by_index[index] for index in sorted(by_index))


def without_part(parts: Parts, less: Part) -> Parts:
    """Return the parts without one that is in them."""
    left: list[Part] = []
    for part in parts:
        if part.gpu == less.gpu:
            milli, slices = part.milli - less.milli, part.slices & ~less.slices
            if not milli and not slices:
                continue
            part = Part(part.gpu, milli, part.vram - less.vram, slices)
        left.append(part)
    return tuple(left)


def left_of(index: int, room: float, milli: int, vram: float) -> Left:
    """Return what is left of a GPU with `room` GB, of which so much is in use."""
    return Left(WHOLE - milli, round(room - vram, _DIGITS), index)


def lefts_now(rooms: Iterable[tuple[int, float]], free: int, parts: Parts) -> list[Left]:
    """Return what is left of each GPU that no job has whole: of `rooms`, by index and GB, those
    in the set `free` and those with a part in use."""
    used = {part.gpu: part for part in parts}
    nothing = Part(0, 0, 0.0)
    return [
        left_of(index, room, used.get(index, nothing).milli, used.get(index, nothing).vram)
        for index, room in rooms
        if index in used or free >> index & 1
    ]


def choose_share(found: Sequence[Left], free: int, choice: GPUChoice) -> Chosen:
    """Return the fullest of the GPUs in `found`, all of which suffice, so that others stay whole.

    Where only empty ones suffice it is chosen as for a whole job: `free` are the empty GPUs of
    the node. Raises ValueError when `found` is empty.
    """
    if not found:
        raise ValueError("no GPU to choose from")
    if choice is GPUChoice.FIRST_FREE:
        return _one(min(left.gpu for left in found))
    fullest = min(found)
    if fullest.milli < WHOLE:
        return _one(fullest.gpu)
    return choose(mask_of(left.gpu for left in found), free, 1, choice)


def choose_instance(
    migs: Iterable[MigGPU], taken: Mapping[int, int], profile: str, choice: GPUChoice
) -> Chosen | None:
    """Return where an instance of `profile` goes: on the fullest GPU that has a position left.

    `taken` are the slices in use of each GPU by index. On that GPU it is the position that leaves
    most of the largest profiles possible, then of the next, and so on; then the lowest. None
    where no GPU has one left.
    """
    options = [(gpu, taken.get(gpu.gpu, 0)) for gpu in migs]
    options = [(gpu, used) for gpu, used in options if free_positions(gpu, used, profile)]
    if not options:
        return None
    if choice is GPUChoice.FIRST_FREE:
        gpu, used = min(options, key=lambda option: option[0].gpu)
        return _instance(gpu, min(free_positions(gpu, used, profile)))
    gpu, used = min(options, key=lambda option: (-option[1].bit_count(), option[0].gpu))
    return _instance(gpu, best_position(gpu, used, profile))


def free_positions(gpu: MigGPU, used: int, profile: str) -> tuple[int, ...]:
    """Return the positions of a profile that overlap nothing in use."""
    return tuple(mask for mask in gpu.of(profile) if not mask & used)


@lru_cache(maxsize=1 << 14)
def best_position(gpu: MigGPU, used: int, profile: str) -> int:
    """Return the free position that leaves most of the largest profiles possible."""
    by_size = sorted(gpu.positions, key=lambda entry: (_slices(entry[1]), entry[0]), reverse=True)

    def leaves(mask: int) -> tuple[int, ...]:
        return tuple(len(free_positions(gpu, used | mask, name)) for name, _ in by_size)

    return max(free_positions(gpu, used, profile), key=lambda mask: (leaves(mask), -mask))


def _slices(masks: Sequence[int]) -> int:
    return max((mask.bit_count() for mask in masks), default=0)


def _instance(gpu: MigGPU, slices: int) -> Chosen:
    return _one(gpu.gpu)._replace(slices=slices, vram=slices_gb(gpu.vram, slices))


def _one(index: int) -> Chosen:
    return Chosen(1 << index, (index,), 0.0)
