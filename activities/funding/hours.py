"""GPU-hours of tenants that have a soft quota of them, over the last 90 days."""

import time
from weakref import WeakKeyDictionary

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from longshore.activities.funding.rows import MILLI
from longshore.activities.funding.views import quotas_of
from longshore.models.funding import QUOTA_WINDOW
from longshore.scheduling.funding.hours import factors

_PART = 50
"""What was read is kept for so many times as long as the reading took."""
_kept: "WeakKeyDictionary[AsyncEngine, tuple[float, dict[str, float], dict[str, float]]]" = (
    WeakKeyDictionary()
)
"""Of each database: until when it holds, the quotas that it was read for, and the hours."""


async def share_factors(connection: AsyncConnection) -> dict[str, float]:
    """Return by what the jobs of each tenant count in a queue, of those that count less since
    they, or those above them, have had more than their GPU-hours."""
    rows = (await connection.execute(text(_TENANTS))).all()
    quotas = {row.name: most for row in rows if (most := quotas_of(row.quotas).gpu_hours)}
    if not quotas:
        return {}
    until, of, hours = _kept.get(connection.engine, (0.0, {}, {}))
    began = time.monotonic()
    if began >= until or of != quotas:
        hours = await load_hours(connection)
        took = time.monotonic() - began
        _kept[connection.engine] = time.monotonic() + _PART * took, quotas, hours
    return factors({row.name: row.parent for row in rows}, quotas, hours)


async def load_hours(connection: AsyncConnection) -> dict[str, float]:
    """Return the GPU-hours of each tenant within the window, those of a node that it held alone
    whole."""
    rows = await connection.execute(text(_HOURS), {"window": QUOTA_WINDOW})
    return {row.tenant: float(row.had) for row in rows}


_TENANTS = """
    SELECT name, parent, quotas FROM tenants
     WHERE EXISTS (SELECT FROM tenants WHERE jsonb_exists(quotas, 'gpu_hours'))
"""

_HOURS = f"""
    SELECT j.tenant,
           sum(cardinality(p.gpu_indices) * {MILLI} / 1000.0
               * greatest(extract(epoch FROM coalesce(p.ended_at, t.now)
                                             - greatest(p.placed_at, t.now - :window)), 0)) / 3600
               AS had
      FROM placements p
      JOIN jobs j ON j.id = p.job_id
     CROSS JOIN (SELECT clock_timestamp() AS now) t
     WHERE p.ended_at IS NULL OR p.ended_at > t.now - CAST(:window AS interval)
     GROUP BY j.tenant
"""
