"""Rows of a pool's price, with all that the database lets somebody write into them by hand: its
cycle and jobs go on, and so does what shows all pools."""

from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.database import clock
from longshore.activities.prices.views import price_now
from longshore.activities.queue_views import QueueViews
from longshore.activities.views import Views, set_pool
from longshore.models.money import MOST
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PoolPrice, PricePoint, PriceSeries
from tests.activities.test_damaged_rows import ABSURD, COLUMNS, is_written, some_of
from tests.support.ledger import Ledger

SOURCE = "https://example.com/prices.csv"
VALUES = {**ABSURD, "text": ("", "x", "\u202e", "x" * 5_000)}


@pytest.mark.parametrize("table", ["price_series", "price_points"])
async def test_no_value_that_the_database_takes_stops_others(ledger: Ledger, table: str):
    spec = await _fill(ledger)
    number = 0
    columns = await ledger.rows(COLUMNS, table=table)
    for place, (column, kind) in enumerate((each["name"], each["kind"]) for each in columns):
        for value in some_of(VALUES.get(kind, ()), place, every=3):
            where = f"pool = '{ledger.pool}'"
            was = await ledger.value(f"SELECT CAST({column} AS text) FROM {table} LIMIT 1")
            if not await is_written(ledger, table, where, column, kind, value):
                continue
            number += 1
            try:
                await _is_looked_at(ledger, spec, f"{number}")
            except Exception as error:
                raise AssertionError(f"{table}.{column} = {value}: {error!r}") from error
            assert await is_written(ledger, table, where, column, kind, was)
    assert number or table == "price_points"


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("price_points", "price", str(MOST + 1)),
        ("price_points", "at", "infinity"),
        ("price_series", "ends_at", "infinity"),
        ("price_series", "tried_at", "-infinity"),
    ],
)
async def test_what_no_price_has_is_refused(ledger: Ledger, table: str, column: str, value: str):
    await _fill(ledger)
    with pytest.raises(IntegrityError, match=r"in_bounds|in_reach"):
        await ledger.rows(f"UPDATE {table} SET {column} = '{value}'")


async def test_a_row_of_before_that_cannot_be_read_counts_as_no_price(ledger: Ledger):
    spec = await _fill(ledger)
    bounds = await ledger.value(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conname = 'price_points_in_bounds'"
    )
    await ledger.rows("ALTER TABLE price_points DROP CONSTRAINT price_points_in_bounds")
    await ledger.rows(f"UPDATE price_points SET price = {2**63 - 1}")
    try:
        await _is_looked_at(ledger, spec, "damaged")
        async with ledger.database.transaction() as connection:
            found = await price_now(connection, spec, await clock(connection))
        assert found.why == "it could not be read: what is stored of it cannot be read"
    finally:
        await ledger.rows("DELETE FROM price_points")
        await ledger.rows(
            f"ALTER TABLE price_points ADD CONSTRAINT price_points_in_bounds {bounds}"
        )


async def _fill(ledger: Ledger) -> PoolSpec:
    """Give the pool a price that is too high for one job, and another that needs none."""
    spec = PoolSpec(name=ledger.pool, price=PoolPrice(source=SOURCE))
    async with ledger.database.transaction() as connection:
        now = await clock(connection)
        points = (PricePoint(now - timedelta(hours=1), 2_000_000),)
        prices = PriceSeries.of(points, timedelta(hours=5), "prices.csv")
        await set_pool(connection, spec, prices)
    await ledger.register(gpus=2)
    await ledger.enqueue("dear", gpus=1, start_below="$1/gpu-hour")
    await ledger.enqueue("waits", gpus=8)
    return spec


async def _is_looked_at(ledger: Ledger, spec: PoolSpec, number: str) -> None:
    views = Views(ledger.database)
    await ledger.cycle(number)
    assert len(await views.pools()) == 1
    assert len(await views.jobs(pool=ledger.pool)) == 2
    await QueueViews(ledger.database).queue(ledger.pool)
