"""Whether a node can take a job, and if not, why: one code, one sentence with the numbers."""

from datetime import datetime, timedelta
from typing import NamedTuple

from models.node import Node, NodeState
from models.placement import JobRequest, PackingPolicy, Rejection, RejectionCode
from models.units import format_duration, format_gb
from scheduling.state import EPSILON, Need, NodeView, view_node


class Usable(NamedTuple):
    """The GPUs that a job may have on a node now, or the first constraint that rules it out."""

    gpus: int
    failure: RejectionCode | None


def check(node: Node, job: JobRequest, policy: PackingPolicy, now: datetime) -> Rejection | None:
    """Return why `node` cannot take `job` now, or None when it can.

    The constraints are checked in the order of RejectionCode; the first that fails is named.
    """
    view, need = view_node(node, (), now), Need.of(job, policy)
    failure = usable_gpus(view, need, now).failure
    return explain(view, need, failure, now) if failure else None


def could_ever_hold(node: Node, job: JobRequest) -> bool:
    """Return whether `node` could hold `job` when empty and with time left."""
    return fits_when_empty(node, Need.of(job, PackingPolicy()))


def fits_when_empty(node: Node, need: Need) -> bool:
    """Return whether the node's totals suffice; a node that is gone holds nothing any more."""
    return (
        node.state is not NodeState.GONE
        and node.tier is need.tier
        and (not need.gpu_type or node.gpu_type.casefold() == need.gpu_type)
        and (not need.container or node.container_runtime is not None)
        and node.cpus + EPSILON >= need.cpus
        and node.ram + EPSILON >= need.ram
        and sum(gpu.vram + EPSILON >= need.vram for gpu in node.gpus) >= need.gpus
    )


def usable_gpus(view: NodeView, need: Need, now: datetime) -> Usable:
    """Return the GPUs among which the job may get its own on this node now."""
    failure = _first_failure(view, need, now)
    if failure is not None:
        return Usable(0, failure)
    roomy = view.roomy(need.vram)
    if roomy.bit_count() < need.gpus:
        return Usable(0, RejectionCode.VRAM)
    free = roomy & view.free
    if free.bit_count() < need.gpus:
        return Usable(0, RejectionCode.GPUS_BUSY)
    if view.reserved:
        free = gpus_open_from(view, need, now)
        if not free:
            return Usable(0, RejectionCode.RESERVED)
    return Usable(free, None)


def gpus_open_from(view: NodeView, need: Need, start: datetime) -> int:
    """Return the GPUs that nobody else holds from `start` until the job would end.

    0 when they are too few, or when cores or RAM run short at some moment in between.
    """
    end = need.end_from(start)
    others = [
        hold for hold in (*view.holds, *view.reserved) if hold.start < end and hold.end > start
    ]
    gpus = view.roomy(need.vram) & ~view.stuck
    for hold in others:
        gpus &= ~hold.mask
    if gpus.bit_count() < need.gpus:
        return 0
    # Use rises only where a hold starts, so these moments are all that need a look.
    for moment in (start, *(hold.start for hold in others if hold.start > start)):
        at_once = [hold for hold in others if hold.start <= moment < hold.end]
        cpus = view.cpus_stuck + sum(hold.cpus for hold in at_once)
        ram = view.ram_stuck + sum(hold.ram for hold in at_once)
        if cpus + need.cpus > view.node.cpus + EPSILON or ram + need.ram > view.node.ram + EPSILON:
            return 0
    return gpus


def earliest_start(view: NodeView, need: Need, now: datetime) -> datetime | None:
    """Return when the node can first hold the job to its end, by what is known of its holds.

    None when that is never, or not before the node's time ends.
    """
    if view.node.state is not NodeState.READY:
        return None
    releases = {hold.end for hold in (*view.holds, *view.reserved)}
    for start in sorted({now, *releases}):
        if view.node.expires_at is not None and view.node.expires_at - start < need.must_last:
            return None
        if gpus_open_from(view, need, start):
            return start
    return None


def explain(view: NodeView, need: Need, code: RejectionCode, now: datetime) -> Rejection:
    """Return the rejection of this node for `code`, in words."""
    return Rejection(
        node_id=view.node.id,
        code=code,
        reason=_reason(view, need, code, now),
        permanent=not fits_when_empty(view.node, need),
    )


def _first_failure(view: NodeView, need: Need, now: datetime) -> RejectionCode | None:
    node = view.node
    if node.state is not NodeState.READY:
        return RejectionCode.STATE
    if node.tier is not need.tier:
        return RejectionCode.TIER
    if need.gpu_type and view.gpu_type != need.gpu_type:
        return RejectionCode.GPU_TYPE
    if need.container and node.container_runtime is None:
        return RejectionCode.CONTAINER_RUNTIME
    if node.expires_at is not None and node.expires_at - now < need.must_last:
        return RejectionCode.EXPIRY
    if view.cpus_free + EPSILON < need.cpus:
        return RejectionCode.CPU
    if view.ram_free + EPSILON < need.ram:
        return RejectionCode.RAM
    if view.gpu_count < need.gpus:
        return RejectionCode.GPU_COUNT
    return None


def _reason(view: NodeView, need: Need, code: RejectionCode, now: datetime) -> str:
    node = view.node
    match code:
        case RejectionCode.STATE:
            return f"is {node.state.value.lower()}"
        case RejectionCode.TIER:
            return f"is a {node.tier} node, job is {need.tier}"
        case RejectionCode.GPU_TYPE:
            return f"has {node.gpu_type or 'unnamed'} GPUs, job wants {need.gpu_type.upper()}"
        case RejectionCode.CONTAINER_RUNTIME:
            return "has no container runtime, job runs an image"
        case RejectionCode.EXPIRY:
            return _expiry_reason(view, need, now)
        case RejectionCode.CPU:
            return (
                f"has {_cores(view.cpus_free)} of {_cores(node.cpus)} cores free, "
                f"job wants {_cores(need.cpus)}"
            )
        case RejectionCode.RAM:
            return (
                f"has {_gb(view.ram_free)} of {_gb(node.ram)} RAM free, job wants {_gb(need.ram)}"
            )
        case RejectionCode.GPU_COUNT:
            return f"has {_gpus(view.gpu_count)}, job wants {need.gpus}"
        case RejectionCode.VRAM:
            return _vram_reason(view, need)
        case RejectionCode.GPUS_BUSY:
            return _busy_reason(view, need)
        case RejectionCode.RESERVED:
            return _reserved_reason(view, need, now)


def _expiry_reason(view: NodeView, need: Need, now: datetime) -> str:
    margin = need.must_last - need.duration
    wants = f"job wants {format_duration(need.duration)}"
    if margin:
        wants += f" and a margin of {format_duration(margin)}"
    left = (view.node.expires_at or now) - now
    if left <= timedelta(0):
        return f"has no time left, {wants}"
    return f"has {format_duration(_to_seconds(left))} left, {wants}"


def _vram_reason(view: NodeView, need: Need) -> str:
    enough = view.roomy(need.vram).bit_count()
    most = max(view.room.values(), default=0.0)
    return (
        f"has {enough} of {_gpus(view.gpu_count)} with {_gb(need.vram)} of memory to be had "
        f"(the most is {_gb(most)}), job wants {need.gpus}"
    )


def _busy_reason(view: NodeView, need: Need) -> str:
    usable = (view.roomy(need.vram) & view.free).bit_count()
    memory = f" with {_gb(need.vram)}" if need.vram else ""
    return f"has {usable} of {_gpus(view.gpu_count)}{memory} free, job wants {need.gpus}"


def _reserved_reason(view: NodeView, need: Need, now: datetime) -> str:
    ahead = [hold for hold in view.reserved if hold.start < need.end_from(now)]
    if not ahead:
        return "is kept for a job that was deferred before it"
    first = min(ahead, key=lambda hold: (hold.start, hold.job_id))
    starts_in = format_duration(_to_seconds(first.start - now))
    return f"would delay {first.job_id}, which is to start there in {starts_in}"


def _to_seconds(span: timedelta) -> timedelta:
    return timedelta(seconds=int(span.total_seconds()))


def _cores(number: float) -> str:
    return f"{round(number, 3):g}"


def _gb(amount: float) -> str:
    return format_gb(round(amount, 3))


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
