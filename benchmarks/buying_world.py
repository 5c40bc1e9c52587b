"""Days of books, offers and arrivals, made from a seed: the same for every way to buy."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from models.buying import BookQuote, MarketView, PurchasePlan
from models.job import Tier
from models.market import Capabilities, Level, Offer, OrderBook, Side, Window
from models.money import MICRO
from models.placement import JobRequest
from simulation.market.background import EVERY, Background, Profile
from simulation.market.catalogue import SKUS

START = datetime(2026, 11, 2, tzinfo=UTC)
STEP = timedelta(minutes=EVERY)
STARTUP = timedelta(minutes=5)
FLEX_WITHIN = timedelta(hours=12)
"""A FLEX job has to start so long after it was submitted."""
KIND = "8xH100-80GB"
MEAN_PRICE = SKUS[0].mean_cents * MICRO // 100
"""Around which the exchange moves, in micro-dollars per GPU-hour."""

_JOBS_AN_HOUR = 3.0
SIZES, _WEIGHTS = (1, 2, 4, 8), (40, 25, 20, 15)
_EXCHANGE = Capabilities(
    order_book=True, fixed_window=True, resellable=True, idempotent=True, fast_fabric=True,
    lot_gpus=8, grain=timedelta(minutes=1),
)  # fmt: skip
_CLOUD = Capabilities(offer_list=True)
_FIRST_MINUTE = int(START.timestamp()) // 60


@dataclass(frozen=True)
class Ask:
    """Somebody's offer of nodes at the exchange, from a step to another (not included)."""

    number: int
    price: int
    nodes: int
    start: datetime
    end: datetime
    seen_from: int
    seen_until: int


@dataclass(frozen=True)
class World:
    """What happens, whoever buys."""

    profile: Profile
    seed: int
    days: float

    @property
    def steps(self) -> int:
        """Steps until the last arrival; then what waits is served."""
        return int(timedelta(days=self.days) / STEP)

    @property
    def last_step(self) -> int:
        return self.steps + int(timedelta(hours=30) / STEP)

    @cached_property
    def jobs(self) -> tuple[JobRequest, ...]:
        """In the order of their arrival: more by day than by night."""
        chance = random.Random(f"jobs/{self.seed}")
        found: list[JobRequest] = []
        for step in range(self.steps):
            hour = step * EVERY / 60 % 24
            busy = 1.5 if 8 <= hour < 20 else 0.5
            if chance.random() < _JOBS_AN_HOUR * busy * EVERY / 60:
                found.append(_a_job(chance, len(found), START + step * STEP))
        return tuple(found)

    @cached_property
    def asks(self) -> tuple[Ask, ...]:
        """Every ask of the days that does not trade at once with a bid."""
        background = Background(self.seed, SKUS[:1], self.profile)
        found: list[Ask] = []
        bids: list[tuple[int, int]] = []
        for step in range(self.last_step):
            minute = _FIRST_MINUTE + step * EVERY
            arrived = list(background.round(minute) if step else background.opening(minute))
            bids = [(price, until) for price, until in bids if until > minute]
            bids += [(s.price, s.until) for s in arrived if s.side is Side.BUY]
            highest = max((price for price, _ in bids), default=0)
            for stranger in arrived:
                if stranger.side is Side.SELL and stranger.price > highest:
                    (begin, end, nodes), *_ = stranger.schedule.steps
                    found.append(
                        Ask(
                            number=len(found),
                            price=-(-stranger.price * 60 // 8),
                            nodes=nodes,
                            start=_moment(begin),
                            end=_moment(end),
                            seen_from=step,
                            seen_until=step + -(-(stranger.until - minute) // EVERY),
                        )
                    )
        return tuple(found)

    @cached_property
    def offers(self) -> tuple[tuple[Offer, ...], ...]:
        """By step. Prices return to their mean; rows come and go every half hour."""
        chance = random.Random(f"offers/{self.seed}/{self.profile}")
        there = {Profile.CALM: 0.9, Profile.SPIKE: 0.8}.get(self.profile, 0.35)
        level, rows = 1.0, dict.fromkeys(SIZES, True)
        found: list[tuple[Offer, ...]] = []
        for step in range(self.last_step):
            level += (1 - level) * 0.05 + chance.gauss(0, 0.008)
            if self.profile is Profile.SPIKE and chance.random() < EVERY / (8 * 60):
                level *= 1.6
            if step % (30 // EVERY) == 0:
                rows = {size: chance.random() < there for size in SIZES}
            price = int(1.12 * level * MEAN_PRICE)
            found.append(tuple(_a_row(size, price) for size in SIZES if rows[size]))
        return tuple(found)

    @cached_property
    def asks_by_step(self) -> tuple[tuple[Ask, ...], ...]:
        seen: list[list[Ask]] = [[] for _ in range(self.last_step)]
        for ask in self.asks:
            for step in range(ask.seen_from, min(ask.seen_until, self.last_step)):
                seen[step].append(ask)
        return tuple(map(tuple, seen))


@dataclass
class Shop:
    """What is left of a world's asks for one buyer."""

    world: World
    taken: dict[int, int] = field(default_factory=dict[int, int])
    """Nodes, by ask."""

    def markets(self, step: int) -> tuple[MarketView, MarketView]:
        now = START + step * STEP
        asks = tuple(
            Level(price=ask.price, gpus=8 * left, start=ask.start, end=ask.end)
            for ask in self.world.asks_by_step[step]
            if (left := self._left(ask)) > 0
        )
        book = OrderBook(
            provider="exchange", instance_type=KIND, lot=8, asks=asks, observed_at=now,
            simulated=True,
        )  # fmt: skip
        quote = BookQuote(instance_type=KIND, answer=book)
        return (
            MarketView(
                provider="exchange", capabilities=_EXCHANGE, quotes=(quote,), observed_at=now
            ),
            MarketView(
                provider="cloud", capabilities=_CLOUD, offers=self.world.offers[step],
                observed_at=now,
            ),
        )  # fmt: skip

    def take(self, plan: PurchasePlan, step: int) -> int:
        """Fill an order for a window from the cheapest ask on; return its cost."""
        assert plan.window is not None
        wanted, cost = plan.nodes, 0
        asks = self.world.asks_by_step[step]
        for ask in sorted(asks, key=lambda ask: (ask.price, ask.number)):
            if wanted and Window(start=ask.start, end=ask.end).covers(plan.window):
                nodes = min(self._left(ask), wanted)
                self.taken[ask.number] = self.taken.get(ask.number, 0) + nodes
                wanted -= nodes
                cost += int(nodes * 8 * ask.price * plan.window.hours)
        assert not wanted, "an order was larger than its book"
        return cost

    def _left(self, ask: Ask) -> int:
        return ask.nodes - self.taken.get(ask.number, 0)


def start_by(job: JobRequest) -> datetime:
    """Return the latest start of a FLEX job."""
    assert job.submitted_at is not None
    return job.submitted_at + FLEX_WITHIN


def _a_job(chance: random.Random, number: int, at: datetime) -> JobRequest:
    hours = min(max(chance.lognormvariate(0.5, 0.8), 0.25), 10)
    (gpus,) = chance.choices(SIZES, _WEIGHTS)
    return JobRequest(
        id=f"job-{number:04d}", tier=Tier.FAST if chance.random() < 0.6 else Tier.FLEX,
        gpus=gpus, gpu_type="H100", vram_per_gpu=80, cpus=gpus, ram=8 * gpus,
        expected_duration=timedelta(minutes=5 * round(12 * hours)), submitted_at=at,
    )  # fmt: skip


def _a_row(gpus: int, price: int) -> Offer:
    return Offer(
        provider="cloud", id=f"row-{gpus}", instance_type=f"{gpus}xH100-80GB", gpus=gpus,
        price=price, startup=STARTUP, simulated=True,
    )  # fmt: skip


def _moment(minute: int) -> datetime:
    return START + timedelta(minutes=minute - _FIRST_MINUTE)
