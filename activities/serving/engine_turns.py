"""What engines that wait in a queue serve, and which of them have their turn: for who plans
preemption."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.job_request import EngineKey, JobRequest
from longshore.models.preemption import PreemptionPolicy, RunningWork
from longshore.scheduling.serving.running_engine import turn_at


async def with_engine_turns(
    connection: AsyncConnection,
    pool: str,
    queue: Sequence[JobRequest],
    works: Sequence[RunningWork],
    policy: PreemptionPolicy,
    now: datetime,
    served: Collection[str] = (),
) -> list[JobRequest]:
    """Return the jobs of a queue, engines with what they serve, and with whether they have their
    turn beside what runs. `served` are those that others have been, or are being, stopped for:
    their models need no second engine for a turn."""
    if not any(job.serves for job in queue):
        return list(queue)
    rows = await connection.execute(text(_ENGINES), {"pool": pool})
    found = {row.job_id: row for row in rows}
    coming = {(row.model, row.runtime) for row in found.values() if row.job_id in served}

    def told(job: JobRequest) -> JobRequest:
        row = found.get(job.id)
        if row is None:
            return job
        # As it is stored: what somebody has written by hand is like nothing else.
        key = EngineKey.trusted(model=row.model, runtime=row.runtime, service=row.service)
        if job.fills or (job.id not in served and (row.model, row.runtime) in coming):
            return job.model_copy(update={"engine": key})
        load = timedelta(seconds=row.load_seconds)
        at = turn_at(key, row.queued_at, load, works, policy)
        more = {"turn": row.queued_at} if at is not None and now >= at else {"turn_at": at}
        return job.model_copy(update={"engine": key, **more})

    return [told(job) for job in queue]


_ENGINES = """
    SELECT q.job_id, q.queued_at, r.service,
           coalesce(j.spec #>> '{engine,model,name}', '') AS model,
           coalesce(j.spec #>> '{engine,runtime,name}', '') AS runtime,
           (SELECT max(o.load_seconds) FROM replicas o
             WHERE o.service = r.service AND o.revision = r.revision) AS load_seconds
      FROM replicas r
      JOIN queue q ON q.job_id = r.job_id
      JOIN jobs j ON j.id = r.job_id
     WHERE r.ended_at IS NULL AND q.pool = :pool AND NOT q.held
"""
"""A model loads as it did before in its revision; one that never did counts as at once."""
