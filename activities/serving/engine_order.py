"""What the order of a queue asks of engines that wait: which come first in their class, and how
many engines of the same model come before one that fills free memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.scheduling.serving.prewarming import copies_before


class EngineOrder(NamedTuple):
    """What a pool's order asks of its engines; nothing where none waits."""

    copies: dict[str, int]
    """Of each replica that nobody asks: how many copies of what it serves come before it; of one
    that is prewarmed and was never asked so many more that it is behind all others."""
    turns: tuple[str, ...]
    """Those for which another was stopped; who has waited longest first."""


async def load_engine_order(connection: AsyncConnection, pool: str) -> EngineOrder:
    """Return what the order of a pool's queue asks of the replicas that wait there."""
    rows = (await connection.execute(text(ENGINES), {"pool": pool})).all()
    had = sorted((row.queued_at, row.job_id) for row in rows if row.has_turn)
    turns = tuple(job_id for _, job_id in had)
    return EngineOrder(_copies(rows), turns)


def _copies(rows: Sequence[Any]) -> dict[str, int]:
    # Sorted again: those that left while they were idle are counted before those that are new.
    filling = sorted((row for row in rows if row.fills), key=lambda row: row.prewarmed)
    there = {(row.model, row.runtime): row.there for row in filling}
    before = copies_before(there, ((row.model, row.runtime) for row in filling))
    behind = max(before, default=0) + 1
    return {
        row.job_id: number + (behind if row.prewarmed else 0)
        for row, number in zip(filling, before, strict=True)
    }


_SERVED = """
    coalesce(j.spec #>> '{engine,model,name}', '') AS model,
    coalesce(j.spec #>> '{engine,runtime,name}', '') AS runtime"""

ENGINES = f"""
    WITH waiting AS MATERIALIZED (
        SELECT q.job_id, q.submitted_at, q.queued_at, {_SERVED},
               (q.request->'fills' = 'true') IS TRUE AS fills,
               r.uses = 0 AND (j.spec #>> '{{engine,model,prewarm}}' = 'true') IS TRUE
                   AS prewarmed,
               EXISTS (SELECT FROM preemptions d
                        WHERE d.for_job = q.job_id AND d.for_attempt = q.attempt
                          AND NOT d.by_payer) AS has_turn
          FROM replicas r
          JOIN LATERAL (SELECT * FROM queue WHERE job_id = r.job_id OFFSET 0) q ON true
          JOIN jobs j ON j.id = r.job_id
         WHERE r.ended_at IS NULL AND q.pool = :pool AND NOT q.held
    ), placed AS (
        SELECT {_SERVED}, count(*) AS there
          FROM replicas r
          JOIN placements p ON p.job_id = r.job_id AND p.rank = 0 AND p.ended_at IS NULL
          JOIN nodes n ON n.id = p.node_id AND n.pool = :pool
          JOIN jobs j ON j.id = r.job_id
         WHERE r.ended_at IS NULL AND r.stopping_at IS NULL
           AND EXISTS (SELECT FROM waiting WHERE fills)
         GROUP BY 1, 2
    )
    SELECT job_id, queued_at, model, runtime, fills, prewarmed, has_turn,
           coalesce(there, 0) AS there
      FROM waiting LEFT JOIN placed USING (model, runtime)
     WHERE fills OR has_turn
     ORDER BY submitted_at, job_id
"""
"""Each cycle asks: `OFFSET 0` has it look for each replica in the queue, and not read all of that;
what is placed is read where a replica waits that nobody asks."""
