"""Whether somebody would pay for a job if something were otherwise: it is tried."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime
from math import gcd
from typing import NamedTuple

from longshore.scheduling.funding.cover import cover
from longshore.scheduling.funding.evaluate import evaluated
from longshore.scheduling.funding.facts import Facts, Use
from longshore.scheduling.funding.kept import KeptFunding
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.turns import fund

GoOn = Callable[[], None]
"""Raises where nobody waits for an answer any more; called before each try."""


def always() -> None:
    """Go on whoever waits."""


class Turn(NamedTuple):
    """A job that nobody pays for, at its turn."""

    room: Room
    """What it finds."""
    use: Use
    ahead: Sequence[Use]
    """Who waits before it."""
    go_on: GoOn = always

    def facts(self) -> Facts:
        """Return the facts as they are before those turns, without the job."""
        # Who waits is asked anew, from what is stored. Of one that runs others may have come to
        # be paid for in its place: that holds.
        return self.room.facts if self.ahead else held_now(self.room, self.use)

    def paid(self, facts: Facts, at: datetime) -> bool:
        """Return whether somebody would pay if all were so: what runs and has no payer comes
        first, and then those ahead of it."""
        self.go_on()
        room = KeptFunding(facts, at).room
        fund(room, self.ahead)
        return cover(room, self.use).funded

    def least(self, changed: Callable[[int], Facts], most: int | None = None) -> int | None:
        """Return with how much more at least somebody would pay, in thousandths: of what
        is enough for the job alone others may take first. None where no more helps."""
        now = self.room.now
        others = self._wanted_first(changed(0))
        if others is None:
            return 0
        top = others + sum(share.amount for share in self.use.shares)
        top = top if most is None else min(top, most)
        if self.ahead and not self._replace(ahead=()).paid(changed(top), now):
            return None  # what does not help the job alone is not tried behind a long queue
        uses = (self.use, *self.ahead, *self.room.facts.uses)
        step = gcd(*(share.milli for use in uses for share in use.shares))
        tries = range(step, top + 1, step)
        found = bisect_left(tries, True, key=lambda more: self.paid(changed(more), now))
        return tries[found] if found < len(tries) else None

    def _wanted_first(self, facts: Facts) -> int | None:
        """Return how much others want first for which nobody pays; None where somebody pays for
        the job."""
        self.go_on()
        funded, room = evaluated(facts, self.room.now)
        covers = fund(room, self.ahead)
        if cover(room, self.use).funded:
            return None
        others = sum(split.unfunded for split in funded.splits.values())
        return others + sum(
            share.amount
            for use in self.ahead
            if not covers[use.job_id].funded
            for share in use.shares
        )


def held_now(room: Room, use: Use) -> Facts:
    """Return the facts as they are at the job's turn, but for itself."""
    attempt = use.job_id, use.attempt
    charges = [paid.charge for held in room.held.values() for paid in held.values()]
    uses = tuple(each for key, each in room.uses.items() if key != attempt)
    return room.facts._replace(uses=uses, charges=charges)
