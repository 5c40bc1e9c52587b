"""Looking at every running job that can save and go on: is a save now worth what it costs?"""

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.checkpoints.rows import CheckpointActivities, keep_seen
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.preemption_inputs import (
    PreemptionInputs,
    load_running_work,
    read_inputs,
)
from longshore.activities.schedules import Schedules
from longshore.activities.snapshot import load_running
from longshore.models.checkpoint import CheckpointInfo, CheckpointsRequest, SaveRequest
from longshore.models.checkpointing import (
    CHECKPOINT_WATCH_SCHEDULE,
    CheckpointDecision,
    CheckpointLook,
    NodeSave,
    UnstoredSaves,
)
from longshore.models.node import Node
from longshore.models.placement import Placement, PlacementKey
from longshore.models.preemption import RunningWork
from longshore.scheduling.checkpointing import decide_checkpoint, risks_of

MOST_AT_ONCE = 100
"""Jobs that are asked in one look: those with the most to lose."""
_MOST, _MOST_BYTES = 2**31, 2**63
"""What columns of the database hold less than."""


class CheckpointWatchActivities:
    """The activity of `CheckpointWatchWorkflow`."""

    def __init__(
        self, database: Database, checkpoints: CheckpointActivities, watches: "CheckpointWatches"
    ) -> None:
        self._database = database
        self._checkpoints = checkpoints
        self._watches = watches

    @activity.defn
    @reports_errors
    async def decide_saves(self) -> CheckpointLook:
        """Decide for every running job that can be asked to save, and store each decision."""
        pools = await _pools(self._database)
        if not pools:
            await self._watches.rest()
        looks = [await self._look_at(pool) for pool in pools]
        return CheckpointLook(
            looked=sum(look.looked for look in looks),
            saves=tuple(save for look in looks for save in look.saves),
            away={pool: why for look in looks for pool, why in look.away.items()},
        )

    @activity.defn
    @reports_errors
    async def record_saves(self, saved: UnstoredSaves) -> None:
        """Put on record when jobs saved whose saves are not in the checkpoint store: so it is
        known what they would lose. A repeat changes nothing; those of other jobs are left out, and
        what a node says that nobody can have saved."""
        ids = [info.job_id for info in saved.saves]
        async with self._database.transaction() as connection:
            own = set(await connection.scalars(text(_KEEP_THEIR_OWN), {"ids": ids}))
        if kept := [info for info in saved.saves if info.job_id in own and _can_be(info)]:
            await keep_seen(self._database, kept)

    async def _look_at(self, pool: str) -> CheckpointLook:
        seen = await self._checkpoints.observe_checkpoints(CheckpointsRequest(pool=pool))
        async with self._database.transaction() as connection:
            inputs = await read_inputs(connection, pool, seen.reason)
            lent = await load_running(connection, pool, on_lent_spares=True)
            guests = await load_running_work(
                connection, pool, inputs.spec.preemption, lent, seen.reason
            )
            now = await clock(connection)
        works = (*inputs.running, *guests)
        able = [w for w in works if w.checkpoint and w.checkpoint.saves_while_running]
        decided = [(work, _decide(work, inputs, now)) for work in able]
        async with self._database.transaction() as connection:
            await _store(connection, decided)
        decided.sort(key=lambda one: (-one[1].value, one[0].id))
        wanted = [(work, decision) for work, decision in decided if decision.save]
        return CheckpointLook(
            looked=len(able),
            saves=tuple(
                save for work, decision in wanted[:MOST_AT_ONCE] for save in _saves(work, decision)
            ),
            away={pool: seen.reason} if seen.away_since else {},
        )


def _can_be(info: CheckpointInfo) -> bool:
    """Return whether a node's word fits the record: else it would keep the others' from it."""
    return (
        0 < info.attempt < _MOST
        and 0 < info.number < _MOST
        and 0 < info.ranks < _MOST
        and 0 <= info.bytes < _MOST_BYTES
        and (info.step is None or 0 <= info.step < _MOST_BYTES)
        and (info.write_seconds is None or info.write_seconds >= 0)
    )


class CheckpointWatches:
    """The schedule of these looks. It rests while no running job keeps checkpoints."""

    def __init__(self, database: Database, schedules: Schedules) -> None:
        self._database = database
        self._schedules = schedules

    async def rest(self) -> None:
        """Have no more looks, unless a job has come meanwhile."""
        if await self._schedules.rest(CHECKPOINT_WATCH_SCHEDULE) and await _pools(self._database):
            await self._schedules.wake(CHECKPOINT_WATCH_SCHEDULE)

    async def after(self, placements: Sequence[Placement]) -> None:
        """Have looks again where one of these jobs keeps checkpoints."""
        if not placements:
            return
        ids = [placement.job_id for placement in placements]
        async with self._database.transaction() as connection:
            keeps = await connection.scalar(text(_KEEP_CHECKPOINTS), {"ids": ids})
        if keeps:
            await self._schedules.wake(CHECKPOINT_WATCH_SCHEDULE)


async def _pools(database: Database) -> list[str]:
    """Return the pools where a job runs that keeps checkpoints."""
    async with database.transaction() as connection:
        return list(await connection.scalars(text(_POOLS)))


def _decide(work: RunningWork, pool: PreemptionInputs, now: datetime) -> CheckpointDecision:
    policy = pool.spec.checkpoints
    risks = risks_of(
        work, pool.queue, pool.running, _first_end(work, pool.nodes), policy,
        pool.spec.preemption, now, pool.spec.packing.funding,
    )  # fmt: skip
    return decide_checkpoint(work, risks, policy, now)


def _saves(work: RunningWork, decision: CheckpointDecision) -> Sequence[NodeSave]:
    """Return a request for each node of a job: a gang's checkpoint needs all of its ranks."""
    key = PlacementKey(job_id=work.id, attempt=work.request.attempt)
    request = SaveRequest(key=key, reason=decision.reason)
    return [NodeSave(node_id=node_id, request=request) for node_id in work.runs_on]


def _first_end(work: RunningWork, nodes: Sequence[Node]) -> datetime | None:
    ends = (node.expires_at for node in nodes if node.id in work.runs_on)
    return min((end for end in ends if end is not None), default=None)


async def _store(
    connection: AsyncConnection, decided: Sequence[tuple[RunningWork, CheckpointDecision]]
) -> None:
    if not decided:
        return
    rows = [
        {
            "job_id": work.id,
            "attempt": work.request.attempt,
            "decision": decision.model_dump(mode="json"),
            "decided_at": decision.at.isoformat(),
        }
        for work, decision in decided
    ]
    await connection.execute(text(_STORE), {"rows": json.dumps(rows)})


_KEEP_THEIR_OWN = """
    SELECT id FROM jobs
     WHERE id = ANY(:ids) AND ended_at IS NULL AND spec #>> '{checkpoint,store}' = 'false'
"""

_POOLS = """
    SELECT DISTINCT j.pool
      FROM placements p JOIN jobs j ON j.id = p.job_id
     WHERE p.ended_at IS NULL AND j.spec #>> '{checkpoint,folder}' IS NOT NULL
     ORDER BY j.pool
"""

_KEEP_CHECKPOINTS = """
    SELECT EXISTS (
        SELECT FROM jobs
         WHERE id = ANY(:ids) AND spec #>> '{checkpoint,folder}' IS NOT NULL)
"""

_STORE = """
    INSERT INTO checkpoint_decisions (job_id, attempt, decision, decided_at)
    SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        job_id text, attempt integer, decision jsonb, decided_at timestamptz)
    ON CONFLICT (job_id) DO UPDATE
       SET attempt = excluded.attempt, decision = excluded.decision,
           decided_at = excluded.decided_at
"""
