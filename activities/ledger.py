"""The ledger of buying: rows that move micro-dollars from one account to another.

Accounts are `market:PROVIDER` (what we owe or paid there, below zero), `block:ID` (time that was
bought and not used up yet), `job:ID` (what a job used), `idle:BLOCK` (what nobody used) and
`fee:PROVIDER`. A row is stored once for its reference; the database refuses every change.
"""

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection


async def book_cost(
    connection: AsyncConnection, order: RowMapping, total: int, *, simulated: bool
) -> None:
    """Bring what an order has cost to `total`: a row for the difference, if there is one.

    The order's row must be locked. `order` is that row, with what was booked before as `spent`.
    """
    more = total - order["spent"]
    if more == 0:
        return
    block, market = f"block:{order['key']}", f"market:{order['provider']}"
    number = await connection.scalar(
        text("SELECT count(*) FROM ledger WHERE block_id = :key"), {"key": order["key"]}
    )
    await connection.execute(
        text(_BOOK),
        {
            "kind": "purchase" if more > 0 else "refund",
            "debit": block if more > 0 else market,
            "credit": market if more > 0 else block,
            "micro": abs(more), "purchase": order["purchase_id"], "block": order["key"],
            "reference": f"cost/{order['key']}/{number}",
            "simulated": simulated,
        },
    )  # fmt: skip
    await connection.execute(
        text("UPDATE purchase_orders SET spent = :total WHERE key = :key"),
        {"total": total, "key": order["key"]},
    )


async def book_use(connection: AsyncConnection, block: RowMapping, cost: int) -> tuple[int, int]:
    """Close a block's account: each job pays its share, the rest is idle; return used and idle.

    A job's share is cost x its GPU-time / the GPU-time of the whole block, rounded down. The
    block's row must be locked, its end known.
    """
    used = 0
    rows = await connection.execute(text(_GPU_TIME), {"block": block["id"]})
    for row in rows.mappings().all():
        share = min(int(cost * row["micros"] // max(row["whole"], 1)), cost - used)
        used += share
        await _use(connection, block, f"job:{row['job_id']}", share)
    await _use(connection, block, f"idle:{block['id']}", cost - used)
    return used, cost - used


async def _use(connection: AsyncConnection, block: RowMapping, account: str, micro: int) -> None:
    if micro == 0:
        return
    await connection.execute(
        text(_BOOK),
        {
            "kind": "usage", "debit": account, "credit": f"block:{block['id']}", "micro": micro,
            "purchase": block["purchase_id"], "block": block["id"],
            "reference": f"use/{block['id']}/{account}", "simulated": block["simulated"],
        },
    )  # fmt: skip


_BOOK = """
    INSERT INTO ledger (kind, debit, credit, micro, purchase_id, block_id, reference, simulated)
    VALUES (:kind, :debit, :credit, :micro, :purchase, :block, :reference, :simulated)
"""

_GPU_TIME = """
    SELECT l.job_id,
           sum(greatest(extract(epoch FROM least(coalesce(l.ended_at, b.ended_at), b.ended_at)
                                         - greatest(l.started_at, b.starts_at)), 0)
               * CASE WHEN l.slices > 0 THEN bit_count(l.slices::bit(8)) / 8.0
                      ELSE l.milli / 1000.0 END
               * 1000000)::bigint AS micros,
           (extract(epoch FROM max(CASE WHEN o.is_machine THEN b.ended_at ELSE b.ends_at END)
                               - max(b.starts_at)) * 1000000)::bigint
               * max(b.nodes * b.gpus_per_node) AS whole
      FROM blocks b
      JOIN purchase_orders o ON o.key = b.id
      JOIN nodes n ON n.block_id = b.id
      JOIN leases l ON l.node_id = n.id
     WHERE b.id = :block AND b.ended_at > b.starts_at
     GROUP BY l.job_id
     ORDER BY l.job_id
"""
"""Microseconds of GPUs that each job held while the block lasted, a part of a GPU as a part of
them; and those that are paid for."""
