"""GPU- and node-hours of tenants that have a soft quota of them, over the last 90 days."""

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from longshore.activities.funding.rows import MILLI
from longshore.activities.funding.views import quotas_of
from longshore.activities.placements import HELD_SINCE
from longshore.models.funding import QUOTA_WINDOW
from longshore.models.funding_views import TenantView
from longshore.scheduling.funding.hours import Hours, factors, with_below

_PART = 50
"""What was read is kept for so many times as long as the reading took."""
_kept: "WeakKeyDictionary[AsyncEngine, tuple[float, dict[str, Hours], dict[str, Hours]]]" = (
    WeakKeyDictionary()
)
"""Of each database: until when it holds, the quotas that it was read for, and the hours."""


async def share_factors(connection: AsyncConnection) -> dict[str, float]:
    """Return by what the jobs of each tenant count in a queue, of those that count less since
    they, or those above them, have had more than their hours."""
    rows = (await connection.execute(text(_TENANTS))).all()
    given = {row.name: quotas_of(row.quotas) for row in rows}
    quotas = {
        name: Hours(each.gpu_hours or 0, each.node_hours or 0)
        for name, each in given.items()
        if each.gpu_hours or each.node_hours
    }
    if not quotas:
        return {}
    until, of, hours = _kept.get(connection.engine, (0.0, {}, {}))
    began = time.monotonic()
    if began >= until or of != quotas:
        hours = await load_hours(connection)
        took = time.monotonic() - began
        _kept[connection.engine] = time.monotonic() + _PART * took, quotas, hours
    return factors({row.name: row.parent for row in rows}, quotas, hours)


async def with_hours(
    connection: AsyncConnection, tenants: Sequence[TenantView]
) -> tuple[TenantView, ...]:
    """Return the tenants with what they have had of their quotas of hours."""
    limited = [each.name for each in tenants if each.quotas.gpu_hours or each.quotas.node_hours]
    if not limited:
        return tuple(tenants)
    parents = {each.name: each.parent for each in tenants}
    used = with_below(limited, parents, await load_hours(connection))
    counts = await share_factors(connection)
    return tuple(
        each.model_copy(
            update={
                "gpu_hours": None if had is None else had.gpus,
                "node_hours": None if had is None else had.nodes,
                "counts": counts.get(each.name, 1.0),
            }
        )
        for each in tenants
        for had in [used.get(each.name)]
    )


async def load_hours(connection: AsyncConnection) -> dict[str, Hours]:
    """Return the hours of each tenant within the window, those of a node that it held alone whole;
    of another node that part counts which it held of its GPUs."""
    rows = await connection.execute(text(_HOURS), {"window": QUOTA_WINDOW})
    return {row.tenant: Hours(float(row.gpus), float(row.nodes)) for row in rows}


_TENANTS = """
    SELECT name, parent, quotas FROM tenants
     WHERE EXISTS (SELECT FROM tenants WHERE quotas ?| '{gpu_hours,node_hours}')
"""

_HOURS = f"""
    SELECT j.tenant, sum(used.gpus * used.hours) AS gpus,
           sum(used.gpus * used.hours / greatest(g.count, 1)) AS nodes
      FROM placements p
      JOIN jobs j ON j.id = p.job_id
     CROSS JOIN (SELECT clock_timestamp() AS now) t
     CROSS JOIN LATERAL (
            SELECT cardinality(p.gpu_indices) * {MILLI} / 1000.0 AS gpus,
                   greatest(extract(epoch FROM coalesce(p.ended_at, t.now)
                                               - greatest({HELD_SINCE}, t.now - :window)), 0)
                       / 3600 AS hours) used
      LEFT JOIN (SELECT node_id, count(*) FROM gpus GROUP BY node_id) g ON g.node_id = p.node_id
     WHERE p.ended_at IS NULL OR p.ended_at > t.now - CAST(:window AS interval)
     GROUP BY j.tenant
"""
