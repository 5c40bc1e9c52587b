"""Updates of wait reasons: when one is stored again, and when its job is told.

A cycle decides about each waiting job each time, and the words of most decisions differ from those
before in a number or a second. To write them all makes every cycle as dear as the queue is long.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from longshore.models.placement import Decision, PlacementKind
from longshore.scheduling.words import format_start

_A_MINUTE = timedelta(minutes=1)
_TENTH = 10
"""A start that moves by less than a minute, or than this part of the time until then, has not."""
_WORDS_LAST = timedelta(seconds=10)
_WORDS_AT_MOST = 50
"""Jobs of which mere words are written anew in one cycle: those that were written first."""
_TELL_EVERY = timedelta(seconds=30)
TELL_AT_MOST = 50
"""Jobs that hear of their reason in one cycle; the others read it in the database."""
_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


class Stored(NamedTuple):
    """What a queue has stored of a job's last answer, and what of it the job's workflow heard."""

    attempt: int
    kind: PlacementKind | None = None
    """None where no cycle has looked at it."""
    codes: frozenset[str] = frozenset()
    """The constraints that ruled nodes out."""
    counted_as: int | None = None
    start: datetime | None = None
    start_told: datetime | None = None
    """The start that was news last; None where that is `start`."""
    start_kept: bool = True
    """Whether a place is kept for it from then on."""
    words: str = ""
    at: datetime | None = None
    told: str | None = None
    told_at: datetime | None = None


class Written(NamedTuple):
    """A decision that is to be stored."""

    decision: Decision
    attempt: int
    is_news: bool
    """False where only numbers in its words have changed: nobody has to hear of that."""


def to_write(
    decisions: Iterable[Decision], stored: Mapping[str, Stored], now: datetime
) -> list[Written]:
    """Return the decisions about waiting jobs that say something else than what is stored.

    Another kind of answer, other constraints, another class, or a kept start that was not known or
    not kept, or has moved by more than a minute and a tenth since it was news: that is news, and
    all of it is written. A start for which no place is kept moves with each newcomer: that, and
    that it is known now or no more, is all written too, and no news. Of decisions that differ in
    words alone, as in how many nodes a constraint rules out, the oldest few are, and none within
    ten seconds of the last. Where no more than a start has moved, and by less than that, nothing
    is: starts that wait for what nobody knows move with the clock. A job that is set aside once
    more rests once more.
    """
    written: list[Written] = []
    stale: list[tuple[datetime, int, Written]] = []
    for place, decision in enumerate(decisions):
        before = stored[decision.job_id]
        if _is_news(decision, before, now):
            written.append(Written(decision, before.attempt, True))
        elif _has_moved_unkept(decision, before, now):
            written.append(Written(decision, before.attempt, False))
        elif _words(decision, before) != before.words:
            at = before.at or _BEFORE_ALL
            if at <= now - _WORDS_LAST:
                told = Written(_as_told(decision, before), before.attempt, False)
                stale.append((at, place, told))
    written += [each for *_, each in heapq.nsmallest(_WORDS_AT_MOST, stale, key=_first_two)]
    return written


def to_tell(
    decisions: Iterable[Decision],
    stored: Mapping[str, Stored],
    written: Sequence[Written],
    now: datetime,
) -> list[str]:
    """Return the ids of the waiting jobs that are to hear what is stored of them now.

    A job hears of its first reason, and of news later at most every 30 seconds: a signal is a
    billed action and an event in its history. That it is set aside it hears at once, since no
    cycle looks at it again for a while. Of those that heard nothing yet the first in the order of
    the decisions come first, then who heard last.
    """
    news = {each.decision.job_id for each in written if each.is_news}
    found: list[tuple[datetime, int, str]] = []
    for place, decision in enumerate(decisions):
        before = stored[decision.job_id]
        told_at = before.told_at or _BEFORE_ALL
        if decision.kind is PlacementKind.SET_ASIDE:
            told_at = _BEFORE_ALL
        if told_at >= now - _TELL_EVERY:
            continue
        # Mere words are as good as heard (`activities.explanations`).
        says = decision.reason if decision.job_id in news else before.words
        if before.told != says:
            found.append((told_at, place, decision.job_id))
    return [job_id for *_, job_id in heapq.nsmallest(TELL_AT_MOST, found)]


def has_to_hear(stored: Stored, now: datetime) -> bool:
    """Return whether a job is to hear of what is stored of it (`to_tell`)."""
    heard = stored.kind is None or stored.told == stored.words
    return not heard and (stored.told_at or _BEFORE_ALL) < now - _TELL_EVERY


def _is_news(decision: Decision, before: Stored, now: datetime) -> bool:
    if decision.kind is not before.kind or decision.kind is PlacementKind.SET_ASIDE:
        return True
    if decision.counted_as != before.counted_as or decision.rejected.keys() != before.codes:
        return True
    start = decision.estimated_start if decision.start_kept else None
    return _has_moved(start, _start_told(before), now)


def _has_moved_unkept(decision: Decision, before: Stored, now: datetime) -> bool:
    """Return whether a start without a place kept is another one than is stored, is known now, or
    no more."""
    if decision.start_kept and before.start_kept:
        return False
    return _has_moved(decision.estimated_start, before.start, now)


def _start_told(before: Stored) -> datetime | None:
    """Return the start with a place kept that was news last."""
    return (before.start_told or before.start) if before.start_kept else None


def _has_moved(start: datetime | None, known: datetime | None, now: datetime) -> bool:
    if start is None or known is None:
        return (start is None) != (known is None)
    return abs(start - known) > max(_A_MINUTE, (known - now) / _TENTH)


def _words(decision: Decision, before: Stored) -> str:
    """Return what a decision says, with the start that is stored in place of its own."""
    start, known = decision.estimated_start, before.start
    if start is None or known is None:
        return decision.reason
    return decision.reason.replace(format_start(start), format_start(known))


def _as_told(decision: Decision, before: Stored) -> Decision:
    """Return a decision that is no news, with the start that was: a start that creeps is news in
    the end."""
    told = _start_told(before)
    if not decision.start_kept or told == decision.estimated_start:
        return decision
    return decision.model_copy(update={"start_told": told})


def _first_two(each: tuple[datetime, int, Written]) -> tuple[datetime, int]:
    return each[:2]
