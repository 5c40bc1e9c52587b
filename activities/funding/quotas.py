"""Hard quotas of tenants: what is left of them, and why a job is refused for one."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.funding.views import below, load_held, quotas_of, together
from longshore.models.mig import SLICES, profile_slices
from longshore.models.placement import JobRequest
from longshore.scheduling.funding.facts import Wall

_CONSTRAINT = "quota"


async def quota_room(connection: AsyncConnection) -> tuple[Wall, ...]:
    """Return each quota on what tenants hold at one time, with what they hold now; none where
    nobody has one.

    For who leaves out jobs before the database refuses them: it counts anew, and under a lock.
    """
    rows = (await connection.execute(text(_WITH_QUOTAS))).mappings().all()
    if not rows:
        return ()
    parents = {row.name: row.parent for row in await connection.execute(text(_TREE))}
    families, held = below(parents), await load_held(connection)
    walls: list[Wall] = []
    for row in rows:
        family = frozenset(families[row["name"]])
        has = together(held[name] for name in family if name in held)
        walls.append(
            Wall(row["name"], family, quotas_of(row["quotas"]), has.milli, has.jobs, has.nodes,
                 has.sensitive)
        )  # fmt: skip
    return tuple(walls)


async def why_never_within_quotas(
    connection: AsyncConnection, job: JobRequest, tenant: str
) -> str:
    """Return why a job could not run even if its tenant, and those above it, held nothing else;
    empty where it may."""
    rows = (await connection.execute(text(_ABOVE), {"tenant": tenant})).mappings().all()
    smallest = job.smallest
    of_each = profile_slices(job.mig) * 1000 // SLICES if job.mig else job.milli
    asked = {"max_gpus": smallest.gpus * of_each / 1000, "max_jobs": 1, "max_nodes": 1}
    if job.sensitive:
        asked["sensitive_nodes"] = 1
    for row in rows:
        quotas: dict[str, Any] = quotas_of(row["quotas"]).model_dump(exclude_none=True)
        for field, wants in asked.items():
            if wants > quotas.get(field, wants):
                return (
                    f"quota of tenant {row['name']}: {field}: it asks for {wants:g}, and "
                    f"{quotas[field]:g} is the most that the tenant and those below it may hold"
                )
    return ""


async def why_too_many_wait(connection: AsyncConnection, tenant: str) -> str:
    """Return why the database would refuse one more job of a tenant in a queue now, in its words;
    empty where it would not."""
    rows = (await connection.execute(text(_ABOVE), {"tenant": tenant})).mappings().all()
    most = {row["name"]: quotas_of(row["quotas"]).max_queued for row in rows}
    if all(limit is None for limit in most.values()):
        return ""
    parents = {row.name: row.parent for row in await connection.execute(text(_TREE))}
    families, held = below(parents), await load_held(connection)
    for name, limit in most.items():
        queued = sum(held[each].queued for each in families[name] if each in held)
        if limit is not None and queued + 1 > limit:
            return f"quota of tenant {name}: max_queued: {queued} + 1 > {limit}"
    return ""


def refused_by_quota(error: IntegrityError) -> str:
    """Return which quota the database refuses something for, with used, asked and limit; empty
    where it refuses it for something else."""
    diag = getattr(error.orig, "diag", None)
    if diag is None or diag.constraint_name != _CONSTRAINT:
        return ""
    return str(diag.message_primary)


_WITH_QUOTAS = """
    SELECT name, quotas FROM tenants
     WHERE quotas <> '{}' AND jsonb_exists_any(
               quotas, CAST('{max_gpus,max_nodes,max_jobs,sensitive_nodes}' AS text[]))
     ORDER BY name
"""

_TREE = "SELECT name, parent FROM tenants"

_ABOVE = """
    SELECT t.name, t.quotas FROM tenants t
     WHERE t.quotas <> '{}' AND t.name IN (SELECT name FROM tenants_above(:tenant))
     ORDER BY t.name
"""
