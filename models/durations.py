"""How long jobs of one tenant, name and shape have run, as what it says of the next ones."""

from bisect import bisect_right
from datetime import timedelta
from enum import StrEnum
from math import ceil
from typing import Annotated

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant
from longshore.models.bounds import Range
from longshore.models.units import LONGEST, Duration

NAME_FORM = r"^[a-z0-9._*?/-]{1,127}$"
"""What selects what is learnt by its name: `*` is any characters, `?` is one."""
MOST_POINTS = 40
"""Of a distribution: as many say when all but one in forty have ended."""
_LONGEST = LONGEST // timedelta(seconds=1)


class ExpectedFrom(StrEnum):
    """Where the time comes from that a job is expected to run."""

    KNOWN = "known"
    """Its user states it (`expected_duration`)."""
    LEARNT = "learnt"
    """Earlier jobs of its tenant, name and shape ran so long."""
    UNKNOWN = "unknown"


class Learnt(Frozen):
    """How long a job probably runs, by the runs of those before it."""

    runs: Annotated[int, Range(1, 1_000_000_000)] = Field(ge=1)
    """From so many it is learnt."""
    seconds: tuple[Annotated[int, Range(0, _LONGEST)], ...] = Field(
        min_length=1, max_length=MOST_POINTS
    )
    """Run times over all attempts, ascending; each is as likely as any other."""
    taken_over: int = Field(default=0, ge=0, le=_LONGEST, exclude_if=lambda before: not before)
    """Seconds of its attained service that another job ran, which handed them on to it."""
    limit: int | None = Field(
        default=None, ge=0, le=_LONGEST, exclude_if=lambda limit: limit is None
    )
    """Seconds that an attempt may run."""

    @model_validator(mode="after")
    def _ascend(self) -> "Learnt":
        whole = self.seconds
        if list(whole) != sorted(whole) or not 1 <= whole[0] <= whole[-1] <= _LONGEST:
            raise ValueError("run times are to ascend, from a second to ten years")
        return self

    def left(self, ran: timedelta, part: float = 0.5) -> timedelta | None:
        """Return within how long so large a part of the jobs that have run for `ran` have ended;
        None where none has ever run for longer."""
        first = bisect_right(self.seconds, ran.total_seconds())
        if (longer := len(self.seconds) - first) == 0:
            return None
        within = self.seconds[first + max(ceil(part * longer), 1) - 1]
        return timedelta(seconds=within) - ran

    def ran_before(self, attained: timedelta) -> timedelta:
        """Return what of a job's attained service its own earlier attempts ran."""
        return max(attained - timedelta(seconds=self.taken_over), timedelta(0))


class DurationRow(Frozen):
    """What is learnt of the jobs of one tenant, name and shape."""

    tenant: str
    name: str
    """Of a job of a DAG with that of the DAG before it, such as `nightly/train`."""
    shape: str
    """What they ask for, such as `8 x H100`."""
    runs: int
    """That count: the last ones."""
    last: Instant
    """When the last of these ended."""
    quantiles: tuple[Duration, ...] = Field(min_length=5, max_length=5)
    """One in 10, one in 4, half, 3 in 4, 9 in 10 took no longer."""
    expected: Duration | None
    """What the next one is expected to take; None below twenty runs."""
    used_by: tuple[str, ...] = ()
    """Jobs that wait or run now and are planned with it; at most ten."""
    used: int = 0
    """How many they are."""


class DurationsView(Frozen):
    """What is learnt of how long jobs run."""

    rows: tuple[DurationRow, ...] = ()
    """By tenant, name and shape."""
    needed: int
    """Runs from which on it counts."""
