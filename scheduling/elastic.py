"""Malleable jobs: with which size they start, and what comes of another desired size."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, groupby, pairwise
from operator import neg
from typing import NamedTuple

from longshore.models.elastic import Malleable
from longshore.models.job_request import JobRequest
from longshore.models.placement import Decision, PlacementKind
from longshore.models.preemption import Victim
from longshore.models.resize import ResizeReply, SizeChange
from longshore.models.text import count, dollars
from longshore.models.views import AttemptShare, AttemptView
from longshore.scheduling.ranks import named, staying


def start(
    job: JobRequest,
    place: Callable[[JobRequest], Decision | None],
    otherwise: Callable[[JobRequest], Decision],
    paid_for: int | None,
    most: Callable[[], int],
) -> Decision:
    """Return the decision for a malleable job: on the largest size up to its desired one that
    `place` finds GPUs for now, and that is `paid_for`, where it is not for all.

    `place` returns None, and changes nothing, where a job of that size does not start now.
    None starts on more than `most` GPUs: that is asked where there are several sizes.
    `otherwise` decides for the smallest size: that one may wait, and have a start kept.
    """
    assert job.malleable is not None
    sizes = job.malleable.up_to_target
    if paid_for is not None:
        sizes = tuple(size for size in sizes if size <= paid_for) or sizes[-1:]
    for size in _within(sizes[:-1], most):
        decision = place(job.at_size(size))
        if decision is not None:
            return _at_size(decision, size, job.malleable, paid_for)
    decision = otherwise(job.smallest)
    if decision.kind is PlacementKind.EXISTING_NODE:
        return _at_size(decision, sizes[-1], job.malleable, paid_for)
    if len(sizes) == 1:
        return decision
    reason = f"for {sizes[-1]} GPUs, the fewest of {sizes[-1]} to {sizes[0]}: {decision.reason}"
    return decision.model_copy(update={"reason": reason})


def _within(sizes: Sequence[int], most: Callable[[], int]) -> Sequence[int]:
    """Return those of descending sizes that are not above the most there is."""
    if not sizes:
        return sizes
    found = most()
    return sizes[bisect_left(sizes, -found, key=neg) :]


def _at_size(decision: Decision, size: int, sizes: Malleable, paid_for: int | None) -> Decision:
    """Return the decision with its size in words, where it is not the desired one."""
    if size == sizes.target:
        return decision
    why = "as many as budgets and quotas allow" if size == paid_for else "as many as fit now"
    said = f"{size} of {sizes.target} desired GPUs, {why}"
    return decision.model_copy(update={"reason": f"{said}; {decision.reason}"})


def resized(
    job: JobRequest,
    gpus: int | None,
    foreseen: Decision | None,
    cost: Victim | None,
    ranks: Mapping[int, int] | None = None,
    joins: Decision | None = None,
) -> ResizeReply:
    """Return what comes of a new desired size of a job that has so many GPUs, None where it does
    not run.

    `foreseen` is what a cycle would decide for it, were it stopped now and queued again; `cost`
    what a stop costs. It is stopped only where that brings it nearer to its desired size. `ranks`
    are the GPUs of each rank, where it can change its size in place: then it is not stopped for a
    size to which whole ranks add up. `joins` says where further ranks of it would go: then it is
    not stopped where a stop would not bring more.
    """
    assert job.malleable is not None
    target = job.malleable.target
    if gpus is None:
        said = f"it starts on up to {count(target, 'GPU')} when it is placed"
        return ResizeReply(desired=target, reason=said)
    if gpus == target:
        said = f"it has {count(target, 'GPU')} already"
        return ResizeReply(desired=target, gpus=gpus, reason=said)
    stay = staying(ranks or {}, job.malleable, target)
    if stay and ranks and sum(ranks[rank] for rank in stay) == target < gpus:
        leave = [rank for rank in sorted(ranks) if rank not in stay]
        said = f"from {gpus} to {count(target, 'GPU')} in place: {named(leave)} after a save"
        return ResizeReply(desired=target, gpus=gpus, in_place=target, reason=said)
    size = sum(len(indices) for _, indices in foreseen.by_node) if foreseen else 0
    added = joins.gpus if joins else 0
    if joins and gpus < gpus + added <= target and size <= gpus + added:
        more = count(len(joins.by_node), "rank")
        joining = "joins" if len(joins.by_node) == 1 else "join"
        said = (
            f"from {gpus} to {count(gpus + added, 'GPU')} in place: {more} {joining} after a save"
        )
        if gpus + added < target:
            said += f"; as many of {target} as fit now"
        return ResizeReply(desired=target, gpus=gpus, in_place=gpus + added, reason=said)
    lost = f"; {dollars(cost.total)}: {cost.reason}" if cost else ""
    if size and abs(target - size) < abs(target - gpus):
        said = f"from {gpus} to {count(size, 'GPU')}, {target} desired{lost}"
        return ResizeReply(desired=target, gpus=gpus, restarts=size, reason=said)
    instead = f"it would have {count(size, 'GPU')}" if size else "it would wait"
    why = f" ({foreseen.reason})" if foreseen and not size else ""
    said = f"it keeps its {count(gpus, 'GPU')}: stopped now, {instead}{why}"
    return ResizeReply(desired=target, gpus=gpus, reason=said)


def changes_of(attempts: Sequence[AttemptView]) -> tuple[SizeChange, ...]:
    """Return where attempts, oldest first, have another number of GPUs than those before them, or
    went on with another number."""
    changes: list[SizeChange] = []
    for before, after in pairwise((None, *attempts)):
        assert after is not None
        if before is not None and before.ended_at is not None and before.gpus != after.gpus_first:
            changes.append(SizeChange(
                attempt=after.attempt, at=after.placed_at, gpus_before=before.gpus,
                gpus=after.gpus_first,
                paused=max(after.placed_at - before.ended_at, timedelta(0)),
                end_reason=before.end_reason or "ended", reason=before.end_message,
            ))  # fmt: skip
        changes += _in_place(after)
    return tuple(changes)


def _in_place(attempt: AttemptView) -> Iterator[SizeChange]:
    """Yield the changes of one attempt, with which it went on."""
    gpus = attempt.gpus_first
    changes = sorted(chain.from_iterable(map(_came_and_went, attempt.shares)), key=_when)
    for at, together in groupby(changes, key=_when):
        changed = list(together)
        before, gpus = gpus, gpus + sum(change.gpus for change in changed)
        yield SizeChange(
            attempt=attempt.attempt, at=at, gpus_before=before, gpus=gpus, paused=timedelta(0),
            in_place=True, end_reason=changed[0].why,
            reason=next((change.said for change in changed if change.said), ""),
        )  # fmt: skip


class _Change(NamedTuple):
    """A rank that left an attempt which went on, or joined it."""

    at: datetime
    gpus: int
    """Below zero where it left."""
    why: str
    said: str


def _came_and_went(share: AttemptShare) -> Iterator[_Change]:
    if share.spare:  # which is none of its size
        return
    gpus = len(share.gpu_indices)
    if share.joined_at is not None:
        yield _Change(share.joined_at, gpus, "resized", share.join_reason)
    if share.left_at is not None:
        yield _Change(share.left_at, -gpus, share.end_reason or "ended", share.end_message)


def _when(change: _Change) -> datetime:
    return change.at
