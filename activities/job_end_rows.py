"""Rows at the end of an attempt and of a job."""

from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.dag_ends import OfDag
from longshore.activities.durations import keep_run
from longshore.models.job_status import JobResult, JobState
from longshore.models.placement import PlacementKey


async def end_attempt(
    connection: AsyncConnection, key: PlacementKey, reason: str, message: str
) -> str | None:
    """End one attempt wherever it is; return its pool, or None when there was nothing to end."""
    row = {
        "id": key.job_id, "attempt": key.attempt, "reason": reason, "message": message[:2000],
    }  # fmt: skip
    # One that is placed is not in the queue.
    if placed_in := await connection.scalar(text(_END_PLACEMENT), row):
        return placed_in
    queued_in = await connection.scalar(
        text("DELETE FROM queue WHERE job_id = :id AND attempt <= :attempt RETURNING pool"), row
    )
    # A cycle may have placed it between those two; the second has waited for it.
    return await connection.scalar(text(_END_PLACEMENT), row) or queued_in


class Ended(NamedTuple):
    """A job whose end was put on record."""

    pool: str
    of_dag: OfDag | None
    """What it is to the DAG that waits for its end."""
    array_id: str | None
    """The array of which it was a slot."""
    service: str | None
    """The service of which it was a replica."""
    late: timedelta | None = None
    """By how much it ended after its deadline, negative before it; None for one without."""


async def record_end(connection: AsyncConnection, result: JobResult) -> Ended | None:
    """Record how a job ended; return None where its end is on record already."""
    rows = await connection.execute(
        text(_END_JOB),
        {
            "id": result.job_id, "state": result.state.value, "attempts": result.attempts,
            "failure": result.failure and result.failure.value,
            "exit_code": result.exit_code, "message": result.message,
            "ended_at": result.ended_at,
        },
    )  # fmt: skip
    row = rows.one_or_none()
    if row is None:
        return None
    await connection.execute(text(_HAND_BACK), {"id": result.job_id})
    if result.state is JobState.SUCCEEDED:  # what failed ended sooner than the next one will
        await keep_run(connection, result.job_id)
    job = OfDag(row.dag_id, row.tenant, tuple(row.mutexes)) if row.dag_id else None
    return Ended(row.pool, job, row.array_id, row.service, row.late)


_HAND_BACK = """
    UPDATE jobs SET handed_to = NULL
     WHERE handed_to = :id AND NOT EXISTS (SELECT FROM placements WHERE job_id = :id)
"""
"""Who never ran hands on nothing: what it took over is for another."""

_END_PLACEMENT = """
    UPDATE placements p
       SET ended_at = clock_timestamp(), end_reason = :reason, end_message = :message
      FROM nodes n
     WHERE p.job_id = :id AND p.attempt = :attempt AND p.ended_at IS NULL AND n.id = p.node_id
    RETURNING n.pool
"""

_END_JOB = """
    UPDATE jobs
       SET ended_at = coalesce(CAST(:ended_at AS timestamptz), clock_timestamp()),
           end_state = :state, failure = :failure, exit_code = :exit_code, message = :message,
           attempts = :attempts
     WHERE id = :id AND ended_at IS NULL
    RETURNING pool, tenant, ended_at - deadline_at AS late,
              (SELECT dag_id FROM dag_jobs WHERE job_id = jobs.id) AS dag_id,
              (SELECT mutexes FROM dag_jobs WHERE job_id = jobs.id) AS mutexes,
              (SELECT array_id FROM array_slots WHERE job_id = jobs.id) AS array_id,
              (SELECT service FROM replicas WHERE job_id = jobs.id) AS service
"""
