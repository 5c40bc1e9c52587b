"""Reading why a pool bought, or did not, and what became of its blocks, for people."""

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.inputs import last_bought_at
from longshore.activities.buying.stored_documents import stored_decision, stored_record
from longshore.activities.buying.switch import why_stopped
from longshore.activities.database import Database, clock
from longshore.models.block_end import BlockDecision
from longshore.models.job import Tier
from longshore.models.pool import PoolSpec
from longshore.models.spending import BuyingRecord, JobCost
from longshore.scheduling.buying.buying_status import (
    BuyingStatus,
    Failed,
    buying_status,
    for_job,
)
from longshore.scheduling.buying.plan import why_not_yet
from longshore.scheduling.buying.words import WAIT

_LATELY = timedelta(hours=1)
"""A purchase that came to nothing so long before a job came is told of it."""


class BuyingReasons:
    """Read-only. Every call may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_pool(self, pool: str, job_id: str = "") -> BuyingRecord | None:
        """Return what a pool decided last about buying, as this job is told it where one is
        named; None where it never has."""
        async with self._database.transaction() as connection:
            last = await _last_of(connection, pool)
        return for_job(last, job_id) if last is not None and job_id else last

    async def blocks_of_job(self, job_id: str) -> tuple[BlockDecision, ...]:
        """Return what was decided last about each block that a job runs on, by their ids."""
        async with self._database.transaction() as connection:
            found = await connection.execute(text(_BLOCKS_OF_JOB), {"id": job_id})
            decisions = [stored_decision(row.id, row.decision) for row in found]
            return tuple(each for each in decisions if each is not None)

    async def cost_of_job(self, job_id: str) -> JobCost:
        """Return what a job has cost so far, an array with all of its slots; nothing of one that
        never held a GPU."""
        async with self._database.transaction() as connection:
            found = await connection.execute(text(COST_OF_JOB), {"id": job_id})
            return JobCost.model_validate(dict(found.mappings().one()))


async def read_standing(
    connection: AsyncConnection,
    pool: PoolSpec,
    since: datetime | None = None,
    tier: Tier | None = None,
    job_id: str = "",
) -> BuyingStatus:
    """Return whether a pool buys, and what would let it, for a job that waits since then, of a
    tier or of this id where one is named."""
    if not pool.buying.enabled:
        return buying_status(pool, "", None)
    stopped, last = await why_stopped(connection), await _last_of(connection, pool.name)
    failed = None if since is None else await _failed(connection, pool.name, since - _LATELY)
    decided = since is None or (last is not None and last.at >= since)
    if pool.buying.cooldown and not decided:
        # It has decided nothing since: whether it may buy at all is known all the same.
        now = await clock(connection)
        waits = why_not_yet("", await last_bought_at(connection, pool.name), pool.buying, now)
        if waits is not None:
            last = BuyingRecord(at=now, reason=f"{WAIT}{waits.why}", limits=waits.limits)
    return buying_status(pool, stopped, last, since, failed, tier, job_id)


async def _last_of(connection: AsyncConnection, pool: str) -> BuyingRecord | None:
    found = await connection.scalar(
        text("SELECT buying_decision FROM pools WHERE name = :pool"), {"pool": pool}
    )
    return stored_record(pool, found)


async def _failed(connection: AsyncConnection, pool: str, since: datetime) -> Failed | None:
    """Return the pool's newest purchase since then, where it has ended and no node came of it."""
    found = await connection.execute(text(_NEWEST), {"pool": pool, "since": since})
    newest = found.one_or_none()
    return Failed(newest.at, newest.reason) if newest is not None and newest.in_vain else None


_NEWEST = """
    SELECT coalesce(p.ended_at, p.changed_at) AS at, p.reason,
           p.state = 'ENDED' AND NOT EXISTS (SELECT FROM blocks b JOIN nodes n ON n.block_id = b.id
                        WHERE b.purchase_id = p.id) AS in_vain
      FROM purchases p
     WHERE p.pool = :pool AND p.created_at >= :since AND p.state <> 'REFUSED' AND p.renews IS NULL
     ORDER BY p.created_at DESC, p.id DESC LIMIT 1
"""

_BLOCKS_OF_JOB = """
    SELECT DISTINCT ON (b.id) b.id, b.decision
      FROM placements p
      JOIN nodes n ON n.id = p.node_id
      JOIN blocks b ON b.id = n.block_id
     WHERE p.job_id = :id AND p.ended_at IS NULL AND b.decision IS NOT NULL
     ORDER BY b.id
"""

COST_OF_JOB = """
    WITH its AS (SELECT :id AS id UNION ALL SELECT job_id FROM array_slots WHERE array_id = :id),
    held AS (
        SELECT b.id AS block, b.state = 'ENDED' AS ended, b.simulated,
               extract(epoch FROM coalesce(l.ended_at, clock_timestamp()) - l.started_at)
               * CASE WHEN l.slices > 0 THEN bit_count(l.slices::bit(8)) / 8.0
                      ELSE l.milli / 1000.0 END AS seconds
          FROM leases l
          JOIN nodes n ON n.id = l.node_id
          LEFT JOIN blocks b ON b.id = n.block_id
         WHERE l.job_id IN (SELECT id FROM its)
    )
    SELECT make_interval(secs => coalesce(sum(seconds), 0)::float) AS gpu_time,
           (SELECT coalesce(sum(micro), 0)::bigint FROM ledger
             WHERE block_id = ANY (ARRAY(SELECT block FROM held)) AND kind = 'usage'
               AND debit IN (SELECT 'job:' || id FROM its)) AS booked_micro_usd,
           count(block) > 0 AS bought,
           coalesce(array_agg(DISTINCT block ORDER BY block) FILTER (WHERE NOT ended), '{}')
               AS open_blocks,
           coalesce(bool_or(simulated), false) AS simulated
      FROM held
"""
