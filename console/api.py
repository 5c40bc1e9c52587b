"""The REST API: the live book with its recommended limit, prices over time, the markets."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.routing import Match
from starlette.types import Scope

from longshore.activities.providers.base import Provider
from longshore.console.market_history import Past, whole_turn
from longshore.console.problems import RETRY_AFTER, ApiError, Problem
from longshore.console.quotes import Need, Quotes, next_hour
from longshore.console.security import wants_page
from longshore.models.base import Frozen, Instant, Name
from longshore.models.errors import InvalidOrderError, LongshoreError
from longshore.models.market import Capabilities, InstanceType, NoQuote, NoQuoteReason, Window
from longshore.models.market_memory import HistoryPoint
from longshore.models.money import plain_dollars
from longshore.models.orderbook_response import OrderbookResponse

MOST_NODES = 10_000
MOST_HOURS = 366 * 24
AHEAD = timedelta(days=366)
"""How far ahead a window may begin."""
_HISTORY_DEFAULT = timedelta(days=1)
_HISTORY_MOST = timedelta(days=3660)

InstanceTypeText = Annotated[
    str,
    Query(
        min_length=1,
        max_length=80,
        description="GPUs of a node and which, such as 8xH100 or 8xH100-80GB.",
        examples=["8xH100"],
    ),
]
ProviderName = Annotated[
    Name | None,
    Query(description="Name of a market; see /market/providers.", examples=["sfcompute"]),
]


class HistoryEntry(Frozen):
    """The books of one span of time, put together. Prices are dollars per GPU-hour."""

    at: Instant
    """When the span begins."""
    provider: str
    simulated: bool
    books: int
    """Books that were stored in it."""
    ask: float | None
    """Mean of the best asks."""
    ask_low: float | None
    ask_high: float | None
    bid: float | None
    """Mean of the best bids."""
    ask_gpus: float
    """Mean of the GPUs on offer."""
    bid_gpus: float


class HistoryResponse(Frozen):
    """Prices over time, oldest first. A span in which nothing was stored has no entry."""

    instance_type: str
    since: Instant
    until: Instant
    points: tuple[HistoryEntry, ...]


class ProviderEntry(Frozen):
    """A market that is configured here."""

    name: str
    simulated: bool
    default: bool
    """Whose book /orderbook shows when no provider is named."""
    capabilities: Capabilities
    reachable: bool
    message: str = ""
    """What is wrong, when it is not reachable."""
    instance_types: tuple[str, ...] = Field(examples=[("8xH100", "8xH200")])


class ProvidersResponse(Frozen):
    """The markets that are configured here, the first choice first."""

    providers: tuple[ProviderEntry, ...]


class ForPrograms(APIRoute):
    """A route that leaves browsers to the page at the same address."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and wants_page(scope):
            return Match.NONE, {}
        return super().matches(scope)


def _says(description: str) -> dict[str, Any]:
    return {"model": Problem, "description": description}


PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: _says("No token, or not the right one."),
    404: _says("No such market, or a type that is not traded there."),
    422: _says("A parameter makes no sense; `field` names it."),
    502: _says("The market refused what the console asked, such as its key."),
    503: _says("The market or the database is away; `Retry-After` says when to ask again."),
}


def router(quotes: Quotes, past: Past, *, simulated: bool) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(route_class=ForPrograms, responses=PROBLEMS, tags=["market"])

    @routes.get("/orderbook", summary="The live book and the recommended limit")
    async def orderbook(
        response: Response,
        instance_type: InstanceTypeText,
        node_count: Annotated[
            int, Query(ge=1, le=MOST_NODES, description="Nodes that are needed.", examples=[8])
        ] = 1,
        provider: ProviderName = None,
        start: Annotated[
            Instant | None,
            Query(
                alias="from",
                description="When the window begins (default: the next whole hour).",
            ),
        ] = None,
        hours: Annotated[
            int | None,
            Query(
                ge=1,
                le=MOST_HOURS,
                description="Length of the window. Without, any ask counts.",
                examples=[24],
            ),
        ] = None,
    ) -> OrderbookResponse:
        """Asks and bids by price with running totals, and what to offer for a number of nodes.

        Prices are dollars per GPU-hour. `optimal_price` is the limit to order at: the ask of index
        `optimal_index`. Beside it stand the price of the last GPU and the average when the book is
        walked. Without a price `no_quote` says why. An answer is at most two seconds old.

        A browser that asks for HTML gets the page at this address.
        """
        response.headers["Vary"] = "Accept"
        market = quotes.provider(provider).name
        need = Need(
            instance_type=_instance_type(instance_type),
            nodes=node_count,
            provider=market,
            window=_window(start, hours, quotes.now(market)),
        )
        try:
            quote = await quotes.quote(need)
        except InvalidOrderError as error:
            raise ApiError(422, "invalid", str(error)) from error
        if isinstance(quote.price, NoQuote):
            _refuse(quote.price, need)
        return OrderbookResponse.of(
            quote.price,
            need.nodes,
            need.instance_type.gpus,
            instance_type=str(need.instance_type),
            now=quote.now,
            book=quote.book,
        )

    @routes.get("/market/history", summary="Prices over time")
    async def history(
        instance_type: InstanceTypeText,
        provider: ProviderName = None,
        since: Annotated[
            Instant | None, Query(description="From when (default: a day before `until`).")
        ] = None,
        until: Annotated[Instant | None, Query(description="Until when (default: now).")] = None,
        points: Annotated[
            int, Query(ge=1, le=2000, description="Entries a market has at most.")
        ] = 200,
    ) -> HistoryResponse:
        """Best asks and bids of the books that were stored, in spans of equal length.

        What is stored, how often and for how long is set by market_watch, market_watch_every and
        market_keep. Prices are dollars per GPU-hour.
        """
        wanted = _instance_type(instance_type)
        begin, end = _span(since, until, datetime.now(UTC))
        found = await past.history(wanted, begin, end, provider=provider, points=points)
        return HistoryResponse(
            instance_type=str(wanted),
            since=begin,
            until=end,
            points=tuple(map(_entry, found)),
        )

    @routes.get("/market/providers", summary="The markets that are configured")
    async def providers() -> ProvidersResponse:
        """Which markets may be asked, what each can do, what is traded there, and whether it
        answers."""
        default = quotes.default()
        entries = [
            await _provider_entry(quotes, each, simulated, name == default)
            for name, each in quotes.providers().items()
        ]
        return ProvidersResponse(providers=tuple(entries))

    return routes


def _instance_type(text: str) -> InstanceType:
    try:
        return InstanceType.parse(text)
    except ValueError as error:
        raise ApiError(422, "invalid", f"instance_type: {error}", field="instance_type") from None


def _window(start: datetime | None, hours: int | None, now: datetime) -> Window | None:
    if hours is None:
        if start is not None:
            raise ApiError(422, "invalid", "hours: say how long the window is", field="hours")
        return None
    if start is None:
        start = next_hour(now)
    elif not now - timedelta(hours=1) <= start <= now + AHEAD:
        raise ApiError(
            422,
            "invalid",
            f"from: must be now or within {AHEAD.days} days, got {start.isoformat()}",
            field="from",
        )
    return Window(start=start, end=start + timedelta(hours=hours))


def _span(
    since: datetime | None, until: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    end = until or whole_turn(now)
    oldest = now - _HISTORY_MOST
    if not oldest <= end <= now + timedelta(days=1):
        raise ApiError(422, "invalid", "until: must be in the last ten years", field="until")
    begin = since or end - _HISTORY_DEFAULT
    if not oldest - _HISTORY_DEFAULT <= begin < end:
        raise ApiError(
            422,
            "invalid",
            "since: must be before until, and in the last ten years",
            field="since",
        )
    return begin, end


def _refuse(why: NoQuote, need: Need) -> None:
    """Raise what is no answer: a type that nobody knows, a market that is away."""
    if why.reason is NoQuoteReason.UNKNOWN_TYPE:
        raise ApiError(
            404,
            "unknown_instance_type",
            why.detail or f"{need.instance_type} is not traded at {need.provider}.",
            field="instance_type",
        )
    if why.reason is NoQuoteReason.UNREACHABLE:
        raise ApiError(
            503,
            "market_away",
            why.detail or f"{need.provider} does not answer.",
            retry_after=RETRY_AFTER,
        )


async def _provider_entry(
    quotes: Quotes, provider: Provider, simulated: bool, default: bool
) -> ProviderEntry:
    message, types = "", ()
    try:
        types = tuple(sorted(map(str, await quotes.types(provider.name))))
    except LongshoreError as error:
        message = str(error)
    return ProviderEntry(
        name=provider.name,
        simulated=simulated,
        default=default,
        capabilities=provider.capabilities,
        reachable=not message,
        message=message,
        instance_types=types,
    )


def _entry(point: HistoryPoint) -> HistoryEntry:
    return HistoryEntry(
        at=point.at,
        provider=point.provider,
        simulated=point.simulated,
        books=point.books,
        ask=plain_dollars(point.ask),
        ask_low=plain_dollars(point.ask_low),
        ask_high=plain_dollars(point.ask_high),
        bid=plain_dollars(point.bid),
        ask_gpus=point.ask_gpus,
        bid_gpus=point.bid_gpus,
    )
