"""A price answer as the REST API and `longshore price --json` say it: in dollars and hours."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Self

from pydantic import Field

from longshore.models.base import Instant, Wire
from longshore.models.market import Level, NoQuote, NoQuoteReason, OrderBook
from longshore.models.money import MICRO, plain_dollars
from longshore.models.price import CountedLevel, PriceAnswer


class OrderbookLevel(Wire):
    """One ask or bid."""

    price: float
    """Dollars per GPU-hour."""
    quantity_gpus: int
    """GPUs that count: whole lots."""
    duration_hours: float | None = None
    """How long it holds; None where it says no end."""
    cumulative_quantity: int
    start: Instant | None = None
    end: Instant | None = None


class OrderbookMetadata(Wire):
    """What was asked for."""

    required_gpus: int
    node_count: int
    gpus_per_node: int


class NoQuoteNote(Wire):
    """Why there is no price."""

    reason: NoQuoteReason
    detail: str = ""


class OrderbookResponse(Wire):
    """The book and the recommended limit. Prices are dollars per GPU-hour."""

    instance_type: str
    asks: tuple[OrderbookLevel, ...] = ()
    """Those that count, by price: `optimal_index` is into these."""
    bids: tuple[OrderbookLevel, ...] = ()
    """Dearest first."""
    optimal_price: float | None = None
    """The recommended limit; None when there is no quote."""
    optimal_index: int | None = None
    spread: float | None = None
    total_ask_liquidity: int = 0
    total_bid_liquidity: int = 0
    last_updated: Instant
    metadata: OrderbookMetadata

    sufficient: bool = False
    marginal_price: float | None = None
    """Of the last GPU when the book is walked."""
    average_price: float | None = None
    """Volume-weighted, of walking the book."""
    bought_gpus: int = 0
    """GPUs that are paid for: what is required, rounded up to whole lots."""
    cost_per_hour: float | None = None
    """Dollars an hour, walking the book."""
    worst_per_hour: float | None = None
    """Dollars an hour at the recommended limit."""
    provider: str = ""
    place: str = ""
    """Where, at a market that fills an order in one place; asks elsewhere are left out."""
    simulated: bool = False
    left_out: dict[str, int] = Field(default_factory=dict[str, int])
    """How many asks do not count, by reason."""
    warnings: tuple[str, ...] = ()
    reason: str = ""
    no_quote: NoQuoteNote | None = None

    @classmethod
    def of(
        cls,
        answer: PriceAnswer | NoQuote,
        node_count: int,
        gpus_per_node: int,
        *,
        instance_type: str,
        now: datetime,
        book: OrderBook | None = None,
        required_gpus: int | None = None,
    ) -> Self:
        """Return the answer for people and programs outside.

        `instance_type` is what was asked for. Without a quote the bids and the time are those of
        `book`, and `now` is the time where there is no book either. `required_gpus` are all GPUs
        of the nodes when left out.
        """
        if required_gpus is None:
            required_gpus = node_count * gpus_per_node
        metadata = OrderbookMetadata(
            required_gpus=required_gpus, node_count=node_count, gpus_per_node=gpus_per_node
        )
        if isinstance(answer, NoQuote):
            return cls._without_quote(answer, metadata, instance_type, now, book)
        at = answer.observed_at
        return cls(
            instance_type=instance_type,
            asks=_levels(answer.asks, at),
            bids=_levels(answer.bids, at),
            optimal_price=plain_dollars(answer.limit),
            optimal_index=answer.index,
            spread=plain_dollars(answer.spread),
            total_ask_liquidity=answer.ask_liquidity,
            total_bid_liquidity=answer.bid_liquidity,
            last_updated=at,
            metadata=metadata,
            sufficient=answer.sufficient,
            marginal_price=plain_dollars(answer.marginal),
            average_price=plain_dollars(answer.average),
            bought_gpus=answer.bought,
            cost_per_hour=plain_dollars(answer.cost_per_hour),
            worst_per_hour=plain_dollars(answer.worst_per_hour),
            provider=answer.provider,
            place=answer.place_name,
            simulated=answer.simulated,
            left_out=answer.left_out,
            warnings=answer.warnings,
            reason=answer.reason,
        )

    @classmethod
    def _without_quote(
        cls,
        answer: NoQuote,
        metadata: OrderbookMetadata,
        instance_type: str,
        now: datetime,
        book: OrderBook | None,
    ) -> Self:
        at = book.observed_at if book else now
        bids = _counted(book.bids if book else ())
        return cls(
            instance_type=instance_type,
            bids=_levels(bids, at),
            total_bid_liquidity=bids[-1].cumulative if bids else 0,
            last_updated=at,
            metadata=metadata,
            provider=book.provider if book else "",
            simulated=book.simulated if book else False,
            left_out=answer.left_out,
            reason=answer.detail,
            no_quote=NoQuoteNote(reason=answer.reason, detail=answer.detail),
        )


def _counted(bids: Iterable[Level]) -> Sequence[CountedLevel]:
    dearest_first = sorted(bids, key=lambda level: -level.price)
    totals = accumulate(level.gpus for level in dearest_first)
    return [
        CountedLevel(level=level, cumulative=total)
        for level, total in zip(dearest_first, totals, strict=True)
    ]


def _levels(counted: Iterable[CountedLevel], at: datetime) -> tuple[OrderbookLevel, ...]:
    return tuple(
        OrderbookLevel(
            price=one.level.price / MICRO,
            quantity_gpus=one.level.gpus,
            duration_hours=_hours(one.level, at),
            cumulative_quantity=one.cumulative,
            start=one.level.start,
            end=one.level.ends_at,
        )
        for one in counted
    )


def _hours(level: Level, at: datetime) -> float | None:
    """Return how long a level holds, from its start or from `at`."""
    if level.end is not None:
        return (level.end - (level.start or at)) / timedelta(hours=1)
    return None if level.duration is None else level.duration / timedelta(hours=1)
