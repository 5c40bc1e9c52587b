"""An order book in a file, for `longshore price`: in dollars and hours, as APIs answer.

A saved answer of the REST API or of `longshore price --json` can be read as a book again: what
was computed from the book is known by name, and not used.
"""

import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from longshore.models.base import Frozen, Instant
from longshore.models.bounds import Most
from longshore.models.counts import DIGITS, Count
from longshore.models.market import InstanceType, Level, OrderBook
from longshore.models.money import MicroDollars, micro_of
from longshore.models.statefile import MOST_ENTRIES, NamedWord
from longshore.models.visible import shown

_MOST_GPUS = 10**9
_MOST_HOURS = 1_000_000.0


def _micro_of_number(value: object) -> object:
    """Return micro-dollars of a number of dollars; as it is written, not as a float holds it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number of dollars, such as 24.5, got {shown(value)}")
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number of dollars, got {value}")
    if value < 0:
        raise ValueError(f"must be at least 0, got {value}")
    return micro_of(Decimal(repr(value)))


Dollars = Annotated[
    MicroDollars,
    BeforeValidator(_micro_of_number, json_schema_input_type=Annotated[float, Field(ge=0)]),
]
"""Dollars in the file, to six places; micro-dollars in the model."""

NotUsed = Annotated[Any, Field(default=None, exclude=True, repr=False)]


class BookLevel(Frozen):
    """One ask or bid."""

    price: Dollars
    """Per GPU-hour."""
    quantity_gpus: Count = Field(ge=0, le=_MOST_GPUS)
    duration_hours: float | None = Field(default=None, gt=0, le=_MOST_HOURS)
    """From `start`, or from now."""
    start: Instant | None = None
    """At once when left out."""
    end: Instant | None = None
    """Goes before `duration_hours`; for ever when both are left out."""
    instance_type: NamedWord | None = None
    """Where it is not the book's."""
    lot: Annotated[int, Field(ge=1, le=_MOST_GPUS), DIGITS] | None = None
    """GPUs that are sold together only, where it is not the book's."""
    cumulative_quantity: NotUsed = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start and self.end and self.end <= self.start:
            raise ValueError(f"must end after it starts, got {self.start} to {self.end}")
        return self

    def level(self) -> Level:
        lasts = self.duration_hours
        return Level(
            price=self.price,
            gpus=self.quantity_gpus,
            start=self.start,
            end=self.end,
            duration=None if lasts is None else timedelta(hours=lasts),
            instance_type=self.instance_type,
            lot=self.lot,
        )


class BookDocument(Frozen):
    """Asks and bids, in any order. Prices are dollars per GPU-hour."""

    instance_type: NamedWord
    asks: Annotated[tuple[BookLevel, ...], Most(MOST_ENTRIES)]
    bids: Annotated[tuple[BookLevel, ...], Most(MOST_ENTRIES)] = ()
    provider: NamedWord = "file"
    simulated: bool = False
    gpus_per_node: Annotated[int, Field(ge=1, le=9999), DIGITS] | None = None
    """As the instance type says, or 8, when left out."""
    lot: Count = Field(default=1, ge=1, le=_MOST_GPUS)
    """GPUs that are sold together at least."""
    last_updated: Instant | None = None
    """When the book was so; now when left out."""

    optimal_price: NotUsed = None
    optimal_index: NotUsed = None
    spread: NotUsed = None
    total_ask_liquidity: NotUsed = None
    total_bid_liquidity: NotUsed = None
    metadata: NotUsed = None
    sufficient: NotUsed = None
    marginal_price: NotUsed = None
    average_price: NotUsed = None
    bought_gpus: NotUsed = None
    cost_per_hour: NotUsed = None
    worst_per_hour: NotUsed = None
    place: NotUsed = None
    left_out: NotUsed = None
    warnings: NotUsed = None
    reason: NotUsed = None
    no_quote: NotUsed = None

    def book(self, now: datetime) -> OrderBook:
        """Return the book, as of `now` where the file names no time."""
        return OrderBook(
            provider=self.provider,
            instance_type=self.instance_type,
            gpus_per_node=self.gpus_per_node or _gpus_of(self.instance_type),
            lot=self.lot,
            asks=tuple(ask.level() for ask in self.asks),
            bids=tuple(bid.level() for bid in self.bids),
            observed_at=self.last_updated or now,
            simulated=self.simulated,
        )


def _gpus_of(instance_type: str) -> int:
    try:
        return InstanceType.parse(instance_type).gpus
    except ValueError:  # a market's own name for something
        return 8
