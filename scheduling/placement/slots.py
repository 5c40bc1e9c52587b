"""The GPUs of a node as a plan begins: whole ones, shared ones, and those in MIG mode."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from longshore.models.node import Node
from longshore.models.placement import RunningJob
from longshore.scheduling.placement.gpus import mask_of
from longshore.scheduling.placement.parts import (
    WHOLE,
    MigGPU,
    Part,
    Parts,
    parts_on,
    with_parts,
)

EPSILON = 1e-6
"""Amounts of cores and GB closer than this are equal: sums of decimal fractions drift."""

_FREE, _STUCK, _IN_PARTS = -1.0, -2.0, -3.0
"""In place of the memory that the holder of a GPU asked for: nobody holds it, nobody known does,
or it is shared or in MIG mode."""

_Amounts = tuple[tuple[int, float], ...]
_Facts = tuple[tuple[int, float, float, float], ...]
"""For each GPU that is not in MIG mode: index, memory, memory in use, and what its holder asked
for."""


class Rooms:
    """The memory of a node's GPUs. Nodes of the same traits share one object, so it compares by
    identity.

    `sizes` and `room` have an entry for each GPU: its index, and the GB that it has, or that are
    to be had there when no job holds it (memory kept back is not). GPUs in MIG mode are not among
    them, but in `migs`.
    """

    __slots__ = ("all_gpus", "count", "migs", "room", "sizes")

    def __init__(self, sizes: _Amounts, room: _Amounts, migs: tuple[MigGPU, ...] = ()) -> None:
        self.sizes = sizes
        self.room = room
        self.migs = migs
        self.count = len(room)
        self.all_gpus = mask_of(index for index, _ in room)

    def roomy(self, vram: float) -> int:
        """Return the GPUs with so many GB each, once no job holds them."""
        return _roomy(self, vram)

    def large(self, vram: float) -> int:
        """Return the GPUs of at least this size."""
        return _large(self, vram)

    def for_one(self, free: int) -> bool:
        """Return whether one job can hold the node alone, where nobody has these GPUs. Nobody
        holds what is in MIG mode whole."""
        return free == self.all_gpus and not self.migs


class Slots(NamedTuple):
    """The GPUs of a node as a plan begins."""

    rooms: Rooms
    free: int
    """GPUs that no job holds."""
    stuck: int
    """GPUs whose holder is not known to end."""
    vram_total: float
    vram_used: float
    parts: Parts = ()
    """What jobs have of GPUs that they share."""
    parts_stuck: Parts = ()
    """What of that is not known to end, a whole GPU included."""


def slots_of(node: Node, running: Sequence[RunningJob]) -> Slots:
    """Return the slots of a node; `running` are the jobs on it."""
    facts = tuple(
        [
            (
                of["index"],
                of["vram"],
                of["vram_used"],
                (_FREE if of["job_id"] is None else _STUCK) if of["parts"] is None else _IN_PARTS,
            )
            # Thousands of GPUs in a cycle: this is read faster than attributes of a model.
            for of in [gpu.__dict__ for gpu in node.gpus]
        ]
    )
    if not running:
        return _slots(facts) or _slots_with_parts(node, facts, ())
    known = {i: job.vram_per_gpu for job in running if job.milli == WHOLE for i in job.gpu_indices}
    facts = tuple([(i, vram, used, known.get(i, holder)) for i, vram, used, holder in facts])
    sharing = [parts for job in running if (parts := parts_of(job))]
    if not sharing and (slots := _slots(facts)) is not None:
        return slots
    return _slots_with_parts(node, facts, sharing)


def parts_of(job: RunningJob) -> Parts:
    """Return what a running job has of each of its GPUs, where it has not the whole."""
    if job.slices:
        return parts_on(job.gpu_indices, 0, 0.0, job.slices)
    if job.milli < WHOLE:
        return parts_on(job.gpu_indices, job.milli, job.vram_per_gpu)
    return ()


def _slots_with_parts(node: Node, facts: _Facts, sharing: Sequence[Parts]) -> Slots:
    """Return the slots of a node with GPUs that are shared, or in MIG mode."""
    known: Parts = ()
    for parts_of_job in sharing:
        known = with_parts(known, parts_of_job)
    by_index = {part.gpu: part for part in known}
    migs: list[MigGPU] = []
    parts: list[Part] = []
    stuck: list[Part] = []
    plain: list[tuple[int, float, float, float]] = []
    for gpu, (index, vram, used, holder) in zip(node.gpus, facts, strict=True):
        mine = by_index.get(index, Part(index, 0, 0.0))
        if gpu.mig is not None:
            migs.append(MigGPU(index, vram, tuple(sorted(gpu.mig.items()))))
            parts.append(Part(index, 0, 0.0, gpu.slices_used | mine.slices))
            stuck.append(Part(index, 0, 0.0, gpu.slices_used & ~mine.slices))
        elif holder == _IN_PARTS or (holder == _FREE and index in by_index):
            unknown = max(gpu.milli_used - mine.milli, 0)
            beyond = max(used - mine.vram, 0.0)
            # Memory in use beyond what the known ones asked for is that of the unknown ones; it
            # stays in use, as on other GPUs, where there are none.
            theirs = beyond if unknown else 0.0
            parts.append(Part(index, mine.milli + unknown, mine.vram + theirs))
            stuck.append(Part(index, unknown, theirs))
            plain.append((index, vram, beyond - theirs, _FREE))
        else:
            plain.append((index, vram, used, holder))
    slots = _slots(tuple(plain))
    assert slots is not None
    shared = mask_of(part.gpu for part in parts)
    return slots._replace(
        rooms=_rooms(slots.rooms.sizes, slots.rooms.room, tuple(migs)),
        free=slots.free & ~shared,
        stuck=slots.stuck | mask_of(part.gpu for part in stuck if part.milli),
        vram_total=sum(gpu.vram for gpu in node.gpus),
        vram_used=sum(gpu.vram_used for gpu in node.gpus),
        parts=tuple(part for part in parts if part.milli or part.slices),
        parts_stuck=slots.parts_stuck + tuple(part for part in stuck if part.milli or part.slices),
    )


@lru_cache(maxsize=1 << 14)
def _slots(facts: _Facts) -> Slots | None:
    """Return the slots of a node with whole GPUs only, None of another.

    Kept, because most nodes of a pool are alike and each cycle begins by looking at them.
    """
    if any(holder == _IN_PARTS for _, _, _, holder in facts):
        return None
    free = mask_of(index for index, _, _, holder in facts if holder == _FREE)
    stuck = mask_of(index for index, _, _, holder in facts if holder == _STUCK)
    return Slots(
        rooms=_rooms(
            tuple((index, vram) for index, vram, _, _ in facts),
            tuple((index, _room(vram, used, holder)) for index, vram, used, holder in facts),
        ),
        free=free,
        stuck=stuck,
        vram_total=sum(vram for _, vram, _, _ in facts),
        vram_used=sum(used for _, _, used, _ in facts),
        parts_stuck=tuple(Part(index, WHOLE, 0.0) for index, _, _, h in facts if h == _STUCK),
    )


@lru_cache(maxsize=1 << 14)
def _rooms(sizes: _Amounts, room: _Amounts, migs: tuple[MigGPU, ...] = ()) -> Rooms:
    return Rooms(sizes, room, migs)


@lru_cache(maxsize=1 << 14)
def _roomy(rooms: Rooms, vram: float) -> int:
    return mask_of(index for index, room in rooms.room if room + EPSILON >= vram)


@lru_cache(maxsize=1 << 14)
def _large(rooms: Rooms, vram: float) -> int:
    return mask_of(index for index, size in rooms.sizes if size + EPSILON >= vram)


def _room(vram: float, used: float, holder: float) -> float:
    """Return the GB to be had on a GPU when its job has left."""
    if holder == _FREE:
        return max(vram - used, 0.0)
    if holder in (_STUCK, 0.0):  # a holder that named no memory: all that is used may be its own
        return vram
    return vram - max(used - holder, 0.0)
