"""Paid time on which no machine comes up: its market does not start one, or they fail again and
again. It may be sold.

No more machines are started on a block than it has nodes that are not sold.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.purchase import PurchaseRequest

FAILURES = 3
"""For each node: so many machines have failed there when its time may be sold."""


async def unstarted_machines(
    connection: AsyncConnection, block_id: str, now: datetime
) -> Sequence[str]:
    """Return the machines of a block that its market has refused, and for each node whose machines
    have failed again and again the last of them. Nobody waits for these any more: they are late,
    as for `under_way`. None where a start may be under way."""
    found = (await connection.execute(text(_UNSTARTED), {"id": block_id})).mappings().all()
    return [
        row["name"]
        for row in found
        if now > row["starts_at"] + PurchaseRequest.model_validate(row["request"]).ready_within
    ]


async def fails_again(connection: AsyncConnection, block_id: str) -> bool:
    """Return whether so many machines of a block have failed that time of it may be sold."""
    return (await connection.execute(text(FAILED_AGAIN), {"id": block_id})).first() is not None


async def nodes_left(connection: AsyncConnection, block_id: str) -> int:
    """Return how many nodes of a block are neither up nor sold."""
    return await connection.scalar(text(_LEFT), {"id": block_id}) or 0


async def may_start(connection: AsyncConnection, block_id: str, name: str) -> bool:
    """Return whether a machine may be started beside the others of its block: not where its time,
    or that of as many as are missing, is for sale or sold."""
    return bool(await connection.scalar(text(_MAY_START), {"id": block_id, "name": name}))


FAILED_AGAIN = f"""
    WITH n AS (
        SELECT b.nodes,
               count(*) FILTER (WHERE m.sale_key IS NULL
                                  AND m.state IN ('FAILED', 'ENDED')) AS failed,
               count(*) FILTER (WHERE m.sale_key IS NOT NULL
                                   OR m.state NOT IN ('FAILED', 'ENDED')) AS taken
          FROM blocks b JOIN machines m ON m.block_id = b.id
         WHERE b.id = :id GROUP BY b.nodes)
    SELECT m.name
      FROM machines m
     WHERE m.block_id = :id AND m.sale_key IS NULL AND m.state IN ('FAILED', 'ENDED')
     ORDER BY m.created_at DESC, m.name DESC
     LIMIT (SELECT greatest(least(n.failed / {FAILURES}, n.nodes - n.taken), 0) FROM n)
"""
"""The SQL of the machines that stand for nodes of a block without one, where so many failed."""

_UNSTARTED = f"""
    SELECT m.name, p.request, greatest(b.starts_at, p.created_at) AS starts_at
      FROM machines m
      JOIN blocks b ON b.id = m.block_id
      JOIN purchases p ON p.id = b.purchase_id
      JOIN purchase_orders o ON o.key = b.id AND NOT o.is_machine
     WHERE m.block_id = :id AND m.sale_key IS NULL
       AND (m.state = 'INTENT' AND m.refused_at > m.asked_at OR m.name IN ({FAILED_AGAIN}))
     ORDER BY m.name
"""

_LEFT = """
    SELECT b.nodes - count(m.name)
      FROM blocks b
      LEFT JOIN machines m ON m.block_id = b.id
           AND (m.state = 'READY' OR EXISTS (SELECT FROM sales s
                                              WHERE s.key = m.sale_key AND s.state = 'SOLD'))
     WHERE b.id = :id GROUP BY b.nodes
"""

_MAY_START = """
    SELECT count(m.name) FILTER (WHERE m.sale_key IS NOT NULL) = 0
           OR count(m.name) < b.nodes
      FROM blocks b
      LEFT JOIN machines m ON m.block_id = b.id
           AND (m.sale_key IS NOT NULL
                OR m.name <> :name AND m.state NOT IN ('FAILED', 'ENDED'))
     WHERE b.id = :id GROUP BY b.nodes
"""
