"""Parts of GPUs: what jobs that share one have of it, and which part a job gets.

A GPU is held whole, or shared by thousandths and memory, or it is in MIG mode and jobs have
slices of it. Each GPU is looked at for itself: what two have left together helps nobody. A share
of several GPUs is as much of each of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from longshore.models.mig import slices_gb
from longshore.models.placement import GPUChoice
from longshore.models.resources import WHOLE
from longshore.models.topology import NodeTopology
from longshore.scheduling.placement.gpus import Chosen, choose, mask_of
from longshore.scheduling.placement.links import choose_beside, choose_gpus, with_link

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


def parts_on(gpus: Iterable[int], milli: int, vram: float, slices: int = 0) -> Parts:
    """Return as much of each of these GPUs, whose indices ascend."""
    return tuple([Part(gpu, milli, vram, slices) for gpu in gpus])


def with_parts(parts: Parts, more: Parts) -> Parts:
    """Return the parts with others."""
    by_index = {part.gpu: part for part in parts}
    for each in more:
        old = by_index.get(each.gpu, Part(each.gpu, 0, 0.0))
        by_index[each.gpu] = Part(
            each.gpu, old.milli + each.milli, old.vram + each.vram, old.slices | each.slices
        )
    return tuple(by_index[index] for index in sorted(by_index))


def without_parts(parts: Parts, less: Parts) -> Parts:
    """Return the parts without others that are in them."""
    leave = {part.gpu: part for part in less}
    left: list[Part] = []
    for part in parts:
        if (gone := leave.get(part.gpu)) is not None:
            milli, slices = part.milli - gone.milli, part.slices & ~gone.slices
            if not milli and not slices:
                continue
            part = Part(part.gpu, milli, part.vram - gone.vram, slices)
        left.append(part)
    return tuple(left)


def part_of_gpu(parts: Parts, gpu: int) -> Part | None:
    """Return what these parts have of one GPU."""
    return next((part for part in parts if part.gpu == gpu), None)


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


def choose_share(
    found: Sequence[Left],
    free: int,
    choice: GPUChoice,
    count: int = 1,
    topology: NodeTopology | None = None,
) -> Chosen:
    """Return the fullest `count` of the GPUs in `found`, all of which suffice, so that others stay
    whole.

    Where only empty ones suffice it is chosen as for a whole job: `free` are the empty GPUs of
    the node. Of several GPUs the fullest are taken, and between equally full ones the links
    decide, then the closest run. Raises ValueError when `found` has fewer than `count`.
    """
    if len(found) < count:
        raise ValueError(f"cannot choose {count} of {len(found)} GPUs")
    if count > 1:
        return _choose_several(found, free, choice, count, topology)
    if choice is GPUChoice.FIRST_FREE:
        return _one(min(left.gpu for left in found))
    fullest = min(found)
    if fullest.milli < WHOLE:
        return _one(fullest.gpu)
    return choose(mask_of(left.gpu for left in found), free, 1, choice)


def _choose_several(
    found: Sequence[Left],
    free: int,
    choice: GPUChoice,
    count: int,
    topology: NodeTopology | None,
) -> Chosen:
    if choice is GPUChoice.FIRST_FREE:
        chosen = choose(mask_of(left.gpu for left in found), free, count, choice)
        return with_link(chosen, topology)
    levels = [(left.milli, left.vram if left.milli < WHOLE else 0.0) for left in found]
    last = sorted(levels)[count - 1]
    fuller = mask_of(left.gpu for left, level in zip(found, levels, strict=True) if level < last)
    equal = mask_of(left.gpu for left, level in zip(found, levels, strict=True) if level == last)
    if not fuller:
        return with_link(choose_gpus(topology, equal, free, count, choice), topology)
    missing = count - fuller.bit_count()
    return with_link(choose_beside(topology, fuller, equal, free, missing), topology)


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
