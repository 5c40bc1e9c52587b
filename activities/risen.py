"""The class that a job which waits has risen to by now: a cycle writes it only with its news."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.stored_pools import pool_and_trouble
from longshore.models.job_status import JobState
from longshore.models.packing import PackingPolicy
from longshore.models.views import JobView
from longshore.scheduling.order import QueuedJob, counted_as


async def with_classes(
    connection: AsyncConnection, jobs: Sequence[JobView], now: datetime
) -> tuple[JobView, ...]:
    """Return the jobs, those in a queue with the class that they count as `now`, by the clock of
    the database: cycles go by that one too."""
    waiting = {job.pool for job in jobs if _is_queued(job)}
    if not waiting:
        return tuple(jobs)
    rows = await connection.execute(
        text("SELECT name, spec FROM pools WHERE name = ANY(:names)"), {"names": sorted(waiting)}
    )
    packing = {name: pool_and_trouble(name, spec)[0].packing for name, spec in rows}
    return tuple(
        job.model_copy(update={"counted_as": _counted(job, packing[job.pool], now)})
        if _is_queued(job) and job.pool in packing
        else job
        for job in jobs
    )


def _is_queued(job: JobView) -> bool:
    return job.state in (JobState.QUEUED, JobState.HELD) and job.queued_at is not None


def _counted(job: JobView, packing: PackingPolicy, now: datetime) -> int | None:
    since = now - job.waited_by(now)
    waits = QueuedJob(job.id, job.attempt, job.priority, job.submitted_at, since)
    counts = counted_as(waits, packing, now)
    return counts if counts != job.priority else None
