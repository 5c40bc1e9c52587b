"""When a job that cannot start now could start, and on which GPUs, by what is known of holds."""

from collections.abc import Iterable
from datetime import datetime

from models.node import NodeState
from scheduling.columns import Columns
from scheduling.state import EPSILON, Need, NodeView


def gpus_open_from(view: NodeView, need: Need, start: datetime) -> int:
    """Return the GPUs that nobody else holds from `start` until the job would end.

    0 when they are too few, or when cores or RAM run short at some moment in between.
    """
    end = need.end_from(start)
    others = [
        hold for hold in (*view.holds, *view.reserved) if hold.start < end and hold.end > start
    ]
    gpus = view.rooms.roomy(need.vram) & ~view.stuck
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


def earliest_start(
    view: NodeView, need: Need, now: datetime, before: datetime | None = None
) -> datetime | None:
    """Return when the node can first hold the job to its end, by what is known of its holds.

    None when that is never, not before the node's time ends, or not before `before`.
    """
    if view.node.state is not NodeState.READY:
        return None
    if (view.rooms.roomy(need.vram) & ~view.stuck).bit_count() < need.gpus:
        return None
    releases = {hold.end for hold in (*view.holds, *view.reserved)}
    for start in sorted({now, *releases}):
        if before is not None and start >= before:
            return None
        if view.node.expires_at is not None and view.node.expires_at - start < need.must_last:
            return None
        if gpus_open_from(view, need, start):
            return start
    return None


def first_start(
    positions: Iterable[int], columns: Columns, need: Need
) -> tuple[int, datetime] | None:
    """Return the node among `positions` where the job can start first, and when.

    Ties keep the order. None when no node can, by what is known of its holds.
    """
    first: tuple[int, datetime] | None = None
    for position in positions:
        before = first[1] if first else None
        start = earliest_start(columns.views[position], need, columns.now, before)
        if start is not None:
            first = int(position), start
    return first
