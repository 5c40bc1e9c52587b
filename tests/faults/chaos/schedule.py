"""What happens when: from the seed alone, so that a run can be repeated."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

CALM_AT_END = 15.0
"""Seconds without a new fault before the load ends."""


@dataclass(frozen=True)
class Moment:
    """A fault to come: seconds after the start, its name, and the seed of its own choices."""

    at: float
    fault: str
    seed: int


def moments(seed: int, seconds: float, faults: Sequence[str], every: float) -> list[Moment]:
    """Return faults for so many seconds, one for each `every` seconds on average.

    Each fault comes about as often as the others: they are dealt like cards, not drawn with dice.
    """
    chance = random.Random(seed)
    found: list[Moment] = []
    deck: list[str] = []
    at = chance.expovariate(1 / every)
    while at < seconds - CALM_AT_END:
        if not deck:
            deck = sorted(faults)
            chance.shuffle(deck)
        found.append(Moment(round(at, 2), deck.pop(), chance.randrange(2**31)))
        at += chance.expovariate(1 / every)
    return found
