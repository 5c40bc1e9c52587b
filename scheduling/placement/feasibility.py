"""Why a node cannot take a job: one sentence with the numbers, and whether it is for good."""

from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta

from longshore.models.departures import CORDONED_BY_HAND, DRAINED_BY_HAND
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import GPUChoice, PackingPolicy, Rejection, RejectionCode
from longshore.models.resources import HostAmounts
from longshore.models.text import count, format_duration
from longshore.models.topology import FLAVOR_LABEL
from longshore.models.units import format_gb, format_gb_per_second, format_watts, plain
from longshore.models.visible import brief
from longshore.scheduling.node_lifetime import to_seconds, why_too_short
from longshore.scheduling.placement.filters import (
    WHY,
    LabelNames,
    attributes_of,
    first_failure,
    labels_named,
)
from longshore.scheduling.placement.parts import lefts_now
from longshore.scheduling.placement.reservations import open_from
from longshore.scheduling.placement.state import EPSILON, Hold, Need, NodeView
from longshore.scheduling.topology import missing_labels

HOST_CODES = (RejectionCode.CPU, RejectionCode.RAM, RejectionCode.STORAGE, RejectionCode.POWER)
"""The constraint on each of a node's amounts, in the order of `HostAmounts`."""
CORDONED = "is cordoned"
"""The reason of a node that takes no jobs since somebody said so."""
_FOR_GOOD = (
    RejectionCode.FLAVOR,
    RejectionCode.LABELS,
    RejectionCode.CONFORMANCE,
    RejectionCode.NOT_ALLOWED,
    RejectionCode.CHANGED,
)
"""What a node does not lose by becoming empty."""


def could_ever_hold(node: Node, job: JobRequest) -> bool:
    """Return whether `node` could hold `job` when empty and with time left."""
    return fits_when_empty(node, Need.of(job, PackingPolicy()))


def fits_when_empty(node: Node, need: Need) -> bool:
    """Return whether the node's totals suffice; a node that is gone holds nothing any more."""
    return (
        node.state is not NodeState.GONE
        and first_failure(attributes_of(node, labels_named((need,))), need) is None
        and host_failure(node.host, need.host(node.gpu_power)) is None
        and _gpus_suffice(node, need)
    )


def when_empty(node: Node, labels: LabelNames = None) -> Hashable:
    """Return all that `fits_when_empty` looks at of a node: equal ones get equal answers. Of its
    labels those of these names."""
    gpus = tuple(
        (gpu.vram, None if gpu.mig is None else frozenset(p for p, at in gpu.mig.items() if at))
        for gpu in node.gpus
    )
    gone = node.state is NodeState.GONE
    return gone, attributes_of(node, labels), node.host, node.gpu_power, gpus


def host_failure(left: HostAmounts, wanted: HostAmounts) -> RejectionCode | None:
    """Return the first of the amounts that does not suffice, None where all do."""
    for code, amount, request in zip(HOST_CODES, left, wanted, strict=True):
        if amount + EPSILON < request:
            return code
    return None


def _gpus_suffice(node: Node, need: Need) -> bool:
    if need.mig is not None:
        return any(gpu.mig is not None and gpu.mig.get(need.mig) for gpu in node.gpus)
    whole = [gpu for gpu in node.gpus if gpu.mig is None]
    if need.alone and len(whole) < len(node.gpus):
        return False
    return sum(gpu.vram + EPSILON >= need.vram for gpu in whole) >= need.gpus


def explain(view: NodeView, need: Need, code: RejectionCode, now: datetime) -> Rejection:
    """Return the rejection of this node for `code`, in words."""
    return Rejection(
        node_id=view.node.id,
        code=code,
        reason=_reason(view, need, code, now),
        permanent=code in _FOR_GOOD or not fits_when_empty(view.node, need),
    )


def _reason(view: NodeView, need: Need, code: RejectionCode, now: datetime) -> str:
    node = view.node
    match code:
        case RejectionCode.STATE:
            return why_not_ready(node)
        case RejectionCode.FLAVOR:
            flavor = node.labels.get(FLAVOR_LABEL, "")
            return f"is of the flavor {flavor}, job wants {need.types_text}"
        case RejectionCode.LABELS:
            return f"does not name its {', '.join(missing_labels(node))}, a gang needs them"
        case RejectionCode.EXPIRY:
            return _expiry_reason(view, need, now)
        case RejectionCode.CPU | RejectionCode.RAM | RejectionCode.STORAGE | RejectionCode.POWER:
            return _host_reason(view, need, code)
        case RejectionCode.GPU_COUNT:
            return f"has {count(view.rooms.count, 'GPU')}{_in_mig(view)}, job wants {need.gpus}"
        case RejectionCode.VRAM:
            return _vram_reason(view, need)
        case RejectionCode.MIG_PROFILE:
            return _no_profile_reason(view, need)
        case RejectionCode.MIG_BUSY:
            migs = count(len(view.rooms.migs), "GPU")
            return f"has no position for {need.mig} left on {migs} in MIG mode"
        case RejectionCode.SHARES_BUSY:
            return _no_share_reason(view, need)
        case RejectionCode.GPUS_BUSY:
            return _busy_reason(view, need)
        case RejectionCode.NOT_ALONE:
            return _not_alone_reason(view)
        case RejectionCode.RESERVED:
            return _reserved_reason(view, need, now)
        case RejectionCode.DOMAIN:
            return "could take a part, but the domains cannot hold the whole gang"
        case _:
            return WHY[code](node, need)


def why_not_ready(node: Node) -> str:
    """Return ``is cordoned (new disk)``; without the reason where nobody gave one."""
    state = CORDONED if node.cordoned else f"is {node.state.value.lower()}"
    says_why = node.state_reason not in ("", CORDONED_BY_HAND, DRAINED_BY_HAND)
    return f"{state} ({brief(node.state_reason)})" if says_why else state


def _expiry_reason(view: NodeView, need: Need, now: datetime) -> str:
    margin = need.must_last - need.duration
    wants = f"job wants {format_duration(need.duration)}"
    if margin < timedelta(0):
        wants = f"an engine wants {format_duration(need.must_last)}, to load and to be replaced"
    left = (view.node.expires_at or now) - now
    if need.stay is not None and left > timedelta(0):
        return why_too_short(need.stay, need.duration, left, view.node.price)
    if margin > timedelta(0) and need.stay is None:
        wants += f" and a margin of {format_duration(margin)}"
    if left <= timedelta(0):
        return f"has no time left, {wants}"
    return f"has {format_duration(to_seconds(left))} left, {wants}"


def _host_reason(view: NodeView, need: Need, code: RejectionCode) -> str:
    left, size = view.host_free, view.host
    wanted = need.host(view.node.gpu_power)
    match code:
        case RejectionCode.CPU:
            digits = _digits(left.cpus, wanted.cpus)
            free = f"{plain(left.cpus, digits)} of {plain(size.cpus)} cores free"
            return f"has {free}, job wants {plain(wanted.cpus, digits)}"
        case RejectionCode.RAM:
            digits = _digits(left.ram, wanted.ram)
            free = f"{format_gb(left.ram, digits)} of {format_gb(size.ram)} RAM free"
            return f"has {free}, job wants {format_gb(wanted.ram, digits)}"
        case RejectionCode.STORAGE:
            digits = _digits(left.storage, wanted.storage)
            of = format_gb_per_second(size.storage)
            free = f"{format_gb_per_second(left.storage, digits)} of {of} storage bandwidth free"
            return f"has {free}, job wants {format_gb_per_second(wanted.storage, digits)}"
        case _:
            free = f"{format_watts(left.power)} of {format_watts(size.power)} power left"
            each = f" for {count(need.gpus, 'GPU')}" if need.whole or need.gpus > 1 else ""
            return f"has {free}, job draws {format_watts(wanted.power)}{each}"


def _vram_reason(view: NodeView, need: Need) -> str:
    enough = view.rooms.roomy(need.vram).bit_count()
    most = max((room for _, room in view.rooms.room), default=0.0)
    digits = _digits(most, need.vram)
    return (
        f"has {enough} of {count(view.rooms.count, 'GPU')} with {format_gb(need.vram, digits)} of "
        f"memory to be had (the most is {format_gb(most, digits)}), job wants {need.gpus}"
    )


def _busy_reason(view: NodeView, need: Need) -> str:
    usable = (view.rooms.roomy(need.vram) & view.free).bit_count()
    memory = f" with {format_gb(need.vram)}" if need.vram else ""
    return f"has {usable} of {count(view.rooms.count, 'GPU')}{memory} free, job wants {need.gpus}"


def _not_alone_reason(view: NodeView) -> str:
    alone = "a sensitive job holds its nodes alone"
    if view.rooms.migs:
        migs = count(len(view.rooms.migs), "GPU")
        return f"has {migs} in MIG mode: {alone}, and whole"
    jobs = len({hold.job_id for hold in view.holds})
    if jobs:
        return f"runs {count(jobs, 'other job')}: {alone}"
    held = (view.rooms.all_gpus & ~view.free).bit_count()
    return f"has {count(held, 'GPU')} that a job holds: {alone}"


def _no_profile_reason(view: NodeView, need: Need) -> str:
    if not view.rooms.migs:
        return f"has no GPU in MIG mode, job wants {need.mig}"
    known = sorted({name for gpu in view.rooms.migs for name, masks in gpu.positions if masks})
    return f"has {', '.join(known) or 'no instance'} on its GPUs in MIG mode, job wants {need.mig}"


def _no_share_reason(view: NodeView, need: Need) -> str:
    lefts = lefts_now(view.rooms.room, view.free, view.parts)
    # An engine's thousandths say nothing to its user where its memory is what lacks.
    alone = need.by_memory and not any(left.vram + EPSILON >= need.vram for left in lefts)
    part = format_gb(need.vram) if alone else f"{need.milli}/1000 and {format_gb(need.vram)}"
    wants = f"job wants {part} of one GPU"
    roomy = lefts if alone else [left for left in lefts if left.milli >= need.milli]
    if need.gpus > 1:
        enough = sum(left.vram + EPSILON >= need.vram for left in roomy)
        of = count(view.rooms.count, "GPU")
        return f"has {part} left on {enough} of {of}, job wants that on {need.gpus}"
    if roomy:
        most = max(roomy, key=lambda left: (left.vram, -left.gpu))
        on = "" if alone else f" on a GPU with {need.milli}/1000 left"
        return f"has {format_gb(most.vram)} at most{on} (GPU {most.gpu}), {wants}"
    most = max(lefts, key=lambda left: (left.milli, -left.gpu), default=None)
    if most is None:
        return f"has all GPUs held whole, {wants}"
    return f"has {most.milli}/1000 left at most (GPU {most.gpu}), {wants}"


def _in_mig(view: NodeView) -> str:
    migs = len(view.rooms.migs)
    return f" beside {count(migs, 'GPU')} in MIG mode" if migs else ""


def _reserved_reason(view: NodeView, need: Need, now: datetime) -> str:
    ahead = [hold for hold in view.reserved if hold.start < need.end_from(now)]
    if not ahead:
        return "is kept for a job that was deferred before it"
    ahead.sort(key=lambda hold: (hold.start, hold.job_id))
    first = next(
        (hold for hold in ahead if not _fits_beside(view, need, ahead, hold, now)), ahead[0]
    )
    # Of a place that is kept from now on the rest is from its start.
    start = max(hold.start for hold in view.reserved if hold.job_id == first.job_id)
    starts_in = format_duration(to_seconds(start - now))
    return f"would delay {first.job_id}, which is to start there in {starts_in}"


def _fits_beside(
    view: NodeView, need: Need, ahead: Sequence[Hold], last: Hold, now: datetime
) -> bool:
    """Return whether the job fits beside the kept starts up to the `last`."""
    fewer = view.copied()
    fewer.reserved = list(ahead[: ahead.index(last) + 1])
    return open_from(fewer, need, now, GPUChoice.FIRST_FREE, free=view.free) is not None


def _digits(one: float, other: float) -> int:
    """Return the digits behind the point with which two amounts that differ look it."""
    return next((n for n in (3, 6) if round(one, n) != round(other, n)), 9)
