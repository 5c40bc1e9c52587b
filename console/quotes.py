"""Books and prices for whoever looks: each market is asked once, however many look."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TypeVar

from longshore.activities.providers.base import Provider
from longshore.console.answer_cache import Shared
from longshore.models.base import Frozen
from longshore.models.errors import MarketAwayError, NotFoundError, UnavailableError
from longshore.models.market import InstanceType, Level, NoQuote, OrderBook, Window
from longshore.models.price import CountedLevel, PriceAnswer, PriceNeed
from longshore.models.visible import shown
from longshore.scheduling.prices.price import price

BOOK_KEPT = 2.0
"""Seconds for which a book is shown to everybody before it is read again."""
TYPES_KEPT = 60.0
LEVELS = 500
"""Asks and bids of an answer at most."""
AT_ONCE = 4
"""Books that one market is asked for at the same time."""
ANSWER_WITHIN = 5.0

T = TypeVar("T")
_Read = tuple[OrderBook | NoQuote, datetime]
"""What a market answered, and when."""


class Need(Frozen):
    """What somebody would buy."""

    instance_type: InstanceType
    nodes: int
    provider: str
    window: Window | None = None

    @property
    def gpus(self) -> int:
        return self.nodes * self.instance_type.gpus


@dataclass(frozen=True)
class Quote:
    """A book and the price for a need."""

    need: Need
    price: PriceAnswer | NoQuote
    book: OrderBook | None
    now: datetime
    read_at: datetime | None = None
    """When the book was read, by our clock; a simulated market may have another."""


class Quotes:
    """Reads books and prices them. Every answer is at most two seconds old."""

    def __init__(self, providers: Callable[[], Mapping[str, Provider]]) -> None:
        """`providers` returns the markets that are configured now, by name, the first first."""
        self._providers = providers
        self._books: Shared[tuple[str, str, Window | None], _Read] = Shared(BOOK_KEPT)
        self._ahead: dict[str, timedelta] = {}
        self._types: Shared[str, Sequence[InstanceType]] = Shared(TYPES_KEPT)
        self._turns: dict[str, asyncio.Semaphore] = {}

    def providers(self) -> Mapping[str, Provider]:
        return self._providers()

    def default(self) -> str | None:
        """Return the name of the first market that has an order book, else of the first."""
        known = self._providers()
        with_book = [name for name, each in known.items() if each.capabilities.order_book]
        return next(iter((*with_book, *known)), None)

    def provider(self, name: str | None = None) -> Provider:
        """Return a market by its name, or the default.

        Raises NotFoundError for one that is not configured, UnavailableError when none is.
        """
        known = self._providers()
        name = name or self.default()
        if name is None:
            raise UnavailableError(
                "no market is configured. Start a simulated one with `longshore market simulate`, "
                'or set market = "real" and the token of a market in longshore.toml.'
            )
        if name not in known:
            names = ", ".join(known) or "none"
            raise NotFoundError(
                f"there is no market {shown(name)} here; those configured: {names}."
            )
        return known[name]

    def now(self, provider: str) -> datetime:
        """Return the time at a market: a simulated one may run faster, as its last book told."""
        return datetime.now(UTC) + self._ahead.get(provider, timedelta(0))

    async def types(self, provider: str) -> Sequence[InstanceType]:
        """Return what is traded at a market. Raises MarketAwayError and the MarketError tree."""
        market = self.provider(provider)
        return await self._types.get(
            provider, lambda: self._in_turn(market, market.instance_types)
        )

    async def quote(self, need: Need) -> Quote:
        """Return the price for a need, or why there is none.

        Raises MarketAwayError and the MarketError tree.
        """
        market = self.provider(need.provider)
        key = (need.provider, str(need.instance_type), need.window)
        book, read_at = await self._books.get(
            key, lambda: self._in_turn(market, lambda: _read(market, need))
        )
        now = datetime.now(UTC)
        if isinstance(book, NoQuote):
            return Quote(need, book, None, now, read_at)
        if book.simulated:
            self._ahead[need.provider] = book.observed_at - read_at
        wanted = PriceNeed(
            gpus=need.gpus, instance_type=str(need.instance_type), window=need.window
        )
        return Quote(need, price(book, wanted, now, levels=LEVELS), book, now, read_at)

    async def _in_turn(self, market: Provider, ask: Callable[[], Awaitable[T]]) -> T:
        turns = self._turns.setdefault(market.name, asyncio.Semaphore(AT_ONCE))
        try:
            async with asyncio.timeout(ANSWER_WITHIN), turns:
                return await ask()
        except TimeoutError:
            raise MarketAwayError(
                market.name, f"no answer within {ANSWER_WITHIN:.0f} seconds"
            ) from None


async def _read(market: Provider, need: Need) -> _Read:
    book = await market.book(need.instance_type, need.window)
    return book, datetime.now(UTC)


def next_hour(now: datetime) -> datetime:
    """Return the next whole hour, or `now` when it is one."""
    floor = now.replace(minute=0, second=0, microsecond=0)
    return floor if floor == now else floor + timedelta(hours=1)


def counted(bids: Sequence[Level]) -> tuple[CountedLevel, ...]:
    """Return bids, dearest first, with the running total."""
    dearest_first = sorted(bids, key=lambda level: -level.price)
    totals = accumulate(level.gpus for level in dearest_first)
    return tuple(
        CountedLevel(level=level, cumulative=total)
        for level, total in zip(dearest_first, totals, strict=True)
    )
