"""The memory of markets in the capacity database: books and recommendations.

Storing the same a second time changes nothing.
docs/market-memory.md says what is kept, and for how long.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database
from longshore.models.market import Level, OrderBook, Window
from longshore.models.market_memory import (
    LEVELS_KEPT,
    HistoryPoint,
    Quality,
    Recommendation,
    Source,
)
from longshore.scheduling.prices.book import BookColumns, Columns
from longshore.scheduling.prices.price import in_place
from longshore.scheduling.prices.quality import HORIZON, judge, summarize

MOST_POINTS = 2000
"""Points that a history has at most."""
MOST_JUDGED = 5000
"""Of the newest recommendations so many are judged."""


class MarketMemory:
    """Stores what markets asked and what was recommended, and says how that turned out."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def store(
        self,
        book: OrderBook,
        recommendations: Sequence[Recommendation] = (),
        *,
        look: str | None = None,
    ) -> None:
        """Store a book and what was recommended on it, both or neither.

        Of a market that fills an order in one place, the book of the place with the lowest ask.
        With a `look`, nothing is stored when that look has stored a book of this type before.
        Raises UnavailableError.
        """
        async with self._database.transaction() as connection:
            book_id, new = await _insert_book(connection, _where_it_is_cheapest(book), look)
            if look is not None and not new:
                return
            for recommendation in recommendations:
                await _insert_recommendation(connection, recommendation, book_id)

    async def history(
        self,
        instance_type: str,
        since: datetime,
        until: datetime,
        *,
        provider: str | None = None,
        points: int = 200,
    ) -> tuple[HistoryPoint, ...]:
        """Return prices over time, oldest first: at most `points` a market, spans of equal length.

        A span without a book has no point; what was simulated has points of its own. Raises
        UnavailableError, and ValueError when `until` is not after `since`.
        """
        if until <= since:
            raise ValueError(f"a history must end after it begins, got {since} to {until}")
        points = min(max(points, 1), MOST_POINTS)
        async with self._database.transaction() as connection:
            rows = await connection.execute(
                text(_HISTORY),
                {
                    "provider": provider, "instance_type": instance_type, "since": since,
                    "until": until, "points": points,
                },
            )  # fmt: skip
            span = (until - since) / points
            return tuple(_point(row, since, span) for row in rows.mappings())

    async def recommendations(
        self,
        since: datetime,
        *,
        provider: str | None = None,
        instance_type: str | None = None,
        limit: int = MOST_JUDGED,
    ) -> tuple[Recommendation, ...]:
        """Return the newest recommendations since then, oldest first. Raises UnavailableError."""
        async with self._database.transaction() as connection:
            rows = await connection.execute(
                text(_RECOMMENDATIONS),
                {
                    "provider": provider, "instance_type": instance_type, "since": since,
                    "limit": limit,
                },
            )  # fmt: skip
            return tuple(reversed([_recommendation(row) for row in rows.mappings()]))

    async def how_good(
        self,
        since: datetime,
        *,
        provider: str | None = None,
        instance_type: str | None = None,
        horizon: timedelta = HORIZON,
    ) -> tuple[Quality, ...]:
        """Return how the newest recommendations since then turned out. Raises UnavailableError."""
        made = await self.recommendations(since, provider=provider, instance_type=instance_type)
        return summarize(judge(made, horizon))


def _where_it_is_cheapest(book: OrderBook) -> OrderBook:
    """Return the book of one place: together, the bids of one may stand above asks of another."""
    asks = [ask for ask in book.asks if ask.price and ask.gpus]
    cheapest = min(asks, key=lambda ask: ask.price, default=None)
    return in_place(book, cheapest.place) if cheapest else book


async def _insert_book(
    connection: AsyncConnection, book: OrderBook, look: str | None
) -> tuple[int, bool]:
    """Return the id of the book's row, and whether it is a new one."""
    columns = BookColumns.of(book)
    asks, ask_gpus = _traded(columns.asks, book.instance_type)
    bids, bid_gpus = _traded(columns.bids, book.instance_type)
    values = {
        "provider": book.provider,
        "instance_type": book.instance_type,
        "window_start": book.window.start if book.window else None,
        "window_end": book.window.end if book.window else None,
        "observed_at": book.observed_at,
        "simulated": book.simulated,
        "look": look,
        "best_ask": asks[0].price if asks else None,
        "best_bid": bids[0].price if bids else None,
        "ask_gpus": ask_gpus,
        "bid_gpus": bid_gpus,
        "levels": json.dumps({"asks": _plain(asks), "bids": _plain(bids)}),
    }
    book_id = await connection.scalar(text(_INSERT_BOOK), values)
    if book_id is not None:
        return book_id, True
    found = await connection.scalar(text(_FIND_BOOK), values)
    assert found is not None, "a book that was refused is there"
    return found, False


def _traded(side: Columns, instance_type: str) -> tuple[list[Level], int]:
    """Return the levels of the type that can be traded, the best first, and all their GPUs."""
    counts = (side.price > 0) & (side.gpus > 0)
    of_type = side.of_type(instance_type)
    if of_type is not None:
        counts &= of_type
    traded = side.taken(np.flatnonzero(counts))
    return traded.levels, int(traded.gpus.sum())


def _plain(levels: Sequence[Level]) -> list[dict[str, Any]]:
    kept = levels[:LEVELS_KEPT]
    return [level.model_dump(mode="json", exclude_none=True) for level in kept]


async def _insert_recommendation(
    connection: AsyncConnection, made: Recommendation, book_id: int
) -> None:
    values = {
        **made.model_dump(exclude={"id", "window", "source"}),
        "source": made.source.value,
        "window_start": made.window.start if made.window else None,
        "window_end": made.window.end if made.window else None,
        "book_id": book_id,
    }
    await connection.execute(text(_INSERT_RECOMMENDATION), values)


def _point(row: RowMapping, since: datetime, span: timedelta) -> HistoryPoint:
    said = {name: value for name, value in row.items() if name != "bucket"}
    return HistoryPoint.model_validate({**said, "at": since + row["bucket"] * span})


def _recommendation(row: RowMapping) -> Recommendation:
    start, end = row["window_start"], row["window_end"]
    window = Window(start=start, end=end) if start and end else None
    return Recommendation.model_validate(
        {**row, "source": Source(row["source"]), "window": window}
    )


_INSERT_BOOK = """
    INSERT INTO market_books (provider, instance_type, window_start, window_end, observed_at,
                              simulated, look, best_ask, best_bid, ask_gpus, bid_gpus, levels)
    VALUES (:provider, :instance_type, :window_start, :window_end, :observed_at, :simulated, :look,
            :best_ask, :best_bid, :ask_gpus, :bid_gpus, CAST(:levels AS jsonb))
    ON CONFLICT DO NOTHING RETURNING id
"""
_FIND_BOOK = """
    SELECT id FROM market_books
     WHERE provider = :provider AND instance_type = :instance_type
       AND (look = :look
            OR (observed_at = :observed_at AND window_start IS NOT DISTINCT FROM :window_start
                AND window_end IS NOT DISTINCT FROM :window_end))
     ORDER BY look = :look DESC NULLS LAST LIMIT 1
"""
_INSERT_RECOMMENDATION = """
    INSERT INTO market_recommendations (provider, instance_type, gpus, window_start, window_end,
                                        made_at, "limit", marginal, average, sufficient, index,
                                        source, book_id, simulated)
    VALUES (:provider, :instance_type, :gpus, :window_start, :window_end, :made_at, :limit,
            :marginal, :average, :sufficient, :index, :source, :book_id, :simulated)
    ON CONFLICT DO NOTHING
"""
_HISTORY = """
    SELECT provider, simulated, bucket, count(*) AS books,
           min(best_ask) AS ask_low, max(best_ask) AS ask_high,
           CAST(round(avg(best_ask)) AS bigint) AS ask,
           CAST(round(avg(best_bid)) AS bigint) AS bid,
           CAST(avg(ask_gpus) AS float) AS ask_gpus, CAST(avg(bid_gpus) AS float) AS bid_gpus
      FROM (SELECT *, LEAST(:points - 1, CAST(floor(
                   extract(epoch FROM observed_at - CAST(:since AS timestamptz))
                   / extract(epoch FROM CAST(:until AS timestamptz) - CAST(:since AS timestamptz))
                   * :points) AS integer)) AS bucket
              FROM market_books
             WHERE instance_type = :instance_type
               AND (CAST(:provider AS text) IS NULL OR provider = :provider)
               AND observed_at >= :since AND observed_at < :until) AS books
     GROUP BY provider, simulated, bucket ORDER BY provider, simulated, bucket
"""
_RECOMMENDATIONS = """
    SELECT * FROM market_recommendations
     WHERE made_at >= :since AND (CAST(:provider AS text) IS NULL OR provider = :provider)
       AND (CAST(:instance_type AS text) IS NULL OR instance_type = :instance_type)
     ORDER BY made_at DESC, id DESC LIMIT :limit
"""
