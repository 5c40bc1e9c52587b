"""Strangers at the exchange: seeded asks and bids around prices that return to their mean.

Pure: the same seed, profile and minutes give the same orders.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from longshore.models.market import Side
from longshore.simulation.market.catalogue import SKU
from longshore.simulation.market.rates import Rate
from longshore.simulation.market.schedule import Schedule

EVERY = 5
"""Minutes between two rounds of new orders."""
SPIKE = 2.5
"""What a spike multiplies prices with."""
MOST_SPIKED = 3.0
"""No price is more often its mean, however many spikes come."""
_STEP = 15_000
"""Micro-dollars: prices of a GPU-hour are multiples of 1.5 cents, which the grain can express."""
_PULL = 0.08
_NOISE = 0.012
_ASK_HOURS = (4, 8, 12, 24, 24, 48, 72, 168, 336)
_BID_HOURS = (2, 4, 8, 12, 24, 24, 48)
_NODES = (1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16)


class Profile(StrEnum):
    """How busy and how steady the simulated market is."""

    CALM = "calm"
    SPIKE = "spike"
    """As calm, with prices that jump every few hours."""
    THIN = "thin"
    """Few orders, far apart."""
    EMPTY = "empty"
    """Nobody else is there."""


@dataclass(frozen=True)
class Stranger:
    """An order of somebody else, and until which minute it stays."""

    sku: str
    side: Side
    price: Rate
    schedule: Schedule
    until: int


class Background:
    """Makes the orders of strangers, a round at a time."""

    def __init__(self, seed: int, skus: Sequence[SKU], profile: Profile) -> None:
        self.profile = profile
        self._skus = skus
        self._random = {sku.id: random.Random(f"{seed}/{sku.id}") for sku in skus}
        self._mean = {sku.id: sku.mean_cents * 10_000.0 for sku in skus}
        self._middle = dict(self._mean)

    def opening(self, minute: int) -> Iterator[Stranger]:
        """Yield what is on the book when the market opens."""
        if self.profile is Profile.EMPTY:
            return
        asks, bids = (4, 2) if self.profile is Profile.THIN else (22, 12)
        for sku in self._skus:
            for _ in range(asks):
                yield self._ask(sku, minute)
            for _ in range(bids):
                yield self._bid(sku, minute)

    def round(self, minute: int) -> Iterator[Stranger]:
        """Move the prices, and yield the orders that arrive now."""
        if self.profile is Profile.EMPTY:
            return
        for sku in self._skus:
            self._move(sku)
            chance = self._random[sku.id]
            many = 0.4 if self.profile is Profile.THIN else 2.6
            for _ in range(_about(chance, many)):
                yield self._ask(sku, minute)
            for _ in range(_about(chance, many / 2)):
                yield self._bid(sku, minute)

    def spike(self) -> None:
        """Let every price jump; it returns to its mean by and by."""
        for sku in self._middle:
            most = MOST_SPIKED * self._mean[sku]
            self._middle[sku] = min(self._middle[sku] * SPIKE, most)

    def _move(self, sku: SKU) -> None:
        mean = sku.mean_cents * 10_000.0
        chance = self._random[sku.id]
        middle = self._middle[sku.id]
        middle += (mean - middle) * _PULL + chance.gauss(0, _NOISE) * mean
        if self.profile is Profile.SPIKE and chance.random() < EVERY / (4 * 60):
            middle *= SPIKE
        self._middle[sku.id] = min(max(middle, mean / 4), mean * MOST_SPIKED)

    def _ask(self, sku: SKU, minute: int) -> Stranger:
        chance = self._random[sku.id]
        hour = minute // 60
        begin = hour if chance.random() < 0.75 else hour + chance.randint(1, 36)
        end = begin + chance.choice(_ASK_HOURS) + 1
        price = self._price(sku, 1 + self._distance(chance))
        schedule = Schedule.of(begin * 60, end * 60, chance.choice(_NODES))
        return Stranger(sku.id, Side.SELL, price, schedule, minute + chance.randint(20, 90))

    def _bid(self, sku: SKU, minute: int) -> Stranger:
        chance = self._random[sku.id]
        begin = minute // 60 + chance.choice((0, 0, 0, 0, 1, 1, 2, 6, 24))
        end = begin + chance.choice(_BID_HOURS)
        price = self._price(sku, 1 - self._distance(chance))
        schedule = Schedule.of(begin * 60, end * 60, chance.choice(_NODES))
        until = min(minute + chance.randint(20, 90), end * 60)
        return Stranger(sku.id, Side.BUY, price, schedule, until)

    def _price(self, sku: SKU, factor: float) -> Rate:
        steps = max(round(self._middle[sku.id] * factor / _STEP), 1)
        return steps * _STEP * sku.gpus // 60

    def _distance(self, chance: random.Random) -> float:
        """Return how far from the middle a price is; some are over it, and trade at once."""
        middle, wide = (0.12, 0.08) if self.profile is Profile.THIN else (0.04, 0.025)
        return min(max(chance.gauss(middle, wide), -0.05), 0.6)


def _about(chance: random.Random, mean: float) -> int:
    whole = int(mean)
    return whole + (chance.random() < mean - whole)
