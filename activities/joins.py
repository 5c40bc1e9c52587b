"""Ranks join an attempt that runs: planned beside it, and leased in one transaction."""

import asyncio
import json
from collections.abc import Mapping

from sqlalchemy import RowMapping, text
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.commit import WANTED, rows_of
from longshore.activities.database import Database, clock
from longshore.activities.departures import NodeLooks
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.planning import settle_now
from longshore.activities.growth import room_to_grow
from longshore.activities.locality import with_locality
from longshore.activities.placements import (
    GIVE_LEASES,
    LEASED_COLUMNS,
    PLACEMENT_COLUMNS,
    rank_of,
)
from longshore.activities.queue_rows import lock_job
from longshore.activities.snapshot import (
    load_nodes,
    load_queue,
    load_recent,
    load_running,
)
from longshore.activities.usage import load_pool_to_plan
from longshore.models.job_request import JobRequest
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.node import Node
from longshore.models.placement import Decision, Placement, PlacementKind, Rank
from longshore.models.protocol import KNOWS_JOINED
from longshore.models.resize import JoinReply, JoinRequest
from longshore.models.text import count
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.joining import plan_joining


class JoinActivities:
    """The activity of `JobWorkflow` for growth in place."""

    def __init__(
        self,
        database: Database,
        looks: NodeLooks | None = None,
        margins: Margins = DEFAULT_MARGINS,
    ) -> None:
        self._database = database
        self._looks = looks
        self._margins = margins

    @activity.defn
    @reports_errors
    async def join_ranks(self, request: JoinRequest) -> JoinReply:
        """Give an attempt that runs further ranks, up to the size that is asked for; all or none.

        The ranks that it has stay as they are. A repeat finds those that the one before it has
        placed. Nothing joins an attempt that has ended: who gives up its leases may come first.
        """
        joined = await self._joined(request)
        if joined is None:
            found = await self._plan(request)
            if isinstance(found, str):
                return JoinReply(reason=found)
            why_not = await self._commit(request, found)
            if why_not:
                return JoinReply(reason=why_not)
            await failpoint("join_ranks.after-commit")
            joined = await self._joined(request)
            assert joined is not None
        ranks, rows = joined
        if self._looks:
            await self._looks.after(_placements(request, ranks, rows))
        return JoinReply(ranks=ranks)

    async def _plan(self, request: JoinRequest) -> Decision | str:
        """Return where the ranks go that join, or why none do."""
        pool = request.spec.pool
        if request.by_user:
            async with self._database.snapshot() as connection:
                running = await load_running(connection, pool)
                held = {
                    share.node_id: len(share.gpu_indices)
                    for share in running
                    if share.job_id == request.key.job_id
                }
                if not held:
                    return "it holds no GPUs any more"
                found = await plan_of_joining(
                    connection, pool, _asked(request), held, (request.gpus,), self._margins
                )
        else:
            foreseen = await room_to_grow(
                self._database, pool, request.key.job_id, request.gpus, self._margins
            )
            if isinstance(foreseen, str):
                return foreseen
            found = foreseen.decision
        return found if found.kind is PlacementKind.EXISTING_NODE else found.reason

    async def _commit(self, request: JoinRequest, decision: Decision) -> str:
        """Place what is planned; return why not, where that does not hold any more."""
        key = request.key
        job = _asked(request).at_size(request.gpus)
        decision = decision.model_copy(update={"reason": request.message})
        async with self._database.transaction() as connection:
            if await lock_job(connection, key.job_id) is not None:
                return "the job has ended"
            wanted = await connection.scalar(text(_WANTED_GPUS), {"id": key.job_id})
            if wanted is not None and wanted < request.gpus:
                return f"its user has asked for {count(wanted, 'GPU')} meanwhile"
            values = {"id": key.job_id, "attempt": key.attempt, "names": _names(decision)}
            old = await connection.scalar(text(_OLD), {**values, "known": KNOWS_JOINED})
            if old is not None:
                return f"the agent of node {old} is of an older version, which does not know that"
            nodes = await _nodes(connection, request, decision)
            if len(nodes) < len(values["names"]):
                return "a node has gone meanwhile"
            rows = rows_of(decision, job, nodes, request.first_rank)
            for row in rows:
                row["attempt"] = key.attempt
            try:
                async with connection.begin_nested():
                    placed = await connection.execute(
                        text(_JOIN), {**values, "rows": json.dumps(rows)}
                    )
                    if not placed.first():
                        return "the attempt is over"
            except (IntegrityError, DataError):
                return "its GPUs were taken meanwhile"
            await settle_now(connection, request.spec.pool)
            await failpoint("join_ranks.before-commit")
        return ""

    async def _joined(
        self, request: JoinRequest
    ) -> tuple[tuple[Rank, ...], list[RowMapping]] | None:
        """Return the ranks of the attempt, where some have joined for this request."""
        key = request.key
        async with self._database.transaction() as connection:
            found = await connection.execute(
                text(_RANKS),
                {"id": key.job_id, "attempt": key.attempt, "first": request.first_rank},
            )
            rows = list(found.mappings())
        if not any(row["rank"] >= request.first_rank for row in rows):
            return None
        return tuple(rank_of(row) for row in rows), rows


async def plan_of_joining(
    connection: AsyncConnection,
    pool: str,
    job: JobRequest,
    held: Mapping[str, int],
    sizes: tuple[int, ...],
    margins: Margins,
) -> Decision:
    """Return where ranks go that join a job with these GPUs by node, in the snapshot of
    `connection`."""
    grows = (MayGrow(job, sum(held.values())),)
    packing = (await load_pool_to_plan(connection, pool, margins, growing=grows)).packing
    entries = await load_queue(connection, pool)
    waiting = [e.request for e in entries if not e.held and e.request.id != job.id]
    asked = where_paid([*waiting, job], packing.funding)
    recent = await load_recent(connection, pool) if packing.rule.learns else ()
    running = await load_running(connection, pool)
    (*queue, job), nodes = await with_locality(
        connection, pool, packing, asked, await load_nodes(connection, pool)
    )
    now = await clock(connection)
    return await asyncio.to_thread(
        plan_joining, job, held, sizes, queue, nodes, running, packing, now, recent
    )


def _asked(request: JoinRequest) -> JobRequest:
    """Return the job as its next attempt would stand in the queue."""
    key = request.key
    return JobRequest.of(
        key.job_id, request.spec, request.submitted_at, key.attempt + 1, request.path_behind
    )


def _names(decision: Decision) -> list[str]:
    return [node_id for node_id, _ in decision.by_node]


async def _nodes(
    connection: AsyncConnection, request: JoinRequest, decision: Decision
) -> dict[str, Node]:
    nodes = await load_nodes(connection, request.spec.pool, _names(decision))
    epochs = {member.node_id: member.epoch for member in decision.members}
    return {n.id: n for n in nodes if n.epoch == epochs[n.id]}


def _placements(
    request: JoinRequest, ranks: tuple[Rank, ...], rows: list[RowMapping]
) -> list[Placement]:
    """Return what joined, as nodes that end are asked to look at it."""
    return [
        Placement(
            job_id=request.key.job_id, attempt=request.key.attempt, rank=rank.rank,
            node_id=rank.node_id, epoch=rank.epoch, gpu_indices=rank.gpu_indices, cycle_id="",
            placed_at=row["placed_at"], node_expires_at=rank.expires_at, joined=True,
        )
        for rank, row in zip(ranks, rows, strict=True)
        if rank.rank >= request.first_rank
    ]  # fmt: skip


_OLD = """
    SELECT id FROM nodes WHERE id = ANY(:names) AND agent_protocol < :known ORDER BY id LIMIT 1
"""

_WANTED_GPUS = """
    SELECT CAST(coalesce(spec->'malleable'->>'desired', spec->'malleable'->>'max') AS integer)
      FROM jobs WHERE id = :id
"""
"""`resize` records it under the lock of the job's row that is held here."""

_JOIN = f"""
    WITH {WANTED}, at AS MATERIALIZED (SELECT clock_timestamp() AS now
    ), first AS (
        SELECT cycle_id, placed_at, expected_seconds FROM placements
         WHERE job_id = :id AND attempt = :attempt AND rank = 0 AND ended_at IS NULL
    ), placed AS (
        INSERT INTO placements ({PLACEMENT_COLUMNS}, joined, placed_at)
        SELECT w.job_id, w.attempt, w.rank, w.spare, first.cycle_id, w.node_id, w.epoch,
               w.gpu_indices, w.cpu_milli, w.ram_mb, w.storage_mb_s, w.milliwatts, w.vram_mb,
               w.milli, w.slices, w.mig_profile,
               greatest(first.expected_seconds - extract(epoch FROM at.now - first.placed_at), 1),
               w.decision, interval '0', interval '0', NULL, w.alone, w.idle,
               w.lendable, w.borrowed_from, true, at.now
          FROM wanted w CROSS JOIN first CROSS JOIN at
        RETURNING {LEASED_COLUMNS}
    )
    {GIVE_LEASES}
"""
"""They end together with the others, as far as anybody expects."""

_RANKS = """
    SELECT p.rank, p.node_id, p.epoch, p.gpu_indices, p.idle, p.joined, p.placed_at, n.address,
           n.expires_at
      FROM placements p JOIN nodes n ON n.id = p.node_id
     WHERE p.job_id = :id AND p.attempt = :attempt AND NOT p.spare
       AND (p.ended_at IS NULL OR p.rank = 0 OR p.rank >= :first)
     ORDER BY p.rank
"""
