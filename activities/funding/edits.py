"""Edits of tenants and budgets.

One after another, and each behind the cycles that charge the same envelopes: first the turn of all
edits, then tenants, envelopes and caps, in the order in which commits lock them.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from sqlalchemy import RowMapping, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.funding.rows import ENVELOPE_COLUMNS, envelope_of
from longshore.activities.funding.views import why_no_budget
from longshore.models.errors import NotFoundError, RefusedError, SpecError
from longshore.models.funding import NEVER, Budget, Cap, Envelope, Tenant
from longshore.models.funding_views import BudgetChange, Edit
from longshore.models.text import dollars, listed
from longshore.models.units import plain
from longshore.models.visible import shown

_NAMED = 10
_REFUSED = "23000"
"""PostgreSQL's code for what our triggers refuse, with a sentence."""


@asynccontextmanager
async def told(about: str) -> AsyncIterator[None]:
    """Raise what the database refuses as RefusedError, in its words."""
    try:
        yield
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != _REFUSED:
            raise
        raise RefusedError(f"{about}: {str(error.orig).partition(chr(10))[0]}") from error


async def set_tenant(connection: AsyncConnection, tenant: Tenant) -> None:
    """Store where a tenant stands, its shares and its quotas; it is made where it is new.

    Raises NotFoundError for a parent that is not known, RefusedError for a circle.
    """
    await _take_turn(connection)
    if tenant.parent is not None:
        names = set(await connection.scalars(text("SELECT name FROM tenants")))
        if tenant.parent not in names | {tenant.name}:
            raise NotFoundError(
                f"parent: there is no tenant {shown(tenant.parent)}; there "
                f"{'are' if len(names) > 1 else 'is'} {listed(sorted(names), _NAMED) or 'none'}. "
                f"`longshore tenant set {tenant.parent}` makes it"
            )
    async with told("parent"):
        await connection.execute(
            text(_SET_TENANT),
            {
                "name": tenant.name, "parent": tenant.parent, "shares": tenant.shares,
                "quotas": tenant.quotas.model_dump_json(exclude_none=True),
            },
        )  # fmt: skip


async def apply_budgets(
    connection: AsyncConnection, budgets: Sequence[Budget]
) -> tuple[BudgetChange, ...]:
    """Make the budgets of these tenants what is given; return what that has changed.

    What is not in a budget any more is removed. A cut below what is used is taken: the next cycle
    closes what no longer fits. Raises SpecError for windows in the past, RefusedError for a cut
    below what is lent.
    """
    await _take_turn(connection)
    changes: list[BudgetChange] = []
    for budget in budgets:
        now = await clock(connection)
        async with told(f"budget of {budget.tenant}"):
            changes += await _Applied(connection, budget, now).all()
    return tuple(changes)


async def remove_budget(connection: AsyncConnection, tenant: str) -> None:
    """Take the budget of a tenant away: it pays for all that it uses again.

    Raises NotFoundError where it has none, RefusedError where others' jobs have its GPUs on loan.
    """
    values = {"tenant": tenant}
    await connection.execute(text(_TURN[0]))
    await connection.execute(text(_LOCK_CHARGES), values)
    await _take_turn(connection)
    found = await connection.scalar(
        text("SELECT budget_since FROM tenants WHERE name = :tenant FOR NO KEY UPDATE"), values
    )
    if found is None:
        raise NotFoundError(await why_no_budget(connection, tenant))
    async with told(f"budget of {tenant}"):
        for statement in _REMOVE_BUDGET:
            await connection.execute(text(statement), values)


async def _take_turn(connection: AsyncConnection) -> None:
    for statement in _TURN:
        await connection.execute(text(statement))


class _Applied:
    """A budget that takes the place of what is stored."""

    def __init__(self, connection: AsyncConnection, budget: Budget, now: datetime) -> None:
        self._connection = connection
        self._budget = budget
        self._tenant = budget.tenant
        self._now = now
        self._changes: list[BudgetChange] = []

    async def all(self) -> list[BudgetChange]:
        values = {"tenant": self._tenant, "now": self._now}
        rows = await self._connection.execute(text(_STORED_ENVELOPES), values)
        stored = {row["name"]: row for row in rows.mappings()}
        self._refuse_what_is_past(stored)
        await self._money()
        for name in stored.keys() - {each.name for each in self._budget.envelopes}:
            await self._remove("envelopes", stored[name]["id"])
            self._note(f"envelope {name}", Edit.REMOVED)
        ids: dict[str, int] = {}
        for wanted in self._budget.envelopes:
            ids[wanted.name] = await self._envelope(stored.get(wanted.name), wanted)
        await self._caps(ids)
        return self._changes

    def _note(self, what: str, edit: Edit, fields: Sequence[str] = ()) -> None:
        self._changes.append(
            BudgetChange(tenant=self._tenant, what=what, edit=edit, fields=tuple(fields))
        )

    async def _run(self, statement: str, **values: Any) -> Any:
        found = await self._connection.execute(text(statement), values)
        return found.scalar_one_or_none() if found.returns_rows else None

    def _refuse_what_is_past(self, stored: Mapping[str, RowMapping]) -> None:
        wrong: list[str] = []
        for each in self._budget.envelopes:
            before = stored.get(each.name)
            where = f"budget of {self._tenant}: envelopes.{each.name}"
            if each.end is not None and each.end <= self._now:
                now, end = _time(self._now), _time(each.end)
                if before is None or before["ends_at"] != each.end:
                    wrong.append(f"{where}.end: must be after now, {now}, got {end}")
                elif changed := _differences_but_start(before, each):
                    wrong.append(
                        f"{where}.end: it has ended at {end}, so nothing of it can change, got "
                        f"{listed(changed, _NAMED)}; an end after now, {now}, renews it"
                    )
            elif before is not None and not _has_ended(before, self._now):
                begun, start = before["starts_at"], each.start
                if start is not None and begun <= self._now < start:
                    wrong.append(
                        f"{where}.start: it has begun at {_time(begun)}, and that is fixed, got "
                        f"{_time(start)}; give what begins then a name of its own"
                    )
        if wrong:
            raise SpecError(f"budget of {self._tenant}", tuple(wrong))

    async def _money(self) -> None:
        money = self._budget.money
        values = {
            "per_day": money and money.per_day, "per_month": money and money.per_month,
            "tenant": self._tenant, "now": self._now,
        }  # fmt: skip
        rows = await self._connection.execute(text(_TENANT_OF_BUDGET), {"tenant": self._tenant})
        stored = rows.mappings().one_or_none()
        before: Mapping[str, Any] = dict(stored) if stored else {}
        await self._run(_SET_BUDGET, **values)
        if before.get("budget_since") is None:
            self._note("budget", Edit.MADE)
        fields = [
            f"{name} {_cap(was)} to {_cap(values[name])}"
            for name in ("per_day", "per_month")
            if (was := before.get(f"money_{name}")) != values[name]
        ]
        if fields:
            self._note("money", Edit.CHANGED, fields)

    async def _envelope(self, stored: RowMapping | None, wanted: Envelope) -> int:
        what = f"envelope {wanted.name}"
        if stored is not None and _has_ended(stored, self._now):
            if not _differences_but_start(stored, wanted):
                return stored["id"]
            await self._remove("envelopes", stored["id"])
            self._note(what, Edit.RENEWED)
            start = max(wanted.start or self._now, self._now)
            return await self._run(_NEW_ENVELOPE, **self._values(wanted, start))
        if stored is None:
            self._note(what, Edit.MADE)
            return await self._run(
                _NEW_ENVELOPE, **self._values(wanted, wanted.start or self._now)
            )
        before, start = envelope_of(stored), stored["starts_at"]
        if start > self._now:
            start = max(wanted.start or self._now, self._now)
        changed = _differences(before, wanted.model_copy(update={"start": start}))
        if changed:
            self._note(what, Edit.CHANGED, changed)
            await self._run(_SET_ENVELOPE, id=stored["id"], **self._values(wanted, start))
        return stored["id"]

    def _values(self, wanted: Envelope, start: datetime) -> dict[str, Any]:
        return {
            "tenant": self._tenant, "name": wanted.name, "gpu_type": wanted.gpu_type,
            "pool": wanted.pool, "labels": json.dumps(wanted.labels),
            "milli": round(wanted.gpus * 1000), "start": start, "end": wanted.end,
            "sharing": wanted.sharing.value,
            "lend_to": list(wanted.lending.to) if wanted.lending else [],
            "lend_milli": round(wanted.lending.max * 1000) if wanted.lending else 0,
        }  # fmt: skip

    async def _remove(self, table: str, id: int) -> None:
        ends = ", ends_at = least(ends_at, :now)" if table == "envelopes" else ""
        statement = f"UPDATE {table} SET removed_at = :now{ends} WHERE id = :id"
        await self._run(statement, now=await clock(self._connection), id=id)

    async def _caps(self, ids: Mapping[str, int]) -> None:
        found = await self._connection.execute(text(_STORED_CAPS), {"tenant": self._tenant})
        stored = {row["name"]: row for row in found.mappings()}
        for name in stored.keys() - {each.name for each in self._budget.caps}:
            await self._remove("funding_caps", stored[name]["id"])
            self._note(f"cap {name}", Edit.REMOVED)
        for wanted in self._budget.caps:
            await self._cap(stored.get(wanted.name), wanted, ids)

    async def _cap(self, stored: RowMapping | None, wanted: Cap, ids: Mapping[str, int]) -> None:
        what, milli = f"cap {wanted.name}", round(wanted.gpus * 1000)
        members = {ids[name] for name in wanted.envelopes}
        if stored is not None and stored["subtree"] != wanted.subtree:
            await self._remove("funding_caps", stored["id"])
            self._note(what, Edit.REMOVED)
            stored = None
        if stored is None:
            self._note(what, Edit.MADE)
            made = await self._run(
                _NEW_CAP, tenant=self._tenant, name=wanted.name, milli=milli,
                subtree=wanted.subtree,
            )  # fmt: skip
            if members:
                await self._run(_ADD_MEMBERS, cap=made, ids=sorted(members))
            return
        changed: list[str] = []
        if stored["milli"] != milli:
            changed.append(f"gpus {plain(stored['milli'] / 1000)} to {plain(wanted.gpus)}")
            await self._run("UPDATE funding_caps SET milli = :milli WHERE id = :id",
                            milli=milli, id=stored["id"])  # fmt: skip
        before = set(stored["members"])
        if not wanted.subtree and before != members:
            changed.append("envelopes")
            if before - members:
                gone = sorted(before - members)
                await self._run(_DROP_MEMBERS, cap=stored["id"], ids=gone)
            if members - before:
                await self._run(_ADD_MEMBERS, cap=stored["id"], ids=sorted(members - before))
        if changed:
            self._note(what, Edit.CHANGED, changed)


def _has_ended(stored: RowMapping, now: datetime) -> bool:
    return stored["ends_at"] is not None and stored["ends_at"] <= now


def _differences_but_start(stored: RowMapping, after: Envelope) -> list[str]:
    before = envelope_of(stored)
    return _differences(before, after.model_copy(update={"start": before.start}))


def _differences(before: Envelope, after: Envelope) -> list[str]:
    """Return each field that is another, with what it was and what it is to be."""
    pairs = [(each, getattr(before, each), getattr(after, each)) for each in Envelope.model_fields]
    return [
        f"{field} {_said(field, was)} to {_said(field, now)}"
        for field, was, now in pairs
        if was != now
    ]


def _said(field: str, value: Any) -> str:
    if field == "end":
        return NEVER if value is None else _time(value)
    if field == "start":
        return _time(value)
    if field == "lending":
        return "none" if value is None else f"{plain(value.max)} to {listed(value.to, _NAMED)}"
    if field == "labels":
        return ", ".join(f"{name}={each}" for name, each in sorted(value.items())) or "any"
    if isinstance(value, float):
        return plain(value)
    return "any" if value is None else str(value)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _cap(micro: int | None) -> str:
    return "any" if micro is None else dollars(micro)


_TURN: Final = (
    "SELECT pg_advisory_xact_lock(hashtextextended('longshore funding', 0))",
    "SELECT FROM tenants ORDER BY name FOR NO KEY UPDATE",
    "SELECT FROM envelopes WHERE removed_at IS NULL OR used > 0 ORDER BY id FOR NO KEY UPDATE",
    "SELECT FROM funding_caps WHERE removed_at IS NULL ORDER BY id FOR NO KEY UPDATE",
)

_SET_TENANT = """
    INSERT INTO tenants (name, parent, shares, quotas)
    VALUES (:name, :parent, :shares, CAST(:quotas AS jsonb))
    ON CONFLICT (name) DO UPDATE
       SET parent = excluded.parent, shares = excluded.shares, quotas = excluded.quotas
"""

_TENANT_OF_BUDGET = """
    SELECT budget_since, money_per_day, money_per_month FROM tenants WHERE name = :tenant
"""

_SET_BUDGET = """
    INSERT INTO tenants AS t (name, budget_since, money_per_day, money_per_month)
    VALUES (:tenant, :now, :per_day, :per_month)
    ON CONFLICT (name) DO UPDATE
       SET budget_since = coalesce(t.budget_since, excluded.budget_since),
           money_per_day = excluded.money_per_day, money_per_month = excluded.money_per_month
"""

_STORED_ENVELOPES = f"""
    SELECT {ENVELOPE_COLUMNS} FROM envelopes
     WHERE tenant = :tenant AND removed_at IS NULL ORDER BY id
"""

_NEW_ENVELOPE = """
    INSERT INTO envelopes (tenant, name, gpu_type, pool, labels, milli, starts_at, ends_at,
                           sharing, lend_to, lend_milli)
    VALUES (:tenant, :name, :gpu_type, :pool, CAST(:labels AS jsonb), :milli, :start, :end,
            :sharing, :lend_to, :lend_milli)
    RETURNING id
"""

_SET_ENVELOPE = """
    UPDATE envelopes
       SET gpu_type = :gpu_type, pool = :pool, labels = CAST(:labels AS jsonb), milli = :milli,
           starts_at = :start, ends_at = :end, sharing = :sharing, lend_to = :lend_to,
           lend_milli = :lend_milli
     WHERE id = :id AND (tenant, name) = (:tenant, :name)
"""

_STORED_CAPS = """
    SELECT k.id, k.name, k.milli, k.subtree,
           ARRAY(SELECT m.envelope_id
                   FROM funding_cap_members m JOIN envelopes e ON e.id = m.envelope_id
                  WHERE m.cap_id = k.id AND e.removed_at IS NULL ORDER BY 1) AS members
      FROM funding_caps k
     WHERE k.tenant = :tenant AND k.removed_at IS NULL ORDER BY k.id
"""
"""An envelope that was removed stays below its cap until its last charge is closed."""

_NEW_CAP = """
    INSERT INTO funding_caps (tenant, name, milli, subtree)
    VALUES (:tenant, :name, :milli, :subtree) RETURNING id
"""

_ADD_MEMBERS = """
    INSERT INTO funding_cap_members (cap_id, envelope_id)
    SELECT :cap, id FROM unnest(CAST(:ids AS bigint[])) AS id
"""

_DROP_MEMBERS = """
    DELETE FROM funding_cap_members WHERE cap_id = :cap AND envelope_id = ANY(:ids)
"""

_LOCK_CHARGES = """
    SELECT FROM charges c JOIN jobs j ON j.id = c.job_id
     WHERE j.tenant = :tenant AND c.ended_at IS NULL ORDER BY c.id FOR NO KEY UPDATE OF c
"""
"""As everybody: charges before envelopes."""

_REMOVE_BUDGET: Final = (
    """
    UPDATE charges c
       SET ended_at = greatest(c.started_at, least(clock_timestamp(), e.ends_at)),
           end_reason = 'budget removed'
      FROM jobs j, envelopes e
     WHERE j.id = c.job_id AND j.tenant = :tenant AND c.ended_at IS NULL
       AND e.id = c.envelope_id""",
    """
    UPDATE envelopes
       SET removed_at = clock_timestamp(), ends_at = least(ends_at, clock_timestamp())
     WHERE tenant = :tenant AND removed_at IS NULL""",
    """
    UPDATE funding_caps SET removed_at = clock_timestamp()
     WHERE tenant = :tenant AND removed_at IS NULL""",
    """
    UPDATE tenants SET budget_since = NULL, money_per_day = NULL, money_per_month = NULL
     WHERE name = :tenant""",
)
