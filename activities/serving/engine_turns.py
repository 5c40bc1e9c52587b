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
    keys = {
        # As it is stored: what somebody has written by hand is like nothing else.
        id: EngineKey.of(row.model, row.runtime, row.service, row.source, row.adapters or {})
        for id, row in found.items()
    }
    coming = {key.serves for id, key in keys.items() if id in served}

    def told(job: JobRequest) -> JobRequest:
        row = found.get(job.id)
        if row is None:
            return job
        key = keys[job.id]
        if job.fills or (job.id not in served and key.serves in coming):
            return job.model_copy(update={"engine": key})
        load = timedelta(seconds=row.load_seconds)
        at = turn_at(key, row.since, load, works, policy)
        more = {"turn": row.since} if at is not None and now >= at else {"turn_at": at}
        return job.model_copy(update={"engine": key, **more})

    return [told(job) for job in queue]


async def how_to_have_a_turn(connection: AsyncConnection, job_id: str) -> tuple[str, ...]:
    """Return what helps a replica that nobody asks, and that only comes where there is room: its
    service starts another one in its place, which waits for its turn. Not where it is prewarmed,
    as that one then would be."""
    prewarmed = await connection.scalar(text(_PREWARMED), {"job_id": job_id})
    if prewarmed is None or prewarmed:
        return ()
    return (f"have its service start another, which has its turn: `longshore evict {job_id}`",)


_PREWARMED = """
    SELECT coalesce(j.spec #>> '{engine,model,prewarm}', '') = 'true'
      FROM replicas r JOIN jobs j ON j.id = r.job_id
     WHERE r.job_id = :job_id AND r.ended_at IS NULL
"""

_ENGINES = """
    SELECT q.job_id, r.service,
           greatest(q.queued_at, (SELECT max(p.ended_at) FROM replicas o
                                    JOIN placements p ON p.job_id = o.job_id
                                   WHERE o.service = r.service)) AS since,
           coalesce(j.spec #>> '{engine,model,name}', '') AS model,
           coalesce(j.spec #>> '{engine,model,source}', '') AS source,
           CASE jsonb_typeof(j.spec #> '{engine,model,adapters}') WHEN 'object'
           THEN j.spec #> '{engine,model,adapters}' END AS adapters,
           coalesce(j.spec #>> '{engine,runtime,name}', '') AS runtime,
           (SELECT max(o.load_seconds) FROM replicas o
             WHERE o.service = r.service AND o.revision = r.revision) AS load_seconds
      FROM replicas r
      JOIN queue q ON q.job_id = r.job_id
      JOIN jobs j ON j.id = r.job_id
     WHERE r.ended_at IS NULL AND q.pool = :pool AND NOT q.held
"""
"""A model loads as it did before in its revision; one that never did counts as at once. It waits
since its service had an engine last: else one with two replicas has every second turn."""
