"""Hard quotas of tenants: what is left of them, and why a job is refused for one."""

from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.funding.views import below, load_held, quotas_of, together
from longshore.models.funding import Quotas
from longshore.scheduling.funding.facts import Wall
from longshore.scheduling.funding.quotas import raises

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


async def quotas_above(connection: AsyncConnection, tenant: str) -> tuple[tuple[str, Quotas], ...]:
    """Return the quotas that a tenant is under: its own, and those of the tenants above it."""
    rows = await connection.execute(text(_ABOVE), {"tenant": tenant})
    return tuple((row.name, quotas_of(row.quotas)) for row in rows)


class Waiting(NamedTuple):
    """How many jobs of a tenant and of those below it wait, and may."""

    tenant: str
    queued: int
    most: int
    below: frozenset[str]
    """Whom the quota is for: the tenant and those below it."""

    @property
    def full(self) -> str:
        """What the database says of one more."""
        return f"quota of tenant {self.tenant}: max_queued: {self.queued} + 1 > {self.most}"


async def waiting_of(connection: AsyncConnection, tenant: str) -> tuple[Waiting, ...]:
    """Return how many jobs wait under each quota of queued jobs that a tenant is under."""
    most = {name: quotas.max_queued for name, quotas in await quotas_above(connection, tenant)}
    if all(limit is None for limit in most.values()):
        return ()
    parents = {row.name: row.parent for row in await connection.execute(text(_TREE))}
    families, held = below(parents), await load_held(connection)
    return tuple(
        Waiting(
            name,
            sum(held[each].queued for each in families[name] if each in held),
            limit,
            frozenset(families[name]),
        )
        for name, limit in most.items()
        if limit is not None
    )


async def why_too_many_wait(connection: AsyncConnection, tenant: str) -> str:
    """Return why the database would refuse one more job of a tenant in a queue now, in its words;
    empty where it would not."""
    for each in await waiting_of(connection, tenant):
        if each.queued + 1 > each.most:
            return (
                f"{each.full}: submit it when one that waits has started, or "
                f"{raises(each.tenant, 'max_queued', each.queued + 1)} raises it"
            )
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
