"""Reclaims windows that were released by hand: their remaining time is paid for and unused.

Nothing is ordered at their market until a person resumes buying. From then on the pool uses that
time before it orders any: the block goes on with machines of its own.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.buying.machine_restarts import least_use
from longshore.activities.buying.purchase_rows import FAST_FABRIC, Row
from longshore.activities.database import Database
from longshore.activities.error_translation import follows_up
from longshore.models.block import ENDING, BlockRef
from longshore.models.buying import CapacityUnderWay
from longshore.models.job import Tier
from longshore.models.pool import PoolSpec


class ReleasedWindow(NamedTuple):
    """A window whose rest may be used again."""

    block_id: str
    ends_at: datetime
    capacity: CapacityUnderWay
    """As what its nodes count if their machines are started now."""


async def released_windows(
    connection: AsyncConnection, spec: PoolSpec, now: datetime
) -> Sequence[Row]:
    """Return the windows of a pool that were terminated with so much time that it is of use;
    whether somebody `resumed` buying since, and how many nodes are `left` that are not sold."""
    of_use = now + least_use(spec.purchasing)
    values = {"pool": spec.name, "of_use": of_use, "ending": ENDING}
    return (await connection.execute(text(_LET_GO), values)).mappings().all()


async def windows_to_use(
    connection: AsyncConnection, spec: PoolSpec, now: datetime
) -> tuple[ReleasedWindow, ...]:
    """Return the windows that a pool owns, and may use again since buying was resumed."""
    return tuple(
        ReleasedWindow(
            block_id=row["id"],
            ends_at=row["ends_at"],
            capacity=CapacityUnderWay(
                id=row["purchase_id"], tier=Tier(row["tier"]), provider=row["provider"],
                instance_type=row["instance_type"], nodes=row["left"], place=row["place"],
                expected_at=now + spec.purchasing.usual_startup, until=row["ends_at"],
                domain=row["id"] if row["fast_fabric"] else None,
            ),
        )
        for row in await released_windows(connection, spec, now)
        if row["resumed"] and not row["gone_on"]
    )  # fmt: skip


class WindowReclaimActivities:
    """The activity of `BlockWorkflow` for a window that was terminated."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @activity.defn
    @follows_up
    async def take_up_block(self, ref: BlockRef) -> None:
        """Have a window that was terminated count as one that lacks its machines, unless buying
        was stopped meanwhile.

        What its jobs pay is settled anew when it ends.
        """
        async with self._database.transaction() as connection:
            await connection.execute(text(_TAKE_UP), {"id": ref.block_id})
            await connection.execute(text(_PURCHASE_GOES_ON), {"id": ref.block_id})


_LET_GO = f"""
    SELECT b.*, b.nodes - s.sold - g.gone_on AS left, g.gone_on,
           EXISTS (SELECT FROM market_switch
                    WHERE NOT stopped AND changed_at > b.ended_at) AS resumed,
           {FAST_FABRIC} AS fast_fabric
      FROM blocks b
      JOIN purchases p ON p.id = b.purchase_id
      JOIN orders o ON o.key = b.id AND NOT o.is_machine
     CROSS JOIN LATERAL (
           SELECT count(*) AS sold FROM orders WHERE block_id = b.id AND state = 'SOLD') AS s
     CROSS JOIN LATERAL (
           SELECT count(*) AS gone_on FROM block_nodes WHERE block_id = b.id) AS g
     WHERE b.pool = :pool AND b.state IN ('DRAINING', 'ENDED') AND b.ends_at > :of_use
       AND NOT starts_with(b.reason, :ending) AND s.sold + g.gone_on < b.nodes
     ORDER BY b.id
"""
"""Windows that ended before their time."""

_TAKE_UP = """
    UPDATE blocks SET state = 'STARTING', reason = '', ended_at = NULL, decision = NULL,
                      decided_at = NULL, tried_at = NULL
     WHERE id = :id AND state = 'ENDED' AND ends_at > clock_timestamp()
       AND EXISTS (SELECT FROM market_switch WHERE NOT stopped AND changed_at > blocks.ended_at)
"""

_PURCHASE_GOES_ON = """
    UPDATE purchases p SET state = 'READY', changed_at = clock_timestamp(), ended_at = NULL
      FROM blocks b
     WHERE b.id = :id AND b.state = 'STARTING' AND p.id = b.purchase_id AND p.state = 'ENDED'
"""
