"""The rows of sales: each function is a part of a transaction.

The database refuses what a job holds, what is for sale already, and everything while buying is
stopped.
"""

from psycopg import errors
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.ledger import book_sale
from longshore.activities.buying.purchase_rows import Row
from longshore.activities.buying.startup_failures import FAILED_AGAIN
from longshore.models.block_end import SaleIntent, SaleSeen, SaleTerms
from longshore.models.errors import NotFoundError, StaleError
from longshore.models.market import Order, OrderRequest, Side
from longshore.scheduling.prices.fills import cost, node_time

CORDON = "its time is for sale"
"""The reason of the drain of a node whose time is offered."""
_REFUSALS = ("time_is_held", "time_is_sold", "sales_once", "sales_numbers", "market_switch")


def refusal_of(error: DBAPIError) -> str | None:
    """Return why the database refused a sale; None for any other error."""
    cause = error.orig
    if isinstance(cause, errors.IntegrityError) and cause.diag.constraint_name in _REFUSALS:
        return cause.diag.message_primary or "refused"
    return None


async def is_known(connection: AsyncConnection, key: str) -> bool:
    found = await connection.scalar(text("SELECT 1 FROM sales WHERE key = :key"), {"key": key})
    return found is not None


async def insert(connection: AsyncConnection, intent: SaleIntent) -> None:
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
    await connection.execute(
        text(_INSERT),
        {
            "key": intent.key, "block": intent.block_id, "number": intent.number,
            "machine": intent.machine, "provider": block["provider"],
            "account": block["account"], "starts": intent.window.start,
            "ends": intent.window.end, "request": order.model_dump_json(),
            "bps": intent.fee_bps, "flat": intent.fee_flat, "simulated": block["simulated"],
        },
    )  # fmt: skip
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
        {"id": intent.machine, "reason": CORDON, "starts": intent.window.start},
    )  # fmt: skip


async def lock(connection: AsyncConnection, key: str) -> Row:
    """Return the row of a sale, locked. Raises NotFoundError."""
    found = await connection.execute(
        text("SELECT * FROM sales WHERE key = :key FOR UPDATE"), {"key": key}
    )
    row = found.mappings().first()
    if row is None:
        raise NotFoundError(f"no sale {key}")
    return row


async def record(connection: AsyncConnection, key: str, order: Order) -> None:
    """Write what the market says of a sale, and book what it has brought."""
    row = await lock(connection, key)
    proceeds = cost(order.fills)
    terms = SaleTerms(fee_bps=row["fee_bps"], fee_flat=row["fee_flat"])
    fee = terms.fee(proceeds, node_time(order.fills))
    await book_sale(connection, row, proceeds, fee, simulated=order.simulated)
    state = "SOLD" if order.fills else "UNSOLD" if order.state.final else "PLACED"
    await connection.execute(
        text(_RECORD),
        {
            "key": key, "order": order.id, "order_state": order.state.value, "state": state,
            "proceeds": proceeds, "fee": fee, "simulated": order.simulated,
            "over": order.state.final,
        },
    )  # fmt: skip


async def close(connection: AsyncConnection, key: str, *, refused: str = "") -> None:
    """Nothing more comes of a sale; one that brought nothing is unsold."""
    await connection.execute(text(_CLOSE), {"key": key, "refused": refused})


async def is_let_go(connection: AsyncConnection, block_id: str) -> bool:
    """Return whether a block is at its end: its nodes take no job any more, sold or not."""
    return bool(
        await connection.scalar(
            text("SELECT state = 'DRAINING' FROM blocks WHERE id = :id"), {"id": block_id}
        )
    )


async def release(connection: AsyncConnection, sale: Row) -> bool:
    """Let jobs use a machine's time again; return whether its node was kept from them for that."""
    await connection.execute(
        text("UPDATE machines SET sale_key = NULL WHERE name = :name AND sale_key = :key"),
        {"name": sale["machine"], "key": sale["key"]},
    )
    await connection.execute(text(_RELEASE), {"id": sale["machine"], "block": sale["block_id"]})
    reason = await connection.scalar(
        text("SELECT drain_reason FROM nodes WHERE id = :id AND state = 'DRAINING'"),
        {"id": sale["machine"]},
    )
    return reason == CORDON


async def note_sold(connection: AsyncConnection, sale: Row) -> None:
    """Say of a machine that has ended why it has."""
    await connection.execute(
        text("UPDATE machines SET reason = 'its time was sold' WHERE name = :name"),
        {"name": sale["machine"]},
    )


async def seen(connection: AsyncConnection, key: str) -> SaleSeen:
    """Return a sale as the database has it."""
    row = await lock(connection, key)
    return SaleSeen(
        key=key, machine=row["machine"], over=row["closed_at"] is not None,
        sold=row["state"] == "SOLD", proceeds=row["proceeds"], fee=row["fee"],
        refused=row["refused"],
    )  # fmt: skip


_INSERT = """
    INSERT INTO sales (key, block_id, number, machine, provider, account, starts_at, ends_at,
                       request, fee_bps, fee_flat, simulated)
    VALUES (:key, :block, :number, :machine, :provider, :account, :starts, :ends,
            CAST(:request AS jsonb), :bps, :flat, :simulated)
"""

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
"""Only while its market is asked to start nothing in its place, or its block is let go."""

_CORDON = """
    UPDATE nodes SET state = 'DRAINING', state_reason = :reason, drain_reason = :reason,
                     state_since = clock_timestamp(), expires_at = least(expires_at, :starts)
     WHERE id = :id
"""

_RECORD = """
    UPDATE sales
       SET order_id = :order, order_state = :order_state, state = :state, proceeds = :proceeds,
           fee = :fee, simulated = :simulated,
           closed_at = CASE WHEN :over THEN coalesce(closed_at, clock_timestamp()) END
     WHERE key = :key
"""

_CLOSE = """
    UPDATE sales
       SET state = CASE WHEN state = 'SOLD' THEN state ELSE 'UNSOLD' END,
           refused = CASE WHEN :refused = '' THEN refused ELSE :refused END,
           closed_at = coalesce(closed_at, clock_timestamp())
     WHERE key = :key
"""

_RELEASE = """
    UPDATE nodes n SET expires_at = b.ends_at FROM blocks b WHERE n.id = :id AND b.id = :block
"""
