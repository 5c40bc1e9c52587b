"""Handover of machines to the next block: at the end of one block they belong to the other."""

from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database
from longshore.activities.failpoints import failpoint
from longshore.models.block import FOR_SALE, closed_by_its_block


async def hand_over(database: Database, block_id: str) -> None:
    """Make machines that go on machines of the block after this one. Again, it changes nothing.

    What was leased on them until then stays with the block that it was paid by.
    """
    async with database.transaction() as connection:
        for statement in _HAND_OVER:
            await connection.execute(text(statement), {"id": block_id})
        await failpoint("hand_over.before-commit")
    await failpoint("hand_over.after-commit")


async def nodes_that_go_on(connection: AsyncConnection, block_id: str) -> set[str]:
    """Return the nodes of a block that go on in the block after it."""
    found = await connection.scalars(
        text("SELECT node_id FROM block_nodes WHERE block_id = :id"), {"id": block_id}
    )
    return set(found)


async def closed_nodes(connection: AsyncConnection, pool: str) -> frozenset[str]:
    """Return the nodes of a pool that take no jobs for what becomes of them or their blocks,
    whoever drains them too: `longshore uncordon` lets none of them in again for long."""
    found = await connection.execute(text(_CLOSED), {"pool": pool})
    return frozenset(
        row.id for row in found if row.leaves or closed_by_its_block(row.said, row.block_reason)
    )


async def ends_unless_sold(connection: AsyncConnection, pool: str) -> dict[str, datetime]:
    """Return until when each node of a pool whose time is for sale lasts if nobody buys it: while
    it is for sale, its end is stored as where the offered time begins."""
    found = await connection.execute(text(_UNLESS_SOLD), {"pool": pool, "reason": FOR_SALE})
    return {row.id: row.ends_at for row in found}


_UNLESS_SOLD = """
    SELECT n.id, b.ends_at FROM nodes n JOIN blocks b ON b.id = n.block_id
     WHERE n.pool = :pool AND n.state = 'DRAINING' AND n.drain_reason = :reason
"""
_CLOSED = """
    SELECT n.id, coalesce(n.drain_reason, '') AS said, nullif(b.reason, '') AS block_reason,
           n.drain_reason IS NULL OR n.drain_reason <> n.state_reason
               OR (b.state IN ('DRAINING', 'ENDED')
                   AND NOT EXISTS (SELECT FROM block_nodes k
                                    WHERE k.block_id = b.id AND k.node_id = n.id)) AS leaves
      FROM nodes n LEFT JOIN blocks b ON b.id = n.block_id
     WHERE n.pool = :pool AND n.state = 'DRAINING'
"""
"""A node that its jobs leave, at its end or where its market takes it away, has no reason of a
drain, or another one than its state (`activities.departures`). Of a block that drains all nodes
leave, but for those that go on in the next."""
_HAND_OVER = (
    """
    UPDATE machines m SET block_id = b.next_block,
                          purchase_id = (SELECT purchase_id FROM blocks WHERE id = b.next_block)
      FROM block_nodes b
     WHERE b.block_id = :id AND b.handed_over_at IS NULL AND m.name = b.node_id
    """,
    """
    UPDATE nodes n SET block_id = b.next_block FROM block_nodes b
     WHERE b.block_id = :id AND b.handed_over_at IS NULL AND n.id = b.node_id
    """,
    """
    UPDATE blocks k SET state = 'OPEN' FROM block_nodes b
     WHERE b.block_id = :id AND b.handed_over_at IS NULL AND k.id = b.next_block
       AND k.state = 'STARTING'
    """,
    """
    UPDATE block_nodes SET handed_over_at = clock_timestamp()
     WHERE block_id = :id AND handed_over_at IS NULL
    """,
)
