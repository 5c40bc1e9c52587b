"""What a cycle has placed, as its jobs are to hear of it."""

import itertools

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.funding.use import paid_now
from longshore.activities.placements import placement_of
from longshore.models.messages import LeaseEnd
from longshore.models.placement import Placed
from longshore.scheduling.funding.news import paid_for


async def placed_in(connection: AsyncConnection, cycle_id: str, pays: bool) -> tuple[Placed, ...]:
    """Return what a cycle has placed and its jobs are to hear of; with who `pays`, if anybody is
    asked."""
    rows = await connection.execute(
        text(_PLACED), {"cycle": cycle_id, "lost": LeaseEnd.NODE_LOST.value}
    )
    by_job = itertools.groupby(rows.mappings(), key=lambda row: (row["job_id"], row["attempt"]))
    placements = tuple(placement_of(list(group)) for _, group in by_job)
    if not pays or not placements:
        return placements
    ids = [placement.job_id for placement in placements]
    paid = await paid_now(connection, ids, await clock(connection))
    return tuple(
        placement.model_copy(
            update={"paid": paid_for(placement.attempt, paid.get(placement.job_id, ()))}
        )
        for placement in placements
    )


_PLACED = """
    SELECT p.job_id, p.attempt, p.rank, p.spare, p.node_id, p.epoch, p.gpu_indices, p.idle,
           p.slices, p.cycle_id, p.placed_at, p.decision, p.ended_at IS NOT NULL AS over,
           n.address, n.expires_at, n.simulated
      FROM placements p JOIN nodes n ON n.id = p.node_id JOIN jobs j ON j.id = p.job_id
     WHERE p.cycle_id = :cycle
       AND EXISTS (SELECT FROM placements o
                    WHERE o.job_id = p.job_id AND o.attempt = p.attempt AND NOT o.spare
                      AND (o.ended_at IS NULL OR o.end_reason = :lost AND j.ended_at IS NULL))
     ORDER BY p.job_id, p.attempt, p.rank
"""
"""A placement that was lost with its node before its job heard of it is told too: out of the queue
and nowhere placed, the job would wait for ever. One that knows it already ignores it."""
