"""A new desired size of a malleable job: recorded, and whether the job is stopped for it now."""

from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.locality import with_locality
from longshore.activities.preemption_inputs import load_running_work
from longshore.activities.queue import lock_job, mark_poked
from longshore.activities.signals import Signals
from longshore.activities.snapshot import (
    load_nodes,
    load_pool,
    load_queue,
    load_recent,
    load_running,
)
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.placement import Decision, JobRequest, RunningJob
from longshore.models.preemption import Victim
from longshore.models.resize import ResizeReply, ResizeRequest
from longshore.scheduling.cycle import foresee
from longshore.scheduling.elastic import resized
from longshore.scheduling.placement.state import without_job
from longshore.scheduling.preemption.costs import victim_of


class ResizeActivities:
    """The activity of `JobWorkflow` for a new size."""

    def __init__(
        self, database: Database, signals: Signals, margins: Margins = DEFAULT_MARGINS
    ) -> None:
        self._database = database
        self._signals = signals
        self._margins = margins

    @activity.defn
    @reports_errors
    async def resize(self, request: ResizeRequest) -> ResizeReply:
        """Record the desired size, and return whether a stop now would bring the job nearer to it.

        A job in the queue asks for it from the next cycle on. A repeat finds the same, and looks
        at the nodes anew. Raises NotFoundError where the pool is not there.
        """
        async with self._database.transaction() as connection:
            ended = await lock_job(connection, request.key.job_id)
            poke = ended is None and await self._record(connection, request)
            await failpoint("resize.before-commit")
        await failpoint("resize.after-commit")
        if poke or (ended is None and activity.info().attempt > 1):
            await self._signals.poke_pool(request.spec.pool)
        return await self._answer(request)

    async def _record(self, connection: AsyncConnection, request: ResizeRequest) -> bool:
        """Write down the size; return whether the pool has to be poked."""
        spec, job_id = request.spec, request.key.job_id
        values = {"id": job_id, "malleable": spec.malleable and spec.malleable.model_dump_json()}
        await connection.execute(text(_DESIRED), values)
        attempt = await connection.scalar(text(_QUEUED), {"id": job_id})
        if attempt is None:
            return False
        job = JobRequest.of(job_id, spec, request.submitted_at, attempt, request.path_behind)
        asked = {"id": job_id, "request": job.model_dump_json()}
        held = await connection.scalar(text(_ASK), asked)
        return not held and await mark_poked(connection, spec.pool)

    async def _answer(self, request: ResizeRequest) -> ResizeReply:
        """Return what a stop of the job would bring, by what is free now and who waits."""
        spec, key = request.spec, request.key
        job = JobRequest.of(
            key.job_id, spec, request.submitted_at, key.attempt + 1, request.path_behind
        )
        async with self._database.snapshot() as connection:
            running = await load_running(connection, spec.pool)
            mine = [share for share in running if share.job_id == job.id]
            if not mine:
                return resized(job, None, None, None)
            now = await clock(connection)
            victim = await self._cost(connection, spec.pool, mine, now)
            decision = await self._foresee(connection, spec.pool, job, running, now)
        gpus = sum(len(share.gpu_indices) for share in mine if not share.spare)
        return resized(job, gpus, decision, victim)

    async def _cost(
        self, connection: AsyncConnection, pool: str, mine: list[RunningJob], now: datetime
    ) -> Victim | None:
        """Return what a stop costs; None where what is stored of the job cannot be read."""
        policy = (await load_pool(connection, pool, self._margins)).preemption
        works = await load_running_work(connection, pool, policy, mine)
        return next((victim_of(work, now - now, policy, now) for work in works), None)

    async def _foresee(
        self,
        connection: AsyncConnection,
        pool: str,
        job: JobRequest,
        running: tuple[RunningJob, ...],
        now: datetime,
    ) -> Decision:
        """Return what the next cycle would decide for the job, were it in the queue again."""
        packing = (await load_pool(connection, pool, self._margins)).packing
        entries = await load_queue(connection, pool)
        waiting = [entry.request for entry in entries if not entry.held]
        by_id = {node.id: node for node in await load_nodes(connection, pool)}
        for share in running:
            if share.job_id == job.id and share.node_id in by_id:
                by_id[share.node_id] = without_job(by_id[share.node_id], share)
        recent = await load_recent(connection, pool) if packing.rule.learns else ()
        (*queue, job), nodes = await with_locality(
            connection, pool, packing, [*waiting, job], tuple(by_id.values())
        )
        others = [share for share in running if share.job_id != job.id]
        return foresee(job, queue, nodes, others, packing, now, recent).decision


_DESIRED = """
    UPDATE jobs SET spec = jsonb_set(spec, '{malleable}', CAST(:malleable AS jsonb))
     WHERE id = :id AND ended_at IS NULL
"""

_QUEUED = "SELECT attempt FROM queue WHERE job_id = :id FOR UPDATE"

_ASK = """
    UPDATE queue SET request = CAST(:request AS jsonb), decision = NULL, decided_at = NULL
     WHERE job_id = :id
    RETURNING held
"""
