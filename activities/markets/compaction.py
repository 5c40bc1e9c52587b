"""Keeping the memory of markets small: thin out what is a day old, forget what is too old."""

from datetime import datetime, timedelta

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.models.market_memory import Compacted

THINNED_AFTER = timedelta(days=1)
MOST_ROWS = 200_000
"""Rows that each table keeps at most; the oldest go first."""
_AT_ONCE = 20_000
"""Rows of a table that one run removes by each rule: a transaction stays short."""


async def compact(
    database: Database, now: datetime, keep: timedelta, *, most_rows: int = MOST_ROWS
) -> Compacted:
    """Thin out and forget books and recommendations. Raises UnavailableError.

    Of what is older than a day the first book, or recommendation of the watch, of every hour
    stays. Again does no harm.
    """
    thinned = removed = 0
    hour = now.replace(minute=0, second=0, microsecond=0)
    for table, time, alike in _TABLES:
        names = {"table": table, "time": time, "alike": alike}
        async with database.transaction() as connection:
            gone = await connection.execute(
                text(_FORGET.format(**names)), {"before": now - keep, "at_once": _AT_ONCE}
            )
            over = await connection.execute(text(_CUT.format(**names)), {"most": most_rows})
            before = {"before": hour - THINNED_AFTER, "at_once": _AT_ONCE}
            thin = await connection.execute(text(_THIN.format(**names)), before)
            if thin.rowcount < _AT_ONCE:
                await connection.execute(text(_MARK.format(**names)), before)
        thinned += thin.rowcount
        removed += gone.rowcount + over.rowcount
    return Compacted(thinned=thinned, removed=removed)


_TABLES = (
    (
        "market_books",
        "observed_at",
        "provider, instance_type, simulated, window_end - window_start",
    ),
    (
        "market_recommendations",
        "made_at",
        # What a person was told is no series: each is one of a kind, and stays.
        "provider, instance_type, simulated, window_end - window_start, gpus, "
        "CASE WHEN source = 'watch' THEN 0 ELSE id END",
    ),
)
"""Table, column of its time, and what makes rows of one hour alike."""

_FORGET = """
    DELETE FROM {table} WHERE id IN
           (SELECT id FROM {table} WHERE {time} < :before ORDER BY {time} LIMIT :at_once)
"""
_CUT = """
    DELETE FROM {table} WHERE id IN
           (SELECT id FROM {table} ORDER BY {time} DESC, id DESC OFFSET :most)
"""
_THIN = """
    DELETE FROM {table} WHERE id IN (
        SELECT id FROM (
            SELECT id, kept, row_number() OVER (
                       PARTITION BY {alike}, date_trunc('hour', {time}, 'UTC')
                       ORDER BY kept DESC, {time}, id) AS place
              FROM {table} WHERE {time} < :before
               AND date_trunc('hour', {time}, 'UTC') IN (
                   SELECT date_trunc('hour', {time}, 'UTC') FROM {table}
                    WHERE kept = 'all' AND {time} < :before)) AS placed
         WHERE place > 1 LIMIT :at_once)
"""
_MARK = "UPDATE {table} SET kept = 'hour' WHERE kept = 'all' AND {time} < :before"
