"""What an array does next: slots to open, sizes of batches, what a result means, its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.models.array import ArraySpec
from longshore.models.array_view import SlotsAside
from longshore.models.elements import ElementResult, ElementState
from longshore.models.job_status import JobState
from longshore.models.moment import says_begin
from longshore.models.retry import FailureClass, RetryPolicy
from longshore.models.text import count

FIRST_SLOTS = 8
"""Slots that wait for GPUs at a time at least; as many as have got some where these are more."""
MOST_IN_BATCH = 500
LONG_BATCH = timedelta(seconds=20)
"""Work that a slot takes at a time at most, by what its elements took lately."""
SHORT_BATCH = timedelta(seconds=0.5)
"""And at least, where its equal part of what is left has that much: a message for each element
would cost more than the elements."""
GROWTH = 2
"""A batch has at most so many times the elements that the one before it ran."""


def too_many(array: ArraySpec, most: int) -> str:
    """Return why an array has too many elements, by arithmetic; empty where it has not."""
    if (found := array.most_elements) <= most:
        return ""
    return (
        f"array {array} has {found:,} elements; {most:,} is the most (setting "
        "most_array_elements): use a step, or several arrays"
    )


def slot_limit(array: ArraySpec, most_slots: int, elements: int) -> int:
    """Return how many slots an array may have at a time."""
    return min(array.limit or most_slots, elements)


def batch_size(lately: Sequence[ElementResult], waiting: int, slots: int) -> int:
    """Return how many elements a slot takes next.

    `lately` are those of its batch before; `waiting` is how many it may take, `slots` how many
    share them. The first batch is one element: nobody knows how long they take. Those that ran
    may be unlike the rest, as the first of a sweep that fails at once: so a batch grows by
    `GROWTH` at most, and no slot takes more than its equal part of what is left. It takes half
    of that, so that the slots end together, or all of it where that is short work.
    """
    took = _mean(lately)
    if took is None:
        return min(1, waiting)
    part = -(-waiting // max(slots, 1))
    share = max(part // 2, min(part, int(SHORT_BATCH / took)), 1)
    ran = sum(each.started_at is not None for each in lately)
    return min(share, max(int(LONG_BATCH / took), 1), GROWTH * ran, MOST_IN_BATCH, waiting)


def _mean(lately: Sequence[ElementResult]) -> timedelta | None:
    """Return what an element took, with what lies between two; None where nothing tells."""
    starts = [each.started_at for each in lately if each.started_at]
    ends = [each.ended_at for each in lately if each.ended_at]
    if not starts or not ends:
        return None
    return max((max(ends) - min(starts)) / len(ends), timedelta(milliseconds=1))


@dataclass(frozen=True)
class Outcome:
    """What becomes of an attempt of an element, and of the element."""

    state: ElementState
    """How the attempt ended."""
    again: timedelta | None = None
    """Another attempt follows after this wait; None for none."""


def outcome(
    result: ElementResult,
    policy: RetryPolicy,
    used: Mapping[FailureClass, int],
    stopped_as: FailureClass | None,
    *,
    cancelled: bool,
) -> Outcome:
    """Return what follows from a result.

    `used` are the retries that earlier attempts used up; `stopped_as` is the class of the stop
    that ended the batch (None for a hold or a move, which use up none); `cancelled` says that
    somebody cancelled the array.
    """
    if result.failure is None and not result.stopped and not result.cancelled:
        return Outcome(ElementState.SUCCEEDED)
    if result.cancelled or (result.stopped and cancelled):
        return Outcome(ElementState.CANCELLED)
    failure = stopped_as if result.stopped else result.failure
    if failure is None:
        return Outcome(ElementState.FAILED, timedelta(0))
    rule, taken = policy.rule_for(failure), used.get(failure, 0)
    if cancelled or (rule.max_retries is not None and taken >= rule.max_retries):
        return Outcome(ElementState.FAILED)
    return Outcome(ElementState.FAILED, rule.wait_before(taken + 1))


@dataclass(frozen=True)
class QueueRoom:
    """How many more jobs of a tenant may wait in a queue."""

    slots: int
    full: str
    """Which quota refuses the next one."""
    again: datetime
    """When to ask again."""


@dataclass(frozen=True)
class ArraySeen:
    """An array as its rows tell."""

    limit: int
    counts: Mapping[ElementState, int]
    """Of its elements, by the last attempt of each."""
    ready: int
    """Of those that wait, the ones whose time has come."""
    next_ready: datetime | None
    """When the next of the others may start."""
    placed: int
    """Slots that have asked for elements, and have not ended."""
    queued: int
    """Slots that have not, and have not ended."""
    begun: bool = True
    """Whether a slot has ever asked for elements."""
    failed: int = 0
    """Slots that have failed since it began, or was retried."""
    slot_failure: FailureClass | None = None
    slot_message: str = ""
    """How the last of these failed."""
    held: bool = False
    begins_at: datetime | None = None
    """Its `begin`, as long as that is to come."""
    cancelled: str | None = None
    claimed: int = 0
    """Of those that are RUNNING, the ones that do not run: their slots run others."""
    queue_room: QueueRoom | None = None
    """What quotas of queued jobs leave, where its tenant is under one."""


@dataclass(frozen=True)
class ArrayPlan:
    """What an array does next."""

    state: JobState
    """RUNNING until it has ended."""
    reason: str
    open: int = 0
    """Slots to open."""
    cancel_queued: bool = False
    """Slots that wait for GPUs are wanted no more."""
    cancel_all: bool = False
    """All slots are to end."""
    give_up: str = ""
    """Why the elements that wait fail without an attempt; empty where they do not."""
    wake_at: datetime | None = None
    """Look again then, also if nobody pokes."""
    failure: FailureClass | None = None
    """Of one that has failed."""


def decide(seen: ArraySeen) -> ArrayPlan:
    """Return what an array does next."""
    waiting = seen.counts.get(ElementState.WAITING, 0)
    running = seen.counts.get(ElementState.RUNNING, 0)
    blocked = seen.counts.get(ElementState.BLOCKED, 0)
    slots = seen.placed + seen.queued
    if seen.cancelled is not None:
        return _cancelled(seen, running, slots)
    if not slots and not waiting and not running and not blocked:
        return _ended(seen.counts, seen.slot_failure)
    if seen.held or seen.begins_at is not None:
        return ArrayPlan(JobState.RUNNING, _why_held(seen), cancel_queued=bool(seen.queued))
    # Until a slot has asked for elements, what ails one ails all.
    budget = (seen.limit if seen.begun else min(seen.limit, FIRST_SLOTS)) - seen.failed
    if waiting and not slots and budget <= 0:
        why = f"no slot was left to run it: {seen.slot_message}".rstrip(": ")
        return ArrayPlan(JobState.RUNNING, why, give_up=why, failure=seen.slot_failure)
    if not seen.ready:
        return ArrayPlan(
            JobState.RUNNING, progress_text(seen.counts, seen.claimed),
            cancel_queued=bool(seen.queued), wake_at=seen.next_ready,
        )  # fmt: skip
    room = max(FIRST_SLOTS, seen.placed) - seen.queued
    more = max(min(min(budget, seen.ready) - slots, room), 0)
    reason, wake_at, left = (
        progress_text(seen.counts, seen.claimed),
        seen.next_ready,
        seen.queue_room,
    )
    if left is not None and more > left.slots:
        # A slot that the queue refuses has failed: it is opened when there is room.
        more = max(left.slots, 0)
        wake_at = min(filter(None, (wake_at, left.again)))
        if not slots and not more:
            reason = f"{reason}; {left.full}: a slot opens when a job that waits has started"
    return ArrayPlan(JobState.RUNNING, reason, open=more, wake_at=wake_at)


def _why_held(seen: ArraySeen) -> str:
    held = "held: it starts no further element" if seen.held else ""
    return held if seen.begins_at is None else says_begin(seen.begins_at, hold=held)


def _cancelled(seen: ArraySeen, running: int, slots: int) -> ArrayPlan:
    reason = seen.cancelled or "cancelled"
    if slots or running:
        return ArrayPlan(JobState.RUNNING, reason, cancel_all=True)
    return ArrayPlan(JobState.CANCELLED, reason, failure=FailureClass.CANCELLED)


def _ended(counts: Mapping[ElementState, int], failure: FailureClass | None) -> ArrayPlan:
    total = sum(counts.values())
    if counts.get(ElementState.SUCCEEDED, 0) == total:
        return ArrayPlan(JobState.SUCCEEDED, f"{count(total, 'element')} succeeded")
    kind = failure or FailureClass.USER
    if not counts.get(ElementState.FAILED, 0) and counts.get(ElementState.CANCELLED, 0):
        kind = FailureClass.CANCELLED
    return ArrayPlan(JobState.FAILED, progress_text(counts), failure=kind)


_WORDS = {
    ElementState.SUCCEEDED: "succeeded", ElementState.FAILED: "failed",
    ElementState.CANCELLED: "cancelled", ElementState.SKIPPED: "skipped",
    ElementState.RUNNING: "running", ElementState.WAITING: "waiting",
    ElementState.BLOCKED: "blocked",
}  # fmt: skip


def aside_text(aside: SlotsAside) -> str:
    """Return that slots are set aside, and why the first of them is."""
    return (
        f"{count(aside.slots, 'slot')} {'is' if aside.slots == 1 else 'are'} not planned: "
        f"{aside.first} is {aside.reason}"
    )


def progress_text(counts: Mapping[ElementState, int], claimed: int = 0, aside: int = 0) -> str:
    """Return ``of 10 elements 7 succeeded, 1 running, 2 claimed; 1 slot is set aside``.

    Elements in the hands of slots are RUNNING; `claimed` of them do not run, as a slot runs one of
    its batch at a time. Of those, some may have ended: a slot tells of a batch as a whole.
    """
    parts = list[str]()
    for state, word in _WORDS.items():
        number = counts.get(state, 0)
        if state is ElementState.RUNNING and claimed:
            parts += [f"{number - claimed:,} running", f"{claimed:,} claimed"]
        elif number:
            parts.append(f"{number:,} {word}")
    told = f"of {count(sum(counts.values()), 'element')} {', '.join(parts)}"
    verb = "is" if aside == 1 else "are"
    return f"{told}; {count(aside, 'slot')} {verb} set aside" if aside else told
