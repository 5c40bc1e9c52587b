"""What to pay: the answer of `scheduling.prices.price` to an order book and a need."""

from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen, Instant, Wire
from longshore.models.market import Level, NoQuote, Window
from longshore.models.money import MicroDollars


class PriceNeed(Frozen):
    """What is to be bought. Only asks that can serve it count."""

    gpus: int
    """GPUs needed; what is bought is rounded up to whole lots."""
    instance_type: str | None = None
    window: Window | None = None
    """Asks must hold for all of it; without, whatever the book has counts, unless `at_once`."""
    at_once: bool = False
    """Without a window: asks and bids must have begun, and not have ended. Markets show no others;
    a book in a file may."""


class LeftOut(StrEnum):
    """Why an ask does not count."""

    INSTANCE_TYPE = "instance_type"
    WINDOW = "window"
    """It does not hold for the whole window."""
    ENDED = "ended"
    """It had ended when the book was so."""
    LATER = "later"
    """It begins only after the book was so."""
    PRICE = "price"
    """It asks nothing: a placeholder, no offer."""
    LOT = "lot"
    """It has fewer GPUs than are sold together."""
    PLACE = "place"
    """It is elsewhere: an order is filled in one place."""


class ScoredLevel(Wire):
    """One viable ask and the terms of its score."""

    index: int
    """Into the asks that count, by price."""
    price: MicroDollars
    cumulative: int
    depth: float
    """min(cumulative / needed, 2)"""
    value: float
    """price of the first viable ask / price of this one"""
    liquidity: float
    """min(GPUs at this ask / needed, 1.5)"""
    score: float


class CountedLevel(Wire):
    """An ask or a bid that counts, with the running total."""

    level: Level
    """Its GPUs are those that count: whole lots."""
    cumulative: int


class Slippage(Wire):
    """What walking the book costs for one size."""

    gpus: int
    average: MicroDollars
    """Volume-weighted, micro-dollars per GPU-hour."""
    marginal: MicroDollars
    """Of the last GPU."""
    over_best: float
    """(average - lowest ask) / lowest ask"""


class PriceAnswer(Wire):
    """A recommended limit, and what stands beside it. Prices in micro-dollars per GPU-hour."""

    provider: str
    instance_type: str
    place: str | None = None
    """Where, at a market that fills an order in one place: its id there."""
    place_name: str = ""
    """What people call it."""
    needed: int
    """GPUs asked for."""
    bought: int
    """GPUs that are paid for: needed, rounded up to whole lots."""
    asks: tuple[CountedLevel, ...]
    """Those that count, by price."""
    bids: tuple[CountedLevel, ...]
    """Dearest first."""
    limit: MicroDollars
    """The recommended limit (seed formula)."""
    index: int
    """Of the ask that the limit comes from, into `asks`."""
    sufficient: bool
    """Whether the asks that count hold as many GPUs as are bought. If not, `limit` is the lowest
    ask, and there is no marginal or average price."""
    marginal: MicroDollars | None = None
    """Of the last GPU when the book is walked."""
    average: MicroDollars | None = None
    """Volume-weighted, of walking the book."""
    cost_per_hour: int | None = None
    """Micro-dollars an hour for all that is bought, walking the book."""
    worst_per_hour: int
    """The same at the limit: the most that it can cost."""
    spread: int | None = None
    """Lowest ask less highest bid; None when one side is empty."""
    ask_liquidity: int
    bid_liquidity: int
    scored: tuple[ScoredLevel, ...] = ()
    slippage: tuple[Slippage, ...] = ()
    left_out: dict[str, int] = Field(default_factory=dict[str, int])
    """How many asks do not count, by reason (`LeftOut`); each counts once."""
    warnings: tuple[str, ...] = ()
    """Sentences: insufficient, thin, one seller, wide spread."""
    observed_at: Instant
    simulated: bool = False
    reason: str = ""
    """Why this limit, in a sentence."""


Price = PriceAnswer | NoQuote
