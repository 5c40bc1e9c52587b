"""A job's own steps in the capacity database: into the queue, out of it, and its end.

Every activity here may run twice: it is idempotent by (job, attempt).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.artifacts.rows import why_no_code, why_no_files
from longshore.activities.dag_ends import OfDag, mark_end, of_dag_at_retry, tell_end
from longshore.activities.database import Database, clock
from longshore.activities.deadlines import note_end
from longshore.activities.durations import keep_run, learnt_for
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.planning import RUNS_UNFUNDED
from longshore.activities.funding.quotas import refused_by_quota
from longshore.activities.funding.refusals import why_never_taken
from longshore.activities.metrics import JOB_ENDS, SILENT, Metrics
from longshore.activities.outputs import store_output
from longshore.activities.placements import ATTAINED
from longshore.activities.prices.holds import MAY_WAIT
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_nodes, load_pool
from longshore.models.job import JobResult, JobSpec, JobState
from longshore.models.messages import (
    EnqueueReply,
    EnqueueRequest,
    FinishRequest,
    HoldRequest,
    LeaseEnd,
    ReleaseRequest,
)
from longshore.models.node import Node
from longshore.models.placement import JobRequest, PlacementKey
from longshore.models.pool import Growth, PoolSpec
from longshore.scheduling.advice import advice
from longshore.scheduling.durations import shape_of
from longshore.scheduling.packer import could_ever_place
from longshore.scheduling.time_limits import why_too_long, with_limit
from longshore.scheduling.unready_nodes import in_the_way_for_good
from longshore.scheduling.words import format_rejected

HANDED_ON_WITHIN = timedelta(minutes=10)
"""After the end of a job, one of its tenant and name takes over the time that it has run."""


class QueueActivities:
    """Activities of `JobWorkflow` on the capacity database."""

    def __init__(self, database: Database, signals: Signals, metrics: Metrics = SILENT) -> None:
        self._metrics = metrics
        self._database = database
        self._signals = signals

    @activity.defn
    @reports_errors
    async def enqueue(self, request: EnqueueRequest) -> EnqueueReply:
        """Put the job into its pool's queue, and poke the pool.

        A job that no node of a fixed pool could hold is refused instead, and so is one whose id
        has ended before, or is that of another that has not, or that the database does not take
        as data: another try would not help. A repeat, and one that comes after this attempt was
        placed, change nothing.
        """
        spec = request.spec
        try:
            async with self._database.transaction() as connection:
                if other := await _why_another(connection, request):
                    return EnqueueReply(queued=False, refusal=other, other=True)
                pool = await load_pool(connection, spec.pool)
                # Later attempts have what the first one got, slots what their array got.
                if request.attempt == 1 and not await _is_slot(connection, request.job_id):
                    spec = with_limit(spec, pool)
                    request = request.model_copy(update={"spec": spec})
                refusal = await why_no_code(connection, spec)
                refusal = refusal or await why_no_files(connection, spec)
                refusal = refusal or await _why_never(connection, request, pool)
                refusal = await put_into_queue(connection, request, refusal)
                if refusal:
                    # Of a later attempt it is the job itself that is on record as ended.
                    over = request.attempt == 1 and await _why_over(connection, request)
                    return EnqueueReply(queued=False, refusal=refusal, other=refusal == over)
                if request.attempt == 1 and pool.packing.by_rank:
                    await _take_over(connection, request)
                poke = not request.held and await mark_poked(connection, spec.pool)
                await failpoint("enqueue.before-commit")
        except DataError as error:
            return EnqueueReply(queued=False, refusal=f"the database refuses it: {error.orig}")
        except IntegrityError as error:
            refusal = refused_by_quota(error)
            if not refusal:
                raise
            async with self._database.transaction() as connection:
                await put_into_queue(connection, request, refusal)
            return EnqueueReply(queued=False, refusal=refusal)
        await failpoint("enqueue.after-commit")
        await self._poke(spec.pool, poke)
        await failpoint("enqueue.after-poke")
        return EnqueueReply(queued=True, max_duration=spec.max_duration)

    @activity.defn
    @reports_errors
    async def set_hold(self, request: HoldRequest) -> None:
        """Keep a queued job out of placement, or let it in again. A hold is no wait.

        What was bought for it before it was let in counts no more: more may be bought.
        """
        async with self._database.transaction() as connection:
            pool = await connection.scalar(
                text(
                    "UPDATE queue SET held = now.held, begin_only = :begin_only,"
                    " price_since = CASE WHEN :held OR NOT now.held THEN NULL"
                    " ELSE coalesce(price_since, clock_timestamp()) END,"
                    " told_reason = CASE WHEN now.held AND NOT :held THEN NULL"
                    " ELSE told_reason END,"
                    " decision = NULL, decided_at = NULL,"
                    " preparing = NULL,"
                    " waited = CASE WHEN queue.held OR NOT now.held THEN waited"
                    " ELSE waited + (clock_timestamp() - queued_at) END,"
                    " queued_at = CASE WHEN queue.held AND NOT now.held THEN clock_timestamp()"
                    " ELSE queued_at END"
                    f" FROM (SELECT job_id AS id, :held OR {MAY_WAIT} AS held FROM queue"
                    " WHERE job_id = :id) AS now"
                    " WHERE job_id = :id AND attempt = :attempt RETURNING pool"
                ),
                {
                    "held": request.held,
                    "begin_only": request.begin_only,
                    "id": request.key.job_id,
                    "attempt": request.key.attempt,
                },
            )
            if request.held:  # what was said of its start was said of one that may start
                await connection.execute(
                    text("DELETE FROM start_estimates WHERE job_id = :id AND attempt = :attempt"),
                    {"id": request.key.job_id, "attempt": request.key.attempt},
                )
            poke = pool and not request.held and await mark_poked(connection, pool)
            await failpoint("set_hold.before-commit")
        await failpoint("set_hold.after-commit")
        if pool:
            await self._poke(pool, bool(poke))

    @activity.defn
    @reports_errors
    async def release(self, request: ReleaseRequest) -> bool | None:
        """End the leases of one attempt, and take the attempt out of the queue.

        Where another one is to follow at once, it is in the queue when this returns True.
        """
        queued = None
        async with self._database.transaction() as connection:
            # Ranks that are joining the attempt come before this, and end with the others, or not
            # at all.
            await lock_job(connection, request.key.job_id)
            pool = await end_attempt(
                connection, request.key, request.reason.value, request.message
            ) or await _pool_at_retry(connection, request.key.job_id)
            if request.then is not None:
                queued = not await put_into_queue(connection, request.then)
            poke = pool and await mark_poked_if_useful(connection, pool)
            await failpoint("release.before-commit")
        await failpoint("release.after-commit")
        if pool:
            await self._poke(pool, bool(poke))
        return queued

    @activity.defn
    @reports_errors
    async def finish(self, request: FinishRequest) -> None:
        """End the leases of the last attempt, and record how the job ended.

        That goes for a job too of which nobody knows whether it came into the queue: it is on
        record as ended then, and an `enqueue` that is still under way is refused.
        """
        result = request.result
        async with self._database.transaction() as connection:
            if request.unanswered is not None:
                if await _why_another(connection, request.unanswered):
                    return
                await put_into_queue(connection, request.unanswered, result.message or "cancelled")
            await lock_job(connection, result.job_id)
            pool = await end_attempt(
                connection, request.key, request.reason.value, result.message
            ) or await _pool_at_retry(connection, result.job_id)
            ended = await record_end(connection, result)
            poke = pool and await mark_poked_if_useful(connection, pool)
            job = ended.of_dag if ended else await of_dag_at_retry(connection, result.job_id)
            if ended and job and request.output:
                await store_output(connection, result.job_id, request.output)
            first = job is not None and await mark_end(connection, result.job_id, job)
            array_id = ended.array_id if ended else await array_at_retry(connection, result.job_id)
            wake = array_id is not None and await mark_array_poked(connection, array_id)
            service = ended.service if ended else await service_at_retry(connection, result.job_id)
            await failpoint("finish.before-commit")
        await failpoint("finish.after-commit")
        if ended:  # a repeat finds that it has ended
            failure = result.failure.value if result.failure else "none"
            self._metrics.add(JOB_ENDS, pool=ended.pool, state=result.state.value, failure=failure)
            note_end(self._metrics, ended.pool, result.job_id, ended.late)
        if pool:
            await self._poke(pool, bool(poke))
        if job is not None:
            await tell_end(self._database, self._signals, job, first=first)
        if array_id is not None and (wake or activity.info().attempt > 1):
            await self._signals.poke_array(array_id)
        if service is not None:
            await self._signals.poke_service(service)

    async def _poke(self, pool: str, first: bool) -> None:
        # A retry cannot know whether the one before it got as far as the signal.
        if first or activity.info().attempt > 1:
            await self._signals.poke_pool(pool)


async def put_into_queue(
    connection: AsyncConnection, request: EnqueueRequest, refusal: str = ""
) -> str:
    """Record the job, and queue it unless it is refused; return why it is."""
    spec = request.spec
    job = JobRequest.of(
        request.job_id, spec, request.submitted_at, request.attempt, request.path_behind
    )
    if spec.engine is not None and request.attempt > 1:
        left = await connection.scalar(text(_LEFT_IDLE), {"id": request.job_id})
        job = job.model_copy(update={"fills": bool(left)})
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
        await connection.execute(text(_INSERT_JOB), row)
        return refusal
    learnt = await learnt_for(connection, request.job_id, spec)
    row["learnt"] = learnt and learnt.model_dump_json()
    if await connection.scalar(text(_INSERT_NEW), row):
        return ""
    # A repeat or a further attempt: it may meet the cycle that places it. Wait for it, then look.
    if refusal := await _why_over(connection, request):
        return refusal
    await connection.execute(text("SELECT FROM queue WHERE job_id = :id FOR UPDATE"), row)
    await connection.execute(text(_INSERT_QUEUE), row)
    return ""


async def _take_over(connection: AsyncConnection, request: EnqueueRequest) -> None:
    """Give a job that has come into the queue the time run of one of its name that has just ended:
    who cuts a job into pieces does not begin anew with each."""
    spec = request.spec
    asked = {
        "id": request.job_id, "tenant": spec.tenant, "name": spec.name, "pool": spec.pool,
        "within": HANDED_ON_WITHIN,
    }  # fmt: skip
    await connection.execute(text(_TAKE_OVER), asked)


async def ensure_pool(connection: AsyncConnection, pool: str) -> None:
    """Make the pool with default settings where it is new."""
    await connection.execute(
        text(
            "INSERT INTO pools (name, spec) VALUES (:name, CAST(:spec AS jsonb))"
            " ON CONFLICT DO NOTHING"
        ),
        {"name": pool, "spec": PoolSpec.new(pool).model_dump_json()},
    )


async def _is_slot(connection: AsyncConnection, job_id: str) -> bool:
    """Return whether a job is a slot: its array was taken with a time limit, or with none,
    whatever its pool says by now."""
    is_slot = "SELECT FROM array_slots WHERE job_id = :id"
    return (await connection.execute(text(is_slot), {"id": job_id})).first() is not None


async def _why_never(connection: AsyncConnection, request: EnqueueRequest, pool: PoolSpec) -> str:
    """Return why the pool never takes the job: for its time limit, for a quota of its tenant that
    is less than the job alone, for a sponsor that there is not, or because it is fixed and no node
    of it could ever hold the job.
    Empty where it may."""
    job_id, spec = request.job_id, request.spec
    why = why_too_long(spec, pool) if request.attempt == 1 else ""
    if why and not await _is_slot(connection, job_id):
        return why
    if request.attempt == 1:
        job = JobRequest.of(job_id, spec, request.submitted_at, 1)
        (why,) = await why_never_taken(connection, [(job, spec)])
        if why:
            return why
    if pool.growth is Growth.OPEN:
        return ""
    nodes = await load_nodes(connection, spec.pool)
    now = await clock(connection)
    job = JobRequest.of(job_id, spec, now, 1)
    return "" if could_ever_place(job, nodes, now) else never_held(job, spec, pool, nodes, now)


def never_held(
    job: JobRequest, spec: JobSpec, pool: PoolSpec, nodes: Sequence[Node], now: datetime
) -> str:
    """Return why these nodes of a fixed pool could never hold the job, which is so."""
    if not nodes:
        return (
            f"pool {spec.pool} has no nodes, and is fixed: start one (`longshore agent --pool "
            f"{spec.pool}`), or name another pool"
        )
    rejections = in_the_way_for_good(job, nodes, pool.packing, now)
    counts = format_rejected(Counter(each.code for each in rejections))
    helps = advice(job, rejections, nodes, now, pool=spec.pool)
    what = "no nodes together" if spec.gang else "no node"
    return (
        f"{what} of pool {spec.pool} could ever hold {job.smallest.gpus} x "
        f"{spec.gpu_type or 'any GPU'} for it ({counts}), and the pool is fixed: "
        f"{'; or '.join((*helps, 'name another pool'))} (`longshore nodes` lists what there is)"
    )


async def lock_job(connection: AsyncConnection, job_id: str) -> str | None:
    """Hold the job's row until the end of the transaction; return how the job ended, if it has.

    To be called before the queue is touched: whoever ends the job and whoever queues it come one
    after the other then, and neither holds what the other waits for.
    """
    return await connection.scalar(
        text("SELECT end_state FROM jobs WHERE id = :id FOR NO KEY UPDATE"), {"id": job_id}
    )


async def _why_over(connection: AsyncConnection, request: EnqueueRequest) -> str:
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


async def _why_another(connection: AsyncConnection, request: EnqueueRequest) -> str:
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


async def _pool_at_retry(connection: AsyncConnection, job_id: str) -> str | None:
    """Return the job's pool at a retry: what the one before it freed may not have been told."""
    if activity.info().attempt == 1:
        return None
    return await connection.scalar(text("SELECT pool FROM jobs WHERE id = :id"), {"id": job_id})


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


_INSERT_JOB = """
    INSERT INTO jobs (id, name, tenant, pool, key, spec, submitted_at, begins_at, deadline_at,
                      message)
    VALUES (:id, :name, :tenant, :pool, :key, CAST(:spec AS jsonb), :submitted_at, :begins_at,
            :deadline_at, '')
    ON CONFLICT (id) DO NOTHING
"""

_WITH_KEY = """
    SELECT id FROM jobs WHERE tenant = :tenant AND name = :name AND key = :key AND id <> :id
"""

_MAY_WAIT = """
    (SELECT :attempt = 1 AND (CAST(:start_below AS bigint) IS NOT NULL OR coalesce((
            SELECT jsonb_exists(spec, 'start_below') FROM pools WHERE name = :pool), false))) AS
        price (may_wait)"""
"""As `activities.prices.holds.MAY_WAIT`, of a row that is to be."""

_LEFT_IDLE = f"""
    SELECT EXISTS (
        SELECT FROM replicas r
         WHERE r.job_id = :id AND r.idle_since IS NOT NULL
           AND (SELECT p.end_reason FROM placements p
                 WHERE p.job_id = :id ORDER BY p.attempt DESC LIMIT 1)
               = '{LeaseEnd.PREEMPTED.value}')
"""
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

_TAKE_OVER = """
    WITH ended AS (
        SELECT j.id, p.attained + greatest(p.ended_at - p.placed_at, interval '0') AS ran
          FROM jobs j
          JOIN LATERAL (SELECT * FROM placements WHERE job_id = j.id
                         ORDER BY attempt DESC, rank LIMIT 1) p ON true
         WHERE j.tenant = :tenant AND j.name = :name AND j.pool = :pool AND j.id <> :id
           AND j.handed_to IS NULL
           AND j.ended_at > clock_timestamp() - CAST(:within AS interval)
           AND NOT EXISTS (SELECT FROM jobs o WHERE o.handed_to = :id)
           AND EXISTS (SELECT FROM queue WHERE job_id = :id AND attempt = 1)
         ORDER BY ran DESC LIMIT 1
           FOR UPDATE OF j SKIP LOCKED
    ), handed AS (
        UPDATE jobs j SET handed_to = :id FROM ended WHERE j.id = ended.id RETURNING ended.ran
    )
    UPDATE queue q
       SET attained = taken.ran,
           learnt = jsonb_set(q.learnt, '{taken_over}',
                              to_jsonb(CAST(ceil(extract(epoch FROM taken.ran)) AS bigint)))
      FROM (SELECT least(ran, interval '3653 days') AS ran FROM handed) taken
     WHERE q.job_id = :id AND q.attempt = 1
"""
"""Each end hands on to one successor alone: to every one it would be ruin for who calls all of
their jobs by one name."""

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
