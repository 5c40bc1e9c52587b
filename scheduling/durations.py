"""How long a job will probably run: as its user states, else as those before it ran, else unknown.

Jobs of one tenant, name and shape run about as long as each other. What is learnt is a
distribution and not a mean: of a job that has run for a while only those ends count that came
later, so one that overruns what was expected gets a new end. Pure.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

from longshore.models.durations import MOST_POINTS, ExpectedFrom, Learnt
from longshore.models.job import ASSUMED_DURATION, JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.text import count, span
from longshore.models.units import LONGEST

LEAST_RUNS = 20
"""Of fewer nothing is learnt."""
MOST_RUNS = 200
"""The last ones count: what a name stands for changes."""
REMEMBERED = timedelta(days=90)
PLANNED_PART = 0.75
"""A job is planned to end when so large a part of those before it had: a start that is kept for
another holds then more often than not."""
EARLY_PART, LATE_PART = 0.1, 0.9
"""Between these a time is told where a range is: eight in ten are in it."""

_STEPS = (86_400, 21_600, 10_800, 3600, 1800, 600, 300, 60, 30, 10, 5, 1)
"""Seconds."""
_NONE = timedelta(0)
_SECOND = timedelta(seconds=1)
_OVERDUE = timedelta(minutes=1)
"""What has overrun its time runs on for so long at least."""
_TAIL_POINTS = 20


def shape_of(spec: JobSpec) -> str | None:
    """Return what tells apart jobs of one name that may run differently long; None of one that is
    not learnt from: a malleable job takes another time on each size."""
    if spec.malleable is not None:
        return None
    groups = f", {spec.gang.group_gpus} a group" if spec.gang and spec.gang.group_gpus else ""
    return spec.gpu.text(spec.gpu_type) + groups


def learn(runs: Sequence[float]) -> Learnt | None:
    """Return what run times in seconds, in any order, say of the next job; None of too few."""
    if len(runs) < LEAST_RUNS:
        return None
    whole = sorted(map(_rounded, runs))
    points = min(len(whole), MOST_POINTS)
    at = (ceil(point * len(whole) / points) - 1 for point in range(1, points + 1))
    return Learnt(runs=len(whole), seconds=tuple(whole[place] for place in at))


def _rounded(seconds: float) -> int:
    """Return a time that is longer by a tenth at most: jobs of which about the same is expected
    ask a cycle for the same."""
    whole, longest = max(ceil(seconds), 1), LONGEST // _SECOND
    step = next((step for step in _STEPS if 10 * step <= whole), 1)
    return min(-(-whole // step) * step, longest)


def expected_from(job: JobRequest) -> ExpectedFrom:
    """Return where the time comes from that a job is expected to run."""
    if job.duration_known:
        return ExpectedFrom.KNOWN
    return ExpectedFrom.UNKNOWN if job.learnt is None else ExpectedFrom.LEARNT


def is_unknown(job: JobRequest) -> bool:
    """Return whether nobody has said, or learnt, for how long a job will run."""
    return expected_from(job) is ExpectedFrom.UNKNOWN


def time_left(job: JobRequest, ran: timedelta) -> timedelta | None:
    """Return for how long a job will probably hold GPUs that has held them for `ran` in all.

    None where nobody knows, and of one that has run longer than its user said, or than any
    before it: who is overdue did not know.
    """
    if job.duration_known:
        left = job.expected_duration - ran
        return left if left > _NONE else None
    return None if job.learnt is None else job.learnt.left(ran)


def with_learnt(job: JobRequest, learnt: Learnt | None) -> JobRequest:
    """Return a job as it is planned with what is learnt; as it is where its user states how long
    it takes, where nothing is learnt, and where it has outrun that."""
    if learnt is None or job.duration_known:
        return job
    left = learnt.left(learnt.ran_before(job.attained), PLANNED_PART)
    new: dict[str, object] = {"learnt": learnt}
    if left is not None:
        limit = LONGEST if learnt.limit is None else timedelta(seconds=learnt.limit)
        new["expected_duration"] = min(left, limit)
    return job.model_copy(update=new)


def ends_of(
    learnt: Learnt | None, placed_at: datetime, attained: timedelta
) -> tuple[datetime, ...]:
    """Return when an attempt may end that was placed then, each as likely as any other."""
    if learnt is None:
        return ()
    ran = learnt.ran_before(attained)
    lefts = [timedelta(seconds=seconds) - ran for seconds in learnt.seconds]
    if learnt.limit is not None:
        lefts = [min(left, timedelta(seconds=learnt.limit)) for left in lefts]
    return tuple(placed_at + left for left in lefts if left > _NONE)


def end_at(expected: datetime, ends: Sequence[datetime], now: datetime) -> datetime:
    """Return when a job will probably end that has not ended by now: as was `expected` when it
    was placed, where nothing is learnt or all before it had ended sooner."""
    first = bisect_right(ends, now)
    longer = len(ends) - first
    return ends[first + max(ceil(PLANNED_PART * longer), 1) - 1] if longer else expected


class RunEnd(NamedTuple):
    """When a running job will probably end."""

    at: datetime
    nobody_knows: bool
    """Whether nobody has stated it, and nothing is learnt of it; or that was wrong."""
    unlimited: datetime
    """When it would, were there no time limit."""


def run_end(
    expected: datetime,
    ends: Sequence[datetime],
    since: datetime | None,
    latest: datetime | None,
    now: datetime,
) -> RunEnd:
    """Return when a job that runs now will probably end; `expected` is when it was to end when it
    was placed, and the others are those of `RunningJob`.

    What nobody knows lasts as long again as it has run, and as is assumed at least: what has run
    for a day will most likely run another (`scheduling.rank`). Who has overrun what its user said
    lasts as long again as it has overrun. A time limit ends either.
    """
    if ends and now < ends[-1]:
        end = end_at(expected, ends, now)
        return RunEnd(end, False, end)
    if since is not None:
        end = max(expected, now + max(now - since, ASSUMED_DURATION))
    elif now < expected:
        return RunEnd(expected, False, expected)
    else:
        end = now + max(now - expected, _OVERDUE)
    if latest is not None and latest < end:
        return RunEnd(latest if now < latest else now + _OVERDUE, now < latest, end)
    return RunEnd(end, True, end)


def tail_of(end: datetime, now: datetime, latest: datetime | None) -> tuple[datetime, ...]:
    """Return when a job may end of which nobody knows it, each as likely; `end` is as likely too
    late as too soon, but for the time limit, which ends it at the `latest`.

    Its chance to end falls as 1 / time run: that it runs on for x times as long as it has then has
    the chance 1 / (1 + x).
    """
    parts = ((point + 0.5) / _TAIL_POINTS for point in range(_TAIL_POINTS))
    found = (now + (end - now) * (part / (1 - part)) for part in parts)
    return tuple(found) if latest is None else tuple(min(each, latest) for each in found)


def says_learnt(learnt: Learnt) -> str:
    """Return what is learnt in words: ``learnt from 34 runs: 1h 10m, 9 in 10 under 2h``."""
    half, most = learnt.left(_NONE, 0.5), learnt.left(_NONE, LATE_PART)
    assert half is not None
    assert most is not None
    return f"learnt from {count(learnt.runs, 'run')}: {span(half)}, 9 in 10 under {span(most)}"
