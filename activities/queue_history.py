"""How many jobs of a pool waited and ran over the past day, from what is on record of it."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from longshore.activities.database import Database, clock
from longshore.activities.queue_views import SIMULATED
from longshore.activities.snapshot import load_pool
from longshore.models.queue_view import QueueHistory, QueueMoment

OVER = timedelta(days=1)
BUCKET = timedelta(minutes=15)


class QueueHistories:
    """Reads the capacity database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def history(self, pool: str) -> QueueHistory:
        """Return the past day of one pool. Raises NotFoundError."""
        async with self._database.snapshot() as connection:
            await load_pool(connection, pool, known=True)
            now = await clock(connection)
            since = _whole_bucket(now - OVER)
            asked = {"pool": pool, "since": since, "now": now, "bucket": BUCKET}
            rows = (await connection.execute(text(HISTORY), asked)).mappings().all()
            simulated = bool(await connection.scalar(text(SIMULATED), {"pool": pool}))
        moments = tuple(QueueMoment.model_validate(dict(row)) for row in rows)
        return QueueHistory(
            pool=pool, since=since, every=BUCKET, moments=moments, simulated=simulated
        )


def _whole_bucket(at: datetime) -> datetime:
    """Return the start of the bucket of a moment. Buckets begin at whole quarters of an hour, so
    that the past stays the same from one look to the next."""
    begun = at.timestamp() // BUCKET.total_seconds()
    return datetime.fromtimestamp(begun * BUCKET.total_seconds(), UTC)


HISTORY = """
    WITH buckets AS (
        SELECT b AS bucket, least(b + CAST(:bucket AS interval), :now) AS at
          FROM generate_series(
               CAST(:since AS timestamptz), CAST(:now AS timestamptz), CAST(:bucket AS interval)) b
    ), attempts AS (
        SELECT p.job_id, p.attempt, p.placed_at, p.ended_at
          FROM placements p JOIN jobs j ON j.id = p.job_id
         WHERE p.ended_at IS NULL AND p.rank = 0 AND j.pool = :pool
        UNION ALL
        SELECT p.job_id, p.attempt, p.placed_at, p.ended_at
          FROM placements p JOIN jobs j ON j.id = p.job_id
         WHERE p.ended_at >= :since AND p.rank = 0 AND j.pool = :pool
    ), events AS (
        SELECT greatest(placed_at, :since) AS at, 1 AS change, 0 AS stops FROM attempts
        UNION ALL
        SELECT ended_at, -1, 0 FROM attempts WHERE ended_at IS NOT NULL
        UNION ALL
        SELECT e.decided_at, 0, 1
          FROM attempts a
          JOIN preemptions e ON e.job_id = a.job_id AND e.attempt = a.attempt
         WHERE e.decided_at >= :since
    ), sums AS (
        SELECT date_bin(:bucket, at, :since) AS bucket, sum(change) AS change, sum(stops) AS stops
          FROM events GROUP BY 1
    )
    SELECT b.at, c.waiting,
           CAST(sum(coalesce(s.change, 0)) OVER (ORDER BY b.bucket) AS bigint) AS running,
           CAST(coalesce(s.stops, 0) AS bigint) AS stops
      FROM buckets b
      LEFT JOIN sums s ON s.bucket = b.bucket
      LEFT JOIN LATERAL (
           SELECT queued - placed AS waiting FROM cycles
            WHERE pool = :pool AND committed_at <= b.at
            ORDER BY committed_at DESC LIMIT 1) c ON true
     ORDER BY b.bucket
"""
"""What ended before the day is not read: running jobs and those that ended since are found by one
index each. A job that made room within the day runs still or has ended since, so it is among them.
"""
