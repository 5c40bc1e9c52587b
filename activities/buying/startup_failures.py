"""Paid time without a running machine: its market does not start one, or they fail
again and again. It may be sold.

No more machines are started on a block than it has nodes that are not sold.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.purchase import PurchaseRequest

FAILURES = 3
"""So many machines have failed for each node of a block that is not up, since the newest that
worked, when the time of these nodes may be sold."""


async def failed_machines(
    connection: AsyncConnection, block_id: str, now: datetime
) -> Sequence[str]:
    """Return the machines of a block that its market has refused, and for each node whose machines
    have failed again and again the last of them. Nobody waits for these any more: they are late,
    from the start of their time or the end of a machine that worked. None where a start may be
    under way."""
    found = (await connection.execute(text(_UNSTARTED), {"id": block_id})).mappings().all()
    return [
        row["name"]
        for row in found
        if now > row["starts_at"] + PurchaseRequest.model_validate(row["request"]).ready_within
    ]


async def given_up_machines(connection: AsyncConnection, block_id: str) -> Sequence[str]:
    """Return a machine for each node of a block that is neither for sale nor sold, nor goes on in
    the block after it: those that are up first."""
    return (await connection.scalars(text(_GIVEN_UP), {"id": block_id})).all()


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


SILENT = "m.state = 'READY' AND n.state IN ('LOST', 'GONE')"
"""The SQL of whether a machine `m` is up, as far as its market said, and its node `n` has no
agent. What has ended there is not READY."""

SILENT_SINCE = f"""
    CASE WHEN {SILENT}
         THEN 'its agent has been silent since '
              || to_char(n.state_since AT TIME ZONE 'UTC', 'HH24:MI') || ' UTC' END
"""
"""The SQL of what is said of such a machine; null of all others."""

LASTED = """
    m.ended_at > m.created_at + CAST(p.request ->> 'ready_within' AS interval)
        AND EXISTS (SELECT FROM nodes WHERE id = m.name)
"""
"""The SQL of whether a machine `m` of a purchase `p` was up, and ended later than a start may
take: one that ends sooner is a failure."""

FAILED = f"""
    of_block AS (
        SELECT m.*, m.state = 'READY' OR m.state = 'ENDED' AND {LASTED} AS worked
          FROM machines m JOIN purchases p ON p.id = m.purchase_id WHERE m.block_id = :id),
    failed AS (
        SELECT name, created_at FROM of_block
         WHERE sale_key IS NULL AND state IN ('FAILED', 'ENDED') AND NOT worked
           AND created_at > coalesce((SELECT max(created_at) FROM of_block WHERE worked),
                                     '-infinity'))
"""
"""The SQL of a block's machines, and of those that failed since the newest that is up or has
worked."""

FAILED_AGAIN = f"""
    WITH {FAILED},
    n AS (
        SELECT b.nodes - count(*) FILTER (WHERE m.sale_key IS NOT NULL
                                             OR m.state NOT IN ('FAILED', 'ENDED')) AS without,
               count(*) FILTER (WHERE m.sale_key IS NULL AND m.state = 'STARTING') AS starting
          FROM blocks b JOIN of_block m ON m.block_id = b.id
         WHERE b.id = :id GROUP BY b.nodes)
    SELECT name
      FROM failed
     ORDER BY created_at DESC, name DESC
     LIMIT (SELECT CASE WHEN (SELECT count(*) FROM failed)
                             >= {FAILURES} * (n.without + n.starting)
                        THEN greatest(n.without, 0) ELSE 0 END FROM n)
"""
"""The SQL of the machines that stand for nodes of a block without one, where so many failed.

The failures are counted against the nodes that have none or one that starts.
"""

_UNSTARTED = f"""
    SELECT m.name, p.request,
           greatest(b.starts_at, p.created_at,
                    (SELECT max(m.ended_at) FROM machines m
                      WHERE m.block_id = b.id AND m.sale_key IS NULL AND {LASTED})) AS starts_at
      FROM machines m
      JOIN blocks b ON b.id = m.block_id
      JOIN purchases p ON p.id = b.purchase_id
      JOIN orders o ON o.key = b.id AND NOT o.is_machine
     WHERE m.block_id = :id AND m.sale_key IS NULL
       AND (m.state = 'INTENT' AND m.refused_at > m.asked_at OR m.name IN ({FAILED_AGAIN}))
     ORDER BY m.name
"""

_GIVEN_UP = """
    SELECT m.name FROM machines m
     WHERE m.block_id = :id AND m.sale_key IS NULL
       AND NOT EXISTS (SELECT FROM block_nodes k WHERE k.block_id = :id AND k.node_id = m.name)
     ORDER BY m.state = 'READY' DESC, m.created_at DESC, m.name
     LIMIT (SELECT greatest(b.nodes - (SELECT count(*) FROM machines
                                        WHERE block_id = b.id AND sale_key IS NOT NULL)
                                    - (SELECT count(*) FROM block_nodes
                                        WHERE block_id = b.id), 0)
              FROM blocks b WHERE b.id = :id)
"""

_LEFT = """
    SELECT b.nodes - count(m.name)
      FROM blocks b
      LEFT JOIN machines m ON m.block_id = b.id
           AND (m.state = 'READY' OR EXISTS (SELECT FROM orders s
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
