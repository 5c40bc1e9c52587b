"""Rows of the queue: a job comes into it, or is told why it never does."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.durations import learnt_for
from longshore.activities.placements import ATTAINED
from longshore.models.job_request import JobRequest
from longshore.models.messages import (
    EnqueueRequest,
    LeaseEnd,
)
from longshore.models.pool import PoolSpec
from longshore.scheduling.durations import shape_of

HANDED_ON_WITHIN = timedelta(minutes=10)
"""After the end of a job, one of its tenant and name takes over the time that it has run: all of
it at once, less the later it comes, and nothing after this."""


async def put_into_queue(
    connection: AsyncConnection, request: EnqueueRequest, refusal: str = ""
) -> str:
    """Record the job, and queue it unless it is refused; return why it is."""
    spec = request.spec
    job = JobRequest.of(
        request.job_id, spec, request.submitted_at, request.attempt, request.path_behind
    )
    if spec.engine is not None:
        asked = {"id": request.job_id, "prewarm": spec.engine.model.prewarm}
        fills = bool(await connection.scalar(text(_FILLS), asked))
        job = job.model_copy(update={"fills": fills})
    row = {
        "id": request.job_id, "attempt": request.attempt, "name": spec.name,
        "tenant": spec.tenant, "pool": spec.pool, "key": request.key, "held": request.held,
        "spec": spec.model_dump_json(), "priority": spec.priority,
        "request": job.model_dump_json(), "submitted_at": request.submitted_at,
        "begins_at": spec.begins_at(request.submitted_at), "waits_from": job.submitted_at,
        "deadline_at": spec.deadline_at(request.submitted_at),
        "begin_only": request.begin_only, "start_below": spec.start_below,
        "pool_spec": PoolSpec.new(spec.pool).model_dump_json(),
        "can_stop": job.can_stop, "duration_known": job.duration_known,
        "preemptible": spec.preemptible, "shape": shape_of(spec),
    }  # fmt: skip
    if request.key and (taken := await _why_taken(connection, row)):
        row["key"] = None  # it stays that of the other job
        refusal = refusal or taken
    if refusal:
        await ensure_pool(connection, spec.pool)
        await connection.execute(text(INSERT_JOB), row)
        return refusal
    learnt = await learnt_for(connection, request.job_id, spec)
    row["learnt"] = learnt and learnt.model_dump_json()
    if await connection.scalar(text(_INSERT_NEW), row):
        return ""
    # A repeat or a further attempt: it may meet the cycle that places it. Wait for it, then look.
    if refusal := await why_over(connection, request):
        return refusal
    await connection.execute(text("SELECT FROM queue WHERE job_id = :id FOR UPDATE"), row)
    await connection.execute(text(_INSERT_QUEUE), row)
    return ""


async def take_over(connection: AsyncConnection, job_id: str) -> None:
    """Give a job that may start from now on, and has never been placed, the time run of one of its
    name that has just ended: who cuts a job into pieces does not begin anew with each. Nothing
    where it is held, or waits for a price: it takes over when it may start."""
    await connection.execute(text(_TAKE_OVER), {"id": job_id, "within": HANDED_ON_WITHIN})


async def take_over_each(connection: AsyncConnection, job_ids: Sequence[str]) -> None:
    """The same for jobs that may start together."""
    values = {"ids": list(job_ids), "within": HANDED_ON_WITHIN}
    for job_id in (await connection.scalars(text(_MAY_TAKE_OVER), values)).all():
        await take_over(connection, job_id)


async def ensure_pool(connection: AsyncConnection, pool: str) -> None:
    """Make the pool with default settings where it is new."""
    await connection.execute(
        text(
            "INSERT INTO pools (name, spec) VALUES (:name, CAST(:spec AS jsonb))"
            " ON CONFLICT DO NOTHING"
        ),
        {"name": pool, "spec": PoolSpec.new(pool).model_dump_json()},
    )


async def lock_job(connection: AsyncConnection, job_id: str) -> str | None:
    """Hold the job's row until the end of the transaction; return how the job ended, if it has.

    To be called before the queue is touched: whoever ends the job and whoever queues it come one
    after the other then, and neither holds what the other waits for.
    """
    return await connection.scalar(
        text("SELECT end_state FROM jobs WHERE id = :id FOR NO KEY UPDATE"), {"id": job_id}
    )


async def why_over(connection: AsyncConnection, request: EnqueueRequest) -> str:
    """Return why an id cannot be used, where a job of that id has ended; empty otherwise."""
    job_id = request.job_id
    state = await lock_job(connection, job_id)
    if state is None:
        return ""
    if request.reset and request.attempt == 1:  # later ones may have continued as new
        return (
            f"job {job_id} had ended ({state}) when its workflow was reset: it stays as it ended"
        )
    return f"a job {job_id} has ended before ({state}): give this one another id"


async def why_another(connection: AsyncConnection, request: EnqueueRequest) -> str:
    """Return why an id cannot be used, where another job that has not ended is on record under it;
    empty otherwise.

    Temporal takes the id of a workflow that was terminated again at once. What that job holds is
    freed by the next reconcile: it has ended, also where the other asks for the same. (Only of
    first attempts, and of no run that was reset: others go on whatever somebody wrote into the
    row.)
    """
    if request.attempt > 1 or request.reset:
        return ""
    submitted_at = await connection.scalar(
        text("SELECT submitted_at FROM jobs WHERE id = :id AND ended_at IS NULL"),
        {"id": request.job_id},
    )
    if submitted_at in (None, request.submitted_at):
        return ""
    return f"another job {request.job_id} is not on record as ended: give this one another id"


async def _why_taken(connection: AsyncConnection, row: Mapping[str, object]) -> str:
    """Return why a job cannot have its key, where another has it; empty otherwise."""
    other = await connection.scalar(text(_WITH_KEY), row)
    if other is None:
        return ""
    return f"its key {row['key']!r} is that of job {other}: start it with another key, or without"


INSERT_JOB = """
    INSERT INTO jobs (id, name, tenant, pool, key, spec, submitted_at, begins_at, deadline_at,
                      message)
    VALUES (:id, :name, :tenant, :pool, :key, CAST(:spec AS jsonb), :submitted_at, :begins_at,
            :deadline_at, '')
    ON CONFLICT (id) DO NOTHING
    RETURNING id
"""

_WITH_KEY = """
    SELECT id FROM jobs WHERE tenant = :tenant AND name = :name AND key = :key AND id <> :id
"""

_MAY_WAIT = """
    (SELECT :attempt = 1 AND (CAST(:start_below AS bigint) IS NOT NULL OR coalesce((
            SELECT jsonb_exists(spec, 'start_below') FROM pools WHERE name = :pool), false))) AS
        price (may_wait)"""
"""As `activities.prices.holds.MAY_WAIT`, of a row that is to be."""

_FILLS = f"""
    SELECT EXISTS (
        SELECT FROM replicas r
         WHERE r.job_id = :id
           AND (CAST(:prewarm AS boolean) AND r.uses = 0 OR r.idle_since IS NOT NULL
                AND (SELECT p.end_reason FROM placements p
                      WHERE p.job_id = :id ORDER BY p.attempt DESC LIMIT 1)
                    = '{LeaseEnd.PREEMPTED.value}'))
"""
"""Whether an engine waits that nobody has asked: it left while it was idle, or is prewarmed."""

_INSERT_NEW = f"""
    WITH pool AS (
        INSERT INTO pools (name, spec) VALUES (:pool, CAST(:pool_spec AS jsonb))
        ON CONFLICT DO NOTHING
    ), job AS (
        INSERT INTO jobs (id, name, tenant, pool, key, spec, submitted_at, begins_at, deadline_at,
                          message, shape)
        VALUES (:id, :name, :tenant, :pool, :key, CAST(:spec AS jsonb), :submitted_at, :begins_at,
                :deadline_at, '', :shape)
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    )
    INSERT INTO queue (job_id, attempt, pool, held, begin_only, start_below, price_since, priority,
                       request, submitted_at, can_stop, duration_known, learnt, tenant)
    SELECT id, :attempt, :pool, :held OR may_wait, :begin_only, :start_below,
           CASE WHEN may_wait AND NOT :held THEN clock_timestamp() END, :priority,
           CAST(:request AS jsonb), :waits_from, :can_stop, :duration_known,
           CAST(:learnt AS jsonb), :tenant
      FROM job, {_MAY_WAIT}
    RETURNING job_id
"""
"""A job that is new cannot have been placed or have ended: nothing else needs to be looked at."""

_INSERT_QUEUE = f"""
    INSERT INTO queue (job_id, attempt, pool, held, begin_only, start_below, price_since, priority,
                       request, submitted_at, waited, attained, can_stop, duration_known, learnt,
                       tenant)
    SELECT :id, :attempt, :pool, :held OR may_wait, :begin_only, :start_below,
           CASE WHEN may_wait AND NOT :held THEN clock_timestamp() END, :priority,
           CAST(:request AS jsonb), :waits_from,
           coalesce(before.waited, interval '0'), coalesce(before.ran, interval '0'),
           :can_stop OR (:preemptible AND coalesce(before.ran > interval '0', false)),
           :duration_known, CAST(:learnt AS jsonb), :tenant
      FROM {_MAY_WAIT}
      LEFT JOIN (SELECT p.waited, {ATTAINED} AS ran
                   FROM placements p WHERE p.job_id = :id
                  ORDER BY p.attempt DESC, p.rank LIMIT 1) before ON true
     WHERE NOT EXISTS (
           SELECT FROM placements WHERE job_id = :id AND attempt >= :attempt)
       AND NOT EXISTS (SELECT FROM jobs WHERE id = :id AND ended_at IS NOT NULL)
    ON CONFLICT (job_id) DO NOTHING
"""
"""What has attained anything has saved, so it can be stopped. A save that is seen later counts
then: see `activities.checkpoints.rows`."""

_MAY_TAKE_OVER = """
    SELECT me.id FROM jobs me
     WHERE me.id = ANY(:ids)
       AND EXISTS (SELECT FROM jobs j
                    WHERE j.tenant = me.tenant AND j.name = me.name AND j.pool = me.pool
                      AND j.id <> me.id AND j.handed_to IS NULL
                      AND j.ended_at > clock_timestamp() - CAST(:within AS interval))
     ORDER BY me.id
"""

_TAKE_OVER = """
    WITH ended AS (
        SELECT j.id,
               (p.attained + greatest(p.ended_at - p.placed_at, interval '0'))
               * (1 - greatest(extract(epoch FROM clock_timestamp() - j.ended_at), 0)
                      / extract(epoch FROM CAST(:within AS interval))) AS ran
          FROM jobs me
          JOIN jobs j ON j.tenant = me.tenant AND j.name = me.name AND j.pool = me.pool
           AND j.id <> me.id
          JOIN LATERAL (SELECT * FROM placements WHERE job_id = j.id
                         ORDER BY attempt DESC, rank LIMIT 1) p ON true
         WHERE me.id = :id AND j.handed_to IS NULL
           AND j.ended_at > clock_timestamp() - CAST(:within AS interval)
           AND NOT EXISTS (SELECT FROM jobs o WHERE o.handed_to = :id)
           AND EXISTS (SELECT FROM queue WHERE job_id = :id AND attempt = 1 AND NOT held)
         ORDER BY ran DESC LIMIT 1
           FOR UPDATE OF j SKIP LOCKED
    ), handed AS (
        UPDATE jobs j SET handed_to = :id FROM ended WHERE j.id = ended.id RETURNING ended.ran
    )
    UPDATE queue q
       SET attained = taken.ran,
           learnt = jsonb_set(q.learnt, '{taken_over}',
                              to_jsonb(CAST(ceil(extract(epoch FROM taken.ran)) AS bigint)))
      FROM (SELECT greatest(least(ran, interval '3653 days'), interval '0') AS ran
              FROM handed) taken
     WHERE q.job_id = :id AND q.attempt = 1
"""
"""Each end hands on to one successor alone: to every one it would be ruin for who calls all of
their jobs by one name. By the pause: else what comes at its own times, as the runs of a schedule,
would have run for ever; who cuts a job into pieces pays for it with GPUs that it does not hold."""
