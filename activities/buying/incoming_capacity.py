"""Reads the purchases that are under way for a waiting job, and when their nodes come."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.inputs import under_way
from longshore.activities.database import clock
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.pool import PoolSpec
from longshore.models.spending import PurchaseUnderWay
from longshore.scheduling.buying.fleet import holding


async def purchases_under_way(
    connection: AsyncConnection,
    pool: PoolSpec,
    job: JobRequest | None = None,
    nodes: Sequence[Node] = (),
) -> tuple[PurchaseUnderWay, ...]:
    """Return the purchases of a pool of which machines are still to come, the oldest first; for a
    job those whose machines could hold it, of a gang together with the nodes that are there."""
    coming = await under_way(connection, pool)
    if job is not None:
        coming = holding(job, coming, nodes, pool.packing, await clock(connection))
    if not coming:
        return ()
    found = await connection.execute(text(_MONEY), {"ids": [each.id for each in coming]})
    money = {row.id: row for row in found}
    return tuple(
        PurchaseUnderWay(
            id=each.id, nodes=each.nodes, instance_type=each.instance_type,
            provider=each.provider, committed_micro_usd=money[each.id].committed,
            ready_at=each.due or each.expected_at, late=each.due is not None,
            simulated=money[each.id].simulated, refused=money[each.id].refused or "",
        )
        for each in coming
        if each.id in money
    )  # fmt: skip


async def purchases_for(
    connection: AsyncConnection, pool: PoolSpec, job_id: str
) -> tuple[PurchaseUnderWay, ...]:
    """Return those of them that a job is to start on: as its pool's last decision about buying
    found it, which is made anew while jobs wait."""
    named: Sequence[str] | None = await connection.scalar(
        text(_FOR_JOB), {"pool": pool.name, "job": job_id}
    )
    if not named:
        return ()
    return tuple(each for each in await purchases_under_way(connection, pool) if each.id in named)


_MONEY = """
    SELECT p.id, p.committed, p.simulated,
           (SELECT min(m.refused) FROM machines m
             WHERE m.purchase_id = p.id AND m.state = 'INTENT') AS refused
      FROM purchases p WHERE p.id = ANY(:ids)
"""

_FOR_JOB = """
    SELECT buying_decision -> 'coming' -> CAST(:job AS text) -> 'purchases'
      FROM pools WHERE name = :pool
"""
