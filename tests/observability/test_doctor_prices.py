"""`longshore doctor` tells of prices that nobody knows, soon will not, or cannot be read again."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.activities.database import Database
from longshore.activities.prices.rows import store_trouble
from longshore.activities.views import set_pool
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PoolPrice, PriceSeries, Unknown
from longshore.workers.doctor.findings import Level
from longshore.workers.doctor.pools import prices

HOUR = timedelta(hours=1)
FILE = PoolPrice(source="file prices.csv")
URL = PoolPrice(source="https://example.com/prices")


async def told(
    database_url: str,
    price: PoolPrice,
    ends_in: timedelta | None,
    trouble: str = "",
    **pool: object,
) -> list[str]:
    """Return what is said of a pool with this price, whose series ends so."""
    database, now = Database(database_url), datetime.now(UTC)
    spec = PoolSpec.model_validate({"name": "priced", "price": price, **pool})
    series = None
    if ends_in is not None:
        points = ((now - 20 * HOUR, 2_600_000),)
        series = PriceSeries(points=points, ends_at=now + ends_in, whence="file prices.csv")
    try:
        async with database.transaction() as connection:
            await set_pool(connection, spec, series)
            if trouble:
                await store_trouble(connection, "priced", price.source, trouble, now)
        found = await prices(database)
    finally:
        await database.close()
    assert {each.level for each in found} <= {Level.WARN}
    assert all(each.mend for each in found)
    return [each.says for each in found]


@pytest.mark.parametrize(
    ("price", "ends_in", "trouble", "expected"),
    [
        (FILE, 24 * HOUR, "", ""),
        (URL, HOUR, "", ""),
        (FILE, HOUR, "", "the price of pool priced is known until "),
        (FILE, -HOUR, "", "the price of pool priced is not known: file prices.csv ended at "),
        (URL, HOUR, "it is away", "could not be read since "),
        (URL, -HOUR, "it is away", "the price of pool priced is not known: file prices.csv ended"),
        (URL, None, "it is away", "is not known: it could not be read: it is away"),
        (URL, None, "", "the price of pool priced is not known: it has not been read yet"),
    ],
)
async def test_a_price_that_is_ill_is_named(
    database_url: str, price: PoolPrice, ends_in: timedelta | None, trouble: str, expected: str
):
    says = await told(database_url, price, ends_in, trouble)
    assert len(says) == (1 if expected else 0)
    assert all(expected in each for each in says)


async def test_it_is_said_what_comes_of_it(database_url: str):
    (says,) = await told(database_url, FILE, -HOUR, start_below=2_100_000)
    assert says.endswith("; jobs with a threshold start as all others while nobody knows it")
    waits = FILE.model_copy(update={"unknown": Unknown.WAIT})
    (says,) = await told(database_url, waits, -HOUR, start_below=2_100_000)
    assert says.endswith("; jobs with a threshold wait while nobody knows it")
