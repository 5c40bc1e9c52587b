"""The rows of orders, to buy and to sell: each function is a part of a transaction."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel import col

from longshore.activities.buying.ledger import book_cost, book_sale
from longshore.activities.buying.purchase_rows import enter, insert_machine, recount
from longshore.activities.database import clock
from longshore.models.block_end import SaleSeen, SaleTerms
from longshore.models.errors import NotFoundError
from longshore.models.market import Order, OrderRequest, OrderState, Side
from longshore.models.purchase import (
    OrderIntent,
    OrderSeen,
    PurchaseState,
    machine_names,
    worst_cost,
)
from longshore.models.records.buying import OrderRow
from longshore.scheduling.prices.fills import cost, held, node_time


async def lock(connection: AsyncConnection, key: str) -> OrderRow:
    """Return an order, locked, and the row of its purchase locked too. Raises NotFoundError."""
    # First the purchase, as everybody does: else two steps of one purchase wait for each other.
    await connection.execute(text(_LOCK_PURCHASE), {"key": key})
    return await read(connection, key, locked=True)


async def read(connection: AsyncConnection, key: str, *, locked: bool = False) -> OrderRow:
    """Return an order. Raises NotFoundError."""
    statement = select(OrderRow).where(col(OrderRow.key) == key)
    found = await connection.execute(statement.with_for_update() if locked else statement)
    row = found.mappings().first()
    if row is None:
        raise NotFoundError(f"no order {key}")
    return OrderRow(**row)


async def lock_open(connection: AsyncConnection, purchase_id: str) -> list[OrderRow]:
    """Return the orders of a purchase, which is locked, that are not over."""
    statement = select(OrderRow).where(
        col(OrderRow.purchase_id) == purchase_id, col(OrderRow.state) != "CLOSED"
    )
    found = await connection.execute(statement.order_by(col(OrderRow.number)).with_for_update())
    return [OrderRow(**row) for row in found.mappings()]


async def sent_without_id(connection: AsyncConnection, row: OrderRow) -> list[OrderRow]:
    """Return the other orders at the market of one that were sent and never answered."""
    statement = select(OrderRow).where(
        col(OrderRow.provider) == row.provider, col(OrderRow.key) != row.key,
        col(OrderRow.state) == "INTENT", col(OrderRow.sent_at).is_not(None),
        col(OrderRow.order_id).is_(None),
    )  # fmt: skip
    return [OrderRow(**found) for found in (await connection.execute(statement)).mappings()]


async def is_known(connection: AsyncConnection, key: str) -> bool:
    found = await connection.scalar(text("SELECT 1 FROM orders WHERE key = :key"), {"key": key})
    return found is not None


async def change(connection: AsyncConnection, key: str, **values: Any) -> None:
    """Write these columns of an order."""
    await connection.execute(update(OrderRow).where(col(OrderRow.key) == key).values(**values))


async def insert_order(
    connection: AsyncConnection,
    intent: OrderIntent,
    provider: str,
    order: OrderRequest,
    gpus_per_node: int,
    ends_at: datetime,
    *,
    is_machine: bool,
    now: datetime,
) -> None:
    """Store an order that is about to be made, and what it can cost at most.

    Where it is a machine, its block and its machine are stored too; of a cluster, all of them.
    """
    began = order.window.start if order.window else now
    row = {
        "key": intent.key, "purchase_id": intent.purchase_id, "number": intent.number,
        "option": intent.option, "provider": provider, "is_machine": is_machine,
        "request": order.model_dump(mode="json"), "gpus_per_node": gpus_per_node,
        "starts_at": began, "ends_at": ends_at,
        "committed": worst_cost(order.limit, gpus_per_node * order.nodes, ends_at - began),
    }  # fmt: skip
    await connection.execute(insert(OrderRow).values(**row))
    if is_machine:
        await _insert_block(
            connection, intent.key, order.instance_type, order.limit, order.nodes, None
        )
        for part, name in enumerate(machine_names(intent.key, order.nodes)):
            await insert_machine(connection, intent.key, name, part=part)
    await enter(connection, intent.purchase_id, PurchaseState.ORDERED)
    await recount(connection, intent.purchase_id, asks=True)


async def record(connection: AsyncConnection, row: OrderRow, order: Order) -> None:
    """Write what the market says of an order: its fills, what it has cost or brought, its block.

    `row` is the order's, locked.
    """
    await change(
        connection, row.key, order_id=order.id, order_state=order.state.value,
        simulated=order.simulated, state="PLACED" if row.state == "INTENT" else row.state,
    )  # fmt: skip
    if row.side == Side.SELL:
        await _record_sale(connection, row, order)
        return
    if row.is_machine:
        await _record_machine(connection, row, order)
    else:
        await _record_window(connection, row, order)
    for table, name in (("purchases", row.purchase_id), ("blocks", row.key)):
        await connection.execute(
            text(f"UPDATE {table} SET simulated = :simulated WHERE id = :id"),
            {"simulated": order.simulated, "id": name},
        )


async def _record_sale(connection: AsyncConnection, row: OrderRow, order: Order) -> None:
    proceeds = cost(order.fills)
    terms = SaleTerms(fee_bps=row.fee_bps, fee_flat=row.fee_flat)
    fee = terms.fee(proceeds, node_time(order.fills))
    await book_sale(connection, row, proceeds, fee, simulated=order.simulated)
    sold = {"state": "SOLD"} if order.fills else {}
    await change(connection, row.key, proceeds=proceeds, fee=fee, **sold)
    if order.state.final:
        await close(connection, row.key)


async def _record_window(connection: AsyncConnection, row: OrderRow, order: Order) -> None:
    """Write what was bought of node time, and its block."""
    await change(connection, row.key, account=order.account or row.account)
    what = held(order.fills)
    if what is not None:
        assert row.gpus_per_node is not None
        nodes, window = what
        hours = sum(f.nodes * f.window.hours for f in order.fills if f.window)
        price = round(cost(order.fills) / (hours * row.gpus_per_node))
        await change(connection, row.key, nodes=nodes, starts_at=window.start, ends_at=window.end)
        await _insert_block(connection, row.key, order.instance_type, price, nodes, order.place)
        await enter(connection, row.purchase_id, PurchaseState.FILLED)
    await book_cost(connection, row, cost(order.fills), simulated=order.simulated)
    if order.state is OrderState.REJECTED and what is None:
        said = f"{row.provider}: the order was refused: it ended as rejected"
        final = not is_late(row, await clock(connection))
        await close(connection, row.key, refused=said, finally_=final)
    elif order.state.final:
        await close(connection, row.key)
    await recount(connection, row.purchase_id)


async def _record_machine(connection: AsyncConnection, row: OrderRow, order: Order) -> None:
    """Write of an order that is a machine, or a cluster, that it starts; it is paid for as it
    runs."""
    await connection.execute(
        text("UPDATE machines SET machine_id = :id, state = 'STARTING'"
             " WHERE block_id = :key AND state = 'INTENT'"),
        {"id": order.id, "key": row.key},
    )  # fmt: skip
    await change(connection, row.key, nodes=OrderRequest.model_validate(row.request).nodes)
    await enter(connection, row.purchase_id, PurchaseState.STARTING)


def is_late(row: OrderRow, now: datetime) -> bool:
    """Return whether the time of an order had begun, so that it may be refused for that."""
    window = OrderRequest.model_validate(row.request).window
    return window is not None and now >= window.start + timedelta(minutes=1)


async def limit_of_machine(connection: AsyncConnection, key: str) -> int | None:
    """Return the limit of an order that is a machine, in micro-dollars per GPU-hour."""
    return await connection.scalar(
        text("SELECT (request ->> 'limit')::bigint FROM orders WHERE key = :key AND is_machine"),
        {"key": key},
    )


async def close(
    connection: AsyncConnection, key: str, *, refused: str = "", finally_: bool = False
) -> None:
    """Nothing more comes of an order: what it has cost is what it costs, and what has no buyer by
    now is unsold.

    `finally_` says that its seller would take no other with the same image, or its market of the
    same row.
    """
    values = {"key": key, "refused": refused, "finally": finally_}
    await connection.execute(text(_CLOSE), values)


async def refuse(
    connection: AsyncConnection, row: OrderRow, reason: str, *, finally_: bool = False
) -> None:
    """Close an order of which nothing came, and what was to come of it; `row` is locked."""
    await close(connection, row.key, refused=reason, finally_=finally_)
    if row.is_machine:
        for statement in (_END_MACHINE, _END_BLOCK):
            await connection.execute(text(statement), {"key": row.key, "reason": reason})
    await recount(connection, row.purchase_id)


def seen(row: OrderRow) -> OrderSeen:
    """Return an order to buy as its workflow sees it."""
    window = None
    if row.nodes and not row.is_machine:
        window = {"start": row.starts_at, "end": row.ends_at}
    return OrderSeen.model_validate(
        {"key": row.key, "state": row.order_state, "nodes": row.nodes, "window": window,
         "spent": row.spent, "refused": row.refused}
    )  # fmt: skip


def seen_sale(row: OrderRow) -> SaleSeen:
    """Return an order to sell as its workflow sees it."""
    return SaleSeen(
        key=row.key, machine=row.machine or "", over=row.closed_at is not None,
        sold=row.state == "SOLD", proceeds=row.proceeds, fee=row.fee, refused=row.refused,
    )  # fmt: skip


async def _insert_block(
    connection: AsyncConnection, key: str, kind: str, price: int, nodes: int, place: str | None
) -> None:
    """Store the block of what an order has bought, or what it has bought by now."""
    values = {"key": key, "type": kind, "price": price, "nodes": nodes, "place": place}
    await connection.execute(text(_INSERT_BLOCK), values)


_LOCK_PURCHASE = """
    SELECT id FROM purchases
     WHERE id = (SELECT purchase_id FROM orders WHERE key = :key) FOR UPDATE
"""

_INSERT_BLOCK = """
    INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at,
                        price_micro_per_gpu_hour, purchase_id, pool, state, nodes, gpus_per_node,
                        account, place)
    SELECT o.key, o.provider, :type, p.tier, o.starts_at, o.ends_at, :price, p.id, p.pool,
           'STARTING', :nodes, o.gpus_per_node, o.account, :place
      FROM orders o JOIN purchases p ON p.id = o.purchase_id
     WHERE o.key = :key
    ON CONFLICT (id) DO UPDATE
       SET nodes = excluded.nodes, starts_at = excluded.starts_at, ends_at = excluded.ends_at,
           price_micro_per_gpu_hour = excluded.price_micro_per_gpu_hour,
           place = excluded.place
"""

_CLOSE = """
    UPDATE orders
       SET state = CASE WHEN side = 'buy' THEN 'CLOSED' WHEN state = 'SOLD' THEN 'SOLD'
                        ELSE 'UNSOLD' END,
           committed = spent,
           refused = CASE WHEN :refused = '' THEN refused ELSE :refused END,
           refused_finally = refused_finally OR :finally,
           closed_at = coalesce(closed_at, clock_timestamp())
     WHERE key = :key
"""

_END_MACHINE = """
    UPDATE machines SET state = 'ENDED', reason = :reason, ended_at = clock_timestamp()
     WHERE block_id = :key AND state <> 'ENDED'
"""

_END_BLOCK = """
    UPDATE blocks SET state = 'ENDED', reason = :reason, nodes = 0, ended_at = clock_timestamp()
     WHERE id = :key AND state <> 'ENDED'
"""
