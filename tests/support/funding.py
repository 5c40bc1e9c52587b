"""Tenants, envelopes and charges, written by hand into a ledger of a test."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text

from longshore.scheduling.funding.facts import Charge
from tests.support.ledger import Ledger

SINCE = datetime(2026, 11, 1, tzinfo=UTC)


async def tenant(
    ledger: Ledger, name: str, parent: str | None = None, *, budget: bool = True
) -> None:
    await ledger.rows(
        "INSERT INTO tenants (name, parent, budget_since) VALUES (:name, :parent, :since)",
        name=name, parent=parent, since=SINCE if budget else None,
    )  # fmt: skip


async def envelope(ledger: Ledger, owner: str, name: str = "main", **fields: Any) -> int:
    """Make an envelope that is open; `milli` thousandths of GPUs, one GPU by default."""
    values: dict[str, Any] = {
        "tenant": owner, "name": name, "milli": 1000, "starts_at": SINCE, "ends_at": None,
        "sharing": "family", "lend_to": [], "lend_milli": 0, **fields,
    }  # fmt: skip
    columns = ", ".join(values)
    return await ledger.value(
        f"INSERT INTO envelopes ({columns}) VALUES ({', '.join(':' + key for key in values)})"
        " RETURNING id",
        **values,
    )


async def cap(ledger: Ledger, owner: str, milli: int, *over: int, name: str = "all") -> int:
    """Make a cap over these envelopes; over the whole subtree where none is given."""
    made = await ledger.value(
        "INSERT INTO funding_caps (tenant, name, milli, subtree) VALUES (:t, :n, :m, :s)"
        " RETURNING id",
        t=owner, n=name, m=milli, s=not over,
    )  # fmt: skip
    for one in over:
        await ledger.rows("INSERT INTO funding_cap_members VALUES (:k, :e)", k=made, e=one)
    return made


async def job_of(
    ledger: Ledger, name: str, owner: str, gpus: tuple[int, ...] = (0,), **fields: Any
) -> str:
    """Let a job of a tenant run on GPUs of a node."""
    await ledger.add_job(name)
    await ledger.rows("UPDATE jobs SET tenant = :t WHERE id = :id", t=owner, id=name)
    await ledger.place(name, gpus, **{"cpu": 0, "ram": 0, **fields})
    return name


def charge(job: str, envelope: int, gpus: tuple[int, ...] = (0,), **fields: Any) -> Charge:
    values: dict[str, Any] = {
        "attempt": 1, "rank": 0, "milli": 1000, "lent": False, "since": SINCE, **fields,
    }  # fmt: skip
    return Charge(job_id=job, envelope=envelope, gpus=gpus, **values)


async def write_charge(ledger: Ledger, one: Charge) -> None:
    """Insert a charge as it is, so that what the database says of it is raised."""
    await ledger.rows(
        "INSERT INTO charges (job_id, attempt, rank, envelope_id, gpu_indices, milli, lent, since)"
        " VALUES (:j, :a, :r, :e, :g, :m, :l, :s)",
        j=one.job_id, a=one.attempt, r=one.rank, e=one.envelope, g=list(one.gpus), m=one.milli,
        l=one.lent, s=one.since,
    )  # fmt: skip


async def sums(ledger: Ledger, table: str = "envelopes") -> dict[str, int]:
    """Return what is used of each envelope, or cap, by its name."""
    rows = await ledger.rows(f"SELECT tenant || '/' || name AS name, used FROM {table}")
    return {row["name"]: row["used"] for row in rows}


async def funding_drift(ledger: Ledger) -> list[dict[str, Any]]:
    """Return each envelope and cap whose sum is not that of its open charges, each charge that
    outlives its placement, and each GPU that is charged twice."""
    async with ledger.database.transaction() as connection:
        found = await connection.execute(text(_DRIFT))
        return [dict(row) for row in found.mappings()]


_DRIFT = """
    WITH open AS (
        SELECT *, cardinality(gpu_indices) * milli AS amount FROM charges WHERE ended_at IS NULL)
    SELECT 'envelope' AS what, e.id FROM envelopes e
     WHERE (e.used, e.lent)
           <> (SELECT coalesce(sum(o.amount), 0), coalesce(sum(o.amount) FILTER (WHERE o.lent), 0)
                 FROM open o WHERE o.envelope_id = e.id)
    UNION ALL
    SELECT 'cap', k.id FROM funding_caps k
     WHERE k.removed_at IS NULL AND k.used <> (
        SELECT coalesce(sum(o.amount), 0) FROM open o
          JOIN funding_cap_members m ON m.envelope_id = o.envelope_id AND m.cap_id = k.id)
    UNION ALL
    SELECT 'outlives', c.id FROM charges c
      JOIN placements p USING (job_id, attempt, rank)
     WHERE p.ended_at IS NOT NULL AND c.ended_at IS NULL
    UNION ALL
    SELECT 'twice', a.id FROM open a JOIN open b USING (job_id, attempt, rank)
     WHERE a.id < b.id AND a.gpu_indices && b.gpu_indices
"""
