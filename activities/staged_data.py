"""How much of their data jobs and nodes have, read for people."""

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.base import Instant
from longshore.models.data import HeldData, StagedData

_INSTANT: TypeAdapter[Instant] = TypeAdapter(Instant)


async def staged_data(connection: AsyncConnection, job_id: str) -> tuple[StagedData, ...]:
    """Return how much of each data set that nodes fetch for a job is on the nodes where it runs;
    of one that waits, on those where it was told to prepare. By node, then by name."""
    rows = await connection.execute(text(_STAGED), {"id": job_id})
    return tuple(
        StagedData(
            name=row.name, node_id=row.node_id, bytes=row.bytes, total=row.total,
            expected_start=_instant(row.start),
        )
        for row in rows
    )  # fmt: skip


async def held_by(
    connection: AsyncConnection, node_ids: Sequence[str]
) -> dict[str, tuple[HeldData, ...]]:
    """Return what the agents of these nodes say that they hold, the largest first."""
    rows = await connection.execute(text(_HELD), {"ids": list(node_ids)})
    found: dict[str, list[HeldData]] = {}
    for row in rows.mappings():
        held = {name: value for name, value in row.items() if name != "node_id"}
        found.setdefault(row["node_id"], []).append(HeldData.model_construct(**held))
    return {node_id: tuple(held) for node_id, held in found.items()}


def _instant(said: str | None) -> Instant | None:
    """Return when a job is expected to start; None where that cannot be read as it is stored."""
    try:
        return None if said is None else _INSTANT.validate_python(said)
    except ValidationError:
        return None


_STAGED = """
    SELECT d.key AS name, at.node_id, at.start, coalesce(h.bytes, 0) AS bytes,
           greatest(coalesce(h.total, 0), CASE WHEN jsonb_typeof(d.value->'size') = 'number'
                    AND coalesce(h.total, 0) = 0
                    THEN CAST(least(CAST(d.value->>'size' AS double precision), 1e9) * 1e9
                              AS bigint) ELSE 0 END) AS total
      FROM jobs j
     CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(j.spec->'data') = 'object'
                                        THEN j.spec->'data' ELSE '{}' END) d
     CROSS JOIN LATERAL (
           SELECT n.value AS node_id, q.preparing->>'start' AS start, true AS waits
             FROM queue q
            CROSS JOIN LATERAL jsonb_array_elements_text(
                  CASE WHEN jsonb_typeof(q.preparing->'nodes') = 'array'
                       THEN q.preparing->'nodes' ELSE '[]' END) n
            WHERE q.job_id = j.id
           UNION
           SELECT p.node_id, NULL, false FROM placements p
            WHERE p.job_id = j.id AND p.ended_at IS NULL AND NOT p.spare) at
      LEFT JOIN LATERAL (
           SELECT bytes, total FROM node_data
            WHERE node_id = at.node_id AND held AND tenant = j.tenant
              AND source = d.value->>'from'
            ORDER BY bytes DESC LIMIT 1) h ON true
     WHERE j.id = :id AND jsonb_typeof(d.value) = 'object' AND d.value->>'from' IS NOT NULL
       -- Of a job that runs, what the node has said: it tells what it has just fetched later.
       AND (at.waits OR h.bytes IS NOT NULL)
     ORDER BY at.node_id, d.key
"""

_HELD = """
    SELECT node_id, name, tenant, source, bytes, total, used_at
      FROM node_data WHERE node_id = ANY(:ids) AND held
     ORDER BY node_id, total DESC, name, source
"""
