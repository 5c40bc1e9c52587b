"""Marks nodes for scale-down: the check that they may go, and the mark, are one transaction.

Two blocks of a pool that are decided about at one moment see the same idle nodes. One at a time
gets here, and sees what the one before it took.
"""

import asyncio
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.block_scene import read_scene
from longshore.activities.database import clock
from longshore.models.block_end import BlockOptionKind, BlockScene
from longshore.models.errors import StaleError
from longshore.models.margins import Margins
from longshore.scheduling.buying.scale_down import (
    is_cancellable,
    is_removable,
    may_be_sold,
    why_retained,
)


async def check_leaves(
    connection: AsyncConnection, block_id: str, machine: str, margins: Margins
) -> None:
    """Raise StaleError unless a node of a block may leave its pool now.

    Nobody else marks a node of the pool until the end of the transaction.
    """
    await connection.execute(text(_ONE_AT_A_TIME), {"id": block_id})
    scene = await read_scene(connection, block_id, await clock(connection), margins)
    # In threads: in a large pool these take long.
    if machine not in await asyncio.to_thread(may_be_sold, scene):
        raise StaleError(f"node {machine} stays: {await asyncio.to_thread(why_retained, scene)}")


async def mark_released(
    connection: AsyncConnection, block_id: str, reason: str, now: datetime, margins: Margins
) -> str:
    """Keep new jobs off the machine of a block that is terminated; return why that may not be."""
    await connection.execute(text(_ONE_AT_A_TIME), {"id": block_id})
    scene = await read_scene(connection, block_id, now, margins)
    if not await asyncio.to_thread(_may_go, scene):
        return await asyncio.to_thread(why_retained, scene)
    values = {"id": block_id, "reason": reason}
    await connection.execute(text(_CORDON), values)
    await connection.execute(text(_LEAVES), values)
    return ""


def _may_go(scene: BlockScene) -> bool:
    return is_removable(scene) or is_cancellable(scene)


async def released_before(connection: AsyncConnection, block_id: str) -> str:
    """Return why a block was marked as terminated before; empty where it was not."""
    found = await connection.scalar(
        text("SELECT decision ->> 'reason' FROM blocks WHERE id = :id AND state = 'DRAINING'"
             " AND decision ->> 'kind' = :kind"),
        {"id": block_id, "kind": BlockOptionKind.LET_GO.value},
    )  # fmt: skip
    return found or ""


_ONE_AT_A_TIME = """
    SELECT pg_advisory_xact_lock(hashtextextended('leaving ' || pool, 0))
      FROM blocks WHERE id = :id
"""

_CORDON = """
    UPDATE nodes SET state = 'DRAINING', state_reason = :reason, drain_reason = :reason,
                     state_since = clock_timestamp()
     WHERE block_id = :id AND state = 'READY'
"""

_LEAVES = """
    UPDATE blocks SET state = 'DRAINING', reason = :reason
     WHERE id = :id AND state IN ('STARTING', 'OPEN')
"""
