"""Who tells a pool, an array or a service that there is something to look at: the first since it
looked last.
"""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.funding.planning import RUNS_UNFUNDED


async def mark_poked(connection: AsyncConnection, pool: str) -> bool:
    """Return True for the first since the pool's last cycle began: that one has to signal.

    To be called last in a transaction. It takes the pool's row: a cycle that is about to begin
    waits until what this transaction changed can be seen, or this one waits and then finds that
    nobody has poked since. An unlocked look could see the poke that the cycle is just taking.
    """
    poked = await _lock_pool(connection, pool)
    if not poked:
        await connection.execute(
            text("UPDATE pools SET poked = true WHERE name = :pool"), {"pool": pool}
        )
    return not poked


async def mark_poked_if_useful(connection: AsyncConnection, pool: str) -> bool:
    """Like `mark_poked`, where a job waits that the freed capacity could help, where bought time
    may have lost its work, or where nobody pays for a job that runs: there may be room now."""
    if await _lock_pool(connection, pool):  # first: a job may be on its way into the queue
        return False
    marked = await connection.scalar(
        text(
            "UPDATE pools SET poked = true WHERE name = :pool"
            " AND (EXISTS (SELECT FROM queue WHERE pool = :pool AND NOT held)"
            "      OR EXISTS (SELECT FROM blocks"
            "                  WHERE pool = :pool AND state IN ('STARTING', 'OPEN'))"
            f"     OR {RUNS_UNFUNDED})"
            " RETURNING name"
        ),
        {"pool": pool},
    )
    return marked is not None


async def _lock_pool(connection: AsyncConnection, pool: str) -> bool | None:
    """Hold the pool's row until the end of the transaction; return whether it was poked."""
    return await connection.scalar(
        text("SELECT poked FROM pools WHERE name = :pool FOR NO KEY UPDATE"), {"pool": pool}
    )


async def mark_array_poked(connection: AsyncConnection, array_id: str) -> bool:
    """Return True for the first since the array looked last, as `mark_dag_poked`."""
    found = await connection.execute(
        text("SELECT poked FROM arrays WHERE id = :id FOR NO KEY UPDATE"), {"id": array_id}
    )
    row = found.one_or_none()
    if row is None or row.poked:
        return False
    await connection.execute(
        text("UPDATE arrays SET poked = true WHERE id = :id"), {"id": array_id}
    )
    return True


async def pool_at_retry(connection: AsyncConnection, job_id: str) -> str | None:
    """Return the job's pool at a retry: what the one before it freed may not have been told."""
    if activity.info().attempt == 1:
        return None
    return await connection.scalar(text("SELECT pool FROM jobs WHERE id = :id"), {"id": job_id})


async def pools_of(connection: AsyncConnection, job_ids: Sequence[str]) -> Sequence[str]:
    """Return the pools of jobs, in order: who marks several does so in that order."""
    found = await connection.scalars(
        text("SELECT DISTINCT pool FROM jobs WHERE id = ANY(:ids) ORDER BY pool"),
        {"ids": list(job_ids)},
    )
    return found.all()


async def array_at_retry(connection: AsyncConnection, job_id: str) -> str | None:
    """Return the array of a slot at a retry, as `of_dag_at_retry`."""
    if activity.info().attempt == 1:
        return None
    return await connection.scalar(
        text("SELECT array_id FROM array_slots WHERE job_id = :id"), {"id": job_id}
    )


async def service_at_retry(connection: AsyncConnection, job_id: str) -> str | None:
    """Return the service of a replica at a retry, as `of_dag_at_retry`."""
    if activity.info().attempt == 1:
        return None
    return await connection.scalar(
        text("SELECT service FROM replicas WHERE job_id = :id"), {"id": job_id}
    )


async def services_on(connection: AsyncConnection, node_id: str) -> Sequence[str]:
    """Return the services that have a replica on a node."""
    found = await connection.scalars(
        text(
            "SELECT DISTINCT r.service FROM placements p JOIN replicas r ON r.job_id = p.job_id"
            " WHERE p.node_id = :id AND p.ended_at IS NULL AND r.ended_at IS NULL"
        ),
        {"id": node_id},
    )
    return found.all()
