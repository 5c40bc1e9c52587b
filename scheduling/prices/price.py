"""What to pay: from an order book and a need to a recommended limit and what stands beside it.

`price` is the whole way. Who asks one book many things makes its columns once (`BookColumns.of`),
and takes `find_limit` (scheduling/prices/limit.py) and `answer`. docs/prices.md tells the formula.
"""

from collections.abc import Iterator
from datetime import datetime

import numpy as np

from longshore.models import text
from longshore.models.market import Level, NoQuote
from longshore.models.market import OrderBook as Book
from longshore.models.price import CountedLevel, LeftOut, PriceAnswer, PriceNeed, Slippage
from longshore.models.text import count
from longshore.scheduling.prices.book import BookColumns, Columns, microseconds
from longshore.scheduling.prices.limit import Priced, Walk, find_limit, walk

WIDE_SPREAD = 0.10
"""Of the lowest ask."""
_DOUBLINGS = 16
"""Slippage is told for 1, 2, 4, ... lots: so many sizes at most."""


def price(
    book: Book, need: PriceNeed, now: datetime, *, levels: int | None = None
) -> PriceAnswer | NoQuote:
    """Return the recommended limit for a need, or why there is none.

    Asks count when they hold for the whole window, are of the type, and have whole lots. `now` is
    the moment from which asks last that name no start. `levels` cuts the lists of the answer to so
    many, never the ask that the limit comes from; all its numbers are of the whole book.

    Where a market fills an order in one place, the places are priced by themselves, and the one
    where the need is met at the least cost is taken; of none that meets it, the one with most.
    """
    places = sorted({level.place for level in book.asks if level.place is not None})
    if len(places) < 2:
        priced = find_limit(BookColumns.of(book), need, now)
        return priced if isinstance(priced, NoQuote) else answer(priced, levels=levels)
    found: list[PriceAnswer] = []
    for place in places:
        there = price(in_place(book, place), need, now, levels=levels)
        if isinstance(there, PriceAnswer):
            found.append(there)
    if not found:
        nowhere = find_limit(BookColumns.of(book), need, now)
        assert isinstance(nowhere, NoQuote)
        return nowhere
    best = min(found, key=_by_cost)
    elsewhere = sum(level.place not in (None, best.place) for level in book.asks)
    return best.model_copy(update={"left_out": {**best.left_out, LeftOut.PLACE.value: elsewhere}})


def in_place(book: Book, place: str | None) -> Book:
    """Return the part of a book that an order in one place can meet; all of it without a place."""
    if place is None:
        return book
    asks, bids = (
        tuple(level for level in side if level.place in (None, place))
        for side in (book.asks, book.bids)
    )
    return book.model_copy(update={"asks": asks, "bids": bids})


def answer(priced: Priced, *, levels: int | None = None) -> PriceAnswer:
    """Return the answer in full. `levels` as for `price`."""
    book, need, walked = priced.columns.book, priced.need, priced.walked
    place = next((level.place for level in book.asks if level.place is not None), None)
    bids = _counting_bids(priced.columns.bids, need, book.observed_at)
    spread = int(priced.asks.price[0] - bids.price[0]) if len(bids) else None
    most_asks = None if levels is None else max(levels, priced.index + 1)
    return PriceAnswer(
        provider=book.provider,
        instance_type=need.instance_type or book.instance_type,
        place=place,
        place_name=book.places.get(place, place) if place else "",
        needed=need.gpus,
        bought=priced.bought,
        asks=_counted(priced.asks.taken(slice(most_asks))),
        bids=_counted(bids.taken(slice(levels))),
        limit=priced.limit,
        index=priced.index,
        sufficient=priced.sufficient,
        marginal=walked.marginal if walked else None,
        average=walked.average if walked else None,
        cost_per_hour=walked.cost_per_hour if walked else None,
        worst_per_hour=priced.limit * priced.bought,
        spread=spread,
        ask_liquidity=priced.total,
        bid_liquidity=int(bids.gpus.sum()),
        scored=priced.scored,
        slippage=tuple(_slippage(priced)),
        left_out=priced.left_out,
        warnings=tuple(_warnings(priced, spread)),
        observed_at=book.observed_at,
        simulated=book.simulated,
        reason=_reason(priced),
    )


def _by_cost(answer: PriceAnswer) -> tuple[bool, int, str]:
    cost = -answer.ask_liquidity if answer.cost_per_hour is None else answer.cost_per_hour
    return not answer.sufficient, cost, answer.place or ""


def _counting_bids(bids: Columns, need: PriceNeed, seen_at: datetime) -> Columns:
    counts = (bids.price > 0) & (bids.gpus > 0)
    if need.at_once and need.window is None:
        at = microseconds(seen_at)
        counts &= (bids.ends(seen_at) > at) & (bids.start <= at)
    of_type = bids.of_type(need.instance_type)
    if of_type is not None:
        counts &= of_type
    return bids.taken(np.flatnonzero(counts))


def _counted(side: Columns) -> tuple[CountedLevel, ...]:
    gpus: list[int] = side.gpus.tolist()
    totals: list[int] = np.cumsum(side.gpus).tolist()
    return tuple(
        CountedLevel(level=_in_whole_lots(level, held), cumulative=total)
        for level, held, total in zip(side.levels, gpus, totals, strict=True)
    )


def _in_whole_lots(level: Level, gpus: int) -> Level:
    return level if level.gpus == gpus else level.model_copy(update={"gpus": gpus})


def _slippage(priced: Priced) -> Iterator[Slippage]:
    """Yield what each size costs: lots doubled again and again, the need, the whole book."""
    lot, total = priced.columns.book.lot, priced.total
    sizes = {lot << doubling for doubling in range(_DOUBLINGS)} | {priced.need.gpus, total}
    walks: dict[int, Walk] = {}
    for size in sorted(sizes):
        if size <= total:
            walked = walk(priced.asks, priced.cumulative, size)
            walks[walked.bought] = walked
    lowest = int(priced.asks.price[0])
    for walked in walks.values():
        over = walked.cost_per_hour - lowest * walked.bought
        yield Slippage(
            gpus=walked.bought,
            average=walked.average,
            marginal=walked.marginal,
            over_best=over / (lowest * walked.bought),
        )


def _warnings(priced: Priced, spread: int | None) -> Iterator[str]:
    needed, total = priced.need.gpus, priced.total
    if not priced.sufficient:
        yield f"insufficient: the asks hold {total:,} of the {count(needed, 'GPU')} needed"
    elif total < 2 * needed:
        yield f"thin: the asks hold {count(total, 'GPU')}, less than twice the {needed:,} needed"
    largest = int(priced.asks.gpus.max()) / total
    if len(priced.asks) == 1:
        yield "one seller: there is a single ask"
    elif largest > 0.5:
        yield f"one seller: a single ask holds {largest:.0%} of the GPUs on offer"
    lowest = int(priced.asks.price[0])
    if spread is not None and spread > WIDE_SPREAD * lowest:
        yield (
            f"wide spread: the highest bid, {text.price(lowest - spread)}, is "
            f"{spread / lowest:.0%} below the lowest ask, {text.price(lowest)}"
        )
    if spread is not None and spread < 0:
        yield (
            f"crossed book: the highest bid, {text.price(lowest - spread)}, is above the "
            f"lowest ask, {text.price(lowest)}"
        )


def _reason(priced: Priced) -> str:
    limit, asks = text.price(priced.limit), len(priced.asks)
    walked = priced.walked
    if walked is None:
        return (
            f"{limit} is the lowest of {count(asks, 'ask')}: together they hold "
            f"{priced.total:,} of {count(priced.need.gpus, 'GPU')}"
        )
    best = next(level for level in priced.scored if level.index == priced.index)
    first = priced.scored[0]
    against = "the first that holds enough"
    if best is not first:
        against = f"against {first.score:.3f} of {text.price(first.price)}, {against}"
    return (
        f"{limit} (ask {priced.index + 1} of {asks}) scores {best.score:.3f}, {against}; "
        f"{count(walked.bought, 'GPU')} at {text.price(walked.average)} on average, "
        f"{text.price(walked.marginal)} for the last"
    )
