"""The recommended limit for a need, and what walking the book costs. On columns: see book.py.

The score is made of the GPUs that are needed, so a book without lots gives what the formula in
docs/prices.md gives. What is paid for is `bought`: whole lots. It decides marginal price, average
price and cost. Each ask holds whole lots, so a book that holds what is needed holds that too.

The book is walked by price alone. Where lots differ, dearer GPUs in a smaller lot may cost less
in all than cheaper ones of which more must be bought; that choice is the buyer's.
"""

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from longshore.models.market import NoQuote, NoQuoteReason
from longshore.models.price import PriceNeed, ScoredLevel
from longshore.scheduling.prices.book import BookColumns, Columns, Integers, counting
from longshore.scheduling.prices.words import left_out_words

DEPTH_TENTHS, PRICE_TENTHS, LIQUIDITY_TENTHS = 4, 4, 2
"""The weights of the terms."""
MOST_DEPTH, MOST_LIQUIDITY = 2.0, 1.5
LEVELS_BEYOND = 5
"""So many asks behind the first viable one are scored too."""

_INT64_MAX = 2**63 - 1


class Walk(NamedTuple):
    """Buying from the cheapest ask on."""

    bought: int
    """GPUs, in whole lots."""
    cost_per_hour: int
    """Micro-dollars."""
    marginal: int
    """Price of the last GPU, in micro-dollars per GPU-hour."""

    @property
    def average(self) -> int:
        """Micro-dollars per GPU-hour, rounded to the nearest, a half to the even one."""
        return round(Fraction(self.cost_per_hour, self.bought))


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """The asks that count, by price, and the limit that they give."""

    columns: BookColumns
    need: PriceNeed
    asks: Columns
    """Those that count."""
    cumulative: Integers
    left_out: dict[str, int]
    limit: int
    index: int
    sufficient: bool
    bought: int
    walked: Walk | None
    """None where the book has too little."""
    scored: tuple[ScoredLevel, ...]

    @property
    def total(self) -> int:
        return int(self.cumulative[-1])


def find_limit(columns: BookColumns, need: PriceNeed, now: datetime) -> Priced | NoQuote:
    """Return the limit for a need, or why there is none. `now` is when asks begin to last."""
    if need.gpus <= 0:
        return NoQuote(reason=NoQuoteReason.NOTHING_NEEDED, detail="no GPUs are needed")
    if not len(columns.asks):
        return NoQuote(reason=NoQuoteReason.EMPTY, detail="the book has no asks")
    asks, left_out = counting(columns.asks, need, now)
    if not len(asks):
        return NoQuote(
            reason=NoQuoteReason.LEFT_OUT,
            detail=f"no ask counts: {left_out_words(left_out)}",
            left_out=left_out,
        )
    cumulative = np.cumsum(asks.gpus)
    sufficient = int(cumulative[-1]) >= need.gpus
    scored = score(asks, cumulative, need.gpus) if sufficient else ()
    best = best_of(scored) if scored else None
    walked = walk(asks, cumulative, need.gpus) if sufficient else None
    return Priced(
        columns=columns,
        need=need,
        asks=asks,
        cumulative=cumulative,
        left_out=left_out,
        limit=best.price if best else int(asks.price[0]),
        index=best.index if best else 0,
        sufficient=sufficient,
        bought=walked.bought if walked else _whole_lots(need.gpus, columns.book.lot),
        walked=walked,
        scored=scored,
    )


def score(asks: Columns, cumulative: Integers, needed: int) -> tuple[ScoredLevel, ...]:
    """Return the first viable ask and up to five behind it, with their terms.

    The asks hold at least `needed` GPUs together. A score is the float nearest to the exact one,
    so equal ones are equal: summed up in floats, a dearer ask could win by a rounding.
    """
    first = int(np.searchsorted(cumulative, needed))
    viable = slice(first, first + LEVELS_BEYOND + 1)
    prices: list[int] = asks.price[viable].tolist()
    gpus: list[int] = asks.gpus[viable].tolist()
    totals: list[int] = cumulative[viable].tolist()
    scored: list[ScoredLevel] = []
    for behind, (price, held, total) in enumerate(zip(prices, gpus, totals, strict=True)):
        # Each term times 10 x needed x price: whole numbers.
        deep = DEPTH_TENTHS * min(total, int(MOST_DEPTH * needed)) * price
        cheap = PRICE_TENTHS * prices[0] * needed
        liquid = LIQUIDITY_TENTHS * min(2 * held, int(2 * MOST_LIQUIDITY * needed)) * price // 2
        scored.append(
            ScoredLevel(
                index=first + behind,
                price=price,
                cumulative=total,
                depth=min(total / needed, MOST_DEPTH),
                value=prices[0] / price,
                liquidity=min(held / needed, MOST_LIQUIDITY),
                score=(deep + cheap + liquid) / (10 * needed * price),
            )
        )
    return tuple(scored)


def best_of(scored: tuple[ScoredLevel, ...]) -> ScoredLevel:
    """Return the first of those with the highest score."""
    return max(scored, key=lambda level: level.score)


def walk(asks: Columns, cumulative: Integers, needed: int) -> Walk:
    """Return what buying `needed` GPUs takes, from the cheapest ask on.

    The asks hold at least that many together. Of the last one as many are bought as are still
    needed, in whole lots; of those before it, all.
    """
    last = int(np.searchsorted(cumulative, needed))
    before = int(cumulative[last] - asks.gpus[last])
    part = _whole_lots(needed - before, int(asks.lot[last]))
    marginal = int(asks.price[last])
    whole = _cost(asks.price[:last], asks.gpus[:last], marginal * before)
    return Walk(before + part, whole + marginal * part, marginal)


def _cost(price: Integers, gpus: Integers, bound: int) -> int:
    """Return the sum of price x GPUs, exact; it is at most `bound`."""
    if bound <= _INT64_MAX:
        return int(np.dot(price, gpus))
    return sum(int(p) * int(g) for p, g in zip(price, gpus, strict=True))


def _whole_lots(gpus: int, lot: int) -> int:
    return -(-gpus // lot) * lot
