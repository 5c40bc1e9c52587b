"""Gauges of the capacity database: what waits, what is held, what there is."""

import asyncio
import logging
from collections.abc import Set

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.funding.rows import has_budgets
from longshore.activities.funding.use import in_use
from longshore.activities.metrics import (
    GPUS,
    GPUS_BY_CLASS,
    LEASES_LIVE,
    QUEUE_JOBS,
    SERVICE_REPLICAS,
    SLOT_MEMORY,
    Metrics,
)
from longshore.activities.serving.service_views import replicas_view, services_view
from longshore.models.errors import LongshoreError
from longshore.models.node import NodeState
from longshore.models.service import ServiceState

SAMPLE_EVERY = 5.0
MOST_TENANTS = 50
"""That have gauges of their own: those that were first, and then those that use most."""
MOST_SERVICES = 100
"""Likewise: those that hold most."""
OTHERS = "(others)"
_log = logging.getLogger(__name__)


async def keep_sampling(database: Database, metrics: Metrics) -> None:
    """Set the gauges every `SAMPLE_EVERY` seconds, until cancelled."""
    shown: set[tuple[str, str]] = set()
    served: frozenset[str] = frozenset()
    holding: frozenset[tuple[str, str]] = frozenset()
    while True:
        try:
            await sample(database, metrics)
            shown |= await sample_funding(database, metrics, shown)
            served |= await sample_services(database, metrics, served)
            holding |= await sample_slots(database, metrics, holding)
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


async def sample_funding(
    database: Database, metrics: Metrics, shown: Set[tuple[str, str]] = frozenset()
) -> frozenset[tuple[str, str]]:
    """Set how many GPUs each tenant uses of each class; return which gauges were set. Of those
    `shown` before what nobody has any more goes to 0. Nothing where no tenant has a budget.

    Raises UnavailableError.
    """
    async with database.transaction() as connection:
        if not await has_budgets(connection):
            return frozenset()
        rows = await in_use(connection)
    of_tenant: dict[str, float] = {}
    for row in rows:
        of_tenant[row.tenant] = of_tenant.get(row.tenant, 0.0) + row.gpus
    before = {tenant for tenant, _ in shown} - {OTHERS}
    most = sorted(of_tenant, key=lambda tenant: (-of_tenant[tenant], tenant))
    kept = [*sorted(before), *(tenant for tenant in most if tenant not in before)]
    named = frozenset(kept[:MOST_TENANTS])
    gpus: dict[tuple[str, str], float] = dict.fromkeys(shown, 0.0)
    for row in rows:
        key = row.tenant if row.tenant in named else OTHERS, row.funding.value
        gpus[key] = gpus.get(key, 0.0) + row.gpus
    for (tenant, funding), value in gpus.items():
        metrics.set(GPUS_BY_CLASS, value, tenant=tenant, **{"class": funding})
    return frozenset(gpus)


async def sample_services(
    database: Database, metrics: Metrics, shown: Set[str] = frozenset()
) -> frozenset[str]:
    """Set how many replicas each service wants and has; return the services. Of those `shown`
    before what is over goes to 0. Raises UnavailableError."""
    async with database.transaction() as connection:
        found = await services_view(connection)
    counts = {
        each.name: {
            "wanted": each.spec.replicas if each.state is ServiceState.RUNNING else 0,
            "ready": each.ready,
            "waiting": sum(one.stage is None for one in each.replicas),
            "over": sum(one.over for one in each.replicas),
        }
        for each in found
    }
    for name in {*shown, *counts}:
        for state in ("wanted", "ready", "waiting", "over"):
            value = counts.get(name, {}).get(state, 0)
            metrics.set(SERVICE_REPLICAS, value, service=name, state=state)
    return frozenset(counts)


async def sample_slots(
    database: Database, metrics: Metrics, shown: Set[tuple[str, str]] = frozenset()
) -> frozenset[tuple[str, str]]:
    """Set what engines hold of GPU memory, were reckoned with, and take, by service and model;
    return which of these were set. Of those `shown` before what nobody has any more goes to 0.
    Raises UnavailableError."""
    async with database.transaction() as connection:
        found = [each for each in await replicas_view(connection) if each.gpu_indices]
    holds: dict[str, int] = {}
    for each in found:
        holds[each.service] = holds.get(each.service, 0) + each.leased_in_all
    before = {service for service, _ in shown} - {OTHERS}
    most = sorted(holds, key=lambda service: (-holds[service], service))
    kept = [*sorted(before), *(service for service in most if service not in before)]
    named = frozenset(kept[:MOST_SERVICES])
    values: dict[tuple[str, str], dict[str, int]] = {key: {} for key in shown}
    for each in found:
        known = each.service in named
        value = values.setdefault((each.service, each.model) if known else (OTHERS, OTHERS), {})
        for memory, mb in (
            ("leased", each.leased_in_all),
            ("estimated", each.estimated * len(each.gpu_indices)),
            ("used", each.used),
        ):
            value[memory] = value.get(memory, 0) + mb * 1_000_000
    for (service, model), value in values.items():
        for memory in ("leased", "estimated", "used"):
            metrics.set(
                SLOT_MEMORY, value.get(memory, 0), service=service, model=model, memory=memory
            )
    return frozenset(values)


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
