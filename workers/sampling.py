"""Gauges of the capacity database: what waits, what is held, what there is."""

import asyncio
import logging

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.metrics import GPUS, LEASES_LIVE, QUEUE_JOBS, Metrics
from longshore.models.errors import LongshoreError
from longshore.models.node import NodeState

SAMPLE_EVERY = 5.0
_log = logging.getLogger(__name__)


async def keep_sampling(database: Database, metrics: Metrics) -> None:
    """Set the gauges every `SAMPLE_EVERY` seconds, until cancelled."""
    while True:
        try:
            await sample(database, metrics)
        except LongshoreError as error:
            _log.warning("metrics of the queue stand still: %s", error)
        await asyncio.sleep(SAMPLE_EVERY)


async def sample(database: Database, metrics: Metrics) -> None:
    """Set the gauges of every pool once. Raises UnavailableError."""
    async with database.transaction() as connection:
        pools = (await connection.execute(text(_POOLS))).mappings().all()
        gpus = (await connection.execute(text(_GPUS))).mappings().all()
    for row in pools:
        metrics.set(QUEUE_JOBS, row["queued"], pool=row["pool"], held="false")
        metrics.set(QUEUE_JOBS, row["held"], pool=row["pool"], held="true")
        metrics.set(LEASES_LIVE, row["leases"], pool=row["pool"])
        for state in _COUNTED:  # those that there are none of any more go to 0
            metrics.set(GPUS, 0, pool=row["pool"], state=state)
    for row in gpus:
        metrics.set(GPUS, row["gpus"], pool=row["pool"], state=row["state"])


_COUNTED = tuple(state.value for state in NodeState if state is not NodeState.GONE)

_POOLS = """
    SELECT p.name AS pool,
           (SELECT count(*) FROM queue q WHERE q.pool = p.name AND NOT q.held) AS queued,
           (SELECT count(*) FROM queue q WHERE q.pool = p.name AND q.held) AS held,
           (SELECT count(DISTINCT (l.node_id, l.gpu_index)) FROM leases l
              JOIN nodes n ON n.id = l.node_id
             WHERE n.pool = p.name AND l.ended_at IS NULL) AS leases
      FROM pools p
"""

_GPUS = """
    SELECT n.pool, n.state, count(*) AS gpus
      FROM nodes n JOIN gpus g ON g.node_id = n.id
     WHERE n.state <> 'GONE' GROUP BY n.pool, n.state
"""
