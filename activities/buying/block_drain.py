"""Drains a block before its machines end: its jobs are asked to leave, and waited for.

Every step may run twice.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying.handover import nodes_that_go_on
from longshore.activities.database import Database, clock
from longshore.activities.departures import occupant_of
from longshore.activities.error_translation import follows_up
from longshore.activities.failpoints import failpoint
from longshore.activities.heartbeat import heartbeats
from longshore.activities.node_updates import clear_node
from longshore.models.block import BlockRef, Cleared, EmptyRequest
from longshore.models.departures import Margins, Occupant
from longshore.scheduling.departures import all_gone_by

_POLL_EVERY = 0.5
"""Seconds between two polls of the capacity database for who is still there."""


class BlockDrainActivities:
    """Activities of `BlockWorkflow` for a block that ends while jobs run there."""

    def __init__(self, database: Database, temporal: Client, margins: Margins) -> None:
        self._database = database
        self._temporal = temporal
        self._margins = margins

    @activity.defn
    @follows_up
    async def clear_block(self, ref: BlockRef) -> Cleared:
        """Have the nodes of a block take no new job and their jobs leave; return until when.

        Nodes that go on in the block after it keep their jobs.
        """
        async with heartbeats():
            for node_id in await self._nodes(ref.block_id):
                await clear_node(self._temporal, node_id, ref.reason)
        async with self._database.transaction() as connection:
            await connection.execute(
                text("UPDATE blocks SET state = 'DRAINING', reason = :reason"
                     " WHERE id = :id AND state IN ('STARTING', 'OPEN', 'DRAINING')"),
                {"id": ref.block_id, "reason": ref.reason},
            )  # fmt: skip
            there = await _occupants(connection, ref.block_id)
            now = await clock(connection)
        await failpoint("clear_block.after-commit")
        return Cleared(gone_by=all_gone_by(there, self._margins, now))

    @activity.defn
    @follows_up
    async def await_empty(self, request: EmptyRequest) -> int:
        """Return how many jobs are left on a block: 0 as soon as all have gone, others at `until`.

        A job has gone when nothing of it runs any more, and what it saved has been published.
        """
        async with heartbeats():
            left, now = await self._left(request.block_id)
            while left and now < request.until:
                await asyncio.sleep(_POLL_EVERY)
                left, now = await self._left(request.block_id)
        if left:
            activity.logger.warning("%d jobs of block %s did not leave in time",
                                    left, request.block_id)  # fmt: skip
        return left

    async def _nodes(self, block_id: str) -> Sequence[str]:
        async with self._database.transaction() as connection:
            names = await connection.scalars(text(_MACHINES), {"id": block_id})
            go_on = await nodes_that_go_on(connection, block_id)
        return [name for name in names if name not in go_on]

    async def _left(self, block_id: str) -> tuple[int, datetime]:
        """Return how many jobs are there, and when that was."""
        async with self._database.transaction() as connection:
            return len(await _occupants(connection, block_id)), await clock(connection)


async def _occupants(connection: AsyncConnection, block_id: str) -> list[Occupant]:
    """Return the jobs on those machines of a block that end with it."""
    rows = await connection.execute(text(_OCCUPANTS), {"id": block_id})
    return [occupant_of(row) for row in rows.mappings()]


_MACHINES = "SELECT name FROM machines WHERE block_id = :id AND state <> 'ENDED' ORDER BY name"

_OCCUPANTS = """
    SELECT p.job_id, p.attempt, min(p.placed_at) AS placed_at, j.spec, bool_and(p.spare) AS spare,
           (array_agg(p.learnt) FILTER (WHERE p.learnt IS NOT NULL))[1] AS learnt,
           max(p.attained) AS attained, clock_timestamp() AS now
      FROM placements p
      JOIN jobs j ON j.id = p.job_id
      JOIN machines m ON m.name = p.node_id AND m.block_id = :id AND m.state <> 'ENDED'
     WHERE p.ended_at IS NULL
       AND NOT EXISTS (SELECT FROM block_nodes k WHERE k.block_id = :id AND k.node_id = m.name)
     GROUP BY p.job_id, p.attempt, j.id
     ORDER BY p.job_id
"""
