"""A job's own steps in the capacity database: into the queue, out of it, and its end.

Every activity here may run twice: it is idempotent by (job, attempt).
"""

from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.admission import is_slot, why_never
from longshore.activities.artifacts.rows import why_no_code, why_no_files
from longshore.activities.dag_ends import mark_end, of_dag_at_retry, tell_end
from longshore.activities.database import Database
from longshore.activities.deadlines import note_end
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.quotas import refused_by_quota
from longshore.activities.job_end_rows import end_attempt, record_end
from longshore.activities.metrics import JOB_ENDS, SILENT, Metrics
from longshore.activities.outputs import store_output
from longshore.activities.pokes import (
    array_at_retry,
    mark_array_poked,
    mark_poked,
    mark_poked_if_useful,
    pool_at_retry,
    service_at_retry,
)
from longshore.activities.prices.holds import AGE_STOOD_STILL, MAY_WAIT, WAITED_FOR_PRICE
from longshore.activities.queue_rows import (
    lock_job,
    put_into_queue,
    take_over,
    why_another,
    why_over,
)
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.models.errors import StoredError
from longshore.models.job import JobSpec
from longshore.models.messages import (
    EnqueueReply,
    EnqueueRequest,
    FinishRequest,
    HoldRequest,
    ReleaseRequest,
)
from longshore.scheduling.time_limits import with_limit


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

        New work that no node of a fixed pool could hold is refused instead, and so is a job whose
        id has ended before, or is that of another that has not, or that the database does not
        take as data: another try would not help. A repeat, and one that comes after this attempt
        was placed, change nothing.
        """
        spec = request.spec
        try:
            async with self._database.transaction() as connection:
                if other := await why_another(connection, request):
                    return EnqueueReply(queued=False, refusal=other, other=True)
                pool = await load_pool(connection, spec.pool)
                # Later attempts have what the first one got, slots what their array got.
                if request.attempt == 1 and not await is_slot(connection, request.job_id):
                    spec = with_limit(spec, pool)
                    request = request.model_copy(update={"spec": spec})
                refusal = await why_no_code(connection, spec)
                refusal = refusal or await why_no_files(connection, spec)
                refusal = refusal or await why_never(
                    connection, request.job_id, spec, pool, request.submitted_at, request.attempt
                )
                refusal = await put_into_queue(connection, request, refusal)
                if refusal:
                    # Of a later attempt it is the job itself that is on record as ended.
                    over = request.attempt == 1 and await why_over(connection, request)
                    return EnqueueReply(queued=False, refusal=refusal, other=refusal == over)
                if request.attempt == 1 and pool.packing.by_rank and not request.held:
                    await take_over(connection, request.job_id)
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
        if request.attempt > 1:
            await self._tell_service(spec)
        await failpoint("enqueue.after-poke")
        return EnqueueReply(queued=True, max_duration=spec.max_duration)

    @activity.defn
    @reports_errors
    async def set_hold(self, request: HoldRequest) -> None:
        """Keep a queued job out of placement, or let it in again. A hold is no wait.

        What was bought for it before it was let in counts no more: more may be bought. In a pool
        by rank it takes over the time of one of its name that has just ended, as when it comes.
        """
        async with self._database.transaction() as connection:
            pool = await connection.scalar(
                text(
                    "UPDATE queue SET held = now.held, begin_only = :begin_only,"
                    f" {AGE_STOOD_STILL},"
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
                    f" FROM (SELECT job_id AS id, :held OR {MAY_WAIT} AS held,"
                    f" CASE WHEN :held OR NOT {MAY_WAIT} THEN {WAITED_FOR_PRICE}"
                    " ELSE interval '0' END AS span FROM queue WHERE job_id = :id) AS now"
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
            if pool and not request.held and await _goes_by_rank(connection, pool):
                await take_over(connection, request.key.job_id)
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
            ) or await pool_at_retry(connection, request.key.job_id)
            if request.then is not None:
                queued = not await put_into_queue(connection, request.then)
            poke = pool and await mark_poked_if_useful(connection, pool)
            await failpoint("release.before-commit")
        await failpoint("release.after-commit")
        if pool:
            await self._poke(pool, bool(poke))
        if queued and request.then is not None:
            await self._tell_service(request.then.spec)
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
                if await why_another(connection, request.unanswered):
                    return
                await put_into_queue(connection, request.unanswered, result.message or "cancelled")
            await lock_job(connection, result.job_id)
            pool = await end_attempt(
                connection, request.key, request.reason.value, result.message
            ) or await pool_at_retry(connection, result.job_id)
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

    async def _tell_service(self, spec: JobSpec) -> None:
        """Have the service of a replica look that is in the queue again: no engine tells it."""
        if spec.engine is not None and spec.engine.service is not None:
            await self._signals.poke_service(spec.engine.service)

    async def _poke(self, pool: str, first: bool) -> None:
        # A retry cannot know whether the one before it got as far as the signal.
        if first or activity.info().attempt > 1:
            await self._signals.poke_pool(pool)


async def _goes_by_rank(connection: AsyncConnection, pool: str) -> bool:
    """Whether a pool ranks by what jobs have run. One whose settings cannot be read plans nothing
    until they can, and keeps nobody from being held or let in."""
    try:
        return (await load_pool(connection, pool)).packing.by_rank
    except StoredError:
        return False
