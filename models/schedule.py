"""Schedules: a job or a DAG that starts again and again, by cron lines or by an interval."""

from collections.abc import Sequence
from datetime import date, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore.models.base import Frozen, Instant, Name, Wire
from longshore.models.bounds import Most
from longshore.models.units import Duration

CATCH_UP = timedelta(minutes=10)
"""How late a run may begin after an outage; the server's own default is a year."""
MOST_TIMES = 1000
"""Runs of one backfill: as many as the server keeps in its buffer."""
MOST_AGAIN = 50
"""ScheduleTimes that the run of one time may be started, by backfills."""
MOST_LINES = 100
"""Cron lines of a schedule."""
LONGEST_LINE = 200
"""Characters of one."""
_LONGEST_ZONE = 100


def never_succeeded(ends: Sequence[str]) -> bool:
    """Return whether the last runs of a schedule, three at least, have all failed."""
    return len(ends) >= 3 and set(ends) == {"FAILED"}


class Overlap(StrEnum):
    """What happens to a run that is due while the one before has not ended."""

    SKIP = "skip"
    """It is left out."""
    BUFFER_ONE = "buffer-one"
    """It begins after the other; of several only the first."""
    BUFFER_ALL = "buffer-all"
    """All begin, one after the other."""
    CANCEL_OTHER = "cancel-other"
    """The other is cancelled, and it begins after that has ended."""
    ALLOW_ALL = "allow-all"
    """Both run."""


class Kind(StrEnum):
    """What a schedule starts."""

    JOB = "job"
    DAG = "dag"


_Line = Annotated[str, Most(LONGEST_LINE, on_arrival=True, one_line=True)]
_Zone = Annotated[str, Most(_LONGEST_ZONE, on_arrival=True, one_line=True)]


class ScheduleTimes(Frozen):
    """When a schedule starts: cron lines or an interval."""

    # A schedule that is there is read as it is: who takes a new one asks
    # `scheduling.schedules.refusals`, which knows these bounds.

    cron: Annotated[tuple[_Line, ...], Most(MOST_LINES, on_arrival=True)] = ()
    """Lines of five fields, or of six with a year last. Without them give `every`."""
    every: Duration | None = None
    """Between two runs, counted from 1970-01-01 in UTC; a minute at least."""
    offset: Duration = timedelta(0)
    """Added to each of these."""
    timezone: _Zone | None = None
    """Time zone of the cron lines, e.g. Europe/Berlin. Default: UTC."""


class Oddity(StrEnum):
    """What is odd about a time of the day on a day when the clock changes."""

    NEVER = "never"
    """No run: mostly since the time does not come."""
    TWICE = "twice"
    """A second run, since the time comes twice."""
    ONCE = "once"
    """One run of a line of every hour, though the time comes twice."""


class OddDay(Frozen):
    """A day on which the server starts a schedule's runs never, or twice, at some times."""

    day: date
    oddity: Oddity
    times: tuple[str, ...]
    """Of the day, in the schedule's zone: ``02:30``."""


class ScheduleRun(Wire):
    """One run of a schedule."""

    at: Instant
    """The time that it was due, or was triggered."""
    id: str
    """Of its job or DAG."""
    state: str
    """That of the job or DAG; where the database does not know it, as the server has the run."""
    ended: bool
    reason: str = ""
    started_at: Instant
    """When the server started it."""
    ended_at: Instant | None = None
    simulated: bool = False
    """It runs, or ran, on simulated GPUs."""


class ScheduleView(Wire):
    """A schedule in full."""

    name: Name
    kind: Kind
    what: str
    """The name of its job or DAG."""
    tenant: str
    owner: str = ""
    """Who made it, as their machine calls them."""
    times: ScheduleTimes
    overlap: Overlap
    catch_up: Duration
    pause_on_failure: bool = False
    paused: bool
    note: str = ""
    """Why it was paused, or goes on."""
    created_at: Instant
    updated_at: Instant | None = None
    next: tuple[Instant, ...] = ()
    """The next times, ten at most; as if it were not paused."""
    runs: tuple[ScheduleRun, ...] = ()
    """The last ones, newest first, ten at most."""
    started: int = 0
    """Runs that it has started."""
    skipped: int = 0
    """Runs that were left out since another had not ended."""
    missed: int = 0
    """Runs that were left out since they were late by more than `catch_up`."""
    buffered: int = 0
    """Runs that wait for another to end."""
    dropped: int = 0
    """Runs for which the server's buffer had no room."""
    trouble: str = ""
    """What the server or the database does not know, or says is wrong with it."""

    @property
    def running(self) -> tuple[ScheduleRun, ...]:
        return tuple(run for run in self.runs if not run.ended)

    @property
    def simulated(self) -> bool:
        """Whether any of its last runs is on simulated GPUs."""
        return any(run.simulated for run in self.runs)

    @property
    def never_succeeds(self) -> bool:
        """Whether its last runs, three at least, have all failed."""
        return never_succeeded([run.state for run in self.runs if run.ended])


class ScheduleCreation(Wire):
    """The answer to a create."""

    name: Name
    created: bool
    """False where it was there, and for a dry run."""
    replaced: bool = False
    """It was there with other content, and has this one now."""
    dry_run: bool = False
    next: tuple[Instant, ...]
    """The next ten times."""
    odd_days: tuple[OddDay, ...] = ()
    """Of the next year."""
    warnings: tuple[str, ...] = ()


class ScheduleTrigger(Wire):
    """The answer to a trigger."""

    name: Name
    id: str | None = None
    """Of the job or DAG that it started; null where the run waits for another to end."""


class ScheduleBackfill(Wire):
    """The answer to a backfill."""

    name: Name
    times: tuple[Instant, ...] = Field(min_length=1)
    """For which runs were asked for, oldest first."""
    again: tuple[str, ...] = ()
    """Ids of jobs or DAGs of these times that had succeeded."""
    dry_run: bool = False
