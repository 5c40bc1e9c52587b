"""Days of books, offers and arrivals, made from a seed: the same for every way to buy."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from benchmarks.buying_troubles import REAL, Troubles
from longshore.models.buying import BookQuote, JobEnd, MarketView, PurchasePlan
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.market import Capabilities, Level, Offer, OrderBook, Side, Window
from longshore.models.money import MICRO
from longshore.simulation.market.background import EVERY, Background, Profile, Stranger
from longshore.simulation.market.catalogue import SKUS

START = datetime(2026, 11, 2, tzinfo=UTC)
STEP = timedelta(minutes=EVERY)
STARTUP = timedelta(minutes=5)
FLEX_WITHIN = timedelta(hours=12)
"""A FLEX job has to start so long after it was submitted."""
KIND = "8xH100-80GB"
MEAN_PRICE = SKUS[0].mean_cents * MICRO // 100
"""Around which the exchange moves, in micro-dollars per GPU-hour."""

_JOBS_AN_HOUR = 3.0
_BEFORE = 40
SIZES, _WEIGHTS = (1, 2, 4, 8), (40, 25, 20, 15)
_EXCHANGE = Capabilities(
    order_book=True, fixed_window=True, resellable=True, idempotent=True, fast_fabric=True,
    lot_gpus=8, grain=timedelta(minutes=1),
)  # fmt: skip
_CLOUD = Capabilities(offer_list=True)
_RIVAL_HOUR = timedelta(hours=1)
"""Rivals want an ask for so long at least."""
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
    troubles: Troubles = REAL

    @property
    def steps(self) -> int:
        """Steps until the last arrival; then what waits is served."""
        return int(timedelta(days=self.days) / STEP)

    @property
    def last_step(self) -> int:
        return self.steps + int(timedelta(hours=30) / STEP)

    @cached_property
    def jobs(self) -> tuple[JobRequest, ...]:
        """In the order of their arrival: more by day than by night. What they say of how long they
        run is the most, unless it is told."""
        if not self.troubles.told:
            return self._allowed
        return tuple(
            job.model_copy(update={"expected_duration": self.lasts[job.id]})
            for job in self._allowed
        )

    @cached_property
    def _allowed(self) -> tuple[JobRequest, ...]:
        """The jobs, each with the most that it may run."""
        chance = random.Random(f"jobs/{self.seed}")
        found: list[JobRequest] = []
        for step in range(self.steps):
            hour = step * EVERY / 60 % 24
            busy = 1.5 if 8 <= hour < 20 else 0.5
            if chance.random() < _JOBS_AN_HOUR * busy * EVERY / 60:
                found.append(_a_job(chance, len(found), START + step * STEP))
        return tuple(found)

    @cached_property
    def lasts(self) -> Mapping[str, timedelta]:
        """How long each job really runs."""
        return {job.id: self.troubles.lasts(self.seed, job) for job in self._allowed}

    @cached_property
    def before(self) -> tuple[JobEnd, ...]:
        """Jobs like these that the pool has run before: it is no new one."""
        chance = random.Random(f"before/{self.seed}")
        jobs = [_a_job(chance, -number, START) for number in range(1, _BEFORE + 1)]
        return tuple(
            JobEnd(expected=ran if self.troubles.told else job.expected_duration, ran=ran)
            for job in jobs
            for ran in (self.troubles.lasts(self.seed, job),)
        )

    @cached_property
    def rivals(self) -> tuple[int, ...]:
        """The nodes that others take after the look of each step."""
        return self.troubles.rival_nodes(self.seed, self.last_step)

    @cached_property
    def asks(self) -> tuple[Ask, ...]:
        """Every ask of the days that does not trade at once with a bid."""
        found: list[Ask] = []
        bids: list[tuple[int, int]] = []
        for step, arrived in enumerate(self._strangers):
            minute = _FIRST_MINUTE + step * EVERY
            bids = [(price, until) for price, until in bids if until > minute]
            bids += [(s.price, s.until) for s in arrived if s.side is Side.BUY]
            highest = max((price for price, _ in bids), default=0)
            for stranger in arrived:
                if stranger.side is Side.SELL and stranger.price > highest:
                    (begin, end, nodes), *_ = stranger.schedule.steps
                    found.append(
                        Ask(
                            number=len(found),
                            price=_per_gpu(stranger.price),
                            nodes=nodes,
                            start=_moment(begin),
                            end=_moment(end),
                            seen_from=step,
                            seen_until=step + -(-(stranger.until - minute) // EVERY),
                        )
                    )
        return tuple(found)

    @cached_property
    def _strangers(self) -> tuple[tuple[Stranger, ...], ...]:
        """Who comes to the exchange at each step."""
        background = Background(self.seed, SKUS[:1], self.profile)
        minutes = (_FIRST_MINUTE + step * EVERY for step in range(self.last_step))
        return tuple(
            tuple(background.round(minute) if step else background.opening(minute))
            for step, minute in enumerate(minutes)
        )

    @cached_property
    def bids_by_step(self) -> tuple[tuple[Ask, ...], ...]:
        """Who buys time at each step. One that an ask has met is gone, and so is one that is as
        high as an ask when it comes: these have traded."""
        found: list[tuple[Ask, ...]] = []
        there: list[Ask] = []
        for step, arrived in enumerate(self._strangers):
            minute = _FIRST_MINUTE + step * EVERY
            sold = [_per_gpu(s.price) for s in arrived if s.side is Side.SELL]
            sold += [ask.price for ask in self.asks_by_step[step]]
            lowest = min(sold, default=MICRO**2)
            there += [
                _a_bid(stranger, len(found) * 1000 + number, step, minute)
                for number, stranger in enumerate(arrived)
                if stranger.side is Side.BUY
            ]
            there = [bid for bid in there if bid.seen_until > step and bid.price < lowest]
            found.append(tuple(there))
        return tuple(found)

    @cached_property
    def offers(self) -> tuple[tuple[Offer, ...], ...]:
        """By step, as they are seen. Prices return to their mean; rows come and go."""
        return tuple(seen for seen, _ in self._rows)

    @cached_property
    def offers_to_order(self) -> tuple[tuple[Offer, ...], ...]:
        """By step, what can be had: some are gone when they are taken."""
        return tuple(there for _, there in self._rows)

    @cached_property
    def _rows(self) -> tuple[tuple[tuple[Offer, ...], tuple[Offer, ...]], ...]:
        """Rows come and go every half hour; one that is gone is back with the next."""
        chance = random.Random(f"offers/{self.seed}/{self.profile}")
        going = random.Random(f"stale/{self.seed}/{self.profile}")
        there = {Profile.CALM: 0.9, Profile.SPIKE: 0.8}.get(self.profile, 0.35)
        level, rows = 1.0, dict.fromkeys(SIZES, True)
        found: list[tuple[tuple[Offer, ...], tuple[Offer, ...]]] = []
        for step in range(self.last_step):
            level += (1 - level) * 0.05 + chance.gauss(0, 0.008)
            if self.profile is Profile.SPIKE and chance.random() < EVERY / (8 * 60):
                level *= 1.6
            if step % (30 // EVERY) == 0:
                rows = {size: chance.random() < there for size in SIZES}
            price = int(1.12 * level * MEAN_PRICE)
            seen = tuple(_a_row(size, price) for size in SIZES if rows[size])
            rows = {size: rows[size] and not self.troubles.is_stale(going) for size in SIZES}
            found.append((seen, tuple(row for row in seen if rows[row.gpus])))
        return tuple(found)

    @cached_property
    def asks_by_step(self) -> tuple[tuple[Ask, ...], ...]:
        seen: list[list[Ask]] = [[] for _ in range(self.last_step)]
        for ask in self.asks:
            for step in range(ask.seen_from, min(ask.seen_until, self.last_step)):
                seen[step].append(ask)
        return tuple(map(tuple, seen))

    @cached_property
    def asks_to_order(self) -> tuple[tuple[Ask, ...], ...]:
        """By step, with the nodes that rivals leave of them if nobody else buys any.

        Who buys leaves no more to others at any time: rivals take as much, of what is there.
        """
        shop = Shop(self)
        return tuple(
            tuple(
                replace(ask, nodes=left)
                for ask in asks
                if (left := shop.left_to_order(ask, step)) > 0
            )
            for step, asks in enumerate(self.asks_by_step)
        )


@dataclass
class Shop:
    """What is left of a world's asks for one buyer, and for rivals who come after each look."""

    world: World
    taken: dict[int, int] = field(default_factory=dict[int, int])
    """Nodes, by ask."""
    sold: dict[int, int] = field(default_factory=dict[int, int])
    """Nodes that were sold to a bid, by its number."""
    rivals_until: int = 0
    """Rivals have had their turn before this step."""

    def markets(self, step: int) -> tuple[MarketView, MarketView]:
        """Return what is seen at a step."""
        self._rivals_before(step)
        now = START + step * STEP
        asks = tuple(
            Level(price=ask.price, gpus=8 * left, start=ask.start, end=ask.end)
            for ask in self.world.asks_by_step[step]
            if (left := self._left(ask)) > 0
        )
        book = OrderBook(
            provider="exchange", instance_type=KIND, lot=8, asks=asks, bids=self._bids(step),
            observed_at=now, simulated=True,
        )  # fmt: skip
        quote = BookQuote(instance_type=KIND, answer=book)
        # Who looks again after an order sees what has gone meanwhile.
        rows = self.world.offers if self.rivals_until <= step else self.world.offers_to_order
        return (
            MarketView(
                provider="exchange", capabilities=_EXCHANGE, quotes=(quote,), observed_at=now
            ),
            MarketView(
                provider="cloud", capabilities=_CLOUD, offers=rows[step], observed_at=now
            ),
        )  # fmt: skip

    def take(self, plan: PurchasePlan, step: int) -> tuple[int, int]:
        """Fill an order for a window from the cheapest ask on, within its limit, after rivals.

        Return the nodes that it brings and what they cost.
        """
        assert plan.window is not None
        wanted, cost = plan.nodes, 0
        self._rivals_before(step + 1)
        for ask in _cheapest(self.world.asks_by_step[step]):
            fits = Window(start=ask.start, end=ask.end).covers(plan.window)
            if wanted and fits and ask.price <= plan.limit:
                nodes = self._take(ask, wanted)
                wanted -= nodes
                cost += int(nodes * 8 * ask.price * plan.window.hours)
        return plan.nodes - wanted, cost

    def has(self, plan: PurchasePlan, step: int) -> bool:
        """Return whether the row of an order is still there."""
        self._rivals_before(step + 1)
        return any(row == plan.offer for row in self.world.offers_to_order[step])

    def bids(self, step: int) -> BookQuote:
        """Return who buys time, but for the dearest: rivals sell to these after the look."""
        book = OrderBook(
            provider="exchange", instance_type=KIND, lot=8,
            bids=self._bids(step, self.world.rivals[step]),
            observed_at=START + step * STEP, simulated=True,
        )  # fmt: skip
        return BookQuote(instance_type=KIND, answer=book)

    def _bids(self, step: int, wanted: int = 0) -> tuple[Level, ...]:
        """Return the bids without the best nodes of them that others want; none without resale."""
        if not self.world.troubles.resale:
            return ()
        levels: list[Level] = []
        for bid in sorted(self.world.bids_by_step[step], key=lambda bid: (-bid.price, bid.number)):
            left = bid.nodes - self.sold.get(bid.number, 0)
            rivals = min(wanted, left)
            wanted -= rivals
            if left > rivals:
                gpus = 8 * (left - rivals)
                levels.append(Level(price=bid.price, gpus=gpus, start=bid.start, end=bid.end))
        return tuple(levels)

    def sell(self, price: int, window: Window, step: int) -> None:
        """Have the first bid at a price that holds a window take a node for it."""
        for bid in self.world.bids_by_step[step]:
            there = bid.price == price and bid.start <= window.start and bid.end >= window.end
            if there and self.sold.get(bid.number, 0) < bid.nodes:
                self.sold[bid.number] = self.sold.get(bid.number, 0) + 1
                return

    def left_to_order(self, ask: Ask, step: int) -> int:
        self._rivals_before(step + 1)
        return self._left(ask)

    def _rivals_before(self, step: int) -> None:
        """Let rivals take the cheapest nodes that can be had at once, at each step before."""
        for each in range(self.rivals_until, step):
            wanted, now = self.world.rivals[each], START + each * STEP
            for ask in _cheapest(self.world.asks_by_step[each]) if wanted else ():
                if ask.start <= now and ask.end - now >= _RIVAL_HOUR:
                    wanted -= self._take(ask, wanted)
        self.rivals_until = max(self.rivals_until, step)

    def _take(self, ask: Ask, most: int) -> int:
        nodes = min(self._left(ask), most)
        self.taken[ask.number] = self.taken.get(ask.number, 0) + nodes
        return nodes

    def _left(self, ask: Ask) -> int:
        return ask.nodes - self.taken.get(ask.number, 0)


def _cheapest(asks: Iterable[Ask]) -> list[Ask]:
    return sorted(asks, key=lambda ask: (ask.price, ask.number))


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


def _a_bid(stranger: Stranger, number: int, step: int, minute: int) -> Ask:
    (begin, end, nodes), *_ = stranger.schedule.steps
    return Ask(
        number=number, price=stranger.price * 60 // 8, nodes=nodes, start=_moment(begin),
        end=_moment(end), seen_from=step, seen_until=step + -(-(stranger.until - minute) // EVERY),
    )  # fmt: skip


def _per_gpu(price: int) -> int:
    """Return micro-dollars per GPU-hour, rounded up, by those of a node and a minute."""
    return -(-price * 60 // 8)


def _moment(minute: int) -> datetime:
    return START + timedelta(minutes=minute - _FIRST_MINUTE)
