"""What a purchase would cost: so many nodes for a window from a book, or offers as they run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from longshore.models.buying import BookQuote, BuyingPolicy, MarketView, NodeShape, PurchasePlan
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.market import InstanceType, NoQuote, NoQuoteReason, Offer, Window
from longshore.models.price import PriceNeed
from longshore.models.purchase import MOST_NODES
from longshore.models.text import count, format_dollars
from longshore.scheduling.buying.exclusions import in_allowed_places, sells, why_excluded
from longshore.scheduling.buying.fleet import holds, shape_of, shape_of_offer
from longshore.scheduling.prices.book import BookColumns
from longshore.scheduling.prices.limit import Priced, Walk, find_limit, walk
from longshore.scheduling.prices.price import in_place

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_QUARTER = timedelta(minutes=15)


Taken = Mapping[tuple[str, str, str | None], int]
"""GPUs that are bought already, by provider, instance type and place."""


Among = tuple[str | None, ...]
"""Places of a book."""


class _Order(NamedTuple):
    place: str | None
    limit: int
    walked: Walk


@dataclass(frozen=True, eq=False)
class BlockSource:
    """A book that nodes of one type are bought from, for fixed windows."""

    market: MarketView
    quote: BookQuote
    shape: NodeShape

    def holds(self, job: JobRequest) -> bool:
        """Return whether nodes of this book could hold a job: one alone, or several for a gang."""
        return holds(self.shape, job, self.market.provider)

    @cached_property
    def places(self) -> dict[str | None, BookColumns]:
        """The book of each place: an order is filled in one. One book, without a place, where the
        market names none; none at all where there is no quote."""
        book = self.quote.answer
        if isinstance(book, NoQuote):
            return {}
        named = sorted({level.place for level in book.asks if level.place is not None})
        places = named or [None]
        return {place: BookColumns.of(in_place(book, place)) for place in places}

    def places_for_gang(self) -> list[Among]:
        """Return where to look for the nodes of a gang: where they share fast fabric, and wherever
        they reach each other, which may be cheaper. All places where there is neither."""
        meets = [place for place in self.places if self.meets(place)]
        fast = [place for place in meets if self.is_fast(place)]
        found = [fast, meets] if fast != meets else [meets]
        return [tuple(places) for places in found if places] or [tuple(self.places)]

    def is_fast(self, place: str | None) -> bool:
        """Return whether nodes of one order share fast fabric in a place."""
        return bool(self.fabric(place)) or self.market.capabilities.fast_fabric

    def fabric(self, place: str | None) -> str:
        """Return the fast fabric of a place in the market's word; empty where it says none."""
        book = self.quote.answer
        return "" if isinstance(book, NoQuote) else book.fabrics.get(place or "", "")

    def meets(self, place: str | None) -> bool:
        """Return whether ranks on machines of a place can reach each other."""
        book = self.quote.answer
        return isinstance(book, NoQuote) or place not in book.closed

    def best_bid(self, place: str | None) -> int:
        """Return the highest bid for a whole node, in micro-dollars per GPU-hour; 0 without."""
        bids = self.places[place].bids
        whole = zip(bids.price, bids.gpus, strict=True)
        return max((int(price) for price, gpus in whole if gpus >= self.shape.gpus), default=0)

    def plan(
        self,
        nodes: int,
        window: Window,
        tier: Tier,
        policy: BuyingPolicy,
        now: datetime,
        taken: Taken | None = None,
        *,
        among: Among | None = None,
        for_gang: bool = False,
    ) -> PurchasePlan | NoQuote:
        """Return the order for at least so many nodes where they cost least, or why there is no
        price for it. What was `taken` before is the cheapest of the book, and is there no more.

        `among` are the places that are looked at; all of them without. `for_gang` is whether it is
        one of `places_for_gang`.
        """
        if isinstance(self.quote.answer, NoQuote):
            return self.quote.answer
        found = [
            self._order(place, nodes, window, now, policy, tier, taken or {})
            for place in (self.places if among is None else among)
        ]
        priced = [quote for quote in found if not isinstance(quote, NoQuote)]
        if not priced:
            return next(quote for quote in found if isinstance(quote, NoQuote))
        place, limit, walked = min(priced, key=lambda quote: quote.walked.cost_per_hour)
        if walked.bought // self.shape.gpus > MOST_NODES:
            detail = f"a purchase is of at most {MOST_NODES} nodes"
            return NoQuote(reason=NoQuoteReason.LEFT_OUT, detail=detail)
        seconds = -(-window.length // timedelta(seconds=1))
        return PurchasePlan(
            provider=self.market.provider,
            tier=tier,
            instance_type=self.quote.instance_type,
            place=place,
            nodes=walked.bought // self.shape.gpus,
            gpus_per_node=self.shape.gpus,
            window=window,
            limit=limit,
            marginal=walked.marginal,
            max_total=-(-limit * walked.bought * seconds // 3600),
            expected_cost=-(-walked.cost_per_hour * seconds // 3600),
            ready_at=max(window.start, now) + policy.usual_startup,
            shape=self.shape,
            fast_fabric=self.is_fast(place),
            fabric=self.fabric(place) if for_gang else "",
            meets=self.meets(place),
        )

    def _key(self, place: str | None) -> tuple[str, str, str | None]:
        return self.market.provider, self.quote.instance_type, place

    def _order(
        self,
        place: str | None,
        nodes: int,
        window: Window,
        now: datetime,
        policy: BuyingPolicy,
        tier: Tier,
        taken_before: Taken,
    ) -> _Order | NoQuote:
        taken = taken_before.get(self._key(place), 0)
        cap = policy.most(tier)
        columns = self.places[place]
        priced = self._whole_nodes(columns, nodes + taken // self.shape.gpus, window, now)
        if isinstance(priced, NoQuote):
            return priced
        walked = priced.walked
        if walked is None:
            short = f"the asks hold {priced.total} of {count(priced.bought, 'GPU')}"
            return NoQuote(reason=NoQuoteReason.LEFT_OUT, detail=short)
        if cap is not None and walked.marginal > cap:
            over = (
                f"the last GPU costs {format_dollars(walked.marginal)} an hour, over the cap of "
                f"{format_dollars(cap)}"
            )
            return NoQuote(reason=NoQuoteReason.LEFT_OUT, detail=over)
        if taken:
            before = walk(priced.asks, priced.cumulative, taken)
            walked = walked._replace(
                bought=walked.bought - taken,
                cost_per_hour=walked.cost_per_hour - before.cost_per_hour,
            )
        most = round(walked.marginal * (1 + policy.slippage))
        limits = (priced.limit, most) if cap is None else (priced.limit, most, cap)
        return _Order(place, max(walked.marginal, min(limits)), walked)

    def _whole_nodes(
        self, columns: BookColumns, nodes: int, window: Window, now: datetime
    ) -> Priced | NoQuote:
        """Price nodes; more of them where the lot is more, until nothing is cut off.

        The lot is that of the book: nodes of one market differ.
        """
        gpus, lot = nodes * self.shape.gpus, columns.book.lot
        while True:
            gpus = -(-gpus // lot) * lot
            need = PriceNeed(gpus=gpus, instance_type=self.quote.instance_type, window=window)
            priced = find_limit(columns, need, now)
            if isinstance(priced, NoQuote) or priced.bought % self.shape.gpus == 0:
                return priced
            gpus = (priced.bought // self.shape.gpus + 1) * self.shape.gpus


@dataclass(frozen=True, slots=True)
class PodSource:
    """A row of an offer list: a machine, or a cluster of several, which is for gangs."""

    market: MarketView
    offer: Offer
    shape: NodeShape

    def holds(self, job: JobRequest) -> bool:
        """Return whether its machines could hold a job: one alone, or several for a gang."""
        return holds(self.shape, job, self.market.provider)

    @property
    def gpus(self) -> int:
        """Of all of its machines."""
        return self.offer.gpus * self.offer.nodes

    @property
    def is_cluster(self) -> bool:
        return self.offer.nodes > 1

    @property
    def once(self) -> bool:
        """Whether there may be no second one."""
        return self.offer.stock.casefold() == "low"

    def plan(
        self,
        until: datetime,
        tier: Tier,
        policy: BuyingPolicy,
        now: datetime,
        lasts: datetime | None = None,
        likely: datetime | None = None,
    ) -> PurchasePlan:
        """Return the order for a machine that is in use until a time, and stopped then.

        Until `lasts` it must be there if need be; for the safety margin after its use without.
        It costs what it does if its use ends when that is `likely`; at that time without.
        """
        served = max(until - now, timedelta(0))
        margin = policy.safety_margin if lasts is None else lasts - until
        used = max(served + policy.idle_after, self.offer.prepaid)
        ending = max((until if likely is None else likely) - now, timedelta(0))
        expected = max(ending + policy.idle_after, self.offer.prepaid)
        startup = self.startup(policy)
        # A machine that comes up late, but in time, has to last for its jobs all the same.
        late = max(policy.startup_limit - startup, policy.idle_after)
        return PurchasePlan(
            provider=self.market.provider,
            tier=tier,
            instance_type=self.offer.instance_type,
            nodes=self.offer.nodes,
            gpus_per_node=self.shape.gpus,
            limit=self.offer.price,
            max_total=self.cost(max(used, served + late) + margin),
            expected_cost=self.cost(expected),
            ready_at=now + startup,
            shape=self.shape,
            fast_fabric=bool(self.offer.fabric),
            fabric=self.offer.fabric,
            meets=self.offer.nodes > 1,
            offer=self.offer,
        )

    def cost(self, used: timedelta) -> int:
        """Micro-dollars, rounded up: by the minute."""
        minutes = -(-used // _MINUTE)
        return -(-self.offer.price * self.offer.gpus * self.offer.nodes * minutes // 60)

    def startup(self, policy: BuyingPolicy) -> timedelta:
        return self.offer.startup if self.offer.startup is not None else policy.usual_startup


def taken_by(plans: Iterable[PurchasePlan], before: Taken) -> Taken:
    """Return what is taken from the books after these purchases."""
    taken = dict(before)
    for plan in plans:
        if plan.window is not None:
            key = plan.provider, plan.instance_type, plan.place
            taken[key] = taken.get(key, 0) + plan.gpus
    return taken


def block_sources(markets: Iterable[MarketView], policy: BuyingPolicy) -> Iterator[BlockSource]:
    """Yield the books that may be bought from, in the order of the markets."""
    if policy.usual_startup > policy.startup_limit:
        return
    for market in markets:
        if market.away or not market.capabilities.fixed_window or not sells(market, policy):
            continue
        for quote in market.quotes:
            shape = quote.shape or shape_of(quote.instance_type)
            if shape is not None and is_allowed(quote.instance_type, policy):
                there = in_allowed_places(quote.answer, policy)
                yield BlockSource(market, quote.model_copy(update={"answer": there}), shape)


def pod_sources(
    markets: Iterable[MarketView], tier: Tier, policy: BuyingPolicy
) -> list[PodSource]:
    """Return the offers that may be taken: within price cap and start-up limit, cheapest first."""
    found = pods_in_reach(markets, tier, policy)
    return [source for source in found if not why_excluded(source.offer, policy)]


def pods_in_reach(
    markets: Iterable[MarketView], tier: Tier, policy: BuyingPolicy
) -> list[PodSource]:
    """Return these, and those that are excluded: scheduling/buying/exclusions.py."""
    found: list[PodSource] = []
    cap = policy.most(tier)
    for market in markets:
        if market.away or market.capabilities.fixed_window:
            continue
        for offer in market.offers:
            shape = shape_of_offer(offer)
            if shape is None or shape.gpus != offer.gpus or offer.nodes > MOST_NODES:
                continue
            source = PodSource(market, offer, shape)
            in_time = source.startup(policy) <= policy.startup_limit
            cheap = cap is None or offer.price <= cap
            steady = policy.spot or not (offer.spot or offer.variable)
            if in_time and cheap and steady and offer.price and is_part_allowed(shape, policy):
                found.append(source)
    return sorted(found, key=lambda s: (s.offer.price * s.gpus, s.offer.provider, s.offer.id))


def away(markets: Sequence[MarketView]) -> tuple[NoQuote, ...]:
    """Return why markets, or books of theirs, have no price."""
    found: list[NoQuote] = []
    for market in markets:
        if market.away or market.closed:
            detail = market.closed or f"{market.provider} is away: {market.away}"
            found.append(NoQuote(reason=NoQuoteReason.UNREACHABLE, detail=detail))
            continue
        for quote in market.quotes:
            if isinstance(quote.answer, NoQuote):
                said = quote.answer.detail.removeprefix(f"{market.provider}: ")
                detail = f"{market.provider}, {quote.instance_type}: {said}"
                found.append(quote.answer.model_copy(update={"detail": detail}))
    return tuple(found)


def window_from(grain: timedelta, now: datetime, length: timedelta) -> Window:
    """Return the window that begins as soon as a market sells, of at least `length`."""
    grain = max(grain, _MINUTE)
    start = round_up(now, grain)
    return Window(start=start, end=round_up(start + length, grain))


def round_up(moment: datetime, grain: timedelta) -> datetime:
    """Return the next multiple of `grain` since 1970, or the moment itself where it is one."""
    return _EPOCH + -(-(moment - _EPOCH) // grain) * grain


def whole_steps(length: timedelta, step: timedelta) -> timedelta:
    """Return a length rounded up to multiples of a step."""
    return -(-length // step) * step


def whole_quarters(length: timedelta) -> timedelta:
    """Return a length rounded up to quarters of an hour."""
    return whole_steps(length, _QUARTER)


def is_allowed(instance_type: str, policy: BuyingPolicy) -> bool:
    """Return whether the policy lets machines of this type be bought."""
    kind = InstanceType.parse(instance_type)
    return not policy.instance_types or any(
        InstanceType.parse(named).takes(kind) for named in policy.instance_types
    )


def is_part_allowed(shape: NodeShape, policy: BuyingPolicy) -> bool:
    """Return whether the policy lets a machine be bought: a part of one that is allowed is too."""
    if not policy.instance_types:
        return True
    for named in policy.instance_types:
        kind = InstanceType.parse(named)
        whole = InstanceType(gpus=kind.gpus, gpu_type=shape.gpu_type, vram=shape.vram)
        if shape.gpus <= kind.gpus and kind.takes(whole):
            return True
    return False
