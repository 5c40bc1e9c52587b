"""What the packer computes on: needs of jobs, and what of each node is free and until when.

The frozen models say what is; these small views hold the same in the form that the checks
compare, so that a cycle over hundreds of jobs and nodes validates nothing twice. Views change
while a cycle plans and never leave it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from models.job import Tier
from models.mig import slices_gb
from models.node import GPU, GPUParts, Node
from models.placement import JobRequest, PackingPolicy, RunningJob
from scheduling.placement.gpus import mask_of
from scheduling.placement.parts import WHOLE, Part, Parts, with_part
from scheduling.placement.slots import EPSILON, Rooms, part_of, slots_of

_OVERDUE = timedelta(minutes=1)
_SHORTEST = timedelta(seconds=1)


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
    milli: int = WHOLE
    """Below WHOLE it wants a part of one GPU."""
    mig: str | None = None
    """The MIG profile that it wants an instance of."""
    known: bool = False
    """Whether the node must have said what driver, firmware and kernel parameters it has."""
    allowed: tuple[str, ...] = ()
    """The fingerprints of these that may serve; any when empty."""

    @property
    def whole(self) -> bool:
        """Whether it wants its GPUs for itself."""
        return self.milli == WHOLE and self.mig is None

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
            milli=job.milli,
            mig=job.mig,
            known=job.conformance is not None,
            allowed=tuple(sorted(job.conformance.allowed)) if job.conformance else (),
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
    part: Part | None = None
    """What it has of its one GPU, where it has not the whole."""


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
    parts: Parts = ()
    """What jobs have now of GPUs that they share."""
    parts_stuck: Parts = ()
    """What of that is not known to end, a whole GPU included."""

    def take(self, hold: Hold, vram_per_gpu: float) -> None:
        """Give `hold` to its job from now on."""
        self.holds.append(hold)
        self.free &= ~hold.mask
        if hold.part is not None:
            self.parts = with_part(self.parts, hold.part)
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
    slots = slots_of(node, running)
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
        parts=slots.parts,
        parts_stuck=slots.parts_stuck,
    )


def with_job(node: Node, job: JobRequest, gpu_indices: Sequence[int], slices: int = 0) -> Node:
    """Return the node as it is once `job` holds these GPUs of it, or its part of one."""

    def held(gpu: GPU) -> GPU:
        vram = slices_gb(gpu.vram, slices) if job.mig else job.vram_per_gpu
        mark: dict[str, object] = {"job_id": job.id}
        if not job.whole:
            milli = 0 if job.mig else job.milli
            mark = {"parts": _with_parts(gpu, gpu.milli_used + milli, gpu.slices_used | slices)}
        return gpu.model_copy(update={**mark, "vram_used": gpu.vram_used + vram})

    gpus = tuple(held(gpu) if gpu.index in gpu_indices else gpu for gpu in node.gpus)
    return node.model_copy(
        update={
            "gpus": gpus,
            "cpus_used": node.cpus_used + job.cpus,
            "ram_used": node.ram_used + job.ram,
        }
    )


def without_job(node: Node, job: RunningJob) -> Node:
    """Return the node as it is once `job` has left it."""

    def left(gpu: GPU) -> GPU:
        mark: dict[str, object] = {"job_id": None}
        if part_of(job) is not None:
            milli, slices = max(gpu.milli_used - job.milli, 0), gpu.slices_used & ~job.slices
            mark = {"parts": _with_parts(gpu, milli, slices)}
        return gpu.model_copy(update={**mark, "vram_used": _less(gpu.vram_used, job.vram_per_gpu)})

    gpus = tuple(left(gpu) if gpu.index in job.gpu_indices else gpu for gpu in node.gpus)
    return node.model_copy(
        update={
            "gpus": gpus,
            "cpus_used": _less(node.cpus_used, job.cpus),
            "ram_used": _less(node.ram_used, job.ram),
        }
    )


def _hold_of(job: RunningJob, now: datetime) -> Hold:
    end = job.expected_end if job.expected_end > now else now + _OVERDUE
    mask = mask_of(job.gpu_indices)
    return Hold(job.job_id, mask, job.cpus, job.ram, now, end, part_of(job))


def _with_parts(gpu: GPU, milli: int, slices: int) -> GPUParts | None:
    if gpu.mig is None and not milli:
        return None
    return GPUParts(milli_used=milli, mig=gpu.mig, slices_used=slices)


def _less(used: float, given_back: float) -> float:
    rest = used - given_back
    return rest if rest > EPSILON else 0.0
