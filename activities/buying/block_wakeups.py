"""Wakes the workflows of blocks that have lost their work and are billed by the minute, or a node
of the time that is paid for."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.block_scene import CLOSED_SINCE, idle_since, unwanted
from longshore.activities.buying.startup_failures import SILENT
from longshore.activities.database import Database
from longshore.activities.signals import Signals
from longshore.models.pool import PoolSpec


class BlockWakeups:
    """Has the blocks of a pool looked at that are billed as they run and have nothing to do, and
    bought windows that have lost a node."""

    def __init__(self, database: Database, signals: Signals) -> None:
        self._database = database
        self._signals = signals

    async def after_cycle(self, pool: str) -> None:
        """Wake each such block once for each time that it lost its work, or a node.

        One that was told and did not hear is looked at within some minutes all the same.
        """
        async with self._database.transaction() as connection:
            found = (await connection.execute(text(_IDLE), {"pool": pool})).all()
        if not found:
            return
        await self._signals.wake_blocks([row.id for row in found])
        async with self._database.transaction() as connection:
            values = [{"id": row.id, "since": row.since} for row in found]
            await connection.execute(text(_WOKEN), values)


async def blocks_to_decide_anew(connection: AsyncConnection, spec: PoolSpec) -> list[str]:
    """Return the blocks of a pool that its buying policy of now, not stored yet, decides anew."""
    found = await connection.scalars(
        text(_DECIDED_BY_ANOTHER),
        {"pool": spec.name, "buying": spec.buying.model_dump_json()},
    )
    return list(found)


_DECIDED_BY_ANOTHER = """
    SELECT b.id FROM blocks b LEFT JOIN pools p ON p.name = b.pool
     WHERE b.pool = :pool AND b.state IN ('STARTING', 'OPEN')
       AND p.spec -> 'buying' IS DISTINCT FROM CAST(:buying AS jsonb)
     ORDER BY b.id
"""

_IDLE = f"""
    SELECT b.id, idle.since
      FROM blocks b
      JOIN orders o ON o.key = b.id AND o.is_machine
     CROSS JOIN LATERAL ({idle_since("b.id")}) AS job (ended)
     CROSS JOIN LATERAL (
           SELECT max({CLOSED_SINCE}) AS at FROM nodes n
            WHERE n.block_id = b.id) AS closed
     CROSS JOIN LATERAL (
           SELECT CASE WHEN job.ended IS NOT NULL
                       THEN greatest(job.ended, closed.at) END) AS idle (since)
     WHERE b.pool = :pool AND b.state IN ('STARTING', 'OPEN')
       AND (idle.since > coalesce(b.woken_at, '-infinity')
            OR b.woken_at IS NULL AND ({unwanted("b.id")}))
     UNION ALL
    SELECT b.id, max(n.state_since)
      FROM blocks b
      JOIN orders o ON o.key = b.id AND NOT o.is_machine
      JOIN machines m ON m.block_id = b.id
      JOIN nodes n ON n.id = m.name
     WHERE b.pool = :pool AND b.state = 'OPEN' AND {SILENT}
       AND n.state_since > coalesce(b.woken_at, '-infinity')
     GROUP BY b.id
     ORDER BY id
"""
"""An idle machine that is cordoned or drained, or whose agent has left, may end some time later:
its block looks when."""

_WOKEN = "UPDATE blocks SET woken_at = coalesce(:since, clock_timestamp()) WHERE id = :id"
