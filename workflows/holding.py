"""What keeps a job out of placement: a hold of its user, and a `begin` that is to come.

The two are apart, and both have to be over: who releases a job does not end the wait for its
`begin`, and a job whose `begin` comes stays held by its user.
"""

from datetime import datetime
from typing import NamedTuple

from longshore.models.moment import says_begin


class Kept(NamedTuple):
    """What the queue is told."""

    held: bool
    begin_only: bool
    """It is held for its `begin` alone."""


FREE = Kept(held=False, begin_only=False)


class Holding:
    """What keeps one job out of placement."""

    def __init__(self, by_user: bool, reason: str, begins_at: datetime | None) -> None:
        self.by_user = by_user
        self.reason = reason
        """Of its user, for the last hold or release."""
        self.begins_at = begins_at
        """None as soon as it has come."""

    @property
    def kept(self) -> Kept:
        waits = self.begins_at is not None
        return Kept(self.by_user or waits, waits and not self.by_user)

    def begin(self) -> None:
        """Its `begin` has come."""
        self.begins_at = None
        if not self.by_user:
            self.reason = "its begin has come"

    def why(self, now: datetime) -> str:
        """Return why it is kept out, or what ended that."""
        if self.begins_at is None:
            return self.reason
        return says_begin(self.begins_at, now, self.reason if self.by_user else "")
