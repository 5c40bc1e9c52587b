"""The ledger of buying: rows that move micro-dollars from one account to another.

Accounts are `market:PROVIDER` (what we owe or paid there, below zero), `block:ID` (time that was
bought and not used up yet), `job:ID` (what a job used), `idle:BLOCK` (what nobody used) and
`fee:PROVIDER`. A row is stored once for its reference; the database refuses every change.
"""

from collections.abc import Mapping

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.records.buying import OrderRow


async def book_cost(
    connection: AsyncConnection, order: OrderRow, total: int, *, simulated: bool
) -> None:
    """Bring what an order has cost to `total`: a row for the difference, if there is one.

    The order's row must be locked. `order` is that row, with what was booked before as `spent`.
    """
    more = total - order.spent
    if more == 0:
        return
    block, market = f"block:{order.key}", f"market:{order.provider}"
    number = await connection.scalar(
        text("SELECT count(*) FROM ledger WHERE block_id = :key"), {"key": order.key}
    )
    await connection.execute(
        text(_BOOK),
        {
            "kind": "purchase" if more > 0 else "refund",
            "debit": block if more > 0 else market,
            "credit": market if more > 0 else block,
            "micro": abs(more), "purchase": order.purchase_id, "block": order.key,
            "reference": f"cost/{order.key}/{number}",
            "simulated": simulated,
        },
    )  # fmt: skip
    await connection.execute(
        text("UPDATE orders SET spent = :total WHERE key = :key"),
        {"total": total, "key": order.key},
    )


async def book_sale(
    connection: AsyncConnection, sale: OrderRow, proceeds: int, fee: int, *, simulated: bool
) -> None:
    """Bring what a sale has brought, and what the market keeps of it, to these totals.

    The sale's row must be locked. `sale` is that row, with what was booked before.
    """
    market, block = f"market:{sale.provider}", f"block:{sale.block_id}"
    moves = (
        ("resale", market, block, proceeds - sale.proceeds),
        ("fee", f"fee:{sale.provider}", market, fee - sale.fee),
    )
    purchase = await connection.scalar(
        text("SELECT purchase_id FROM blocks WHERE id = :id"), {"id": sale.block_id}
    )
    for kind, debit, credit, more in moves:
        if more == 0:
            continue
        total = proceeds if kind == "resale" else fee
        await connection.execute(
            text(_BOOK),
            {
                "kind": kind, "debit": debit if more > 0 else credit,
                "credit": credit if more > 0 else debit, "micro": abs(more),
                "purchase": purchase, "block": sale.block_id,
                "reference": f"{kind}/{sale.key}/{total}", "simulated": simulated,
            },
        )  # fmt: skip


async def book_use(connection: AsyncConnection, block: RowMapping, cost: int) -> tuple[int, int]:
    """Close a block's account: each job pays its share, the rest is idle; return used and idle.

    Of a block whose account was closed before, what differs is booked.

    A job's share is cost x its GPU-time / the GPU-time of the whole block, rounded down. What was
    sold again lowers what is idle: below zero where it brought more than idle time had cost. The
    block's row must be locked, its end known.
    """
    resold = await connection.scalar(text(_RESOLD), {"block": block["id"]}) or 0
    booked = {
        row.account: row.micro
        for row in await connection.execute(text(_USED), {"block": block["id"]})
    }
    used = 0
    rows = await connection.execute(text(GPU_TIME), {"block": block["id"]})
    for row in rows.mappings().all():
        share = min(int(cost * row["micros"] // max(row["whole"], 1)), cost - used)
        used += share
        await _settle(connection, block, f"job:{row['job_id']}", share, booked)
    await _settle(connection, block, f"idle:{block['id']}", cost - resold - used, booked)
    return used, cost - resold - used


async def book_late(connection: AsyncConnection, block: RowMapping, more: int) -> None:
    """Put what was billed after a block's account was closed on what nobody used of it."""
    if more:
        reference = f"late/{await _count(connection, block)}"
        await _use(connection, block, f"idle:{block['id']}", more, reference=reference)


async def _settle(
    connection: AsyncConnection,
    block: RowMapping,
    account: str,
    micro: int,
    booked: Mapping[str, int],
) -> None:
    """Bring what an account has paid of a block to `micro`."""
    if account not in booked:
        await _use(connection, block, account, micro)
    elif more := micro - booked[account]:
        reference = f"{account}/{await _count(connection, block)}"
        await _use(connection, block, account, more, reference=reference)


async def _count(connection: AsyncConnection, block: RowMapping) -> int:
    return await connection.scalar(
        text("SELECT count(*) FROM ledger WHERE block_id = :id"), {"id": block["id"]}
    )


async def _use(
    connection: AsyncConnection, block: RowMapping, account: str, micro: int, reference: str = ""
) -> None:
    if micro == 0:
        return
    paid = f"block:{block['id']}"
    await connection.execute(
        text(_BOOK),
        {
            "kind": "usage", "debit": account if micro > 0 else paid,
            "credit": paid if micro > 0 else account, "micro": abs(micro),
            "purchase": block["purchase_id"], "block": block["id"],
            "reference": f"use/{block['id']}/{reference or account}",
            "simulated": block["simulated"],
        },
    )  # fmt: skip


_BOOK = """
    INSERT INTO ledger (kind, debit, credit, micro, purchase_id, block_id, reference, simulated)
    VALUES (:kind, :debit, :credit, :micro, :purchase, :block, :reference, :simulated)
"""

_RESOLD = """
    SELECT sum(CASE WHEN credit = 'block:' || :block THEN micro ELSE -micro END)::bigint
      FROM ledger WHERE block_id = :block AND kind = 'resale'
"""

_USED = """
    SELECT account, sum(micro)::bigint AS micro
      FROM (SELECT debit AS account, micro FROM ledger
             WHERE block_id = :block AND kind = 'usage' AND credit = 'block:' || :block
             UNION ALL
            SELECT credit, -micro FROM ledger
             WHERE block_id = :block AND kind = 'usage' AND debit = 'block:' || :block) AS moved
     GROUP BY account
"""

GPU_TIME = """
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
      JOIN orders o ON o.key = b.id
      JOIN nodes n ON n.block_id = b.id
                   OR n.id IN (SELECT node_id FROM block_nodes WHERE block_id = b.id)
      JOIN leases l ON l.node_id = n.id AND l.borrowed_from IS NULL
     WHERE b.id = :block AND b.ended_at > b.starts_at
     GROUP BY l.job_id
     ORDER BY l.job_id
"""
"""Microseconds of GPUs that each job held while the block lasted, a part of a GPU as a part of
them, and not who ran on a spare that another lends; and those that are paid for."""
