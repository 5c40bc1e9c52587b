"""Asking the configured markets: their books with a price for a need, and who we are there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from sqlalchemy.exc import DBAPIError

from longshore.activities.database import Database
from longshore.activities.markets.memory import MarketMemory
from longshore.activities.providers.base import Provider
from longshore.activities.providers.registry import configured, connect
from longshore.models.base import Frozen, Instant
from longshore.models.errors import LongshoreError, MarketAwayError, NotFoundError
from longshore.models.market import (
    Account,
    Capabilities,
    InstanceType,
    NoQuote,
    NoQuoteReason,
    OrderBook,
    Window,
)
from longshore.models.market_memory import Recommendation, Source
from longshore.models.price import PriceAnswer, PriceNeed
from longshore.models.settings import Settings
from longshore.models.visible import shown
from longshore.scheduling.prices.price import price

ANSWER_WITHIN = 15.0
"""Seconds that a market has for one answer."""
STORED_WITHIN = 3.0
NOTHING_CONFIGURED = (
    "no market is configured. Start a simulated one with `longshore market simulate`, or set "
    'market = "real" and sfcompute_token or prime_token in longshore.toml (docs/settings.md): '
    "money is spent there."
)
OFF = "markets are off: set LONGSHORE_MARKET=simulated, or real, to use one."


class Quote(Frozen):
    """What one market asks for a need."""

    provider: str
    instance_type: InstanceType
    gpus: int
    answer: PriceAnswer | NoQuote
    book: OrderBook | None = None
    at: Instant

    @property
    def simulated(self) -> bool:
        return self.book is not None and self.book.simulated


class ProviderState(Frozen):
    """A configured market, and our account there."""

    name: str
    capabilities: Capabilities
    account: Account | None = None
    trouble: str = ""
    """Why there is no account."""
    no_buying: str = ""
    """Why nothing may be bought there with these settings."""


@asynccontextmanager
async def open_markets(
    settings: Settings, only: str | None = None
) -> AsyncIterator[Sequence[Provider]]:
    """Yield a client of each configured market, or of one of them; closed at the end.

    Raises NotFoundError when there is none, or none of that name.
    """
    if settings.market == "off":
        raise NotFoundError(OFF)
    names = configured(settings)
    if not names:
        raise NotFoundError(NOTHING_CONFIGURED)
    if only is not None and only not in names:
        raise NotFoundError(
            f"market {shown(only)} is not configured; these are: {', '.join(names)}"
        )
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(aclosing(connect(settings, name)))
            for name in ([only] if only else names)
        ]


async def ask(
    markets: Sequence[Provider],
    wanted: InstanceType,
    gpus: int,
    window: Window | None,
    now: Instant,
) -> tuple[Quote, ...]:
    """Return what each market asks for so many GPUs; a market that is away has no quote."""
    return tuple(
        await asyncio.gather(*(_ask_one(market, wanted, gpus, window, now) for market in markets))
    )


async def ask_once(
    provider: str | None,
    wanted: InstanceType,
    gpus: int,
    window: Window | None,
    now: Instant,
) -> tuple[Quote, ...]:
    """Return what each configured market asks, or one of them, and remember it where possible.

    Raises NotFoundError when no market, or not that one, is configured.
    """
    settings = Settings()
    async with open_markets(settings, provider) as markets:
        quotes = await ask(markets, wanted, gpus, window, now)
    await remember(settings, quotes, Source.CLI)
    return quotes


def cheapest(quotes: Sequence[Quote]) -> Quote:
    """Return the quote that costs least and suffices; else one that has a price, if any."""

    def order(quote: Quote) -> tuple[bool, bool, int]:
        answer = quote.answer
        if isinstance(answer, NoQuote):
            return True, True, 0
        return False, not answer.sufficient, answer.cost_per_hour or answer.worst_per_hour

    return min(quotes, key=order)


async def states(
    markets: Sequence[Provider], *, within: float = ANSWER_WITHIN
) -> tuple[ProviderState, ...]:
    """Return each market with our account there; each may take `within` seconds."""
    return tuple(await asyncio.gather(*(_state(market, within) for market in markets)))


async def remember(settings: Settings, quotes: Sequence[Quote], source: Source) -> bool:
    """Store books and recommendations; return whether that was possible."""
    try:
        database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    except LongshoreError:
        return False
    try:
        async with asyncio.timeout(STORED_WITHIN):
            for quote in quotes:
                if quote.book is not None:
                    await MarketMemory(database).store(quote.book, _made(quote, source))
    except (LongshoreError, DBAPIError, TimeoutError):  # DBAPIError: no tables yet
        return False
    finally:
        await database.close()
    return True


def _made(quote: Quote, source: Source) -> list[Recommendation]:
    if quote.book is None or isinstance(quote.answer, NoQuote):
        return []
    return [Recommendation.of(quote.answer, source, quote.book.window)]


async def _ask_one(
    market: Provider, wanted: InstanceType, gpus: int, window: Window | None, now: Instant
) -> Quote:
    book: OrderBook | None = None
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            answer = await market.book(wanted, window)
    except (LongshoreError, TimeoutError) as error:
        detail = str(_as_away(market.name, error, ANSWER_WITHIN))
        answer = NoQuote(reason=NoQuoteReason.UNREACHABLE, detail=detail)
    if isinstance(answer, OrderBook):
        book = answer
        answer = price(book, PriceNeed(gpus=gpus, instance_type=str(wanted), window=window), now)
    return Quote(
        provider=market.name, instance_type=wanted, gpus=gpus, answer=answer, book=book, at=now
    )


async def _state(market: Provider, within: float) -> ProviderState:
    known = ProviderState(
        name=market.name, capabilities=market.capabilities, no_buying=market.no_buying
    )
    try:
        async with asyncio.timeout(within):
            account = await market.account()
    except (LongshoreError, TimeoutError) as error:
        return known.model_copy(update={"trouble": str(_as_away(market.name, error, within))})
    return known.model_copy(update={"account": account})


def _as_away(name: str, error: LongshoreError | TimeoutError, within: float) -> LongshoreError:
    if isinstance(error, LongshoreError):
        return error
    return MarketAwayError(name, f"no answer within {within:g} seconds")
