"""What the packer computes on: needs of jobs, and what of each node is free and until when.

The frozen models say what is; these small views hold the same in the form that the checks
compare, so that a cycle over hundreds of jobs and nodes validates nothing twice. Views change
while a cycle plans and never leave it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from models.job import Tier
from models.node import GPU, Node
from models.placement import JobRequest, PackingPolicy, RunningJob
from scheduling.gpus import mask_of

EPSILON = 1e-6
"""Amounts of cores and GB closer than this are equal: sums of decimal fractions drift."""

_OVERDUE = timedelta(minutes=1)
_SHORTEST = timedelta(seconds=1)


@dataclass(slots=True, frozen=True)
class Need:
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


@dataclass(slots=True, frozen=True)
class Hold:
    """What one job has of a node from `start` until `end`: running, placed or reserved."""

    job_id: str
    mask: int
    cpus: float
    ram: float
    start: datetime
    end: datetime


@dataclass(slots=True)
class NodeView:
    """One node: what is free now, and the known holds on the rest."""

    node: Node
    gpu_type: str
    """In lower case."""
    room: dict[int, float]
    """GB to be had on each GPU when no job holds it; memory kept back is not."""
    least_room: float
    all_gpus: int
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
    holds: list[Hold] = field(default_factory=list[Hold])
    """Of jobs that run or are placed now."""
    reserved: list[Hold] = field(default_factory=list[Hold])
    """Of deferred jobs, from a later time on."""

    @property
    def gpu_count(self) -> int:
        return len(self.room)

    def roomy(self, vram: float) -> int:
        """Return the GPUs with so many GB each, once no job holds them."""
        if vram <= self.least_room:
            return self.all_gpus
        return mask_of(index for index, room in self.room.items() if room + EPSILON >= vram)

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
    holds = [_hold_of(job, now) for job in running]
    known = {index: job for job in running for index in job.gpu_indices}
    room: dict[int, float] = {}
    free = stuck = 0
    for gpu in node.gpus:
        holder = known.get(gpu.index)
        if holder is not None:
            room[gpu.index] = _room_after(gpu, holder)
        elif gpu.job_id is not None:
            room[gpu.index] = gpu.vram
            stuck |= 1 << gpu.index
        else:
            room[gpu.index] = gpu.vram_free
            free |= 1 << gpu.index
    cpus, ram = sum(job.cpus for job in running), sum(job.ram for job in running)
    return NodeView(
        node=node,
        gpu_type=node.gpu_type.casefold(),
        room=room,
        least_room=min(room.values(), default=0.0),
        all_gpus=mask_of(room),
        free=free,
        stuck=stuck,
        cpus_stuck=max(node.cpus_used - cpus, 0.0),
        ram_stuck=max(node.ram_used - ram, 0.0),
        cpus_free=node.cpus - max(node.cpus_used, cpus),
        ram_free=node.ram - max(node.ram_used, ram),
        vram_total=sum(gpu.vram for gpu in node.gpus),
        vram_used=sum(gpu.vram_used for gpu in node.gpus),
        holds=holds,
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


def _room_after(gpu: GPU, holder: RunningJob) -> float:
    if not holder.vram_per_gpu:  # it named no memory: all that is used may be its own
        return gpu.vram
    return gpu.vram - max(gpu.vram_used - holder.vram_per_gpu, 0.0)


def _less(used: float, given_back: float) -> float:
    rest = used - given_back
    return rest if rest > EPSILON else 0.0
