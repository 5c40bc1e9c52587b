"""Books and recommendations in a real PostgreSQL: stored once, read back, judged."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from longshore.activities.database import Database
from longshore.activities.markets.compaction import compact
from longshore.activities.markets.memory import MarketMemory
from longshore.models.market import Level, Window
from longshore.models.market_memory import LEVELS_KEPT, Compacted, Source
from tests.support.market_books import NOW, a_book, every, levels, recommended

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
KEEP = 90 * DAY


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Opens a database of this test's own; 0.1 s."""
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
def memory(database: Database) -> MarketMemory:
    return MarketMemory(database)


async def rows(database: Database, table: str) -> list[dict[str, Any]]:
    async with database.transaction() as connection:
        found = await connection.execute(text(f"SELECT * FROM {table} ORDER BY 1"))
        return [dict(row) for row in found.mappings()]


async def test_a_book_is_stored_with_its_sums_and_read_back(
    database: Database, memory: MarketMemory
):
    window = Window(start=NOW, end=NOW + HOUR)
    await memory.store(a_book(window=window, simulated=True))
    (row,) = await rows(database, "market_books")
    assert (row["best_ask"], row["best_bid"]) == (2_000_000, 1_000_000)
    assert (row["ask_gpus"], row["bid_gpus"], row["simulated"]) == (80, 8, True)
    assert (row["window_start"], row["window_end"]) == (NOW, NOW + HOUR)
    kept = tuple(Level.model_validate(level) for level in row["levels"]["asks"])
    assert kept == a_book().asks


async def test_what_cannot_be_bought_is_no_price(database: Database, memory: MarketMemory):
    odd = (*levels(("0.50", 4), ("0.10", 0)), Level(price=1, gpus=8, instance_type="8xA100"))
    await memory.store(a_book(asks=(*odd, *levels(("3.00", 8)))))
    await memory.store(a_book(NOW + MINUTE, asks=odd, bids=()))
    priced, empty = await rows(database, "market_books")
    assert (priced["best_ask"], priced["ask_gpus"]) == (3_000_000, 8)
    assert (empty["best_ask"], empty["ask_gpus"], empty["best_bid"]) == (None, 0, None)


async def test_a_deep_book_keeps_its_best_levels(database: Database, memory: MarketMemory):
    asks = levels(*((f"{200 - number}.00", 8) for number in range(120)))
    await memory.store(a_book(asks=asks))
    (row,) = await rows(database, "market_books")
    prices = [level["price"] for level in row["levels"]["asks"]]
    assert prices == sorted(level.price for level in asks)[:LEVELS_KEPT]
    assert row["ask_gpus"] == 120 * 8


async def test_the_same_is_stored_once_also_at_once(database: Database, memory: MarketMemory):
    book = a_book()
    await asyncio.gather(*(memory.store(book, [recommended(book)]) for _ in range(5)))
    (kept,) = await rows(database, "market_books")
    (made,) = await rows(database, "market_recommendations")
    assert made["book_id"] == kept["id"]


async def test_a_look_that_is_repeated_stores_nothing_more(
    database: Database, memory: MarketMemory
):
    for at in (NOW, NOW + MINUTE):  # what a repeat reads is another book
        book = a_book(at)
        await memory.store(book, [recommended(book), recommended(book, 64)], look="look-1")
    (kept,) = await rows(database, "market_books")
    made = await rows(database, "market_recommendations")
    assert kept["observed_at"] == NOW
    assert [(row["gpus"], row["book_id"]) for row in made] == [(8, kept["id"]), (64, kept["id"])]
    await memory.store(a_book(NOW + 2 * MINUTE), look="look-2")
    assert len(await rows(database, "market_books")) == 2


async def test_recommendations_are_read_back_as_they_were(memory: MarketMemory):
    book = a_book(window=Window(start=NOW, end=NOW + HOUR))
    later = a_book(NOW + MINUTE)
    made = [recommended(book), recommended(later, 640, Source.CLI)]
    for of, each in zip((book, later), made, strict=True):
        await memory.store(of, [each])
    found = await memory.recommendations(NOW, provider="market", instance_type="8xH100")
    assert [each.model_copy(update={"id": None}) for each in found] == made
    assert [each.sufficient for each in found] == [True, False]
    assert await memory.recommendations(NOW, provider="other") == ()


@pytest.mark.parametrize(
    "wrong",
    [
        "best_ask = -1", "best_ask = NULL", "ask_gpus = -8", "bid_gpus = 0",
        "window_start = now()", "levels = '{}'", "kept = 'day'",
        """levels = jsonb_build_object('bids', '[]'::jsonb, 'asks',
                    (SELECT jsonb_agg(n) FROM generate_series(1, 51) n))""",
    ],
)  # fmt: skip
async def test_the_database_refuses_a_wrong_book(
    database: Database, memory: MarketMemory, wrong: str
):
    await memory.store(a_book())
    with pytest.raises(IntegrityError, match="violates check constraint"):
        async with database.transaction() as connection:
            await connection.execute(text(f"UPDATE market_books SET {wrong}"))


@pytest.mark.parametrize(
    "wrong",
    ["marginal = average - 1", "average = NULL", '"limit" = -1', "gpus = 0", "source = 'rumour'"],
)
async def test_the_database_refuses_a_wrong_recommendation(
    database: Database, memory: MarketMemory, wrong: str
):
    await memory.store(a_book(), [recommended(a_book())])
    with pytest.raises(IntegrityError, match="violates check constraint"):
        async with database.transaction() as connection:
            await connection.execute(text(f"UPDATE market_recommendations SET {wrong}"))


async def test_history_puts_books_together_in_equal_spans(memory: MarketMemory):
    for minute, lowest in ((0, "2.00"), (10, "4.00"), (29, "3.00"), (59, "5.00")):
        await memory.store(a_book(NOW + minute * MINUTE, lowest))
    await memory.store(a_book(NOW + HOUR, "9.00"))  # not before `until`
    await memory.store(a_book(NOW, "1.50", provider="other", bids=()))
    found = await memory.history("8xH100", NOW, NOW + HOUR, points=2)
    first, second, other = found
    assert (first.at, first.books, second.at, second.books) == (NOW, 3, NOW + HOUR / 2, 1)
    assert (first.ask_low, first.ask_high, first.ask) == (2_000_000, 4_000_000, 3_000_000)
    assert (first.bid, first.ask_gpus) == (1_000_000, 80)
    assert (other.provider, other.ask, other.bid) == ("other", 1_500_000, None)
    assert await memory.history("8xH100", NOW, NOW + HOUR, points=2, provider="market") == (
        first, second,
    )  # fmt: skip
    assert await memory.history("8xA100", NOW, NOW + HOUR) == ()
    await memory.store(a_book(NOW + MINUTE, "0.10", simulated=True))
    assert first in await memory.history("8xH100", NOW, NOW + HOUR, points=2)
    with pytest.raises(ValueError, match="must end after it begins"):
        await memory.history("8xH100", NOW, NOW)


async def test_a_history_has_no_more_points_than_asked_for(memory: MarketMemory):
    for at in every(MINUTE, NOW, 100):
        await memory.store(a_book(at))
    found = await memory.history("8xH100", NOW - 2 * HOUR, NOW, points=12)
    assert len(found) <= 12
    assert sum(point.books for point in found) == 100
    assert [point.at for point in found] == sorted(point.at for point in found)


async def test_how_good_holds_limits_against_later_books(memory: MarketMemory):
    for at, lowest in zip(every(10 * MINUTE, NOW, 3), ("2.00", "1.60", "3.00"), strict=True):
        book = a_book(at, lowest)
        await memory.store(book, [recommended(book)])
    (quality,) = await memory.how_good(NOW - HOUR)
    assert (quality.size, quality.made, quality.judged, quality.at_once) == ("1-8", 3, 2, 2)
    assert quality.over_best == pytest.approx(((2.0 - 1.6) / 1.6 + (1.6 - 3.0) / 3.0) / 2)


async def test_compaction_keeps_a_day_whole_then_one_an_hour_then_nothing(
    database: Database, memory: MarketMemory
):
    moments = [
        *every(20 * MINUTE, NOW, 3),  # 11:30, 11:50, 12:10 today
        *every(20 * MINUTE, NOW - 2 * DAY, 6),  # 10:30 to 12:10, two days ago
        NOW - KEEP - MINUTE,
    ]
    for at in moments:
        book = a_book(at)
        await memory.store(book, [recommended(book), recommended(book, 64)])
    assert await compact(database, NOW, KEEP) == Compacted(thinned=3 + 6, removed=1 + 2)
    books = await rows(database, "market_books")
    assert _times(books, "hour") == [
        NOW - 2 * DAY - gap * MINUTE for gap in (120, 80, 20)
    ]  # the first of 10, 11 and 12 o'clock
    assert _times(books, "all") == moments[:3]
    made = await rows(database, "market_recommendations")
    assert len(made) == 2 * len(books)
    assert await compact(database, NOW, KEEP) == Compacted()


async def test_a_late_book_of_a_thinned_hour_goes(database: Database, memory: MarketMemory):
    at = NOW - 2 * DAY
    await memory.store(a_book(at))
    await compact(database, NOW, KEEP)
    await memory.store(a_book(at - MINUTE))
    assert (await compact(database, NOW, KEEP)).thinned == 1
    assert _times(await rows(database, "market_books"), "hour") == [at]


async def test_what_was_told_to_people_is_not_thinned_out(
    database: Database, memory: MarketMemory
):
    for at in every(MINUTE, NOW - 2 * DAY, 3):
        book = a_book(at)
        await memory.store(book, [recommended(book, source=Source.CLI)])
    assert await compact(database, NOW, KEEP) == Compacted(thinned=2)  # books
    assert len(await memory.recommendations(NOW - KEEP)) == 3
    assert await compact(database, NOW + KEEP, KEEP) == Compacted(removed=1 + 3)


async def test_compaction_bounds_the_rows(database: Database, memory: MarketMemory):
    for at in every(MINUTE, NOW, 20):
        book = a_book(at)
        await memory.store(book, [recommended(book)])
    assert await compact(database, NOW, KEEP, most_rows=5) == Compacted(removed=30)
    assert _times(await rows(database, "market_books"), "all") == every(MINUTE, NOW, 5)
    assert len(await memory.recommendations(NOW - HOUR)) == 5


def _times(found: list[dict[str, Any]], kept: str) -> list[datetime]:
    return sorted(row["observed_at"] for row in found if row["kept"] == kept)
