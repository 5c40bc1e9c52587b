"""How a job stands to its deadline, and what it costs to meet it. Pure.

A deadline is by when a job should have ended. It stops nothing and gives no place in a queue: what
is known of the start and of how long the job takes is held against it, in words. What would bring
the start forward, and at which price, others have decided already (`scheduling.buying.plan`,
`scheduling.preemption.plan`): here the cheapest that is soon enough is named.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from longshore.models.buying import BuyingPolicy
from longshore.models.dag import DagSpec
from longshore.models.deadline import (
    DeadlineCost,
    DeadlineJudgment,
    DeadlineOutlook,
    DeadlineWay,
)
from longshore.models.durations import Learnt
from longshore.models.job import JobSpec, Tier
from longshore.models.job_request import JobRequest
from longshore.models.moment import said_at
from longshore.models.preemption import Way, WayKind
from longshore.models.start_range import StartRange
from longshore.models.text import dollars, format_duration, span
from longshore.models.units import LONGEST
from longshore.scheduling.durations import LATE_PART

_NOTHING = timedelta(0)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Known(Enum):
    """From where it is known how long a job takes."""

    DECLARED = "takes about"
    LEARNT = "takes, as jobs like it did of late, about"


@dataclass(frozen=True)
class LikelyDuration:
    """How long a job takes, as far as anybody knows."""

    likely: timedelta | None = None
    """None where nobody says it, and nothing was learnt of jobs like it."""
    most: timedelta | None = None
    """Of what was learnt: few take longer."""
    limit: timedelta | None = None
    """It is ended after that."""
    known: Known = Known.DECLARED
    learnt: Learnt | None = None

    @classmethod
    def declared(cls, expected: timedelta | None, limit: timedelta | None) -> "LikelyDuration":
        """Return what the job itself says: no longer than it may."""
        if expected is not None and limit is not None:
            expected = min(expected, limit)
        return cls(expected, limit=limit)

    @classmethod
    def of(
        cls, expected: timedelta | None, limit: timedelta | None, learnt: Learnt | None
    ) -> "LikelyDuration":
        """Return what the job itself says, else what was learnt of jobs like it."""
        if expected is not None or learnt is None:
            return cls.declared(expected, limit)
        return cls(limit=limit, known=Known.LEARNT, learnt=learnt).of_one_that_ran(_NOTHING)

    def of_one_that_ran(self, ran: timedelta) -> "LikelyDuration":
        """Return the same, of what was learnt by those alone that ran for longer; as it is where
        none did."""
        if self.learnt is None:
            return self
        left = [self.learnt.left(ran, part) for part in (0.5, LATE_PART)]
        if None in left:
            return self
        likely, most = (
            min(ran + each, self.limit or LONGEST) for each in left if each is not None
        )
        return replace(self, likely=likely, most=most)

    @property
    def for_sure(self) -> timedelta | None:
        """How long counts for the latest start: its limit where nothing else is known."""
        return self.limit if self.likely is None else self.likely

    @property
    def says(self) -> str:
        return f"{self.known.value} {format_duration(_whole(self.likely or _NOTHING))}"


@dataclass(frozen=True)
class JobTimes:
    """What is known of when a job runs."""

    deadline: datetime
    duration: LikelyDuration = LikelyDuration()
    start: StartRange | None = None
    """Of one that waits; None where nobody knows."""
    start_kept: bool = True
    """Whether a place is kept for it from that start on. If not, each newcomer that goes first
    moves it: it is told, and no job is on time or late by it."""
    begins_at: datetime | None = None
    """It does not start before."""
    held: bool = False
    """Somebody keeps it from starting, nobody knows until when."""
    started_at: datetime | None = None
    """Of one that runs."""
    ended_at: datetime | None = None
    of_array: bool = False
    """It has elements that wait, and start one after another: `duration` is of one of them."""


def judge(seen: JobTimes, now: datetime) -> DeadlineJudgment:
    """Return how a job stands to its deadline."""
    if seen.ended_at is not None:
        return _ended(seen, seen.ended_at)
    if seen.started_at is not None and not seen.of_array:
        return _running(seen, seen.started_at, now)
    return _waiting(seen, now)


def latest_start(deadline: datetime, takes: timedelta) -> datetime:
    """Return when a job has to start to have ended by its deadline."""
    return deadline - takes if deadline - _FIRST > takes else _FIRST


def _plus(moment: datetime, duration: timedelta) -> datetime:
    """Return the sum, within the calendar: somebody may have written a start by hand."""
    return moment + duration if _LAST - moment > duration else _LAST


def start_by(
    job: JobRequest,
    deadline: datetime | None,
    duration: LikelyDuration,
    policy: BuyingPolicy,
    now: datetime,
) -> datetime | None:
    """Return the latest start of a job that is bought for, where its deadline has it start sooner
    than the policy of its pool; None where that alone decides. It is that of `judge`; where nobody
    knows how long it takes, by what the job is planned with.

    A deadline makes nobody wait longer for a lower price.
    """
    if deadline is None:
        return None
    patience = policy.flex_deadline if job.tier is Tier.FLEX else policy.fast_patience
    latest = latest_start(deadline, duration.for_sure or job.expected_duration)
    return latest if latest < _plus(job.submitted_at or now, patience) else None


def what_it_costs(
    judgment: DeadlineJudgment, ways: Sequence[Way], duration: LikelyDuration
) -> DeadlineCost:
    """Return which of the ways to start has the job end by its deadline, the cheapest first.

    `ways` are those of the decisions that others make, with their costs; to wait is none of them.
    """
    found = [_way(judgment, way, duration) for way in ways if way.kind is not WayKind.WAIT]
    never = timedelta.max
    found.sort(
        key=lambda way: (
            _NOTHING if way.meets else never if way.late_by is None else way.late_by,
            way.cost_micro_usd,
        )
    )
    remedy = next((way for way in found if way.meets), None)
    return DeadlineCost(ways=tuple(found), remedy=remedy, says=_says_cost(found, remedy))


def _way(judgment: DeadlineJudgment, way: Way, duration: LikelyDuration) -> DeadlineWay:
    latest, takes = judgment.latest_start, duration.for_sure
    meets = latest is not None and way.start is not None and way.start <= latest
    late = None
    if not meets and takes is not None and way.start is not None:
        late = min(_plus(way.start, takes) - judgment.at, LONGEST)
    return DeadlineWay(
        kind=way.kind, title=way.title, start=way.start, cost_micro_usd=way.cost,
        meets=meets, late_by=late,
    )  # fmt: skip


def _says_cost(found: Sequence[DeadlineWay], remedy: DeadlineWay | None) -> str:
    if not found:
        return (
            "nothing is known that has it start sooner: nothing that its pool buys now, and "
            "nobody to stop"
        )
    if remedy is not None:
        beside = [
            f"{way.title} costs {dollars(way.cost_micro_usd)}"
            for way in found
            if way is not remedy and way.meets
        ]
        than = f"; {'; '.join(beside)}" if beside else ""
        return f"{remedy.title} meets it, for {dollars(remedy.cost_micro_usd)}{than}"
    best = found[0]
    late = "nobody knows when that ends" if best.late_by is None else (
        f"that is late by {span(best.late_by)} all the same"
    )  # fmt: skip
    cost = dollars(best.cost_micro_usd)
    return f"nothing that is known meets it: {best.title} costs {cost}, and {late}"


def _ended(seen: JobTimes, ended_at: datetime) -> DeadlineJudgment:
    late = min(ended_at - seen.deadline, LONGEST)
    if late <= _NOTHING:
        says = f"ended {span(-late)} before it"
        return DeadlineJudgment(at=seen.deadline, outlook=DeadlineOutlook.MET, says=says)
    return DeadlineJudgment(
        at=seen.deadline, outlook=DeadlineOutlook.MISSED, late_by=late,
        says=f"missed by {span(late)}",
    )  # fmt: skip


def _running(seen: JobTimes, started_at: datetime, now: datetime) -> DeadlineJudgment:
    duration, deadline = seen.duration.of_one_that_ran(now - started_at), seen.deadline
    takes = duration.likely
    over = takes is not None and _plus(started_at, takes) < now
    end = now if takes is None or over else _plus(started_at, takes)
    limit = duration.limit
    ends_by = None if limit is None else _plus(started_at, limit)

    def found(outlook: DeadlineOutlook, says: str) -> DeadlineJudgment:
        return DeadlineJudgment(at=deadline, outlook=outlook, says=says)

    if end > deadline:
        runs_on = takes is None or over
        why = "it runs still" if runs_on else f"it ends about {said_at(end, now)}"
        return _late(seen, end, why, None, at_least=runs_on)
    if ends_by is not None and ends_by <= deadline:
        return found(DeadlineOutlook.ON_TIME, f"it ends at {said_at(ends_by, now)} at the latest")
    if takes is None:
        return found(DeadlineOutlook.UNKNOWN, _no_duration(None, now))
    if over:
        longer = f"it has run for longer than the {format_duration(_whole(takes))} expected"
        return found(DeadlineOutlook.UNKNOWN, f"nobody knows when it ends: {longer}")
    most = duration.most
    if most is not None and _plus(started_at, most) > deadline:
        told = f"it ends about {said_at(end, now)}, and few like it ran on for up to {span(most)}"
        return found(DeadlineOutlook.AT_RISK, told)
    return found(DeadlineOutlook.ON_TIME, f"it ends about {said_at(end, now)}")


def _waiting(seen: JobTimes, now: datetime) -> DeadlineJudgment:
    deadline, duration = seen.deadline, seen.duration
    floor = now if seen.begins_at is None else max(now, seen.begins_at)
    start = None if seen.held or seen.of_array else seen.start
    earliest = floor if start is None else max(floor, start.earliest)
    most_start = None if start is None else max(earliest, start.latest)
    takes = duration.for_sure
    latest = None if takes is None else latest_start(deadline, takes)

    def found(outlook: DeadlineOutlook, says: str) -> DeadlineJudgment:
        return DeadlineJudgment(at=deadline, outlook=outlook, says=says, latest_start=latest)

    unsure = start is not None and (start.nobody_knows or not seen.start_kept)
    # Where nobody knows when those in its way end, or who goes first yet, only what would be late
    # without them is late.
    known, least = (None, floor) if unsure else (start, earliest)
    end = least if duration.likely is None else _plus(least, duration.likely)
    if end > deadline:
        why = _why_late(seen, known, least, now)
        sure = known is not None and known.earliest == known.latest and duration.likely is not None
        return _late(seen, end, why, latest, at_least=not sure)
    if seen.of_array:
        return found(DeadlineOutlook.UNKNOWN, "nobody knows when the last of its elements ends")
    by = "" if latest is None else f"it has to start by {said_at(latest, now)}"
    if seen.held:
        return found(DeadlineOutlook.UNKNOWN, f"it is held{by and '; '}{by}")
    if duration.likely is None and (latest is None or most_start is None or most_start > latest):
        return found(DeadlineOutlook.UNKNOWN, _no_duration(latest, now))
    assert latest is not None
    if most_start is None:
        then = f"begins at {said_at(floor, now)}, and what it finds then nobody knows"
        why = then if floor > now else "nobody knows when it starts"
        return found(DeadlineOutlook.UNKNOWN, f"{why}; {by}")
    told = f"may start {_when(earliest, most_start, now)}; {by}"
    if not seen.start_kept:
        return found(DeadlineOutlook.UNKNOWN, f"no place is kept for it yet: it {told}")
    if most_start > latest and unsure:
        why = "it waits for a job of which nobody knows when it ends"
        return found(DeadlineOutlook.UNKNOWN, f"{why}: it {told}")
    if most_start > latest:
        return found(DeadlineOutlook.AT_RISK, told)
    if duration.most is not None and _plus(most_start, duration.most) > deadline:
        few = f"few like it took up to {span(duration.most)}"
        return found(DeadlineOutlook.AT_RISK, f"{told}, and {few}")
    return found(DeadlineOutlook.ON_TIME, told)


def _late(
    seen: JobTimes, end: datetime, why: str, latest: datetime | None, *, at_least: bool
) -> DeadlineJudgment:
    by = min(end - seen.deadline, LONGEST)
    least = "at least " if at_least else ""
    return DeadlineJudgment(
        at=seen.deadline, outlook=DeadlineOutlook.LATE, late_by=by, at_least=at_least,
        latest_start=latest, says=f"late by {least}{span(by)}: {why}",
    )  # fmt: skip


def _why_late(seen: JobTimes, start: StartRange | None, earliest: datetime, now: datetime) -> str:
    takes = "" if seen.duration.likely is None else f", and {seen.duration.says}"
    one = "an element" if seen.of_array else "it"
    if start is not None:
        return f"{one} may start {_when(earliest, max(earliest, start.latest), now)}{takes}"
    if earliest > now:
        return f"{one} begins at {said_at(earliest, now)} at the earliest{takes}"
    return f"{one} has not started{takes}"


def _no_duration(latest: datetime | None, now: datetime) -> str:
    why = "nobody says how long it takes (`expected_duration`)"
    if latest is None:
        return why
    return f"{why}; for all of its time limit it has to start by {said_at(latest, now)}"


def _when(earliest: datetime, latest: datetime, now: datetime) -> str:
    if latest <= now:
        return "now"
    if earliest == latest:
        return f"at {said_at(earliest, now)}"
    return f"between {said_at(max(earliest, now), now)} and {said_at(latest, now)}"


def _whole(duration: timedelta) -> timedelta:
    """Return a duration in whole seconds, where it has some."""
    return duration - duration % timedelta(seconds=1) or duration


def deadlines_in_vain(spec: JobSpec | DagSpec, now: datetime) -> tuple[str, ...]:
    """Return which deadlines are past, or cannot be met whatever becomes of their jobs."""
    if isinstance(spec, JobSpec):
        jobs = {"": spec}
    else:
        jobs = {f"jobs.{name}.": job.spec for name, job in spec.jobs.items()}
    return tuple(
        f"{at}deadline: {why}" for at, job in jobs.items() if (why := job.why_in_vain(now))
    )
