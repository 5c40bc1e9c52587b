"""When each job has to leave a node that is drained, ends, or is taken away."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from longshore.models.departures import Cause, Departure, DeparturePlan, Leaving, Margins, Occupant

_SOON = timedelta(seconds=1)
"""Between two looks at a node that still takes jobs, at least."""
_LONGEST_GRACE = timedelta(days=365)
"""What is longer is as good as this, and no time before the first."""
_AGAIN = timedelta(seconds=5)
"""Between two kills of what should have gone."""


def plan_departures(
    occupants: Sequence[Occupant],
    leavings: Sequence[Leaving],
    margins: Margins,
    now: datetime,
    drained_at: datetime | None = None,
) -> DeparturePlan:
    """Return who leaves now, whether the node still takes jobs, and when to look again.

    Before a node's end every job is asked in time to save, publish and go. A job that will
    probably have ended by then may try: until the last moment at which it can still leave. Where
    a node was drained at a moment that is known, with a deadline, a replica of a service stays for
    half of that time at least: another is begun in its place.
    """
    cordons = [each for each in leavings if _cordons(each, occupants, margins, now)]
    # What somebody has drained opens again once that is undone, and nothing else does.
    cordons.sort(key=lambda each: each.cause is Cause.DRAIN)
    departures: list[Departure] = []
    looks = list(_other_looks(occupants, leavings, margins, now))
    for occupant in occupants:
        moments = [
            (max(moment, _replaced_by(occupant, leaving, drained_at) or moment), leaving.reason)
            for leaving in leavings
            if (moment := _moment(occupant, leaving, occupants, margins, now)) is not None
        ]
        if not moments:
            continue
        moment, reason = min(moments)
        if moment <= now:
            departures.append(Departure(key=occupant.key, reason=reason, spare=occupant.spare))
        else:
            looks.append(moment)
    overdue = any(
        each.cause is Cause.EXPIRY and _kill_at(each, margins) <= now for each in leavings
    )
    return DeparturePlan(
        cordon=cordons[0].reason if cordons else "",
        departures=tuple(departures),
        overdue=tuple(each.key for each in occupants if not each.spare) if overdue else (),
        next_look=min(looks, default=None),
    )


def lead_of(grace: timedelta, saves: bool, margins: Margins, *, hard: bool = True) -> timedelta:
    """Return how long before it must have gone a job has to be asked.

    A `hard` end is one after which the node is no more: the margin is for that.
    """
    lead = grace if grace < _LONGEST_GRACE else _LONGEST_GRACE
    if saves:
        lead += margins.publish
    return lead + margins.end if hard else lead


def needs_a_look(
    grace: timedelta, saves: bool, expires_at: datetime, margins: Margins, now: datetime
) -> bool:
    """Return whether a job that is placed now may have to go before the node is looked at next.

    The next look at a node that takes jobs is at half of the time that was left at the last one:
    so halfway from now at the latest.
    """
    asked_at = expires_at - lead_of(grace, saves, margins)
    return asked_at < now + (expires_at - margins.end - now) / 2


def all_gone_by(occupants: Sequence[Occupant], margins: Margins, now: datetime) -> datetime | None:
    """Return by when jobs that are all asked to leave now have gone; None where none is there."""
    leads = [lead_of(each.grace, each.saves, margins) for each in occupants]
    return now + max(leads) if leads else None


def _moment(
    occupant: Occupant,
    leaving: Leaving,
    occupants: Sequence[Occupant],
    margins: Margins,
    now: datetime,
) -> datetime | None:
    """Return when a job is asked to leave; None for not at all."""
    if leaving.at_once:
        return now
    if leaving.by is None:
        return now if occupant.saves or occupant.spare else None
    last_moment = leaving.by - _lead(occupant, leaving, margins)
    if not leaving.hard or occupant.expected_end <= leaving.by - margins.end:
        return last_moment
    if leaving.cause is Cause.NOTICE:
        return now
    return leaving.by - _longest_lead(occupants, leaving, margins)


def _replaced_by(
    occupant: Occupant, leaving: Leaving, drained_at: datetime | None
) -> datetime | None:
    """Return until when a replica of a service may wait for the one in its place."""
    waits = occupant.replica and leaving.cause is Cause.DRAIN and not leaving.at_once
    if not waits or leaving.by is None or drained_at is None:
        return None
    return drained_at + (leaving.by - drained_at) / 2


def _cordons(
    leaving: Leaving, occupants: Sequence[Occupant], margins: Margins, now: datetime
) -> bool:
    """Return whether a node takes no new job: before its end only when one has to go."""
    return leaving.cause is not Cause.EXPIRY or _cordon_at(leaving, occupants, margins) <= now


def _other_looks(
    occupants: Sequence[Occupant], leavings: Sequence[Leaving], margins: Margins, now: datetime
) -> Iterator[datetime]:
    """Yield when to look again beside the moments at which jobs leave."""
    for leaving in leavings:
        if leaving.by is None or leaving.cause is not Cause.EXPIRY:
            continue
        if not _cordons(leaving, occupants, margins, now):
            # Jobs still come that may need longer to leave: looks come closer and closer.
            cordon_at = _cordon_at(leaving, occupants, margins)
            yield min(max(now + (cordon_at - now) / 2, now + _SOON), cordon_at)
        kill_at = _kill_at(leaving, margins)
        if occupants and kill_at > now:
            yield kill_at
        elif occupants and now < leaving.by + margins.end:
            yield now + _AGAIN


def _cordon_at(leaving: Leaving, occupants: Sequence[Occupant], margins: Margins) -> datetime:
    assert leaving.by is not None
    return leaving.by - _longest_lead(occupants, leaving, margins)


def _longest_lead(occupants: Sequence[Occupant], leaving: Leaving, margins: Margins) -> timedelta:
    leads = (_lead(occupant, leaving, margins) for occupant in occupants)
    return max(leads, default=margins.end)


def _lead(occupant: Occupant, leaving: Leaving, margins: Margins) -> timedelta:
    return lead_of(occupant.grace, occupant.saves, margins, hard=leaving.hard)


def _kill_at(leaving: Leaving, margins: Margins) -> datetime:
    """Return when what is still there has to be killed: the machine goes with it otherwise."""
    assert leaving.by is not None
    return leaving.by - margins.end / 2
