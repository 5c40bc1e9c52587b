"""The nodes of pools as this process read them last: the next cycle reads what changed since.

Whoever changes a node, its GPUs or who holds them leaves its transaction's number with the node
(`nodes.changed_in`, by trigger). What is kept was read in one snapshot, and of the transactions
that this snapshot did not see none has a number below `pg_snapshot_xmin`: so all that is new to it
carries this number or a higher one, in whatever order transactions commit.

Nothing depends on what is kept but time: a process that has nothing, or any doubt, reads all.
"""

import time
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from activities.snapshot import load_nodes, load_running
from scheduling.kept import KeptNodes

_KEPT_FOR = 600.0
"""Seconds; then all is read again, and pools that sleep are forgotten."""


@dataclass(frozen=True)
class KeptPool:
    """A pool as one snapshot of the database showed it."""

    nodes: KeptNodes
    since: int
    """Transactions with lower numbers had all ended."""
    server: str
    """The run of the server and the database in it: of another, numbers say nothing."""
    read_at: float
    """When all of it was read last, by the clock since boot."""


class KeptPools:
    """What each pool's last cycle read, in this process."""

    def __init__(self) -> None:
        self._pools: dict[str, KeptPool] = {}

    @property
    def names(self) -> frozenset[str]:
        """The pools of which something is kept."""
        return frozenset(self._pools)

    async def take(self, connection: AsyncConnection, pool: str) -> KeptPool:
        """Return a pool as the snapshot of `connection` shows it (`Database.snapshot`).

        It is the caller's until `keep`: whoever reads the same pool meanwhile, or after a caller
        that failed, reads all.
        """
        now = time.monotonic()
        self._pools = {
            name: kept for name, kept in self._pools.items() if now - kept.read_at < _KEPT_FOR
        }
        mark = (await connection.execute(text(_MARK))).one()
        kept = self._pools.pop(pool, None)
        if kept is None or kept.server != mark.server or mark.since < kept.since:
            nodes, read_at = await _read_all(connection, pool), now
        else:
            nodes, read_at = kept.nodes, kept.read_at
            await _read_changed(connection, pool, nodes, kept.since)
        return KeptPool(nodes, mark.since, mark.server, read_at)

    def keep(self, pool: str, kept: KeptPool) -> None:
        """Give back what `take` returned."""
        self._pools[pool] = kept


async def _read_all(connection: AsyncConnection, pool: str) -> KeptNodes:
    kept = KeptNodes()
    nodes = await load_nodes(connection, pool)
    running = await load_running(connection, pool)
    kept.update({node.id for node in nodes} | {job.node_id for job in running}, nodes, running)
    return kept


async def _read_changed(
    connection: AsyncConnection, pool: str, kept: KeptNodes, since: int
) -> None:
    changed = tuple(await connection.scalars(text(_CHANGED), {"since": since}))
    if changed:
        nodes = await load_nodes(connection, pool, changed)
        kept.update(changed, nodes, await load_running(connection, pool, changed))


_MARK = """
    SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS since,
           concat(pg_postmaster_start_time(), ' ',
                  (SELECT oid FROM pg_database WHERE datname = current_database())) AS server
"""

_CHANGED = """
    SELECT id FROM nodes WHERE changed_in >= :since
    UNION
    SELECT p.node_id
      FROM preemptions d JOIN placements p ON p.job_id = d.job_id AND p.attempt = d.attempt
     WHERE d.changed_in >= :since
"""
"""Of all pools: a node may have come from another, or gone there."""
