"""Prices from an order book: Longshore's core beside the plain loop of the ordering document.

    python -m benchmarks.pricing [--json]

One price is the recommended limit for a need: of the asks by price, find the first with which
there are enough GPUs, score it and five more. Both sides answer for the same book and the same
needs, a hundredth, a third and nearly all of it, and must name the same price and index: the
program stops with an error when they do not.

The plain loop is what one writes down from the document, on a list of pairs of price and GPUs; it
sorts them first. `in order` is the same loop on pairs that are in order already. `core` is
`scheduling.prices.limit.find_limit` on columns that are made, and sorted, once for a book; it
looks at the window and the type of each ask, and gives marginal price, average and cost beside
the limit. `columns` is making them from the models, and `price` the whole way from models to
models, with slippage, warnings and reason, 20 bids, and the asks up to the recommended one.

All times are the processor's; the sides take turns, and medians count. The ratio of the whole is
plain / core at 10,000 asks.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from longshore.models.market import Level, NoQuote, OrderBook, Window
from longshore.models.price import PriceNeed
from longshore.scheduling.prices.book import BookColumns
from longshore.scheduling.prices.limit import Priced, find_limit
from longshore.scheduling.prices.price import price

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WINDOW = Window(start=NOW, end=NOW + timedelta(hours=24))
KIND = "8xH100"
SIZES = (10, 100, 1_000, 10_000)
SHARES = (0.01, 0.33, 0.9)
"""Of the GPUs on offer."""
REPEATS = {10: 21, 100: 21, 1_000: 15, 10_000: 9}
BATCH = {10: 100, 100: 50, 1_000: 5, 10_000: 1}
"""Calls that are timed together: one alone would be too short for the clock."""
SEED = 20261120


@dataclass(frozen=True)
class Row:
    """What was measured on one number of levels, in milliseconds a price."""

    levels: int
    """Asks; there is half that number of bids."""
    plain_ms: float
    in_order_ms: float
    core_ms: float
    ratio: float
    """plain / core."""
    in_order_ratio: float
    columns_ms: float
    price_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = [measure(levels) for levels in SIZES]
    if arguments.json:
        results = [asdict(row) for row in rows]
        print(json.dumps({"results": results, "ratio": rows[-1].ratio}, indent=2))
        return
    print(
        f"{'levels':>6} {'plain':>10} {'in order':>10} {'core':>10} {'ratio':>6} {'in order':>8} "
        f"{'columns':>10} {'price':>10}"
    )
    for row in rows:
        print(
            f"{row.levels:>6} {row.plain_ms:>7.3f} ms {row.in_order_ms:>7.3f} ms "
            f"{row.core_ms:>7.3f} ms {row.ratio:>6.1f} {row.in_order_ratio:>8.1f} "
            f"{row.columns_ms:>7.3f} ms {row.price_ms:>7.3f} ms"
        )


def measure(levels: int) -> Row:
    """Return what each way takes, as medians. Ends the program when the answers differ."""
    book = _book(levels)
    pairs = [(ask.price, ask.gpus) for ask in book.asks]
    in_order = sorted(pairs)
    total = sum(gpus for _, gpus in pairs)
    needs = [
        PriceNeed(gpus=max(int(total * share), 1), instance_type=KIND, window=WINDOW)
        for share in SHARES
    ]
    columns = BookColumns.of(book)
    for need in needs:
        if _limit(find_limit(columns, need, NOW)) != plain_loop(pairs, need.gpus):
            sys.exit(f"{levels} levels, {need.gpus} GPUs: the two sides decided differently")

    times = _medians(
        levels,
        {
            "plain": lambda: [plain_loop(pairs, need.gpus) for need in needs],
            "in order": lambda: [plain_loop(in_order, need.gpus) for need in needs],
            "core": lambda: [find_limit(columns, need, NOW) for need in needs],
            "columns": lambda: [BookColumns.of(book) for _ in needs],
            "price": lambda: [price(book, need, NOW, levels=20) for need in needs],
        },
    )
    a_price = {name: 1_000 * seconds / len(needs) for name, seconds in times.items()}
    return Row(
        levels=levels,
        plain_ms=a_price["plain"],
        in_order_ms=a_price["in order"],
        core_ms=a_price["core"],
        ratio=a_price["plain"] / a_price["core"],
        in_order_ratio=a_price["in order"] / a_price["core"],
        columns_ms=a_price["columns"],
        price_ms=a_price["price"],
    )


def plain_loop(asks: Sequence[tuple[int, int]], needed: int) -> tuple[int, int] | None:
    """Return the recommended price and its index into the asks by price."""
    if not asks:
        return None
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
    best, best_score = viable, 0.0
    for index in range(viable, min(viable + 6, len(by_price))):
        price, gpus = by_price[index]
        depth = 4 * min(cumulative[index], 2 * needed) * price
        value = 4 * by_price[viable][0] * needed
        liquidity = min(2 * gpus, 3 * needed) * price
        score = (depth + value + liquidity) / (10 * needed * price)
        if score > best_score:
            best, best_score = index, score
    return by_price[best][0], best


def _limit(found: Priced | NoQuote) -> tuple[int, int] | None:
    return None if isinstance(found, NoQuote) else (found.limit, found.index)


def _medians(levels: int, sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each side, which take turns."""
    batch = BATCH[levels]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS[levels]):
        for name, run in sides.items():
            seconds[name].append(_seconds(run, batch) / batch)
    return {name: statistics.median(measured) for name, measured in seconds.items()}


def _seconds(run: Callable[[], object], batch: int) -> float:
    gc.collect()  # nobody pays for what the other left behind
    begin = time.process_time()  # one thread, and other programs may be at work
    for _ in range(batch):
        run()
    return time.process_time() - begin


def _book(levels: int) -> OrderBook:
    chance = random.Random(SEED)

    def level(dearest: int) -> Level:
        return Level(
            price=chance.randrange(dearest // 2, dearest, 60),
            gpus=8 * chance.randint(1, 16),
            start=NOW,
            end=NOW + timedelta(hours=chance.choice((24, 168))),
        )

    return OrderBook(
        provider="benchmark",
        instance_type=KIND,
        asks=tuple(level(5_000_000) for _ in range(levels)),
        bids=tuple(level(2_500_000) for _ in range(levels // 2)),
        observed_at=NOW,
    )


if __name__ == "__main__":
    main()
