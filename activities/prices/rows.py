"""Series of prices as they are stored: one for each pool, with when it was read."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.base import as_reason
from longshore.models.price_series import PriceSeries

AHEAD = 700
"""Points after now that are read: ten minutes of one each second. A cycle comes before that."""


class StoredPrices(NamedTuple):
    """What is stored of a pool's price."""

    source: str
    series: PriceSeries | None
    """From the price of the moment on; None where it could not be read yet."""
    read_at: datetime | None
    tried_at: datetime
    trouble: str
    """Why it could not be read since `read_at`."""


async def load_prices(
    connection: AsyncConnection, pool: str, now: datetime, ahead: int = AHEAD
) -> StoredPrices | None:
    """Return what is stored of a pool's price; None where nothing is."""
    row = (await connection.execute(text(_SERIES), {"pool": pool})).one_or_none()
    if row is None:
        return None
    series, trouble = None, row.trouble
    if row.ends_at is not None:
        found = await connection.execute(text(_POINTS), {"pool": pool, "now": now, "ahead": ahead})
        points = tuple((at, price) for at, price in found)
        try:
            series = PriceSeries(points=points, ends_at=row.ends_at, whence=row.whence)
        except ValidationError:  # somebody wrote into it by hand
            trouble = "what is stored of it cannot be read"
    return StoredPrices(row.source, series, row.read_at, row.tried_at, trouble)


async def store_series(
    connection: AsyncConnection, pool: str, source: str, series: PriceSeries, now: datetime
) -> None:
    """Store a series that was read `now`, in place of the one before."""
    values = {
        "pool": pool, "source": source, "whence": series.whence, "ends_at": series.ends_at,
        "now": now,
    }  # fmt: skip
    await connection.execute(text(_STORE), values)
    await connection.execute(text("DELETE FROM price_points WHERE pool = :pool"), {"pool": pool})
    points = {
        "pool": pool,
        "times": [at for at, _ in series.points],
        "prices": [price for _, price in series.points],
    }
    await connection.execute(text(_STORE_POINTS), points)


async def store_trouble(
    connection: AsyncConnection, pool: str, source: str, trouble: str, now: datetime
) -> None:
    """Note that it could not be read `now`; what was read before of this source stays."""
    values = {"pool": pool, "source": source, "trouble": as_reason(trouble)[:1000], "now": now}
    await connection.execute(text(_TROUBLE), values)


async def forget_series(connection: AsyncConnection, pool: str, keep: Sequence[str] = ()) -> None:
    """Forget what is stored of a pool's price, unless it is of one of these sources."""
    await connection.execute(
        text("DELETE FROM price_series WHERE pool = :pool AND source <> ALL(:keep)"),
        {"pool": pool, "keep": list(keep)},
    )


_SERIES = """
    SELECT source, whence, ends_at, read_at, tried_at, trouble FROM price_series WHERE pool = :pool
"""

_POINTS = """
    (SELECT at, price FROM price_points WHERE pool = :pool AND at <= :now
      ORDER BY at DESC LIMIT 1)
     UNION ALL
    (SELECT at, price FROM price_points WHERE pool = :pool AND at > :now
      ORDER BY at LIMIT :ahead)
     ORDER BY at
"""

_STORE = """
    INSERT INTO price_series (pool, source, whence, ends_at, read_at, tried_at, trouble)
    VALUES (:pool, :source, :whence, :ends_at, :now, :now, '')
    ON CONFLICT (pool) DO UPDATE
       SET source = excluded.source, whence = excluded.whence, ends_at = excluded.ends_at,
           read_at = excluded.read_at, tried_at = excluded.tried_at, trouble = ''
"""

_STORE_POINTS = """
    INSERT INTO price_points (pool, at, price)
    SELECT :pool, at, price
      FROM unnest(CAST(:times AS timestamptz[]), CAST(:prices AS bigint[])) AS p (at, price)
"""

_TROUBLE = """
    INSERT INTO price_series (pool, source, tried_at, trouble)
    VALUES (:pool, :source, :now, :trouble)
    ON CONFLICT (pool) DO UPDATE
       SET source = excluded.source, tried_at = excluded.tried_at, trouble = excluded.trouble
     WHERE price_series.source = excluded.source
"""
"""A read of a source that the pool has left is of no use."""
