"""Notes, of jobs that wait for what was bought for them, whether who pays keeps them back."""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import text

from longshore.activities.buying.inputs import PoolNeed
from longshore.activities.database import Database
from longshore.models.pool import PoolSpec

_JUST_NOW = timedelta(minutes=2)


async def note_kept_back(
    database: Database, spec: PoolSpec, need: PoolNeed, every: timedelta
) -> None:
    """Note which jobs who pays keeps back now, of those for which something was bought: what was
    idle meanwhile was not bought in vain.

    The last look while that is there counts. Where it came and went between two looks, which are
    `every` so often, the one after it does.
    """
    funding = spec.packing.funding
    held: Collection[str] = funding.held if funding is not None else ()
    bought = {job.request.id for job in need.unmet.jobs if job.bought}
    if not bought:
        return
    values = {
        "pool": spec.name, "bought": sorted(bought), "held": sorted(bought & set(held)),
        "within": max(_JUST_NOW, 2 * every),
    }  # fmt: skip
    async with database.transaction() as connection:
        for statement in (_THERE, _WAS_THERE, _FOR_OLDER):
            await connection.execute(text(statement), values)


_SERVED = """
      FROM purchases p
     CROSS JOIN LATERAL jsonb_array_elements_text(p.decision -> 'serves') AS served (job_id)
      JOIN queue q ON q.job_id = served.job_id AND q.pool = p.pool AND p.created_at >= q.queued_at
      JOIN machines m ON m.purchase_id = p.id
      JOIN nodes n ON n.id = m.name
     WHERE p.pool = :pool AND served.job_id = ANY(:bought)
     GROUP BY p.id, served.job_id
"""

_THERE = f"""
    INSERT INTO purchase_looks AS l (purchase_id, job_id, kept_back)
    SELECT p.id, served.job_id, served.job_id = ANY(:held)
    {_SERVED} HAVING bool_or(n.state = 'READY')
        ON CONFLICT (purchase_id, job_id) DO UPDATE SET kept_back = excluded.kept_back
     WHERE l.kept_back <> excluded.kept_back
"""

_WAS_THERE = f"""
    INSERT INTO purchase_looks (purchase_id, job_id, kept_back)
    SELECT p.id, served.job_id, true
    {_SERVED} HAVING served.job_id = ANY(:held) AND NOT bool_or(n.state = 'READY')
                 AND max(n.state_since) >= clock_timestamp() - CAST(:within AS interval)
        ON CONFLICT (purchase_id, job_id) DO NOTHING
"""

_FOR_OLDER = """
    UPDATE queue q SET kept_back_at = CASE WHEN last.kept_back THEN clock_timestamp() END
      FROM (SELECT DISTINCT ON (l.job_id) l.job_id, l.kept_back, n.there
              FROM purchase_looks l
              JOIN purchases p ON p.id = l.purchase_id AND p.pool = :pool
             CROSS JOIN LATERAL (
                   SELECT bool_or(n.state = 'READY') AS there, max(n.state_since) AS since
                     FROM machines m JOIN nodes n ON n.id = m.name
                    WHERE m.purchase_id = p.id) AS n
             WHERE l.job_id = ANY(:bought)
               AND (n.there OR n.since >= clock_timestamp() - interval '2 minutes')
             ORDER BY l.job_id, n.there DESC, p.created_at DESC, p.id DESC) AS last
     WHERE q.job_id = last.job_id
       AND (last.kept_back OR last.there AND q.kept_back_at IS NOT NULL)
"""
"""What workers from before `purchase_looks` read, of the last purchase that is there, or was. What
one of them has noted of a purchase that is there no longer stays."""
