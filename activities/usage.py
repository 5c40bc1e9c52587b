"""What the order of a queue asks beside jobs and nodes: what tenants of a pool have had of its
GPUs of late, what energy costs now, how many copies there are of what prewarmed engines serve, for
which engines others were stopped, and who pays for its jobs."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from longshore.activities.database import clock
from longshore.activities.funding.planning import with_funding
from longshore.activities.placements import HELD_SINCE
from longshore.activities.prices.views import price_now
from longshore.activities.serving.engine_order import load_engine_order
from longshore.activities.snapshot import load_pool
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.mig import SLICES
from longshore.models.pool import PoolSpec
from longshore.models.score import InTree
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.prices.series import energy_term

_HALF_LIVES = 5
"""What is older counts for less than a thirtieth, and is not read."""
_PART = 50
"""What was read is kept for so many times as long as the reading took: no more than a fiftieth of
the time goes by with it."""


class Had(NamedTuple):
    """What the score of a pool asks about its tenants."""

    usage: dict[str, float]
    """GPU-seconds of each tenant that had any of late or has a job in the queue."""
    tree: dict[str, InTree]
    """All tenants that somebody has told something about."""


NOTHING_KNOWN = Had({}, {})
_Kept = dict[tuple[str, float], tuple[float, Had]]
_kept: "WeakKeyDictionary[AsyncEngine, _Kept]" = WeakKeyDictionary()
"""Of each database: by pool and half-life, until when what was read holds."""


async def load_pool_to_plan(
    connection: AsyncConnection, pool: str, margins: Margins = DEFAULT_MARGINS, *,
    known: bool = False, growing: Sequence[MayGrow] = (),
) -> PoolSpec:  # fmt: skip
    """Return the pool's settings as `load_pool` does, with all that the order of its queue asks
    beside its jobs and nodes; with up to which sizes jobs that are `growing` are paid for."""
    spec = await load_pool(connection, pool, margins, known=known)
    return await with_funding(connection, await with_usage(connection, spec), growing)


async def with_usage(connection: AsyncConnection, spec: PoolSpec) -> PoolSpec:
    """Return a pool's settings with what its tenants have had, what energy costs, which copies
    come before those that wait and for which engines others were stopped, where that matters."""
    engines = await load_engine_order(connection, spec.name)
    if any(engines):
        packing = spec.packing.model_copy(update=engines._asdict())
        spec = spec.model_copy(update={"packing": packing})
    packing, score = spec.packing, spec.packing.score
    if score is None:
        return spec
    if score.used.energy and spec.price is not None:
        found = await price_now(connection, spec, await clock(connection))
        energy = energy_term(found.price, spec.price.reference)
        packing = packing.model_copy(update={"energy_price": energy})
        spec = spec.model_copy(update={"packing": packing})
    if not score.by_share:
        return spec
    half_life = score.half_life.total_seconds()
    kept = _kept.setdefault(connection.engine, {})
    until, had = kept.get((spec.name, half_life), (0.0, NOTHING_KNOWN))
    began = time.monotonic()
    if began >= until:
        had = await load_usage(connection, spec.name, half_life, await clock(connection))
        took = time.monotonic() - began
        kept[spec.name, half_life] = time.monotonic() + _PART * took, had
    update = {"usage": had.usage, "tree": had.tree}
    return spec.model_copy(update={"packing": packing.model_copy(update=update)})


async def load_usage(
    connection: AsyncConnection, pool: str, half_life: float, now: datetime
) -> Had:
    """Return what each tenant had, where what it had a `half_life` in seconds ago counts half, and
    the tree of tenants."""
    asked = {"pool": pool, "now": now, "half": half_life, "lives": _HALF_LIVES, "slices": SLICES}
    rows = (await connection.execute(text(_USAGE), asked)).all()
    return Had(
        {row.tenant: float(row.had) for row in rows if row.had is not None},
        {row.tenant: InTree(row.parent, row.shares) for row in rows if row.shares is not None},
    )


# PostgreSQL raises an error where exp() would be below the least number above 0.
_USAGE = f"""
    WITH spans AS (
        SELECT j.tenant,
               cardinality(p.gpu_indices) * CASE WHEN p.slices > 0
                   THEN length(replace(CAST(CAST(p.slices AS bit(8)) AS text), '0', ''))
                        / CAST(:slices AS float8)
                   ELSE p.milli / 1000.0 END AS gpus,
               greatest(extract(epoch FROM :now - coalesce(p.ended_at, :now)), 0) AS until,
               greatest(extract(epoch FROM :now - {HELD_SINCE}), 0) AS since
          FROM placements p JOIN jobs j ON j.id = p.job_id
         WHERE j.pool = :pool
           AND (p.ended_at IS NULL
                OR p.ended_at > CAST(:now AS timestamptz)
                                - make_interval(secs => :lives * CAST(:half AS float8)))
    ), used AS (
        SELECT tenant,
               sum(gpus * (exp(-least(ln(2) * until / :half, 700))
                           - exp(-least(ln(2) * since / :half, 700)))) * :half / ln(2) AS had
          FROM spans WHERE since >= until GROUP BY tenant
         UNION ALL
        SELECT DISTINCT q.tenant, 0
          FROM queue q
         WHERE q.pool = :pool AND q.tenant IS NOT NULL
           AND NOT EXISTS (SELECT FROM spans s WHERE s.tenant = q.tenant)
    )
    SELECT coalesce(u.tenant, t.name) AS tenant, u.had, t.parent, t.shares
      FROM used u FULL JOIN tenants t ON t.name = u.tenant
     ORDER BY 1
"""
