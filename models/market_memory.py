"""What is remembered of markets: prices over time, what was recommended, how that turned out.

Prices are micro-dollars per GPU-hour.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Self

from pydantic import Field

from longshore.models.base import Instant, Wire
from longshore.models.market import Window
from longshore.models.money import MicroDollars
from longshore.models.price import PriceAnswer
from longshore.models.text import count, format_dollars

MARKET_WATCH_WORKFLOW = "MarketWatchWorkflow"
MARKET_WATCH_SCHEDULE = "longshore-market-watch"

LEVELS_KEPT = 50
"""Levels of each side of a book that are stored."""


class Source(StrEnum):
    """Who asked for a price."""

    CLI = "cli"
    WATCH = "watch"


class Recommendation(Wire):
    """A limit that was recommended, and what the market asked at that moment."""

    provider: str
    instance_type: str
    gpus: int = Field(ge=1)
    """Those that would be paid for."""
    window: Window | None = None
    made_at: Instant
    limit: MicroDollars
    marginal: MicroDollars | None = None
    """Of the last GPU; None where the asks did not hold as many."""
    average: MicroDollars | None = None
    sufficient: bool
    index: int = Field(ge=0)
    source: Source
    simulated: bool = False
    id: int | None = None
    """Its row, once it is stored."""

    @classmethod
    def of(cls, answer: PriceAnswer, source: Source, window: Window | None = None) -> Self:
        """Return what an answer recommends, made when its book was observed."""
        return cls(
            provider=answer.provider,
            instance_type=answer.instance_type,
            gpus=answer.bought,
            window=window,
            made_at=answer.observed_at,
            limit=answer.limit,
            marginal=answer.marginal,
            average=answer.average,
            sufficient=answer.sufficient,
            index=answer.index,
            source=source,
            simulated=answer.simulated,
        )


class HistoryPoint(Wire):
    """The books of one span of time, put together."""

    at: Instant
    """When the span begins."""
    books: int
    ask_low: MicroDollars | None = None
    """Lowest best ask; None where no book of the span had an ask."""
    ask_high: MicroDollars | None = None
    ask: MicroDollars | None = None
    """Mean of the best asks."""
    bid: MicroDollars | None = None
    """Mean of the best bids."""
    ask_gpus: float = 0.0
    """Mean of the GPUs on offer."""
    bid_gpus: float = 0.0
    provider: str
    simulated: bool = False


class Judged(Wire):
    """A recommendation, held against what the market asked in the hour after."""

    recommendation: Recommendation
    quotes: int
    """Later prices of the same need; nothing below is known without one."""
    at_once: bool
    """The limit covered every GPU that was needed when it was made."""
    filled_after: timedelta | None = None
    """Until the limit covered them all; None where that did not happen in time."""
    best_later: MicroDollars | None = None
    """Lowest average price that waiting would have got."""
    over_best: float | None = None
    """(average when it filled - best later) / best later; below zero: waiting would have cost."""


class Quality(Wire):
    """How the recommendations of one market, type and size have turned out."""

    provider: str
    instance_type: str
    size: str
    """GPUs, as in ``1-8``."""
    simulated: bool
    made: int
    judged: int
    """Those with a later price to hold them against."""
    at_once: int
    """Of those judged: the limit bought everything at once."""
    in_time: int
    """At once, or within the hour."""
    over_best: float | None = None
    """Mean over those that filled."""
    headroom: float | None = None
    """Mean of (limit - average) / average where the asks sufficed."""


class Compacted(Wire):
    """How many rows went."""

    thinned: int = 0
    """Of the hours before the last day, all but one."""
    removed: int = 0
    """Too old, or too many."""


class PollOutcome(StrEnum):
    STORED = "stored"
    NO_QUOTE = "no-quote"
    """The market answered, and asks nothing; an empty book is stored too."""
    AWAY = "away"
    REFUSED = "refused"
    """Credentials, an unknown type, or an answer that cannot be understood."""


class MarketLookRequest(Wire):
    """One look at every market. The same id again stores nothing more."""

    id: str


class MarketSeen(Wire):
    """What a look saw of one type at one market."""

    provider: str
    instance_type: str
    outcome: PollOutcome
    best_ask: MicroDollars | None = None
    limits: dict[int, MicroDollars] = Field(default_factory=dict[int, int])
    """Recommended limit by GPUs."""
    detail: str = ""
    simulated: bool = False

    def __str__(self) -> str:
        mark = " (simulated)" if self.simulated else ""
        about = f"{self.instance_type} at {self.provider}{mark}"
        if self.outcome is not PollOutcome.STORED or self.best_ask is None:
            return f"{about}: {self.outcome.value}{self.detail and f', {self.detail}'}"
        limits = ", ".join(
            f"limit {format_dollars(limit)} for {count(gpus, 'GPU')}"
            for gpus, limit in sorted(self.limits.items())
        )
        return f"{about}: lowest ask {format_dollars(self.best_ask)}" + (limits and f"; {limits}")


class MarketWatchReport(Wire):
    """What one look saw and stored."""

    seen: tuple[MarketSeen, ...] = ()
    compacted: Compacted = Compacted()
    woken: dict[str, str] = Field(default_factory=dict[str, str])
    """Pools whose FLEX jobs have waited for a price of now, and which one."""

    def __str__(self) -> str:
        if not self.seen:
            return "no market is configured"
        return "; ".join(map(str, self.seen))
