"""A new desired size of a malleable job: recorded, and whether the job is stopped for it now; and
what a change of its size in place asks of the database."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.joins import plan_of_joining
from longshore.activities.locality import with_locality
from longshore.activities.placements import SETTLED
from longshore.activities.pokes import mark_poked, mark_poked_if_useful
from longshore.activities.preemption_inputs import load_running_work
from longshore.activities.queue_rows import lock_job
from longshore.activities.signals import Signals
from longshore.activities.snapshot import (
    load_nodes,
    load_pool,
    load_queue,
    load_recent,
    load_running,
)
from longshore.activities.usage import load_pool_to_plan
from longshore.models.job_request import JobRequest
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.messages import LeaseEnd
from longshore.models.placement import Decision, PackingPolicy, PlacementKind, RunningJob
from longshore.models.resize import (
    LeaveRequest,
    ResizeReply,
    ResizeRequest,
    RoomRequest,
    nobody_waits,
)
from longshore.models.text import count
from longshore.scheduling.cycle import foresee
from longshore.scheduling.elastic import resized
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.joining import larger
from longshore.scheduling.placement.state import without_job
from longshore.scheduling.preemption.costs import victim_of


class ResizeActivities:
    """The activities of `JobWorkflow` for a new size."""

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
            ranks = await self._ranks(connection, request)
            now = await clock(connection)
            policy = (await load_pool(connection, spec.pool, self._margins)).preemption
            works = await load_running_work(connection, spec.pool, policy, mine)
            # None where what is stored of the job cannot be read.
            work = next(iter(works), None)
            victim = work and victim_of(work, now - now, policy, now)
            gpus = sum(len(share.gpu_indices) for share in mine if not share.spare)
            growing = (MayGrow(job, gpus),)
            packing = await self._packing(connection, spec.pool, growing)
            decision = await self._foresee(connection, spec.pool, packing, job, running, mine, now)
            joins = None
            counts_saves = bool(work and work.checkpoint and work.checkpoint.without_step)
            sizes = larger(job, gpus, packing.most_paid_for(job.id))
            if ranks and not counts_saves and sizes:
                held = {share.node_id: len(share.gpu_indices) for share in mine}
                joins = await plan_of_joining(
                    connection, spec.pool, job, held, sizes, self._margins
                )
        return resized(job, gpus, decision, victim, ranks, joins)

    async def _ranks(
        self, connection: AsyncConnection, request: ResizeRequest
    ) -> dict[int, int] | None:
        """Return the GPUs of each rank of a job that can change its size in place."""
        if request.spec.malleable is None or not request.spec.malleable.in_place:
            return None
        rows = await connection.execute(text(_RANKS), request.key.model_dump())
        return {row.rank: row.gpus for row in rows}

    @activity.defn
    @reports_errors
    async def room_in_place(self, request: RoomRequest) -> str:
        """Return why the job that waits would not start, had these ranks of another left; empty
        where it would."""
        asked = _of_room(request)
        async with self._database.snapshot() as connection:
            entries = await load_queue(connection, request.pool)
            waiting = (entry.request for entry in entries if not entry.held)
            job = next((one for one in waiting if one.id == request.for_job), None)
            if job is None:
                return nobody_waits(request.for_job)
            if others := await connection.scalar(text(_OTHER_VICTIMS), asked):
                return f"{count(others, 'other job')} must stop for {request.for_job} too"
            left = set(await connection.scalars(text(_LEAVING), asked))
            running = await load_running(connection, request.pool)
            gone = [
                share for share in running
                if share.job_id == request.key.job_id and share.node_id in left
            ]  # fmt: skip
            now = await clock(connection)
            packing = await self._packing(connection, request.pool)
            decision = await self._foresee(
                connection, request.pool, packing, job, running, gone, now
            )
        return "" if decision.kind is PlacementKind.EXISTING_NODE else decision.reason

    @activity.defn
    @reports_errors
    async def leave_ranks(self, request: LeaveRequest) -> None:
        """End the leases of ranks that have left an attempt which goes on. Their processes must
        have ended. A repeat finds them ended; rank 0 never leaves so."""
        key = request.key
        values = {
            "id": key.job_id, "attempt": key.attempt, "ranks": list(request.ranks),
            "reason": LeaseEnd.RESIZED.value, "message": request.message[:2000],
        }  # fmt: skip
        async with self._database.transaction() as connection:
            await lock_job(connection, key.job_id)
            await connection.execute(text(_LEAVE), values)
            # What was to be free by then is free: whoever keeps what was read looks again.
            await connection.execute(text(_TOUCH), values)
            poke = await mark_poked_if_useful(connection, request.pool)
            await failpoint("leave_ranks.before-commit")
        await failpoint("leave_ranks.after-commit")
        if poke or activity.info().attempt > 1:
            await self._signals.poke_pool(request.pool)

    async def _packing(
        self, connection: AsyncConnection, pool: str, growing: Sequence[MayGrow] = ()
    ) -> PackingPolicy:
        found = await load_pool_to_plan(connection, pool, self._margins, growing=growing)
        return found.packing

    async def _foresee(
        self,
        connection: AsyncConnection,
        pool: str,
        packing: PackingPolicy,
        job: JobRequest,
        running: tuple[RunningJob, ...],
        gone: list[RunningJob],
        now: datetime,
    ) -> Decision:
        """Return what the next cycle would decide for a job in the queue, were these shares of
        nodes given up."""
        entries = await load_queue(connection, pool)
        waiting = [e.request for e in entries if not e.held and e.request.id != job.id]
        *waiting, job = where_paid([*waiting, job], packing.funding)
        by_id = {node.id: node for node in await load_nodes(connection, pool)}
        for share in gone:
            if share.node_id in by_id:
                by_id[share.node_id] = without_job(by_id[share.node_id], share)
        recent = await load_recent(connection, pool) if packing.rule.learns else ()
        (*queue, job), nodes = await with_locality(
            connection, pool, packing, [*waiting, job], tuple(by_id.values())
        )
        others = [share for share in running if share not in gone]
        found = await asyncio.to_thread(foresee, job, queue, nodes, others, packing, now, recent)
        return found.decision


def _of_room(request: RoomRequest) -> dict[str, Any]:
    return {
        "id": request.key.job_id, "attempt": request.key.attempt,
        "for_job": request.for_job, "ranks": list(request.leaving),
    }  # fmt: skip


_RANKS = """
    SELECT rank, cardinality(gpu_indices) AS gpus FROM placements
     WHERE job_id = :job_id AND attempt = :attempt AND ended_at IS NULL AND NOT spare
"""

_LEAVING = """
    SELECT node_id FROM placements
     WHERE job_id = :id AND attempt = :attempt AND rank = ANY(:ranks) AND ended_at IS NULL
"""

_OTHER_VICTIMS = f"""
    SELECT count(*)
      FROM preemptions d
     WHERE d.for_job = :for_job AND d.job_id <> :id AND NOT {SETTLED}
       AND EXISTS (SELECT FROM placements p
                    WHERE p.job_id = d.job_id AND p.attempt = d.attempt AND p.ended_at IS NULL)
"""
"""Which GPUs these give up is not known yet."""

_LEAVE = """
    WITH at AS MATERIALIZED (SELECT clock_timestamp() AS now)
    UPDATE placements p
       SET ended_at = at.now, end_reason = :reason, end_message = :message
      FROM at
     WHERE p.job_id = :id AND p.attempt = :attempt AND p.rank = ANY(:ranks) AND p.rank > 0
       AND p.ended_at IS NULL
"""

_TOUCH = """
    UPDATE preemptions SET frees_by = frees_by WHERE job_id = :id AND attempt = :attempt
"""

_DESIRED = """
    UPDATE jobs SET spec = jsonb_set(spec, '{malleable}', CAST(:malleable AS jsonb))
     WHERE id = :id AND ended_at IS NULL
"""

_QUEUED = "SELECT attempt FROM queue WHERE job_id = :id FOR UPDATE"

_ASK = """
    WITH forgotten AS (
        DELETE FROM start_estimates e USING queue q
         WHERE q.job_id = :id AND e.job_id = q.job_id AND e.attempt = q.attempt)
    UPDATE queue SET request = CAST(:request AS jsonb), decision = NULL, decided_at = NULL
     WHERE job_id = :id
    RETURNING held
"""
"""What was said of its start was said of another size."""
