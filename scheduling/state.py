"""What the packer computes on: needs of jobs, and what of each node is free and until when.

The frozen models say what is; these small views hold the same in the form that the checks
compare, so that a cycle over hundreds of jobs and nodes validates nothing twice. Views change
while a cycle plans and never leave it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from models.job import Tier
from models.node import Node
from models.placement import JobRequest, PackingPolicy, RunningJob
from scheduling.gpus import mask_of

EPSILON = 1e-6
"""Amounts of cores and GB closer than this are equal: sums of decimal fractions drift."""

_OVERDUE = timedelta(minutes=1)
_SHORTEST = timedelta(seconds=1)
_FREE, _STUCK = -1.0, -2.0
"""In place of the memory that the holder of a GPU asked for: nobody holds it, or nobody known."""

_Amounts = tuple[tuple[int, float], ...]
_Facts = tuple[tuple[int, float, float, float], ...]
"""For each GPU: index, memory, memory in use, and what its holder asked for."""


class Need(NamedTuple):
    """What a job needs of a node. Jobs with equal needs get equal answers."""

    tier: Tier
    gpus: int
    gpu_type: str
    """In lower case; empty for any."""
    vram: float
    cpus: float
    ram: float
    container: bool
    duration: timedelta
    must_last: timedelta
    """The node's time must not end earlier than this after the start."""

    @classmethod
    def of(cls, job: JobRequest, policy: PackingPolicy) -> "Need":
        return cls(
            tier=job.tier,
            gpus=job.gpus,
            gpu_type=(job.gpu_type or "").casefold(),
            vram=job.vram_per_gpu,
            cpus=job.cpus,
            ram=job.ram,
            container=job.needs_container,
            duration=job.expected_duration,
            must_last=job.expected_duration + policy.safety_margin,
        )

    def end_from(self, start: datetime) -> datetime:
        """Return when the job will probably end; never at `start` itself."""
        return start + max(self.duration, _SHORTEST)


class Hold(NamedTuple):
    """What one job has of a node from `start` until `end`: running, placed or reserved."""

    job_id: str
    mask: int
    cpus: float
    ram: float
    start: datetime
    end: datetime


class Rooms:
    """The memory of a node's GPUs. Nodes of one make share one object, so it compares by identity.

    `sizes` and `room` have an entry for each GPU: its index, and the GB that it has, or that are
    to be had there when no job holds it (memory kept back is not).
    """

    __slots__ = ("all_gpus", "count", "room", "sizes")

    def __init__(self, sizes: _Amounts, room: _Amounts) -> None:
        self.sizes = sizes
        self.room = room
        self.count = len(room)
        self.all_gpus = mask_of(index for index, _ in room)

    def roomy(self, vram: float) -> int:
        """Return the GPUs with so many GB each, once no job holds them."""
        return _roomy(self, vram)

    def large(self, vram: float) -> int:
        """Return the GPUs of at least this size."""
        return _large(self, vram)


class Slots(NamedTuple):
    """The GPUs of a node as a plan begins."""

    rooms: Rooms
    free: int
    """GPUs that no job holds."""
    stuck: int
    """GPUs whose holder is not known to end."""
    vram_total: float
    vram_used: float


@dataclass(slots=True)
class NodeView:
    """One node: what is free now, and the known holds on the rest."""

    node: Node
    rooms: Rooms
    free: int
    """GPUs that no job holds now."""
    stuck: int
    """GPUs whose holder is not known to end."""
    cpus_stuck: float
    ram_stuck: float
    """Used, and not known to come back."""
    cpus_free: float
    ram_free: float
    vram_total: float
    vram_used: float
    holds: list[Hold]
    """Of jobs that run or are placed now."""
    reserved: list[Hold]
    """Of deferred jobs, from a later time on."""

    def take(self, hold: Hold, vram_per_gpu: float) -> None:
        """Give `hold` to its job from now on."""
        self.holds.append(hold)
        self.free &= ~hold.mask
        self.cpus_free -= hold.cpus
        self.ram_free -= hold.ram
        self.vram_used += vram_per_gpu * hold.mask.bit_count()


def view_nodes(
    nodes: Sequence[Node], running: Iterable[RunningJob], now: datetime
) -> list[NodeView]:
    """Return a view of each node, in order.

    Capacity that a node shows as used and no running job explains is never expected back. A
    running job that is overdue counts as ending in a minute.
    """
    by_node: dict[str, list[RunningJob]] = {}
    for job in running:
        by_node.setdefault(job.node_id, []).append(job)
    return [view_node(node, by_node.get(node.id, ()), now) for node in nodes]


def view_node(node: Node, running: Sequence[RunningJob], now: datetime) -> NodeView:
    """Return the view of one node; `running` are the jobs on it."""
    slots = _slots(_gpu_facts(node, running))
    cpus = ram = 0.0
    for job in running:
        cpus += job.cpus
        ram += job.ram
    cpus_used, ram_used = node.cpus_used, node.ram_used
    return NodeView(
        node,
        slots.rooms,
        slots.free,
        slots.stuck,
        cpus_stuck=cpus_used - cpus if cpus_used > cpus else 0.0,
        ram_stuck=ram_used - ram if ram_used > ram else 0.0,
        cpus_free=node.cpus - (cpus_used if cpus_used > cpus else cpus),
        ram_free=node.ram - (ram_used if ram_used > ram else ram),
        vram_total=slots.vram_total,
        vram_used=slots.vram_used,
        holds=[_hold_of(job, now) for job in running],
        reserved=[],
    )


def with_job(node: Node, job: JobRequest, gpu_indices: Sequence[int]) -> Node:
    """Return the node as it is once `job` holds these GPUs of it."""
    gpus = tuple(
        gpu.model_copy(update={"job_id": job.id, "vram_used": gpu.vram_used + job.vram_per_gpu})
        if gpu.index in gpu_indices
        else gpu
        for gpu in node.gpus
    )
    return node.model_copy(
        update={
            "gpus": gpus,
            "cpus_used": node.cpus_used + job.cpus,
            "ram_used": node.ram_used + job.ram,
        }
    )


def without_job(node: Node, job: RunningJob) -> Node:
    """Return the node as it is once `job` has left it."""
    gpus = tuple(
        gpu.model_copy(
            update={"job_id": None, "vram_used": _less(gpu.vram_used, job.vram_per_gpu)}
        )
        if gpu.index in job.gpu_indices
        else gpu
        for gpu in node.gpus
    )
    return node.model_copy(
        update={
            "gpus": gpus,
            "cpus_used": _less(node.cpus_used, job.cpus),
            "ram_used": _less(node.ram_used, job.ram),
        }
    )


def _hold_of(job: RunningJob, now: datetime) -> Hold:
    end = job.expected_end if job.expected_end > now else now + _OVERDUE
    return Hold(job.job_id, mask_of(job.gpu_indices), job.cpus, job.ram, now, end)


def _gpu_facts(node: Node, running: Sequence[RunningJob]) -> _Facts:
    if not running:
        return tuple(
            [
                (gpu.index, gpu.vram, gpu.vram_used, _FREE if gpu.job_id is None else _STUCK)
                for gpu in node.gpus
            ]
        )
    known = {index: job.vram_per_gpu for job in running for index in job.gpu_indices}
    return tuple(
        [
            (
                gpu.index,
                gpu.vram,
                gpu.vram_used,
                known.get(gpu.index, _FREE if gpu.job_id is None else _STUCK),
            )
            for gpu in node.gpus
        ]
    )


@lru_cache(maxsize=1 << 14)
def _slots(facts: _Facts) -> Slots:
    """Kept, because most nodes of a pool are alike and each cycle begins by looking at them."""
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
    )


@lru_cache(maxsize=1 << 14)
def _rooms(sizes: _Amounts, room: _Amounts) -> Rooms:
    return Rooms(sizes, room)


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


def _less(used: float, given_back: float) -> float:
    rest = used - given_back
    return rest if rest > EPSILON else 0.0
