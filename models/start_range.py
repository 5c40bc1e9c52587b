"""When a job that waits may start: not one moment, where what it waits for may take a while."""

from datetime import datetime

from pydantic import Field

from longshore.models.base import Frozen, Instant
from longshore.models.moment import said_at


class StartRange(Frozen):
    """When a job that waits is estimated to start; the two are equal where one time is told."""

    earliest: Instant
    """One in ten starts sooner."""
    latest: Instant
    """One in ten starts later."""
    nobody_knows: bool = Field(default=False, exclude_if=lambda so: not so)
    """Whether it waits for a job of which nobody has said or learnt when it ends: the range
    is what becomes of most such jobs."""

    def says(self, now: datetime) -> str:
        """Return it in words: ``between 12:10 and 14:00 UTC``, ``at 14:00 UTC``."""
        if self.earliest == self.latest:
            return f"at {said_at(self.latest, now)}"
        return f"between {said_at(max(self.earliest, now), now)} and {said_at(self.latest, now)}"

    @classmethod
    def at(cls, moment: datetime) -> "StartRange":
        """Return the range of one moment."""
        return cls(earliest=moment, latest=moment)


def probably(between: StartRange | None, now: datetime) -> str:
    """Return what goes behind the moment of an estimated start: ``, probably between 12:10 and
    14:00 UTC``; nothing where no range is known."""
    return f", probably {between.says(now)}" if between else ""
