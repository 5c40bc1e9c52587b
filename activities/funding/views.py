"""Tenants and budgets as people see them."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.funding.rows import ENVELOPE_COLUMNS, MILLI, capped_of, envelope_of
from longshore.models.bounds import TAKEN
from longshore.models.funding import BudgetMoney, Quotas
from longshore.models.funding_views import (
    BudgetSpent,
    BudgetView,
    CapView,
    EnvelopeState,
    EnvelopeView,
    Holdings,
    TenantView,
)
from longshore.models.text import listed
from longshore.models.visible import shown
from longshore.scheduling.funding.money import forecast

_NAMED = 10


class Held(NamedTuple):
    """What one tenant holds, without those below it."""

    milli: int = 0
    jobs: int = 0
    queued: int = 0
    nodes: frozenset[str] = frozenset()
    sensitive: frozenset[str] = frozenset()


def together(held: Iterable[Held]) -> Held:
    """Return what several tenants hold: a node on which two of them are is one."""
    every = list(held)
    return Held(
        sum(each.milli for each in every),
        sum(each.jobs for each in every),
        sum(each.queued for each in every),
        frozenset[str]().union(*(each.nodes for each in every)),
        frozenset[str]().union(*(each.sensitive for each in every)),
    )


def below(parents: Mapping[str, str | None]) -> dict[str, set[str]]:
    """Return for each tenant those that stand below it, and itself."""
    found = {name: {name} for name in parents}
    for name in parents:
        at: str | None = parents[name]
        seen = {name}
        while at is not None and at not in seen:
            found.setdefault(at, {at}).add(name)
            seen.add(at)
            at = parents.get(at)
    return found


async def load_held(connection: AsyncConnection) -> dict[str, Held]:
    """Return what each tenant holds that has a job which runs or waits."""
    found: dict[str, Held] = {}
    for row in (await connection.execute(text(_HELD))).mappings():
        found[row["tenant"]] = Held(
            row["milli"], row["jobs"], 0, frozenset(row["nodes"]), frozenset(row["sensitive"])
        )
    for row in await connection.execute(text(_QUEUED)):
        found[row.tenant] = found.get(row.tenant, Held())._replace(queued=row.queued)
    return found


async def tenants_view(connection: AsyncConnection) -> tuple[TenantView, ...]:
    """Return all tenants that somebody has told something about, and those that have jobs."""
    rows = (await connection.execute(text(_TENANTS))).mappings().all()
    held = await load_held(connection)
    parents: dict[str, str | None] = {row["name"]: row["parent"] for row in rows}
    families = below(parents)
    stored = {row["name"]: row for row in rows}
    return tuple(
        _tenant(name, stored.get(name), held, families.get(name, {name}))
        for name in sorted(parents.keys() | held.keys())
    )


async def budgets_view(
    connection: AsyncConnection, tenant: str | None = None
) -> tuple[BudgetView, ...]:
    """Return the budgets, or that of one tenant."""
    now = await clock(connection)
    asked = {"tenant": tenant}
    tenants = (await connection.execute(text(_BUDGETS), asked)).mappings().all()
    envelopes = (await connection.execute(text(_ENVELOPES), asked)).mappings().all()
    caps = (await connection.execute(text(_CAPS), asked)).mappings().all()
    return tuple(
        BudgetView(
            tenant=row["name"], since=row["budget_since"], money=_money(row),
            spent=_spent(row), money_of=tuple(row["money_of"]),
            envelopes=tuple(_envelope(e, now) for e in envelopes if e["tenant"] == row["name"]),
            caps=tuple(
                CapView(spec=capped_of(cap).spec, used=cap["used"] / 1000)
                for cap in caps
                if cap["tenant"] == row["name"]
            ),
        )
        for row in tenants
    )  # fmt: skip


async def names_without_budget(
    connection: AsyncConnection, names: Sequence[str]
) -> tuple[str, ...]:
    """Return those of these tenants that have no budget, by name."""
    with_one = set(
        await connection.scalars(
            text("SELECT name FROM tenants WHERE budget_since IS NOT NULL AND name = ANY(:names)"),
            {"names": list(names)},
        )
    )
    return tuple(sorted(set(names) - with_one))


async def why_no_budget(connection: AsyncConnection, tenant: str) -> str:
    """Return what to say of a tenant that has no budget, or that there is none of that name."""
    if await connection.scalar(text(_IS_KNOWN), {"tenant": tenant}):
        money = list(await connection.scalars(text(_MONEY_ABOVE), {"tenant": tenant}))
        above = f". Its purchases take of the money of {listed(money, _NAMED)}" if money else ""
        return (
            f"tenant {shown(tenant)} has no budget: it pays for all that it uses{above}. "
            "`longshore budget apply FILE` gives it one"
        )
    return await _no_such_tenant(connection, tenant)


async def why_no_tenant(connection: AsyncConnection, tenant: str) -> str:
    """Return that there is no tenant of this name, and which may be meant; empty where there is
    one."""
    if await connection.scalar(text(_IS_KNOWN), {"tenant": tenant}):
        return ""
    return await _no_such_tenant(connection, tenant)


async def _no_such_tenant(connection: AsyncConnection, tenant: str) -> str:
    names = sorted(
        await connection.scalars(text("SELECT name FROM tenants WHERE budget_since IS NOT NULL"))
    )
    close = difflib.get_close_matches(tenant, names, 1)
    have = listed(names, _NAMED) or "none"
    meant = f"did you mean {close[0]}?" if close else f"tenants with a budget: {have}"
    return f"there is no tenant {shown(tenant)}; {meant}"


_MONEY_ABOVE = """
    SELECT up.name FROM tenants_above(:tenant) AS up (name)
      JOIN tenants a ON a.name = up.name AND a.name <> :tenant
     WHERE a.money_per_day IS NOT NULL OR a.money_per_month IS NOT NULL
     ORDER BY up.name
"""
_IS_KNOWN = """
    SELECT EXISTS (SELECT FROM tenants WHERE name = :tenant)
        OR EXISTS (SELECT FROM jobs WHERE tenant = :tenant)
"""


def quotas_of(stored: object) -> Quotas:
    """Return the quotas of a tenant from its row; none where they cannot be read."""
    try:
        return Quotas.model_validate(stored, context=TAKEN)
    except ValidationError:
        return Quotas()


def _tenant(
    name: str, row: RowMapping | None, held: Mapping[str, Held], family: set[str]
) -> TenantView:
    own = held.get(name, Held())
    subtree = together(held[each] for each in family if each in held)
    if row is None:
        return TenantView(name=name, known=False, own=_shown(own), subtree=_shown(subtree))
    return TenantView(
        name=name, parent=row["parent"], shares=row["shares"], quotas=quotas_of(row["quotas"]),
        budget_since=row["budget_since"], own=_shown(own), subtree=_shown(subtree),
    )  # fmt: skip


def _shown(held: Held) -> Holdings:
    return Holdings(
        gpus=held.milli / 1000, nodes=len(held.nodes), jobs=held.jobs, queued=held.queued,
        sensitive_nodes=len(held.sensitive),
    )  # fmt: skip


def _spent(row: RowMapping) -> BudgetSpent | None:
    if _money(row) is None:
        return None
    month, late = row["this_month"], row["of_late"]
    return BudgetSpent(
        today=row["today"], this_month=month, forecast=forecast(month, late, row["day"])
    )


def _money(row: RowMapping) -> BudgetMoney | None:
    per_day, per_month = row["money_per_day"], row["money_per_month"]
    if per_day is None and per_month is None:
        return None
    return BudgetMoney(per_day=per_day, per_month=per_month)


def _envelope(row: RowMapping, now: datetime) -> EnvelopeView:
    state = EnvelopeState.OPEN
    if row["starts_at"] > now:
        state = EnvelopeState.NOT_YET
    elif row["ends_at"] is not None and row["ends_at"] <= now:
        state = EnvelopeState.ENDED
    ended = state is EnvelopeState.ENDED
    return EnvelopeView(
        id=row["id"], spec=envelope_of(row), state=state,
        used=0.0 if ended else row["used"] / 1000, lent=0.0 if ended else row["lent"] / 1000,
    )  # fmt: skip


_HELD = f"""
    SELECT tenant, CAST(sum(milli) AS bigint) AS milli, count(DISTINCT job_id) AS jobs,
           array_agg(DISTINCT node_id) AS nodes,
           coalesce(array_agg(DISTINCT node_id) FILTER (WHERE alone), '{{}}') AS sensitive
      FROM (SELECT j.tenant, p.job_id, p.node_id, p.alone,
                   cardinality(p.gpu_indices) * {MILLI} AS milli
              FROM placements p JOIN jobs j ON j.id = p.job_id
             WHERE p.ended_at IS NULL) AS live
     GROUP BY tenant
"""

_QUEUED = """
    SELECT j.tenant, count(*) AS queued FROM queue q JOIN jobs j ON j.id = q.job_id
     GROUP BY j.tenant
"""

_TENANTS = "SELECT name, parent, shares, quotas, budget_since FROM tenants"

_BUDGETS = f"""
    SELECT name, budget_since, money_per_day, money_per_month, day,
           budget_spent(name, day, day) AS today,
           budget_spent(name, month_of(day), day) AS this_month,
           budget_spent(name, day - 6, day) AS of_late,
           ARRAY({_MONEY_ABOVE.replace(":tenant", "tenants.name")}) AS money_of
      FROM tenants CROSS JOIN (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS day) AS now
     WHERE budget_since IS NOT NULL AND name = coalesce(CAST(:tenant AS text), name)
     ORDER BY name
"""

_ENVELOPES = f"""
    SELECT {ENVELOPE_COLUMNS} FROM envelopes
     WHERE removed_at IS NULL AND tenant = coalesce(CAST(:tenant AS text), tenant)
     ORDER BY tenant, name
"""

_CAPS = """
    SELECT k.id, k.tenant, k.name, k.milli, k.subtree, k.used,
           ARRAY(SELECT m.envelope_id FROM funding_cap_members m
                  WHERE m.cap_id = k.id ORDER BY 1) AS members,
           ARRAY(SELECT e.name FROM funding_cap_members m
                   JOIN envelopes e ON e.id = m.envelope_id AND e.removed_at IS NULL
                  WHERE m.cap_id = k.id ORDER BY e.id) AS names
      FROM funding_caps k
     WHERE k.removed_at IS NULL AND k.tenant = coalesce(CAST(:tenant AS text), k.tenant)
     ORDER BY k.tenant, k.name
"""
