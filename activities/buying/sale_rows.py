"""What a sale does to the machine whose time it is: each function is a part of a transaction.

The database refuses what a job holds, what is for sale already, and everything while buying is
stopped.
"""

from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.startup_failures import FAILED_AGAIN
from longshore.models.block import FOR_SALE
from longshore.models.block_end import SaleIntent
from longshore.models.errors import StaleError
from longshore.models.market import OrderRequest, Side
from longshore.models.records.buying import OrderRow


async def insert_sale(connection: AsyncConnection, intent: SaleIntent) -> None:
    """Store a sale that is about to be offered, and keep jobs off its node.

    Raises DBAPIError where the database refuses it, StaleError where the machine or its node is
    not as it was.
    """
    # Whoever starts a machine waits for the block, and then finds what is for sale. In whatever
    # state the machine is: it may be another when it is marked.
    await connection.execute(text(_LOCK_BLOCK), {"id": intent.block_id})
    # Then the node, as placements do: else the two wait for each other.
    node = await connection.scalar(
        text("SELECT state FROM nodes WHERE id = :id FOR UPDATE"), {"id": intent.machine}
    )
    block = (
        await connection.execute(
            text("SELECT * FROM blocks WHERE id = :id"), {"id": intent.block_id}
        )
    ).mappings().one()  # fmt: skip
    order = OrderRequest(
        key=intent.key, side=Side.SELL, instance_type=block["instance_type"], nodes=1,
        window=intent.window, limit=intent.limit, account=block["account"],
        place=block["place"],
    )  # fmt: skip
    row = {
        "key": intent.key, "side": Side.SELL.value, "block_id": intent.block_id,
        "number": intent.number, "machine": intent.machine, "provider": block["provider"],
        "account": block["account"], "starts_at": intent.window.start,
        "ends_at": intent.window.end, "request": order.model_dump(mode="json"),
        "fee_bps": intent.fee_bps, "fee_flat": intent.fee_flat, "simulated": block["simulated"],
        "is_machine": False, "committed": 0,
    }  # fmt: skip
    await connection.execute(insert(OrderRow).values(**row))
    up = node == "READY"
    marked = await connection.execute(
        text(_MARK_READY if up else _MARK_UNSTARTED),
        {"key": intent.key, "name": intent.machine, "id": intent.block_id},
    )
    if marked.first() is None:
        raise StaleError(f"node {intent.machine} takes no work: its time is not sold")
    if not up:
        return
    await connection.execute(
        text(_CORDON),
        {"id": intent.machine, "reason": FOR_SALE, "starts": intent.window.start},
    )  # fmt: skip


async def is_draining(connection: AsyncConnection, block_id: str) -> bool:
    """Return whether a block is at its end: its nodes take no job any more, sold or not."""
    return bool(
        await connection.scalar(
            text("SELECT state = 'DRAINING' FROM blocks WHERE id = :id"), {"id": block_id}
        )
    )


async def release(connection: AsyncConnection, sale: OrderRow) -> bool:
    """Let jobs use a machine's time again; return whether its node was kept from them for that."""
    await connection.execute(
        text("UPDATE machines SET sale_key = NULL WHERE name = :name AND sale_key = :key"),
        {"name": sale.machine, "key": sale.key},
    )
    await connection.execute(text(_RELEASE), {"id": sale.machine, "block": sale.block_id})
    reason = await connection.scalar(
        text("SELECT drain_reason FROM nodes WHERE id = :id AND state = 'DRAINING'"),
        {"id": sale.machine},
    )
    return reason == FOR_SALE


async def note_sold(connection: AsyncConnection, sale: OrderRow) -> None:
    """Say of a machine that has ended why it has."""
    await connection.execute(
        text("UPDATE machines SET reason = 'its time was sold' WHERE name = :name"),
        {"name": sale.machine},
    )


_LOCK_BLOCK = "SELECT FROM blocks WHERE id = :id FOR NO KEY UPDATE"

_MARK_READY = """
    UPDATE machines SET sale_key = :key
     WHERE name = :name AND block_id = :id AND state = 'READY'
    RETURNING name
"""

_MARK_UNSTARTED = f"""
    UPDATE machines m SET sale_key = :key
     WHERE m.name = :name AND m.block_id = :id AND m.sale_key IS NULL
       AND (m.state = 'INTENT' AND m.refused_at > m.asked_at OR m.name IN ({FAILED_AGAIN})
            OR EXISTS (SELECT FROM blocks WHERE id = :id AND state = 'DRAINING'))
    RETURNING m.name
"""
"""Only while its market is asked to start nothing in its place, or its block is terminated."""

_CORDON = """
    UPDATE nodes SET state = 'DRAINING', state_reason = :reason, drain_reason = :reason,
                     state_since = clock_timestamp(), expires_at = least(expires_at, :starts)
     WHERE id = :id
"""

_RELEASE = """
    UPDATE nodes n SET expires_at = b.ends_at FROM blocks b WHERE n.id = :id AND b.id = :block
"""
