"""Pools as this process read them last: the next cycle reads what changed since.

Whoever changes a node, its GPUs or who holds them leaves its transaction's number with the node
(`nodes.changed_in`, by trigger). What is kept was read in one snapshot, and of the transactions
that this snapshot did not see none has a number below `pg_snapshot_xmin`: so all that is new to it
carries this number or a higher one, in whatever order transactions commit. The queue is kept by
the same marks (`activities.queue_cache`).

Nothing depends on what is kept but time: a process that has nothing, or any doubt, reads all.
"""

import logging
import time
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities import queue_cache
from longshore.activities.database import Database
from longshore.activities.metrics import KEPT_DIFFERENCES, SILENT, Metrics
from longshore.activities.queue_cache import QueueCache
from longshore.activities.snapshot import load_nodes, load_running
from longshore.scheduling.placement.node_cache import NodeCache

_KEPT_FOR = 600.0
"""Seconds; then all is read again, and pools that sleep are forgotten."""
CHECKED_EVERY = 100
"""Takes; then the queue is held against what the database has."""
_NAMED = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedPool:
    """A pool as one snapshot of the database showed it."""

    nodes: NodeCache
    queue: QueueCache
    since: int
    """Transactions with lower numbers had all ended."""
    server: str
    """The run of the server and the database in it: of another, numbers say nothing."""
    snapshot: str
    """That snapshot, as the server writes it."""
    read_at: float
    """When all of it was read last, by the clock since boot."""
    takes: int = 0
    """Times that what changed was read since then."""


LONG = 1000
"""Rows of a queue from which on who counts them is spared some."""
_NOTED_EVERY = 10.0
"""Seconds."""


class PoolCache:
    """What each pool's last cycle read, in this process."""

    def __init__(self, metrics: Metrics = SILENT) -> None:
        self._metrics = metrics
        self._pools: dict[str, CachedPool] = {}
        self._noted: dict[str, float] = {}
        """When the length of a pool's queue was noted last, by the clock since boot."""

    @property
    def names(self) -> frozenset[str]:
        """The pools of which something is kept."""
        return frozenset(self._pools)

    async def take(self, connection: AsyncConnection, pool: str) -> CachedPool:
        """Return a pool as the snapshot of `connection` shows it (`Database.snapshot`).

        It is the caller's until `keep`: whoever reads the same pool meanwhile, or after a caller
        that failed, reads all.
        """
        now = time.monotonic()
        self._pools = {
            name: one for name, one in self._pools.items() if now - one.read_at < _KEPT_FOR
        }
        mark = (await connection.execute(text(_MARK), {"pool": pool})).one()
        cached = self._pools.pop(pool, None)
        if cached is None or cached.server != mark.server or mark.since < cached.since:
            nodes = await _read_all(connection, pool)
            queue = await queue_cache.read_all(connection, pool)
            return CachedPool(nodes, queue, mark.since, mark.server, mark.snapshot, now)
        await _read_changed(connection, pool, cached.nodes, cached.since)
        queue, takes = cached.queue, cached.takes + 1
        if cached.since > mark.trimmed:
            await queue_cache.read_changed(connection, pool, queue, cached.since)
        if cached.since <= mark.trimmed or (
            takes % CHECKED_EVERY == 0 and await self._differs(connection, pool, queue)
        ):
            queue = await queue_cache.read_all(connection, pool)
        return CachedPool(
            cached.nodes, queue, mark.since, mark.server, mark.snapshot, cached.read_at, takes
        )

    def keep(self, pool: str, cached: CachedPool) -> None:
        """Give back what `take` returned."""
        self._pools[pool] = cached

    async def note_length(self, database: Database, pool: str) -> None:
        """Note now and then how long the queue of a pool is, where it is long."""
        cached, now = self._pools.get(pool), time.monotonic()
        if cached is None or now - self._noted.get(pool, -_NOTED_EVERY) < _NOTED_EVERY:
            return
        length = len(cached.queue.versions)
        if length < LONG and pool not in self._noted:
            return
        self._noted[pool] = now
        async with database.transaction() as connection:
            await queue_cache.note_length(connection, pool, length, cached.snapshot, cached.server)

    async def _differs(self, connection: AsyncConnection, pool: str, queue: QueueCache) -> bool:
        """Return whether the queue is not what the database has: that is a fault of ours."""
        found = await queue_cache.differences(connection, pool, queue)
        if found:
            some = ", ".join(sorted(found)[:_NAMED])
            _log.error("pool %s: %s of its queue were kept wrong: %s", pool, len(found), some)
            self._metrics.add(KEPT_DIFFERENCES, len(found), pool=pool)
        return bool(found)


async def _read_all(connection: AsyncConnection, pool: str) -> NodeCache:
    cached = NodeCache()
    nodes = await load_nodes(connection, pool)
    running = await load_running(connection, pool)
    cached.update({node.id for node in nodes} | {job.node_id for job in running}, nodes, running)
    return cached


async def _read_changed(
    connection: AsyncConnection, pool: str, cached: NodeCache, since: int
) -> None:
    changed = tuple(await connection.scalars(text(_CHANGED), {"since": since}))
    if changed:
        nodes = await load_nodes(connection, pool, changed)
        cached.update(changed, nodes, await load_running(connection, pool, changed))


_MARK = """
    SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS since,
           coalesce((SELECT left_trimmed FROM pools WHERE name = :pool), 0) AS trimmed,
           CAST(pg_current_snapshot() AS text) AS snapshot, this_server() AS server
"""

_CHANGED = """
    SELECT id FROM nodes WHERE changed_in >= :since
    UNION
    SELECT p.node_id
      FROM preemptions d JOIN placements p ON p.job_id = d.job_id AND p.attempt = d.attempt
     WHERE d.changed_in >= :since
"""
"""Of all pools: a node may have come from another, or gone there."""
