"""What the packer computes on: needs of jobs, and what of each node is free and until when.

The frozen models say what is; these small views hold the same in the form that the checks
compare, so that a cycle over hundreds of jobs and nodes validates nothing twice. Views change
while a cycle plans and never leave it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.constraints import Constraint
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.mig import slices_gb
from longshore.models.node import GPU, GPUParts, Node
from longshore.models.placement import PackingPolicy, RunningJob
from longshore.models.resources import NOTHING, GPURequest, HostAmounts
from longshore.scheduling.durations import run_end
from longshore.scheduling.node_lifetime import Stay, must_last, stay_of
from longshore.scheduling.placement.gpus import mask_of
from longshore.scheduling.placement.parts import WHOLE, Parts, parts_on, with_parts
from longshore.scheduling.placement.slots import EPSILON, Rooms, parts_of, slots_of

_SHORTEST = timedelta(seconds=1)
_NO_TIME = timedelta(0)


class Need(NamedTuple):
    """What a job needs of a node. Jobs with equal needs get equal answers."""

    tier: Tier
    gpus: int
    gpu_types: tuple[str, ...]
    """Those that may serve, in lower case; empty for any."""
    vram: float
    cpus: float
    ram: float
    container: bool
    duration: timedelta
    must_last: timedelta
    """The node's time must not end earlier than this after the start."""
    milli: int = WHOLE
    """Below WHOLE it wants a part of each of its GPUs."""
    mig: str | None = None
    """The MIG profile that it wants an instance of."""
    known: bool = False
    """Whether the node must have said what driver, firmware and kernel parameters it has."""
    allowed: tuple[str, ...] = ()
    """The fingerprints of these that may serve; any when empty."""
    constraints: tuple[Constraint, ...] = ()
    """On the labels of the node; all of them hold, in whatever order the job has them."""
    storage: float = 0.0
    """GB/s of storage bandwidth."""
    power: float | None = None
    """Watts for each GPU; None: what a GPU of the node may draw."""
    data: tuple[tuple[str, float], ...] = ()
    """What it reads, with the part of all that each is; empty where the pool does not care."""
    fetches: bool = False
    """Whether the node has to fetch data for it, or to know conda."""
    serves: bool = False
    """Whether the node has to run an engine, or to give a share of several GPUs."""
    alone: bool = False
    """Whether it holds its nodes alone."""
    stay: Stay | None = None
    """For a reason, where more than the expected duration decides how long a node must last."""
    by_memory: bool = False
    """Whether its part of a GPU follows from its memory, as an engine's."""

    @property
    def types_text(self) -> str:
        """The types of GPU that may serve: ``H100 or L40S``; empty for any."""
        return " or ".join(each.upper() for each in self.gpu_types)

    @property
    def gpu(self) -> GPURequest:
        return GPURequest(self.gpus, self.vram, self.milli, self.mig, self.alone, self.by_memory)

    @property
    def whole(self) -> bool:
        """Whether it wants its GPUs for itself."""
        return self.milli == WHOLE and self.mig is None

    def parts(self, gpus: Sequence[int], slices: int = 0) -> Parts:
        """Return what it has of these GPUs where it shares them; nothing of whole ones."""
        if self.whole:
            return ()
        milli, vram = (0, 0.0) if self.mig else (self.milli, self.vram)
        return parts_on(gpus, milli, vram, slices)

    @classmethod
    def of(cls, job: JobRequest, policy: PackingPolicy) -> "Need":
        needed = must_last(job, policy)
        return cls(
            tier=job.tier,
            gpus=job.gpus,
            gpu_types=tuple(sorted(each.casefold() for each in job.types)),
            vram=job.vram_per_gpu,
            cpus=job.cpus,
            ram=job.ram,
            container=job.needs_container,
            duration=job.expected_duration,
            must_last=needed,
            milli=job.milli,
            mig=job.mig,
            # Who holds a node alone wants to know what it is.
            known=job.conformance is not None or job.sensitive,
            allowed=tuple(sorted(job.conformance.allowed)) if job.conformance else (),
            constraints=tuple(sorted(set(job.constraints))),
            storage=job.storage_bandwidth,
            power=job.power_per_gpu,
            data=_shares_of(job.data) if job.data and policy.weights.locality else (),
            fetches=job.fetches,
            serves=job.serves,
            alone=job.sensitive,
            stay=stay_of(job, policy, needed, policy.owned_gpu_price),
            by_memory=job.runs_engine,
        )

    def but_for_time(self) -> "Need":
        """Return the same without its duration, what follows from it, and its data.

        Jobs for which this is equal fit on the same nodes as long as these last, and nothing is
        kept there for others.
        """
        return self._replace(duration=_NO_TIME, must_last=_NO_TIME, stay=None, data=())

    def is_as_long_as(self, other: "Need") -> bool:
        """Return whether it takes as long as another, or longer, and needs a node for as long."""
        return self.duration >= other.duration and self.must_last >= other.must_last

    def host(self, gpu_power: float) -> HostAmounts:
        """Return what it takes of a node beside its GPUs, each of which may draw so many watts."""
        power = self.gpu.power(self.power, gpu_power)
        return HostAmounts(self.cpus, self.ram, self.storage, power)

    def end_from(self, start: datetime) -> datetime:
        """Return when the job will probably end; never at `start` itself."""
        return start + max(self.duration, _SHORTEST)


class Hold(NamedTuple):
    """What one job has of a node from `start` until `end`: running, placed or reserved."""

    job_id: str
    mask: int
    host: HostAmounts
    start: datetime
    end: datetime
    parts: Parts = ()
    """What it has of each of its GPUs, where it has them not whole."""
    ends: tuple[datetime, ...] = ()
    """Of one whose duration is learnt: when it may end."""
    idle: int = 0
    """Those of its GPUs that it only holds, so that nobody else is on the node."""
    since: datetime | None = None
    latest: datetime | None = None
    nobody_knows: bool = False
    unlimited: datetime | None = None
    """These two as in `scheduling.durations.RunEnd`; None of one that does not run yet."""


@dataclass(slots=True)
class NodeView:
    """One node: what is free now, and the known holds on the rest."""

    node: Node
    rooms: Rooms
    free: int
    """GPUs that no job holds now."""
    stuck: int
    """GPUs whose holder is not known to end."""
    host: HostAmounts
    """What the node has beside its GPUs."""
    host_stuck: HostAmounts
    """Used, and not known to come back."""
    host_free: HostAmounts
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
        if hold.parts:
            self.parts = with_parts(self.parts, hold.parts)
        self.host_free = self.host_free.minus(hold.host)
        self.vram_used += vram_per_gpu * (hold.mask & ~hold.idle).bit_count()

    def copied(self) -> "NodeView":
        """Return a view that takes jobs of its own; reservations are those of this one."""
        return replace(self, holds=list(self.holds))

    def become(self, other: "NodeView") -> None:
        """Hold what another view of the same node holds, and what is kept there."""
        self.holds, self.free, self.parts = other.holds, other.free, other.parts
        self.host_free, self.vram_used = other.host_free, other.vram_used
        self.stuck, self.host_stuck = other.stuck, other.host_stuck
        self.parts_stuck = other.parts_stuck
        self.node, self.reserved = other.node, other.reserved


def view_nodes(
    nodes: Sequence[Node], running: Iterable[RunningJob], now: datetime
) -> list[NodeView]:
    """Return a view of each node, in order.

    Capacity that a node shows as used and no running job explains is never expected back. When
    running jobs end says `scheduling.durations.run_end`.
    """
    by_node: dict[str, list[RunningJob]] = {}
    for job in running:
        by_node.setdefault(job.node_id, []).append(job)
    return [view_node(node, by_node.get(node.id, ()), now) for node in nodes]


def view_node(node: Node, running: Sequence[RunningJob], now: datetime) -> NodeView:
    """Return the view of one node; `running` are the jobs on it."""
    slots = slots_of(node, running)
    held = NOTHING
    for job in running:
        held = held.plus(job.host)
    used, size = node.host_used, node.host
    stuck, taken = NOTHING, used
    if used != held:
        stuck = _each(lambda all_of_it, known: max(all_of_it - known, 0.0), used, held)
        taken = _each(max, used, held)
    return NodeView(
        node,
        slots.rooms,
        slots.free,
        slots.stuck,
        host=size,
        host_stuck=stuck,
        host_free=size.minus(taken),
        vram_total=slots.vram_total,
        vram_used=slots.vram_used,
        holds=[_hold_of(job, now) for job in running],
        reserved=[],
        parts=slots.parts,
        parts_stuck=slots.parts_stuck,
    )


def view_at(view: NodeView, now: datetime) -> NodeView:
    """Return a view of its own for a plan at `now`, of one whose holds end when they should."""
    return NodeView(
        view.node, view.rooms, view.free, view.stuck, view.host, view.host_stuck, view.host_free,
        view.vram_total, view.vram_used, [_from(hold, now) for hold in view.holds],
        list(view.reserved), view.parts, view.parts_stuck,
    )  # fmt: skip


def emptied(view: NodeView) -> NodeView:
    """Return the view of the node as if no job had ever been there."""
    return replace(
        view, free=view.rooms.all_gpus, stuck=0, host_stuck=NOTHING, host_free=view.host,
        vram_used=0.0, holds=[], reserved=[], parts=(), parts_stuck=(),
    )  # fmt: skip


def order_on_node(job: RunningJob) -> tuple[datetime, str]:
    """Return the order in which a view takes the jobs of its node: amounts are added up in it."""
    return job.expected_end, job.job_id


def held_gpus(job: JobRequest, node: Node, gpu_indices: Sequence[int]) -> Sequence[int]:
    """Return all GPUs that a job holds of a node which gives it these: the others too where it
    holds the node alone."""
    return [gpu.index for gpu in node.gpus] if job.sensitive else gpu_indices


def idle_gpus(job: JobRequest, node: Node, gpu_indices: Sequence[int]) -> list[int]:
    """Return those that it only holds."""
    if not job.sensitive:
        return []
    return [index for index in held_gpus(job, node, gpu_indices) if index not in gpu_indices]


def with_job(node: Node, job: JobRequest, gpu_indices: Sequence[int], slices: int = 0) -> Node:
    """Return the node as it is once `job` holds these GPUs of it, or its part of them."""

    def held(gpu: GPU) -> GPU:
        vram = slices_gb(gpu.vram, slices) if job.mig else job.vram_per_gpu
        if gpu.index not in gpu_indices:
            vram = 0.0  # it only holds it
        mark: dict[str, object] = {"job_id": job.id}
        if not job.gpu.whole:
            milli = 0 if job.mig else job.milli
            mark = {"parts": _with_parts(gpu, gpu.milli_used + milli, gpu.slices_used | slices)}
        return gpu.model_copy(update={**mark, "vram_used": gpu.vram_used + vram})

    all_held = held_gpus(job, node, gpu_indices)
    gpus = tuple(held(gpu) if gpu.index in all_held else gpu for gpu in node.gpus)
    return node.model_copy(
        update={
            "gpus": gpus,
            **used_of(node.host_used.plus(job.share_of(len(gpu_indices), node.gpu_power))),
        }
    )


def without_job(node: Node, job: RunningJob) -> Node:
    """Return the node as it is once `job` has left it."""

    def left(gpu: GPU) -> GPU:
        mark: dict[str, object] = {"job_id": None}
        if parts_of(job):
            milli, slices = max(gpu.milli_used - job.milli, 0), gpu.slices_used & ~job.slices
            mark = {"parts": _with_parts(gpu, milli, slices)}
        return gpu.model_copy(update={**mark, "vram_used": _less(gpu.vram_used, job.vram_per_gpu)})

    gpus = tuple(left(gpu) if gpu.index in job.gpu_indices else gpu for gpu in node.gpus)
    return node.model_copy(
        update={
            "gpus": gpus,
            **used_of(_each(_less, node.host_used, job.host)),
        }
    )


def without_jobs(node: Node) -> Node:
    """Return the node as it is once nothing runs there."""
    empty = tuple(
        gpu.model_copy(update={"job_id": None, "vram_used": 0.0, "parts": _with_parts(gpu, 0, 0)})
        for gpu in node.gpus
    )
    return node.model_copy(update={"gpus": empty, **used_of(NOTHING)})


def running_job(
    job: JobRequest, node: Node, gpu_indices: tuple[int, ...], slices: int, end: datetime
) -> RunningJob:
    """Return what a job holds of a node that has given it these GPUs, or its part of them."""
    host = job.share_of(len(gpu_indices), node.gpu_power)
    vram, milli = job.vram_per_gpu, job.milli
    if slices:
        gpu = next(gpu for gpu in node.gpus if gpu.index == gpu_indices[0])
        vram, milli = slices_gb(gpu.vram, slices), 0
    return RunningJob(
        job_id=job.id, node_id=node.id,
        gpu_indices=tuple(held_gpus(job, node, gpu_indices)), vram_per_gpu=vram, milli=milli,
        slices=slices, cpus=host.cpus, ram=host.ram, storage=host.storage, power=host.power,
        expected_end=end,
    )  # fmt: skip


def used_of(host: HostAmounts) -> dict[str, float]:
    """Return these amounts as the fields of a node that say what is used."""
    return {
        "cpus_used": host.cpus, "ram_used": host.ram,
        "storage_used": host.storage, "power_used": host.power,
    }  # fmt: skip


def _shares_of(data: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Return what part of all data each is; what names no size counts as 1 GB."""
    sizes = {name: data[name] or 1.0 for name in sorted(data)}
    total = math.fsum(sizes.values())
    return tuple((name, size / total) for name, size in sizes.items())


def _each(
    combine: Callable[[float, float], float], one: HostAmounts, other: HostAmounts
) -> HostAmounts:
    return HostAmounts(*map(combine, one, other))


def _hold_of(job: RunningJob, now: datetime) -> Hold:
    mask, parts, until = mask_of(job.gpu_indices), parts_of(job), job.expected_end
    rest = job.ends, 0, job.since, job.latest
    return _from(Hold(job.job_id, mask, job.host, now, until, parts, *rest), now)


def _from(hold: Hold, now: datetime) -> Hold:
    ends = run_end(hold.end, hold.ends, hold.since, hold.latest, now)
    rest = hold.ends, 0, hold.since, hold.latest, ends.nobody_knows, ends.unlimited
    return Hold(hold.job_id, hold.mask, hold.host, now, ends.at, hold.parts, *rest)


def _with_parts(gpu: GPU, milli: int, slices: int) -> GPUParts | None:
    if gpu.mig is None and not milli:
        return None
    return GPUParts(milli_used=milli, mig=gpu.mig, slices_used=slices)


def _less(used: float, given_back: float) -> float:
    rest = used - given_back
    return rest if rest > EPSILON else 0.0
