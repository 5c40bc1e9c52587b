"""What is stored of the cycles of pools, as people look at it."""

from collections import defaultdict

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.models.cycles import AT_MOST, LOOKED_BACK, CycleView, PoolCycles

_PARTS = ("read_ms", "plan_ms", "commit_ms", "explain_ms")


class CycleViews:
    """Reads the capacity database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def cycles(self, pool: str | None = None, *, last: int = 0) -> tuple[PoolCycles, ...]:
        """Return the cycles of one pool, or of each by name, with the `last` of each."""
        where = {"pool": pool, "last": last, "span": LOOKED_BACK, "most": AT_MOST}
        async with self._database.transaction() as connection:
            sums = (await connection.execute(text(_SUMS), where)).mappings().all()
            latest: defaultdict[str, list[CycleView]] = defaultdict(list)
            for row in (await connection.execute(text(_LATEST), where)).mappings():
                fields = {name: value for name, value in row.items() if name != "pool"}
                latest[row["pool"]].append(CycleView.model_validate(fields))
        return tuple(
            PoolCycles.model_validate({**row, "latest": latest[row["pool"]]}) for row in sums
        )


_SUMS = f"""
    SELECT p.name AS pool, s.*,
           EXISTS (SELECT FROM nodes n WHERE n.pool = p.name AND n.simulated
                      AND n.state <> 'GONE') AS simulated,
           (SELECT count(*) FROM queue q WHERE q.pool = p.name AND NOT q.held) AS waiting
      FROM pools p, LATERAL (
           SELECT count(*) AS cycles, min(c.committed_at) AS since,
                  count(*) / greatest(
                      extract(epoch FROM clock_timestamp() - min(c.committed_at)) / 60, 1
                  )::float AS per_minute,
                  coalesce(sum(c.placed), 0) AS placed, coalesce(sum(c.refused), 0) AS refused,
                  avg(c.looked_at)::float AS looked_at,
                  percentile_cont(0.5) WITHIN GROUP (ORDER BY c.took_ms) AS p50_ms,
                  percentile_cont(0.95) WITHIN GROUP (ORDER BY c.took_ms) AS p95_ms,
                  {", ".join(f"avg(c.{part}) AS {part}" for part in _PARTS)}
             FROM (SELECT * FROM cycles
                    WHERE pool = p.name AND committed_at > clock_timestamp() - :span
                    ORDER BY committed_at DESC LIMIT :most) c) s
     WHERE CAST(:pool AS text) IS NULL OR p.name = :pool
     ORDER BY p.name
"""

_LATEST = f"""
    SELECT p.name AS pool, c.*
      FROM pools p, LATERAL (
           SELECT id, committed_at AS at, queued, placed, refused, looked_at, took_ms,
                  {", ".join(_PARTS)}
             FROM cycles WHERE pool = p.name ORDER BY committed_at DESC LIMIT :last) c
     WHERE CAST(:pool AS text) IS NULL OR p.name = :pool
     ORDER BY p.name, c.at DESC
"""
