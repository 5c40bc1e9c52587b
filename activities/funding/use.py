"""Who held GPUs and who paid for them, from leases and charges.

A lease says who holds a GPU, a charge who pays for it. What no charge pays for is UNFUNDED from
when on its tenant has a budget; before, and of a tenant without one, it is OWNED. The time of a
job on a lent spare is the gang's, whose lease the GPU has all the while; it is told beside that.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.funding.hours import with_hours
from longshore.activities.funding.rows import has_budgets
from longshore.activities.funding.views import budgets_view, tenants_view
from longshore.models.funding import FundingClass
from longshore.models.funding_use import (
    FundingState,
    InUse,
    LeaseView,
    PaidGPUs,
    PaidHours,
    Payers,
    Usage,
    UsageRow,
    UsedBy,
)

_ORDER = {each: place for place, each in enumerate(FundingClass)}
_HOUR = 3600


class Used(NamedTuple):
    """GPU-seconds, exact, of one class and payer."""

    tenant: str
    job_id: str | None
    funding: FundingClass
    payer: str | None
    envelope: str | None
    gpu_seconds: Decimal
    simulated: bool
    service: str | None = None
    """Of whose replicas, where they stand for all of them."""


async def used(
    connection: AsyncConnection,
    since: datetime,
    until: datetime,
    by: UsedBy = UsedBy.TENANT,
    *,
    tenant: str | None = None,
    job_ids: Collection[str] = (),
) -> tuple[Used, ...]:
    """Return what was used between two times, of these jobs or of all."""
    asked: dict[str, Any] = {"since": since, "until": until}
    where = ""
    if tenant is not None:
        where, asked = f"{where} AND l.tenant = :tenant", asked | {"tenant": tenant}
    if job_ids:
        where, asked = f"{where} AND l.job_id = ANY(:jobs)", asked | {"jobs": list(job_ids)}
    keys = _KEYS[by]
    columns = ", ".join(
        name if name in keys else f"CAST(NULL AS text) AS {name}" for name in _COLUMNS
    )
    query = _USED.format(where=where, columns=columns, keys=", ".join(keys))
    found = await connection.execute(text(query), asked)
    return tuple(
        Used(
            row["tenant"], row["job_id"], FundingClass(row["funding"]), row["payer"],
            row["envelope"], row["gpu_seconds"], row["simulated"],
        )
        for row in found.mappings()
    )  # fmt: skip


async def usage(
    connection: AsyncConnection,
    since: datetime,
    until: datetime | None = None,
    by: UsedBy = UsedBy.TENANT,
    tenant: str | None = None,
) -> Usage:
    """Return what was used since a time, for people; to be read in one snapshot."""
    now = await clock(connection)
    until = now if until is None else min(until, now)
    since = min(since, until)
    found = await used(connection, since, until, by, tenant=tenant)
    if by is UsedBy.JOB:
        found = await _as_submitted(connection, found)
    asked = {"since": since, "until": until, "tenant": tenant}
    lent = await connection.scalar(text(_ON_LENT_SPARES), asked)
    by_class: dict[FundingClass, Decimal] = {}
    totals: dict[str, Decimal] = {}
    for each in found:
        by_class[each.funding] = by_class.get(each.funding, Decimal(0)) + each.gpu_seconds
        group = _group(each, by)
        totals[group] = totals.get(group, Decimal(0)) + each.gpu_seconds

    def first(each: Used) -> tuple[Any, ...]:
        group = _group(each, by)
        return -totals[group], group, _ORDER[each.funding], each.payer or "", each.envelope or ""

    rows = tuple(
        UsageRow(
            tenant=each.tenant, job_id=each.job_id, service=each.service, funding=each.funding,
            payer=each.payer, envelope=each.envelope, gpu_hours=_hours(each.gpu_seconds),
        )
        for each in sorted(found, key=first)
    )  # fmt: skip
    return Usage(
        since=since, until=until, by=by, tenant=tenant, rows=rows,
        gpu_hours=_hours(sum(by_class.values(), Decimal(0))),
        by_class={each: _hours(by_class[each]) for each in FundingClass if each in by_class},
        on_lent_spares=_hours(lent or Decimal(0)),
        simulated=any(each.simulated for each in found),
    )  # fmt: skip


async def _as_submitted(connection: AsyncConnection, found: Iterable[Used]) -> tuple[Used, ...]:
    """Return what arrays and services used as theirs: nobody submitted a slot or a replica."""
    found = tuple(found)
    ids = list({each.job_id for each in found})
    parts = {
        row.job_id: (row.array_id, row.service)
        for row in await connection.execute(text(_PART_OF), {"ids": ids})
    }
    sums: dict[tuple[Any, ...], Used] = {}
    for each in found:
        job_id, service = parts.get(each.job_id, (each.job_id, None))
        key = each.tenant, job_id, service, each.funding, each.payer, each.envelope
        before = sums.get(key)
        sums[key] = each._replace(
            job_id=job_id, service=service,
            gpu_seconds=each.gpu_seconds + (before.gpu_seconds if before else 0),
            simulated=each.simulated or bool(before and before.simulated),
        )  # fmt: skip
    return tuple(sums.values())


async def payers_of(connection: AsyncConnection, job_id: str) -> Payers | None:
    """Return who pays for a job and who has; None where no tenant has a budget."""
    if not await has_budgets(connection):
        return None
    now = await clock(connection)
    jobs = await with_slots(connection, job_id)
    leases = await leases_at(connection, now, job_ids=jobs)
    held = await used(connection, _EVER, now, UsedBy.ENVELOPE, job_ids=jobs)
    hours = [
        PaidHours(
            funding=each.funding, payer=each.payer, envelope=each.envelope,
            gpu_hours=_hours(each.gpu_seconds),
        )
        for each in held
    ]  # fmt: skip
    return Payers(
        now=_summed(leases),
        hours=tuple(sorted(hours, key=_place)),
    )


async def with_slots(connection: AsyncConnection, job_id: str) -> list[str]:
    """Return a job, and the jobs of its slots where it is an array: those hold GPUs."""
    return list(await connection.scalars(text(_WITH_SLOTS), {"id": job_id}))


async def hours_of(
    connection: AsyncConnection, job_ids: Collection[str]
) -> dict[str, tuple[PaidHours, ...]]:
    """Return who has paid for what each of these jobs has used so far, by job."""
    found: dict[str, list[PaidHours]] = {}
    if job_ids:
        now = await clock(connection)
        for each in await used(connection, _EVER, now, UsedBy.JOB, job_ids=job_ids):
            hours = PaidHours(
                funding=each.funding, payer=each.payer, envelope=each.envelope,
                gpu_hours=_hours(each.gpu_seconds),
            )  # fmt: skip
            found.setdefault(each.job_id or "", []).append(hours)
    return {job_id: tuple(sorted(hours, key=_place)) for job_id, hours in found.items()}


async def paid_now(
    connection: AsyncConnection, job_ids: Collection[str], now: datetime
) -> dict[str, tuple[PaidGPUs, ...]]:
    """Return who pays for each of these jobs that runs, by job."""
    found: dict[str, list[LeaseView]] = {}
    for lease in await leases_at(connection, now, job_ids=job_ids):
        found.setdefault(lease.job_id, []).append(lease)
    return {job_id: _summed(leases) for job_id, leases in found.items()}


def _summed(leases: Iterable[LeaseView]) -> tuple[PaidGPUs, ...]:
    """Return of what class these GPUs are, and who pays: each payer once."""
    sums: dict[tuple[FundingClass, str | None, str | None], float] = {}
    for lease in leases:
        key = lease.funding, lease.payer, lease.envelope
        sums[key] = sums.get(key, 0.0) + lease.gpus
    paid = (
        PaidGPUs(funding=funding, payer=payer, envelope=envelope, gpus=round(gpus, 3))
        for (funding, payer, envelope), gpus in sums.items()
    )
    return tuple(sorted(paid, key=_place))


async def leases_at(
    connection: AsyncConnection,
    at: datetime,
    *,
    node_id: str | None = None,
    gpu_index: int | None = None,
    job_ids: Collection[str] = (),
) -> tuple[LeaseView, ...]:
    """Return who held GPUs at a moment, and of which class they were then."""
    asked: dict[str, Any] = {"at": at}
    where = ""
    if node_id is not None:
        where, asked = f"{where} AND l.node_id = :node", asked | {"node": node_id}
    if gpu_index is not None:
        where, asked = f"{where} AND l.gpu_index = :gpu", asked | {"gpu": gpu_index}
    if job_ids:
        where, asked = f"{where} AND l.job_id = ANY(:jobs)", asked | {"jobs": list(job_ids)}
    rows = await connection.execute(text(_LEASES_AT.format(where=where)), asked)
    return tuple(_lease(row) for row in rows.mappings())


async def funding_state(connection: AsyncConnection) -> FundingState:
    """Return the tenants and budgets, and who pays for what is in use; to be read in one
    snapshot."""
    now = await clock(connection)
    rows = await in_use(connection, now)
    return FundingState(
        at=now, tenants=await with_hours(connection, await tenants_view(connection)),
        budgets=await budgets_view(connection), in_use=rows,
        simulated=bool(await connection.scalar(text(_SIMULATED))),
    )  # fmt: skip


async def in_use(connection: AsyncConnection, at: datetime | None = None) -> tuple[InUse, ...]:
    """Return who pays for what is in use, by tenant, class and envelope."""
    asked = {"at": at or await clock(connection)}
    rows = (await connection.execute(text(_IN_USE), asked)).mappings()
    return tuple(
        InUse(
            tenant=row["tenant"], funding=row["funding"], payer=row["payer"],
            envelope=row["envelope"], gpus=row["amount"] / 1000,
        )
        for row in rows
    )  # fmt: skip


def _lease(row: RowMapping) -> LeaseView:
    return LeaseView.model_validate({**row, "gpus": row["amount"] / 1000})


def _group(each: Used, by: UsedBy) -> str:
    if by is UsedBy.JOB:
        return each.job_id or f"service {each.service}"
    if by is UsedBy.ENVELOPE:
        return f"{each.payer or ''}/{each.envelope or ''}"
    return each.tenant


def _place(each: PaidGPUs | PaidHours) -> tuple[int, str, str]:
    return _ORDER[each.funding], each.payer or "", each.envelope or ""


def _hours(gpu_seconds: Decimal) -> float:
    return round(float(gpu_seconds / _HOUR), 6)


_EVER = datetime.fromisoformat("2000-01-01T00:00:00Z")

_COLUMNS = ("tenant", "job_id", "funding", "payer", "envelope")
_KEYS = {
    UsedBy.TENANT: ("tenant", "funding", "payer"),
    UsedBy.ENVELOPE: ("tenant", "funding", "payer", "envelope"),
    UsedBy.JOB: _COLUMNS,
}

_AMOUNT = "CASE WHEN l.slices > 0 THEN bit_count(l.slices::bit(8)) * 125 ELSE l.milli END"
"""Of a lease `l`: thousandths of its GPU, as a charge counts them."""

_FUNDING = """CASE WHEN c.lent THEN 'BORROWED' WHEN e.tenant = l.tenant THEN 'OWNED'
                   ELSE 'SHARED' END"""
"""Of a charge `c` of envelope `e` for a lease `l`."""

_USED = f"""
    WITH held AS (
        SELECT l.id, l.job_id, l.attempt, l.rank, l.gpu_index, l.tenant, {_AMOUNT} AS milli,
               n.simulated, greatest(l.started_at, :since) AS begins,
               greatest(l.started_at, :since, least(l.ended_at, :until)) AS ends,
               coalesce(t.budget_since, 'infinity') AS budget
          FROM leases l
          JOIN nodes n ON n.id = l.node_id
          LEFT JOIN tenants t ON t.name = l.tenant
         WHERE l.borrowed_from IS NULL AND l.started_at < CAST(:until AS timestamptz)
           AND (l.ended_at IS NULL OR l.ended_at > CAST(:since AS timestamptz)) {{where}}
    ), charged AS (
        SELECT l.id, c.id AS charge, c.started_at, {_FUNDING} AS funding, e.tenant AS payer,
               e.name AS envelope, greatest(l.begins, c.started_at) AS begins,
               least(l.ends, c.ended_at, e.ends_at) AS ends
          FROM held l
          JOIN charges c USING (job_id, attempt, rank)
          JOIN envelopes e ON e.id = c.envelope_id
         WHERE l.gpu_index = ANY (c.gpu_indices)
    ), once AS (
        SELECT id, funding, payer, envelope, ends,
               greatest(begins, max(ends) OVER (PARTITION BY id ORDER BY started_at, charge
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS begins
          FROM charged WHERE ends > begins
    ), paid AS (
        SELECT h.id, o.funding, o.payer, o.envelope,
               extract(epoch FROM o.ends - o.begins) AS seconds,
               greatest(extract(epoch FROM least(o.ends, h.budget) - o.begins), 0) AS before
          FROM once o JOIN held h USING (id) WHERE o.ends > o.begins
    ), rest AS (
        SELECT h.id, h.tenant,
               extract(epoch FROM h.ends - h.begins) - coalesce(p.seconds, 0) AS seconds,
               greatest(extract(epoch FROM least(h.ends, h.budget) - h.begins), 0)
               - coalesce(p.before, 0) AS before
          FROM held h
          LEFT JOIN (SELECT id, sum(seconds) AS seconds, sum(before) AS before
                       FROM paid GROUP BY id) p USING (id)
    ), every AS (
        SELECT id, funding, payer, envelope, seconds FROM paid
        UNION ALL
        SELECT id, 'OWNED', tenant, NULL, before FROM rest WHERE before > 0
        UNION ALL
        SELECT id, 'UNFUNDED', NULL, NULL, seconds - before FROM rest WHERE seconds > before
    )
    SELECT {{columns}}, sum(seconds * milli) / 1000 AS gpu_seconds, bool_or(simulated) AS simulated
      FROM every JOIN held USING (id)
     GROUP BY {{keys}}
"""
"""A second that two charges have, as where a clock was set back, counts for the first alone."""

_ON_LENT_SPARES = """
    SELECT sum(greatest(extract(epoch FROM least(coalesce(l.ended_at, :until), :until)
                                           - greatest(l.started_at, :since)), 0))
      FROM leases l
     WHERE l.borrowed_from IS NOT NULL AND l.started_at < CAST(:until AS timestamptz)
       AND (l.ended_at IS NULL OR l.ended_at > CAST(:since AS timestamptz))
       AND (CAST(:tenant AS text) IS NULL OR l.tenant = :tenant)
"""

_PART_OF = """
    SELECT job_id, array_id, NULL AS service FROM array_slots WHERE job_id = ANY(:ids)
     UNION ALL
    SELECT job_id, NULL, service FROM replicas WHERE job_id = ANY(:ids)
"""

_WITH_SLOTS = "SELECT :id UNION ALL SELECT job_id FROM array_slots WHERE array_id = :id"

_HELD_AT = f"""
    SELECT l.*, {_AMOUNT} AS amount, n.simulated, c.envelope, c.since AS paid_since, w.funding,
           coalesce(c.payer, CASE w.funding WHEN 'OWNED' THEN l.tenant END) AS payer
      FROM leases l
      JOIN nodes n ON n.id = l.node_id
      LEFT JOIN tenants t ON t.name = l.tenant
      LEFT JOIN LATERAL (
           SELECT e.tenant AS payer, e.name AS envelope, c.since, {_FUNDING} AS funding
             FROM charges c JOIN envelopes e ON e.id = c.envelope_id
            WHERE (c.job_id, c.attempt, c.rank) = (l.job_id, l.attempt, l.rank)
              AND l.gpu_index = ANY (c.gpu_indices) AND c.started_at <= CAST(:at AS timestamptz)
              AND coalesce(least(c.ended_at, e.ends_at), 'infinity') > CAST(:at AS timestamptz)
            ORDER BY c.started_at, c.id LIMIT 1) c ON true
     CROSS JOIN LATERAL (
           SELECT coalesce(c.funding, CASE WHEN l.borrowed_from IS NOT NULL
                                             OR t.budget_since <= CAST(:at AS timestamptz)
                                           THEN 'UNFUNDED' ELSE 'OWNED' END) AS funding) w
     WHERE l.started_at <= CAST(:at AS timestamptz)
       AND (l.ended_at IS NULL OR l.ended_at > CAST(:at AS timestamptz)) {{where}}
"""

_LEASES_AT = f"""
    SELECT l.node_id, l.gpu_index, l.amount, l.mig_profile AS mig, l.job_id, j.name AS job_name,
           l.tenant, l.attempt, l.rank, p.spare, l.started_at, l.ended_at, l.end_reason,
           l.simulated, l.funding, l.payer, l.envelope, l.paid_since, l.borrowed_from
      FROM ({_HELD_AT}) l
      JOIN jobs j ON j.id = l.job_id
      JOIN placements p ON (p.job_id, p.attempt, p.rank) = (l.job_id, l.attempt, l.rank)
     ORDER BY l.node_id, l.gpu_index, l.slices, l.job_id
"""

_IN_USE = f"""
    SELECT tenant, funding, payer, envelope, sum(amount) AS amount
      FROM ({_HELD_AT.format(where="AND l.borrowed_from IS NULL")}) l
     GROUP BY tenant, funding, payer, envelope ORDER BY tenant, funding, payer, envelope
"""
"""A lent spare counts once: for the gang that pays for it."""

_SIMULATED = """
    SELECT EXISTS (SELECT FROM leases l JOIN nodes n ON n.id = l.node_id
                    WHERE l.ended_at IS NULL AND n.simulated)
"""
