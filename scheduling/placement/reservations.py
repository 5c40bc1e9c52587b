"""When a job that cannot start now could start, and on which GPUs, by what is known of holds."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from longshore.models.node import NodeState
from longshore.models.placement import GPUChoice
from longshore.models.resources import NOTHING, HostAmounts
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.gpus import Chosen, mask_of
from longshore.scheduling.placement.links import choose_linked
from longshore.scheduling.placement.parts import (
    WHOLE,
    Left,
    Part,
    choose_instance,
    choose_share,
    left_of,
    lefts_now,
    part_of_gpu,
)
from longshore.scheduling.placement.state import EPSILON, Hold, Need, NodeView


class NoStart:
    """Needs that can start at no known time: a plan takes, and never gives back. So those that ask
    for as much for longer cannot either, wherever their data are."""

    def __init__(self) -> None:
        self._shortest: dict[Need, list[tuple[timedelta, timedelta]]] = {}
        """By what they ask for: durations, and how long a node must last for each. None is as long
        in both as another."""

    def __contains__(self, need: Need) -> bool:
        shortest = self._shortest.get(need.but_for_time(), ())
        return any(need.duration >= d and need.must_last >= last for d, last in shortest)

    def add(self, need: Need) -> None:
        """Take in a need that is not among them."""
        known = self._shortest.setdefault(need.but_for_time(), [])
        known[:] = [pair for pair in known if pair[0] < need.duration or pair[1] < need.must_last]
        known.append((need.duration, need.must_last))

    def clear(self) -> None:
        """Forget all: something was given back."""
        self._shortest.clear()


def open_from(
    view: NodeView, need: Need, start: datetime, choice: GPUChoice, *, free: int | None = None
) -> Chosen | None:
    """Return the GPUs, or the parts of them, that the job would get from `start` on.

    `free` are the empty GPUs that the choice leaves as whole as can be; those that are open then
    when left out. None where too little is open.
    """
    if need.mig is not None:
        return instance_open_from(view, need, need.mig, start, choice)
    if not need.whole:
        found = shares_open_from(view, need, start)
        if len(found) < need.gpus:
            return None
        empty = mask_of(left.gpu for left in found) if free is None else free
        return choose_share(found, empty, choice, need.gpus, view.node.topology)
    usable = gpus_open_from(view, need, start)
    if not usable:
        return None
    empty = usable if free is None else free
    chosen = choose_linked(view.node.topology, usable, empty, need.gpus, choice)
    return chosen._replace(mask=view.rooms.all_gpus) if need.alone else chosen


def gpus_open_from(view: NodeView, need: Need, start: datetime) -> int:
    """Return the GPUs that nobody else uses from `start` until the job would end.

    0 when they are too few, or when cores, RAM, storage bandwidth or power run short at some
    moment in between.
    """
    others = _others(view, need, start)
    if need.alone and (others or not view.rooms.for_one(view.rooms.all_gpus & ~view.stuck)):
        return 0
    gpus = _empty_beside(view, need, others)
    if gpus.bit_count() < need.gpus or not _host_suffices(view, need, start, others):
        return 0
    return gpus


def gpus_empty_from(view: NodeView, need: Need, start: datetime) -> int:
    """Return the same GPUs, also where they are too few, or anything else runs short."""
    return _empty_beside(view, need, _others(view, need, start))


def _empty_beside(view: NodeView, need: Need, others: Iterable[Hold]) -> int:
    gpus = view.rooms.roomy(need.vram) & ~view.stuck
    for hold in others:
        gpus &= ~hold.mask
    return gpus


def shares_open_from(view: NodeView, need: Need, start: datetime) -> list[Left]:
    """Return the GPUs that have the job's thousandths and memory left until it would end.

    Each with the least that is left of it in that time. None when cores or the like run short.
    """
    others = _others(view, need, start)
    if not _host_suffices(view, need, start, others):
        return []
    stuck = {part.gpu: part for part in view.parts_stuck}
    moments = _moments(start, others)
    found: list[Left] = []
    for index, room in view.rooms.room:
        here = [hold for hold in others if hold.mask >> index & 1]
        always = stuck.get(index, Part(index, 0, 0.0))
        lefts = [_left_at(moment, always, room, here) for moment in moments]
        milli = min(left.milli for left in lefts)
        memory = min(left.vram for left in lefts)
        if milli >= need.milli and memory + EPSILON >= need.vram:
            found.append(Left(milli, memory, index))
    return found


def instance_open_from(
    view: NodeView, need: Need, profile: str, start: datetime, choice: GPUChoice
) -> Chosen | None:
    """Return a position of a MIG profile that nobody has from `start` until the job would end."""
    others = _others(view, need, start)
    if not _host_suffices(view, need, start, others):
        return None
    taken: dict[int, int] = {part.gpu: part.slices for part in view.parts_stuck}
    for part in (part for hold in others for part in hold.parts):
        taken[part.gpu] = taken.get(part.gpu, 0) | part.slices
    return choose_instance(view.rooms.migs, taken, profile, choice)


def earliest_start(
    view: NodeView,
    need: Need,
    now: datetime,
    before: datetime | None = None,
    *,
    not_now: bool = False,
) -> datetime | None:
    """Return when the node can first hold the job to its end, by what is known of its holds.

    None when that is never, not before the node's time ends, or not before `before`. With
    `not_now` it is known that it cannot at `now`.
    """
    starts = {hold.end for holds in (view.holds, view.reserved) for hold in holds}
    if not not_now:
        starts.add(now)
    if before is not None:
        starts = {start for start in starts if start < before}
    if not starts or view.node.state is not NodeState.READY:
        return None
    if need.whole and (view.rooms.roomy(need.vram) & ~view.stuck).bit_count() < need.gpus:
        return None
    for start in sorted(starts):
        if view.node.expires_at is not None and view.node.expires_at - start < need.must_last:
            return None
        if _is_open(view, need, start):
            return start
    return None


def first_start(
    positions: Iterable[int], columns: Columns, need: Need, *, not_now: bool = False
) -> tuple[int, datetime] | None:
    """Return the node among `positions` where the job can start first, and when.

    Ties keep the order. None when no node can, by what is known of its holds. With `not_now` it is
    known that none can now.
    """
    first: tuple[int, datetime] | None = None
    for position in positions:
        before = first[1] if first else None
        view = columns.views[position]
        start = earliest_start(view, need, columns.now, before, not_now=not_now)
        if start is not None:
            first = int(position), start
    return first


def kept_now(view: NodeView, place: Hold, now: datetime) -> tuple[Hold, Hold]:
    """Return what is kept from now on of a place that is kept for a job from a later start, and
    the rest, from that start.

    Kept from now on is what others may not have until then, so that the job can start as soon as
    the last in the way has ended: all that it wants of what suffices now, else what that one will
    not give back, as far as it is free. A GPU that it wants whole is kept whole: while another has
    it, that takes nothing from anybody.
    """
    ends = [hold.end for hold in view.holds if hold.end <= place.start]
    last = [hold for hold in view.holds if ends and hold.end == max(ends)]
    comes = NOTHING
    for hold in last:
        comes = comes.plus(hold.host)
    amounts = zip(place.host, view.host_free, comes, strict=True)
    host = HostAmounts(*[_kept(*each) for each in amounts])
    lefts = {left.gpu: left for left in lefts_now(view.rooms.room, view.free, view.parts)}
    parts = tuple([_part_kept(part, lefts.get(part.gpu), last) for part in place.parts])
    rest = tuple([
        Part(part.gpu, part.milli - kept.milli, part.vram - kept.vram)
        for part, kept in zip(place.parts, parts, strict=True)
    ])  # fmt: skip
    mask = place.mask if rest else 0  # whole GPUs are all kept from now on
    return (
        place._replace(start=now, host=host, parts=parts),
        place._replace(mask=mask, host=place.host.minus(host), parts=rest),
    )


def _kept(wanted: float, free: float, comes: float) -> float:
    if wanted <= free + EPSILON:
        return wanted
    return min(max(wanted - comes, 0.0), max(free, 0.0))


def _part_kept(wanted: Part, left: Left | None, last: Sequence[Hold]) -> Part:
    """Return the same of a part of a GPU; slices are a set, as whole GPUs are."""
    free = left or Left(0, 0.0, wanted.gpu)
    come = [part for hold in last for part in hold.parts if part.gpu == wanted.gpu]
    milli = _kept(wanted.milli, free.milli, sum(part.milli for part in come))
    vram = _kept(wanted.vram, free.vram, sum(part.vram for part in come))
    return Part(wanted.gpu, int(milli), vram, wanted.slices)


def _is_open(view: NodeView, need: Need, start: datetime) -> bool:
    if need.whole:
        return gpus_open_from(view, need, start) != 0
    return open_from(view, need, start, GPUChoice.FIRST_FREE) is not None


def _others(view: NodeView, need: Need, start: datetime) -> list[Hold]:
    """Return the holds that a job from `start` on would meet."""
    end = need.end_from(start)
    return [
        hold for hold in (*view.holds, *view.reserved) if hold.start < end and hold.end > start
    ]


def _host_suffices(view: NodeView, need: Need, start: datetime, others: Sequence[Hold]) -> bool:
    wanted = view.host_stuck.plus(need.host(view.node.gpu_power))
    for moment in _moments(start, others):
        used = wanted
        for hold in others:
            if hold.start <= moment < hold.end:
                used = used.plus(hold.host)
        if any(amount > size + EPSILON for amount, size in zip(used, view.host, strict=True)):
            return False
    return True


def _moments(start: datetime, others: Sequence[Hold]) -> list[datetime]:
    """Return the moments to look at: use rises only where a hold starts."""
    return [start, *(hold.start for hold in others if hold.start > start)]


def _left_at(moment: datetime, stuck: Part, room: float, here: Sequence[Hold]) -> Left:
    milli, vram = stuck.milli, stuck.vram
    for hold in here:
        if hold.start <= moment < hold.end:
            part = part_of_gpu(hold.parts, stuck.gpu)
            milli += WHOLE if part is None else part.milli
            vram += 0.0 if part is None else part.vram
    return left_of(stuck.gpu, room, milli, vram)
