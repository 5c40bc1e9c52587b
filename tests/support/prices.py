"""Order books for tests, and the price formula as one writes it down from its document."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from longshore.models.market import Level, NoQuote, OrderBook
from longshore.models.money import micro_of
from longshore.models.price import PriceAnswer, PriceNeed
from longshore.scheduling.prices.price import price

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ASKS = (("24", 32), ("24.5", 64), ("25", 128), ("25.5", 48), ("26", 96), ("27", 64))
BIDS = (("23", 16), ("22.5", 24), ("22", 48), ("21", 32))


def a_level(dollars: str, gpus: int, **fields: Any) -> Level:
    return Level(price=micro_of(dollars), gpus=gpus, **fields)


def a_book(
    asks: Iterable[tuple[str, int] | Level] = ASKS,
    bids: Iterable[tuple[str, int] | Level] = (),
    **fields: Any,
) -> OrderBook:
    """Return a book of 8xH100; asks and bids are levels, or dollars and GPUs."""
    defaults: dict[str, Any] = {
        "provider": "market", "instance_type": "8xH100", "observed_at": NOW,
        "asks": tuple(a if isinstance(a, Level) else a_level(*a) for a in asks),
        "bids": tuple(b if isinstance(b, Level) else a_level(*b) for b in bids),
    }  # fmt: skip
    return OrderBook(**{**defaults, **fields})


def priced(book: OrderBook, gpus: int, **need: Any) -> PriceAnswer:
    answer = price(book, PriceNeed(gpus=gpus, **need), NOW)
    assert isinstance(answer, PriceAnswer), answer
    return answer


def not_priced(book: OrderBook, gpus: int, **need: Any) -> NoQuote:
    answer = price(book, PriceNeed(gpus=gpus, **need), NOW)
    assert isinstance(answer, NoQuote), answer
    return answer


def plain_price(
    asks: Sequence[tuple[float, int]], needed: int
) -> tuple[float, int] | tuple[None, None]:
    """Return the recommended price and its index into the asks by price."""
    if not asks or needed <= 0:
        return None, None
    by_price = sorted(asks, key=lambda ask: ask[0])
    cumulative: list[int] = []
    total = 0
    for _, gpus in by_price:
        total += gpus
        cumulative.append(total)
    viable = None
    for index, held in enumerate(cumulative):
        if held >= needed:
            viable = index
            break
    if viable is None:
        return by_price[0][0], 0
    best, best_score = viable, Fraction(-1)
    for index in range(viable, min(viable + 5, len(by_price) - 1) + 1):
        price, gpus = Fraction(str(by_price[index][0])), by_price[index][1]
        depth = min(Fraction(cumulative[index], needed), Fraction(2))
        value = Fraction(str(by_price[viable][0])) / price
        liquidity = min(Fraction(gpus, needed), Fraction(3, 2))
        score = depth * 4 + value * 4 + liquidity * 2  # exact: floats prefer some of equal ones
        if score > best_score:
            best, best_score = index, score
    return by_price[best][0], best
