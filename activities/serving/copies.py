"""How many engines of the same model come before one that fills free memory."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.scheduling.serving.prewarming import copies_before


async def load_copies(connection: AsyncConnection, pool: str) -> dict[str, int]:
    """Return, for each replica that waits in the pool and that nobody asks, how many copies of
    what it serves come before it; nothing of other jobs."""
    rows = (await connection.execute(text(COPIES), {"pool": pool})).all()
    there = {(row.model, row.runtime): row.there for row in rows}
    before = copies_before(there, ((row.model, row.runtime) for row in rows))
    return {row.job_id: number for row, number in zip(rows, before, strict=True)}


_SERVED = """
    coalesce(j.spec #>> '{engine,model,name}', '') AS model,
    coalesce(j.spec #>> '{engine,runtime,name}', '') AS runtime"""

COPIES = f"""
    WITH waiting AS MATERIALIZED (
        SELECT q.job_id, q.submitted_at, {_SERVED}
          FROM replicas r
          JOIN LATERAL (SELECT * FROM queue WHERE job_id = r.job_id OFFSET 0) q ON true
          JOIN jobs j ON j.id = r.job_id
         WHERE r.ended_at IS NULL AND q.pool = :pool AND NOT q.held
           AND (q.request->'fills' = 'true') IS TRUE
    ), placed AS (
        SELECT {_SERVED}, count(*) AS there
          FROM replicas r
          JOIN placements p ON p.job_id = r.job_id AND p.rank = 0 AND p.ended_at IS NULL
          JOIN nodes n ON n.id = p.node_id AND n.pool = :pool
          JOIN jobs j ON j.id = r.job_id
         WHERE r.ended_at IS NULL AND r.stopping_at IS NULL AND EXISTS (SELECT FROM waiting)
         GROUP BY 1, 2
    )
    SELECT job_id, model, runtime, coalesce(there, 0) AS there
      FROM waiting LEFT JOIN placed USING (model, runtime)
     ORDER BY submitted_at, job_id
"""
"""Each cycle asks: `OFFSET 0` has it look for each replica in the queue, and not read all of that;
what is placed is read where a replica waits."""
