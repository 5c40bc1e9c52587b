"""Tenants, envelopes, caps and charges in the database, as the values that decisions look at."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.failpoints import failpoint
from longshore.activities.placements import BORROWS
from longshore.activities.stored_nodes import stored_labels
from longshore.models.funding import Cap, Envelope, FundingTerms, Lending, Sharing
from longshore.scheduling.funding.facts import (
    Branch,
    Capped,
    Charge,
    Facts,
    Owned,
    Share,
    Use,
    Where,
)

MILLI = """CASE WHEN p.slices > 0 THEN bit_count(p.slices::bit(8)) * 125 ELSE p.milli END"""
"""Of a placement `p`: thousandths of each of its GPUs. Of a MIG instance an eighth for each slice,
as in the ledger."""


LASTS = "least(c.ended_at, p.ended_at, e.ends_at)"
"""Until when a charge `c` of a placement `p` and an envelope `e` lasts, or has; null where all
three go on. Of one with a start after that nobody has paid anything."""


async def has_budgets(connection: AsyncConnection) -> bool:
    """Return whether any tenant has a budget."""
    return bool(await connection.scalar(text(_ANY)))


async def load_facts(connection: AsyncConnection, pool: str | None) -> Facts | None:
    """Return all that decides who pays, with the jobs that run in one pool, or in all (None);
    None where no tenant has a budget.

    To be read in one snapshot.
    """
    if not await has_budgets(connection):
        return None
    tenants = await connection.execute(text(_TENANTS))
    envelopes = (await connection.execute(text(_ENVELOPES))).mappings()
    caps = (await connection.execute(text(_CAPS))).mappings()
    charges = await connection.execute(text(_CHARGES))
    # By a part of the statement that one pool alone needs: a plan for both would be for neither.
    where, values = ("", {}) if pool is None else ("AND n.pool = :pool", {"pool": pool})
    uses = (await connection.execute(text(_USES.format(where=where)), values)).all()
    on = sorted({row.node_id for row in uses})
    nodes = await connection.execute(text(_PLACES), {"ids": on})
    places = {id: _where(*facts) for id, *facts in nodes}
    return Facts(
        tenants={row.name: Branch(row.parent, row.budget_since) for row in tenants},
        envelopes={row["id"]: _owned(row) for row in envelopes},
        caps=tuple(capped_of(row) for row in caps),
        uses=tuple(_uses(uses, places)),
        charges=tuple(_charge(row) for row in charges),
    )


class Refused(NamedTuple):
    """A charge that the database did not take."""

    charge: Charge
    why: str
    """In its words."""


async def lock_funding(
    connection: AsyncConnection, envelopes: Iterable[int], charges: Iterable[int] = ()
) -> None:
    """Lock charges that are to be closed, then envelopes, and the caps over them, in the order in
    which all lock them.

    For a transaction that opens and closes charges in several statements: two of them would else
    wait for each other. Nodes are locked before, placements of others not at all.
    """
    if closed := sorted(set(charges)):
        await connection.execute(text(_LOCK_CHARGES), {"ids": closed})
    ids = sorted(set(envelopes))
    if ids:
        await connection.execute(text(_LOCK_ENVELOPES), {"ids": ids})
        await connection.execute(text(_LOCK_CAPS), {"ids": ids})


async def open_charges(
    connection: AsyncConnection, charges: Sequence[Charge]
) -> tuple[Refused, ...]:
    """Open charges as far as the database takes them; return the others, each with why.

    A charge that is open already, by the same envelope for the same GPUs, is left as it is. All
    at once is the rule; one by one only where the database refused a part of it.
    """
    if not charges:
        return ()
    await lock_funding(connection, [charge.envelope for charge in charges])
    if await _opened(connection, charges) is None:
        return ()
    found = [(charge, await _opened(connection, [charge])) for charge in charges]
    return tuple(Refused(charge, why) for charge, why in found if why is not None)


async def close_charges(
    connection: AsyncConnection, ids: Collection[int], reason: str
) -> frozenset[int]:
    """Close charges that are open still; return which of them were.

    One of an envelope that has ended meanwhile ends with it.
    """
    if not ids:
        return frozenset()
    values = {"ids": sorted(ids), "reason": reason[:1000]}
    return frozenset(await connection.scalars(text(_CLOSE), values))


async def carry_charges(
    connection: AsyncConnection, job_id: str, attempt: int
) -> tuple[Refused, ...]:
    """Have the next attempt of a job go on with the payers of this one, GPU by GPU: the same
    transaction has ended this one as swapped, and begun that one on GPUs of the same nodes.

    What was paid for them until now can be taken by nobody in between: the envelopes are locked.
    Return what the database refuses, as of a budget that was cut meanwhile.
    """
    rows = await connection.execute(text(_CARRIED), {"id": job_id, "attempt": attempt})
    charges = [_charge(row) for row in rows]
    refused = await open_charges(connection, charges)
    if charges:
        await failpoint("carry_charges.before-commit")
    return refused


async def _opened(connection: AsyncConnection, charges: Sequence[Charge]) -> str | None:
    """Return why the database refuses these charges; None where they are open now."""
    rows: list[dict[str, Any]] = [
        {
            "job_id": charge.job_id, "attempt": charge.attempt, "rank": charge.rank,
            "envelope": charge.envelope, "gpus": list(charge.gpus), "milli": charge.milli,
            "lent": charge.lent, "since": charge.since.isoformat(),
        }
        for charge in charges
    ]  # fmt: skip
    try:
        async with connection.begin_nested():
            await connection.execute(text(_OPEN), {"rows": json.dumps(rows)})
    except (IntegrityError, DataError) as error:
        return str(error.orig).partition("\n")[0]
    return None


def _owned(row: RowMapping) -> Owned:
    return Owned(row["id"], row["tenant"], envelope_of(row))


def envelope_of(row: RowMapping) -> Envelope:
    """Return what an envelope is, from its row."""
    return Envelope.trusted(
        name=row["name"], gpus=row["milli"] / 1000, gpu_type=row["gpu_type"], pool=row["pool"],
        labels=dict(row["labels"]), start=row["starts_at"], end=row["ends_at"],
        sharing=Sharing(row["sharing"]),
        lending=Lending.trusted(to=tuple(row["lend_to"]), max=row["lend_milli"] / 1000)
        if row["lend_to"] else None,
    )  # fmt: skip


def capped_of(row: RowMapping) -> Capped:
    """Return a cap with its members, from its row."""
    spec = Cap.trusted(
        name=row["name"], gpus=row["milli"] / 1000, subtree=row["subtree"],
        envelopes=() if row["subtree"] else tuple(row["names"]),
    )  # fmt: skip
    return Capped(row["id"], row["tenant"], spec, frozenset(row["members"]))


def _charge(row: Sequence[Any]) -> Charge:
    id, job, attempt, rank, envelope, gpus, milli, lent, since = row
    return Charge(job, attempt, rank, envelope, tuple(sorted(gpus)), milli, lent, since, id)


def _uses(rows: Iterable[Sequence[Any]], places: Mapping[str, Where]) -> Iterable[Use]:
    """Return the jobs that run, of rows by job, attempt and rank. Thousands at a time."""
    terms: dict[str | None, FundingTerms] = {}
    last: Use | None = None
    for job, attempt, rank, gpus, milli, placed_at, node, tenant, funding, preemptible in rows:
        share = Share(rank, places[node], tuple(sorted(gpus)), milli, node)
        if last is not None and last[0] == job and last[1] == attempt:
            since = min(last.since, placed_at)
            last = last._replace(shares=(*last.shares, share), since=since)
            continue
        if last is not None:
            yield last
        if funding not in terms:
            terms[funding] = terms_of(funding and json.loads(funding))
        last = Use(job, attempt, tenant, placed_at, (share,), terms[funding], preemptible)
    if last is not None:
        yield last


def _where(pool: str, gpu_type: str, labels: object) -> Where:
    return Where(pool, gpu_type, frozenset((stored_labels(labels) or {}).items()))


_NO_TERMS = FundingTerms()


def terms_of(stored: object) -> FundingTerms:
    """Return what a stored job says of who may pay; the defaults where that cannot be read."""
    if not stored:
        return _NO_TERMS
    try:
        return FundingTerms.model_validate(stored)
    except ValidationError:
        return _NO_TERMS


_ANY = "SELECT EXISTS (SELECT FROM tenants WHERE budget_since IS NOT NULL)"

_TENANTS = "SELECT name, parent, budget_since FROM tenants ORDER BY name"

ENVELOPE_COLUMNS = """id, tenant, name, gpu_type, pool, labels, milli, starts_at, ends_at, sharing,
    lend_to, lend_milli, used, lent"""

_ENVELOPES = f"""
    SELECT {ENVELOPE_COLUMNS} FROM envelopes e
     WHERE removed_at IS NULL
        OR id IN (SELECT envelope_id FROM charges WHERE ended_at IS NULL)
     ORDER BY id
"""

_CAPS = """
    SELECT k.id, k.tenant, k.name, k.milli, k.subtree, coalesce(m.ids, '{}') AS members,
           coalesce(m.names, '{}') AS names
      FROM funding_caps k
      LEFT JOIN (SELECT m.cap_id, array_agg(e.id ORDER BY e.id) AS ids,
                        array_agg(e.name ORDER BY e.id) AS names
                   FROM funding_cap_members m JOIN envelopes e ON e.id = m.envelope_id
                  WHERE e.removed_at IS NULL OR e.used > 0
                  GROUP BY m.cap_id) m ON m.cap_id = k.id
     WHERE k.removed_at IS NULL ORDER BY k.id
"""

_CHARGES = """
    SELECT id, job_id, attempt, rank, envelope_id, gpu_indices, milli, lent, since
      FROM charges WHERE ended_at IS NULL ORDER BY id
"""

_CARRIED = """
    SELECT 0, n.job_id, n.attempt, n.rank, c.envelope_id,
           ARRAY(SELECT g FROM unnest(c.gpu_indices) AS g WHERE g = ANY(n.gpu_indices) ORDER BY g),
           c.milli, c.lent, c.since
      FROM placements o
      JOIN placements n
        ON n.job_id = o.job_id AND n.attempt = o.attempt + 1 AND n.node_id = o.node_id
       AND n.ended_at IS NULL
      JOIN charges c
        ON (c.job_id, c.attempt, c.rank) = (o.job_id, o.attempt, o.rank)
       AND c.end_reason = o.end_reason AND c.ended_at >= o.ended_at
      JOIN envelopes e ON e.id = c.envelope_id AND e.removed_at IS NULL
     WHERE o.job_id = :id AND o.attempt = :attempt AND o.ended_at >= now()
       AND c.gpu_indices && n.gpu_indices
     ORDER BY c.id
"""
"""What the end of the placement has closed, and not what ended before it."""

_PLACES = "SELECT id, pool, gpu_type, labels FROM nodes WHERE id = ANY(:ids)"

_USES = f"""
    SELECT p.job_id, p.attempt, p.rank, p.gpu_indices, {MILLI}, p.placed_at, p.node_id, j.tenant,
           CASE WHEN jsonb_typeof(j.spec) = 'object'
                THEN CAST(j.spec -> 'funding' AS text) END,
           j.spec -> 'preemptible' IS DISTINCT FROM 'false'::jsonb
      FROM placements p
      JOIN jobs j ON j.id = p.job_id
      JOIN tenants t ON t.name = j.tenant AND t.budget_since IS NOT NULL
      JOIN nodes n ON n.id = p.node_id
     WHERE p.ended_at IS NULL AND NOT {BORROWS} {{where}}
     ORDER BY p.job_id, p.attempt, p.rank
"""
"""A spare is held, and paid for, like any other GPU, and not by whom it is lent to."""

_LOCK_CHARGES = """
    SELECT FROM charges WHERE id = ANY(:ids) AND ended_at IS NULL ORDER BY id FOR NO KEY UPDATE
"""

_LOCK_ENVELOPES = "SELECT FROM envelopes WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE"

_LOCK_CAPS = """
    SELECT FROM funding_caps
     WHERE id IN (SELECT cap_id FROM funding_cap_members WHERE envelope_id = ANY(:ids))
     ORDER BY id FOR NO KEY UPDATE
"""

_OPEN = """
    INSERT INTO charges (job_id, attempt, rank, envelope_id, gpu_indices, milli, lent, since,
                         started_at)
    SELECT w.job_id, w.attempt, w.rank, w.envelope, w.gpus, w.milli, w.lent, w.since,
           greatest(e.starts_at,
                    CASE WHEN p.placed_at >= now() THEN p.placed_at ELSE clock_timestamp() END)
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (
               job_id text, attempt integer, rank integer, envelope bigint, gpus integer[],
               milli integer, lent boolean, since timestamptz)
      LEFT JOIN placements p
        ON (p.job_id, p.attempt, p.rank) = (w.job_id, w.attempt, w.rank)
      LEFT JOIN envelopes e ON e.id = w.envelope
     WHERE NOT EXISTS (SELECT FROM charges c
                        WHERE (c.job_id, c.attempt, c.rank) = (w.job_id, w.attempt, w.rank)
                          AND c.ended_at IS NULL AND c.envelope_id = w.envelope
                          AND c.gpu_indices @> w.gpus AND c.gpu_indices <@ w.gpus)
     ORDER BY w.envelope, w.job_id, w.attempt, w.rank
"""
"""What is placed in this transaction is paid for from the start: now() is when that began. Not by
an envelope that began between the placement and this."""

_CLOSE = """
    WITH its AS MATERIALIZED (
        SELECT id, envelope_id FROM charges WHERE id = ANY(:ids) AND ended_at IS NULL
         ORDER BY id FOR NO KEY UPDATE),
    payers AS MATERIALIZED (
        SELECT id, ends_at FROM envelopes WHERE id IN (SELECT envelope_id FROM its)
         ORDER BY id FOR NO KEY UPDATE)
    UPDATE charges c
       SET ended_at = greatest(c.started_at, least(clock_timestamp(), e.ends_at)),
           end_reason = :reason
      FROM its JOIN payers e ON e.id = its.envelope_id
     WHERE c.id = its.id
    RETURNING c.id
"""
"""The end of an envelope that is set at this moment counts: it is read with the lock."""
