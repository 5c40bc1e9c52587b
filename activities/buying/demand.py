"""What a pool wanted of late: GPUs queued and used, tier by tier, derived from what happened.

Nothing is counted as it happens: jobs and placements say it for every moment, after any restart.
"""

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.buying import DemandSample

_SAMPLES = 12
_SHORTEST = timedelta(minutes=1)


async def demand_of_late(
    connection: AsyncConnection, pool: str, span: timedelta, now: datetime
) -> tuple[DemandSample, ...]:
    """Return samples of the pool's demand over `span` up to `now`, oldest first.

    A job counts as queued while it is open and holds nothing. One that is held now, by somebody
    or for its price, has wanted nothing: no machine is kept for it.
    """
    step = max(span / _SAMPLES, _SHORTEST)
    found = await connection.execute(
        text(_DEMAND), {"pool": pool, "since": now - span, "now": now, "step": step}
    )
    return tuple(DemandSample.model_validate(dict(row)) for row in found.mappings())


_DEMAND = """
    WITH moments AS (
        SELECT generate_series(CAST(:since AS timestamptz), CAST(:now AS timestamptz),
                               CAST(:step AS interval)) AS at
    ), wanted AS (
        SELECT m.at, coalesce(j.spec->>'tier', 'FAST') AS tier,
               CASE coalesce(jsonb_typeof(j.spec->'gpus'), 'absent')
                   WHEN 'number' THEN least((j.spec->>'gpus')::numeric, 1000000)::int
                   WHEN 'absent' THEN 1 ELSE 0 END AS gpus,
               EXISTS (SELECT FROM placements p
                        WHERE p.job_id = j.id AND p.placed_at <= m.at
                          AND (p.ended_at IS NULL OR p.ended_at > m.at)) AS runs,
               EXISTS (SELECT FROM queue q WHERE q.job_id = j.id
                          AND q.held AND NOT q.begin_only) AS held
          FROM moments m
          JOIN jobs j ON j.pool = :pool AND coalesce(j.begins_at, j.submitted_at) <= m.at
                     AND (j.ended_at IS NULL OR j.ended_at > m.at)
    )
    SELECT m.at, t.tier,
           coalesce(sum(w.gpus) FILTER (WHERE NOT (w.runs OR w.held)), 0)::int AS queued,
           coalesce(sum(w.gpus) FILTER (WHERE w.runs), 0)::int AS used
      FROM moments m CROSS JOIN (VALUES ('FAST'), ('FLEX')) AS t (tier)
      LEFT JOIN wanted w ON w.at = m.at AND w.tier = t.tier
     GROUP BY m.at, t.tier ORDER BY m.at, t.tier
"""
