"""Who pays for each GPU that runs."""

from datetime import datetime

from longshore.scheduling.funding.facts import Facts
from longshore.scheduling.funding.kept import Funded, KeptFunding
from longshore.scheduling.funding.room import Room

__all__ = ["Funded", "evaluate", "evaluated"]


def evaluate(facts: Facts, now: datetime) -> Funded:
    """Return who pays for each GPU in use.

    What still holds stays; what has no payer, or has lost it, is covered anew where there is
    room for all that nobody pays for of an attempt.
    """
    return KeptFunding(facts, now).everything()


def evaluated(facts: Facts, now: datetime) -> tuple[Funded, Room]:
    """Return who pays for each GPU in use, and the room that is left for those that wait."""
    kept = KeptFunding(facts, now)
    return kept.everything(), kept.room
