"""Order books and recommendations for tests of the memory of markets."""

from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.models.market import Level, NoQuote, OrderBook
from longshore.models.market_memory import Recommendation, Source
from longshore.models.money import micro_of
from longshore.models.price import PriceAnswer, PriceNeed
from longshore.scheduling.prices.price import price

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)


def levels(*rungs: tuple[str, int]) -> tuple[Level, ...]:
    """Return levels of prices in dollars and GPUs."""
    return tuple(Level(price=micro_of(dollars), gpus=gpus) for dollars, gpus in rungs)


def a_book(at: datetime = NOW, lowest: str = "2.00", **fields: Any) -> OrderBook:
    """Return a book with 16 GPUs at `lowest`, 64 a dollar dearer, and 8 wanted for a dollar."""
    above = str(float(lowest) + 1)
    basics = {
        "provider": "market", "instance_type": "8xH100", "observed_at": at, "lot": 8,
        "asks": levels((lowest, 16), (above, 64)), "bids": levels(("1.00", 8)),
    }  # fmt: skip
    return OrderBook.model_validate({**basics, **fields})


def recommended(book: OrderBook, gpus: int = 8, source: Source = Source.WATCH) -> Recommendation:
    """Return what is recommended on a book that has asks."""
    answer = price(book, PriceNeed(gpus=gpus), book.observed_at)
    assert isinstance(answer, PriceAnswer), isinstance(answer, NoQuote) and answer.detail
    return Recommendation.of(answer, source, book.window)


def every(step: timedelta, until: datetime, count: int) -> list[datetime]:
    """Return `count` moments a step apart, the last one before `until` last."""
    return [until - step * number for number in range(count, 0, -1)]
