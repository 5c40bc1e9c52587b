"""By when a job is to have ended: what a file may say of it, and what is judged of it."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from longshore.models.base import Instant, Reason, Wire, known_or
from longshore.models.preemption import WayKind
from longshore.models.text import span
from longshore.models.units import Duration

_NOTHING = timedelta(0)


class DeadlineOutlook(StrEnum):
    """How a job stands to its deadline."""

    ON_TIME = "on-time"
    """It ends before, as far as anybody knows."""
    AT_RISK = "at-risk"
    """It may end after it: its start, or how long it takes, is known as a range."""
    LATE = "late"
    """It ends after it, whatever happens by itself."""
    UNKNOWN = "unknown"
    """Its start, or how long it takes, is not known."""
    MET = "met"
    """It has ended by then, however it did."""
    MISSED = "missed"
    """It has ended after it."""

    @property
    def told(self) -> str:
        """The same in words: ``on time``."""
        return self.value.replace("-", " ")


class DeadlineJudgment(Wire):
    """How a job stands to its deadline, at one moment."""

    at: Instant
    """The deadline."""
    outlook: Annotated[DeadlineOutlook, known_or(DeadlineOutlook, DeadlineOutlook.UNKNOWN)]
    late_by: Duration = _NOTHING
    """By how much it will end, or has ended, after it."""
    at_least: bool = False
    """True where that may become more."""
    latest_start: Instant | None = None
    """Of one that waits: when it has to start at the latest; null where nobody knows how long it
    takes."""
    says: Reason
    """The answer in words."""
    late_since: Instant | None = None
    """When a cycle first found that it would be late as it waits; null where none did."""

    @property
    def told(self) -> str:
        """The answer with how the job stands: ``at risk: may start ...``."""
        outlook = self.outlook.told
        return self.says if self.says.startswith(outlook) else f"{outlook}: {self.says}"

    @property
    def brief(self) -> str:
        """The same in two words: ``late by 12m``, ``on time``."""
        if not self.late_by:
            return self.outlook.told
        least = "over " if self.at_least else ""
        return f"{self.outlook.told} by {least}{span(self.late_by)}"


class DeadlineWay(Wire):
    """One way to have a job start sooner. Amounts are micro-dollars."""

    kind: WayKind
    title: str
    start: Instant | None = None
    """When it would start; null where nobody knows."""
    cost_micro_usd: int
    """What is paid, or what those lose that are stopped."""
    meets: bool = False
    """Whether the job would end by its deadline."""
    late_by: Duration | None = None
    """By how much it would be late all the same; null where nobody knows."""


class DeadlineCost(Wire):
    """What it costs to meet a deadline that is not met by waiting."""

    ways: tuple[DeadlineWay, ...] = ()
    """Those that meet it first, and of these the cheapest."""
    remedy: DeadlineWay | None = None
    """The cheapest that meets it; null where none does."""
    says: Reason
    """The answer in words."""
