"""The rows of purchases, orders, blocks and machines: each function is a part of a transaction.

The database refuses what is over a cap, and everything while buying is stopped.
"""

import json
import re
from datetime import datetime, timedelta

from psycopg import errors
from sqlalchemy import RowMapping, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.ledger import book_cost
from longshore.activities.database import clock
from longshore.models.errors import NotFoundError
from longshore.models.market import Order, OrderRequest, OrderState
from longshore.models.purchase import (
    OrderIntent,
    OrderSeen,
    PurchaseRequest,
    PurchaseState,
    machine_names,
    worst_cost,
)
from longshore.models.text import format_dollars
from longshore.scheduling.prices.fills import cost, held

Row = RowMapping
_REFUSALS = ("purchase_cap", "market_switch")
_AMOUNT = re.compile(r"\b(\d+) (micro-dollars|at most|is the most)")
"""In what the database says: it counts in micro-dollars, and people do not."""


FAST_FABRIC = """
    coalesce((p.request #>> ARRAY['options', o.option::text, 'fast_fabric'])::boolean, false)
"""
"""The SQL of whether the option that an order `o` of a purchase `p` asks for is of nodes with a
fast link between them."""


def refusal_of(error: DBAPIError) -> str | None:
    """Return why the database refused a purchase or an order; None for any other error."""
    cause = error.orig
    if isinstance(cause, errors.IntegrityError) and cause.diag.constraint_name in _REFUSALS:
        return _AMOUNT.sub(_in_dollars, cause.diag.message_primary or "refused")
    return None


def _in_dollars(found: re.Match[str]) -> str:
    amount, behind = format_dollars(int(found[1])), found[2]
    return amount if behind == "micro-dollars" else f"{amount} {behind}"


async def insert_purchase(
    connection: AsyncConnection, purchase_id: str, request: PurchaseRequest, *, refused: str = ""
) -> None:
    """Store an intent, or that it was refused."""
    state = PurchaseState.REFUSED if refused else PurchaseState.INTENT
    await connection.execute(
        text(_INSERT_PURCHASE),
        {
            "id": purchase_id, "pool": request.pool, "tenant": request.tenant,
            "tier": request.tier.value, "state": state.value, "reason": refused,
            "request": request.model_dump_json(exclude={"decision"}),
            "decision": request.decision and json.dumps(request.decision),
            "planned": request.planned, "committed": 0 if refused else request.planned,
            "refused": bool(refused), "renews": request.renews,
        },
    )  # fmt: skip


async def lock_purchase(connection: AsyncConnection, purchase_id: str) -> Row | None:
    return await _one(
        connection, "SELECT * FROM purchases WHERE id = :id FOR UPDATE", id=purchase_id
    )


async def lock_order(connection: AsyncConnection, key: str) -> Row:
    """Return the row of an order, and its purchase's row locked too. Raises NotFoundError."""
    # First the purchase, as everybody does: else two steps of one purchase wait for each other.
    statement = """
        SELECT id FROM purchases
         WHERE id = (SELECT purchase_id FROM purchase_orders WHERE key = :key) FOR UPDATE
    """
    await connection.execute(text(statement), {"key": key})
    row = await _one(
        connection, "SELECT * FROM purchase_orders WHERE key = :key FOR UPDATE", key=key
    )
    if row is None:
        raise NotFoundError(f"no order {key}")
    return row


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
    worst = worst_cost(order.limit, gpus_per_node * order.nodes, ends_at - began)
    await connection.execute(
        text(_INSERT_ORDER),
        {
            "key": intent.key, "purchase": intent.purchase_id, "number": intent.number,
            "option": intent.option, "provider": provider, "request": order.model_dump_json(),
            "is_machine": is_machine, "gpus": gpus_per_node, "starts": began, "ends": ends_at,
            "committed": worst,
        },
    )  # fmt: skip
    if is_machine:
        await connection.execute(
            text(_INSERT_BLOCK),
            {
                "key": intent.key,
                "type": order.instance_type,
                "price": order.limit,
                "nodes": order.nodes,
                "place": None,
            },
        )
        for part, name in enumerate(machine_names(intent.key, order.nodes)):
            await insert_machine(connection, intent.key, name, part=part)
    await enter(connection, intent.purchase_id, PurchaseState.ORDERED)
    await recount(connection, intent.purchase_id)


async def record_order(connection: AsyncConnection, row: Row, order: Order) -> None:
    """Write what the market says of an order of node time: its fills, its cost, its block.

    `row` is the order's, locked.
    """
    await connection.execute(
        text(_RECORD_ORDER),
        {"key": row["key"], "order": order.id, "state": order.state.value,
         "account": order.account},
    )  # fmt: skip
    what = held(order.fills)
    if what is not None:
        nodes, window = what
        hours = sum(f.nodes * f.window.hours for f in order.fills if f.window)
        price = round(cost(order.fills) / (hours * row["gpus_per_node"]))
        await connection.execute(
            text("UPDATE purchase_orders SET nodes = :nodes, starts_at = :starts, ends_at = :ends"
                 " WHERE key = :key"),
            {"key": row["key"], "nodes": nodes, "starts": window.start, "ends": window.end},
        )  # fmt: skip
        await connection.execute(
            text(_INSERT_BLOCK),
            {
                "key": row["key"], "type": order.instance_type, "price": price, "nodes": nodes,
                "place": order.place,
            },
        )  # fmt: skip
        await enter(connection, row["purchase_id"], PurchaseState.FILLED)
    await _mark_simulated(connection, row, order)
    await book_cost(connection, row, cost(order.fills), simulated=order.simulated)
    if order.state is OrderState.REJECTED and what is None:
        said = f"{row['provider']}: the order was refused: it ended as rejected"
        final = not is_late(row, await clock(connection))
        await close_order(connection, row["key"], refused=said, finally_=final)
    elif order.state.final:
        await close_order(connection, row["key"])
    await recount(connection, row["purchase_id"])


def is_late(row: Row, now: datetime) -> bool:
    """Return whether the time of an order had begun, so that it may be refused for that."""
    window = OrderRequest.model_validate(row["request"]).window
    return window is not None and now >= window.start + timedelta(minutes=1)


async def record_machine_order(connection: AsyncConnection, row: Row, order: Order) -> None:
    """Write what a market says of an order that is a machine, or a cluster; it is paid for as it
    runs.

    `row` is the order's, locked.
    """
    await connection.execute(
        text(_RECORD_ORDER),
        {"key": row["key"], "order": order.id, "state": order.state.value, "account": None},
    )
    await connection.execute(
        text("UPDATE machines SET machine_id = :id, state = 'STARTING'"
             " WHERE block_id = :key AND state = 'INTENT'"),
        {"id": order.id, "key": row["key"]},
    )  # fmt: skip
    await connection.execute(
        text("UPDATE purchase_orders SET nodes = :nodes WHERE key = :key"),
        {"key": row["key"], "nodes": OrderRequest.model_validate(row["request"]).nodes},
    )
    await _mark_simulated(connection, row, order)
    await enter(connection, row["purchase_id"], PurchaseState.STARTING)


async def limit_of_machine(connection: AsyncConnection, key: str) -> int | None:
    """Return the limit of an order that is a machine, in micro-dollars per GPU-hour."""
    return await connection.scalar(
        text("SELECT (request ->> 'limit')::bigint FROM purchase_orders"
             " WHERE key = :key AND is_machine"),
        {"key": key},
    )  # fmt: skip


async def close_order(
    connection: AsyncConnection, key: str, *, refused: str = "", finally_: bool = False
) -> None:
    """Nothing more comes of an order: what it has cost is what it costs.

    `finally_` says that its seller would take no other with the same image, or its market of the
    same row.
    """
    await connection.execute(
        text("UPDATE purchase_orders SET state = 'CLOSED', committed = spent,"
             " refused = CASE WHEN :refused = '' THEN refused ELSE :refused END,"
             " refused_finally = refused_finally OR :finally,"
             " closed_at = coalesce(closed_at, clock_timestamp()) WHERE key = :key"),
        {"key": key, "refused": refused, "finally": finally_},
    )  # fmt: skip


async def insert_machine(
    connection: AsyncConnection, block_id: str, name: str, *, part: int = 0
) -> None:
    """Store a machine that is about to be asked for; a second time changes nothing.

    `part` is its number, from 0, among those that have one id at their market.
    """
    await connection.execute(
        text(_INSERT_MACHINE), {"block": block_id, "name": name, "part": part}
    )


async def block_to_start(connection: AsyncConnection, block_id: str, *, lock: bool = False) -> Row:
    """Return the row of a block with what its machines are asked for by: `for_gang`, and
    `fast_fabric` where ranks are to meet over it.

    `lock` keeps others from starting a machine there, from selling its time and from ending it.
    """
    # Not FOR SHARE: two starts at one moment would not see the machine of each other.
    locked = "FOR NO KEY UPDATE OF b" if lock else ""
    row = await _one(connection, f"{_BLOCK_TO_START} {locked}", id=block_id)
    if row is None:
        raise NotFoundError(f"no block {block_id}")
    return row


async def seen(connection: AsyncConnection, key: str) -> OrderSeen:
    """Return an order as the database has it."""
    row = await _one(connection, "SELECT * FROM purchase_orders WHERE key = :key", key=key)
    assert row is not None
    window = None
    if row["nodes"] and not row["is_machine"]:
        window = {"start": row["starts_at"], "end": row["ends_at"]}
    return OrderSeen.model_validate(
        {"key": key, "state": row["order_state"], "nodes": row["nodes"], "window": window,
         "spent": row["spent"], "refused": row["refused"]}
    )  # fmt: skip


async def enter(
    connection: AsyncConnection, purchase_id: str, state: PurchaseState, reason: str = ""
) -> None:
    """Put a purchase into a state, unless it is over."""
    await connection.execute(
        text("UPDATE purchases SET state = :state, changed_at = clock_timestamp(),"
             " reason = CASE WHEN :reason = '' THEN reason ELSE :reason END,"
             " ended_at = CASE WHEN :state = 'ENDED' THEN clock_timestamp() END"
             " WHERE id = :id AND state NOT IN ('ENDED', 'REFUSED') AND state <> :state"
             # A machine that is started again later changes nothing about what was bought.
             " AND (buying OR :state <> 'STARTING')"),
        {"id": purchase_id, "state": state.value, "reason": reason},
    )  # fmt: skip


async def forget_reason(connection: AsyncConnection, purchase_id: str) -> None:
    """Leave what kept a purchase up to its orders and machines, which tell it in its timeline."""
    await connection.execute(
        text("UPDATE purchases SET reason = '' WHERE id = :id"), {"id": purchase_id}
    )


async def ask_for_renewal_again(connection: AsyncConnection, purchase_id: str) -> None:
    """Have a renewal asked for again as soon as its market is: this one was no try."""
    await connection.execute(text(_NOT_TRIED), {"id": purchase_id})


async def recount(connection: AsyncConnection, purchase_id: str) -> None:
    """Bring what a purchase has cost, and may cost yet, to what its orders say.

    While more orders may come it keeps what was planned for it.
    """
    await connection.execute(text(_RECOUNT), {"id": purchase_id})


async def end_if_over(connection: AsyncConnection, purchase_id: str) -> None:
    """End a purchase that buys no more and of which nothing is left at a market."""
    await connection.execute(text(_END_IF_OVER), {"id": purchase_id})
    await recount(connection, purchase_id)


async def _mark_simulated(connection: AsyncConnection, row: Row, order: Order) -> None:
    await connection.execute(
        text("UPDATE purchases SET simulated = :simulated WHERE id = :id"),
        {"simulated": order.simulated, "id": row["purchase_id"]},
    )
    await connection.execute(
        text("UPDATE blocks SET simulated = :simulated WHERE id = :key"),
        {"simulated": order.simulated, "key": row["key"]},
    )


async def _one(connection: AsyncConnection, statement: str, **values: object) -> Row | None:
    return (await connection.execute(text(statement), values)).mappings().first()


_INSERT_PURCHASE = """
    INSERT INTO purchases (id, pool, tenant, tier, state, reason, request, decision, planned,
                           committed, buying, ended_at, renews)
    VALUES (:id, :pool, :tenant, :tier, :state, :reason, CAST(:request AS jsonb),
            CAST(:decision AS jsonb), :planned, :committed, NOT :refused,
            CASE WHEN :refused THEN clock_timestamp() END, :renews)
"""

_INSERT_ORDER = """
    INSERT INTO purchase_orders (key, purchase_id, number, option, provider, request, is_machine,
                                 gpus_per_node, starts_at, ends_at, committed)
    VALUES (:key, :purchase, :number, :option, :provider, CAST(:request AS jsonb), :is_machine,
            :gpus, :starts, :ends, :committed)
"""

_RECORD_ORDER = """
    UPDATE purchase_orders
       SET order_id = :order, order_state = :state, account = coalesce(:account, account),
           state = CASE WHEN state = 'INTENT' THEN 'PLACED' ELSE state END
     WHERE key = :key
"""

_INSERT_BLOCK = """
    INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at,
                        price_micro_per_gpu_hour, purchase_id, pool, state, nodes, gpus_per_node,
                        account, place)
    SELECT o.key, o.provider, :type, p.tier, o.starts_at, o.ends_at, :price, p.id, p.pool,
           'STARTING', :nodes, o.gpus_per_node, o.account, :place
      FROM purchase_orders o JOIN purchases p ON p.id = o.purchase_id
     WHERE o.key = :key
    ON CONFLICT (id) DO UPDATE
       SET nodes = excluded.nodes, starts_at = excluded.starts_at, ends_at = excluded.ends_at,
           price_micro_per_gpu_hour = excluded.price_micro_per_gpu_hour,
           place = excluded.place
"""

_BLOCK_TO_START = """
    SELECT b.*, coalesce((t.option ->> 'for_gang')::boolean, false) AS for_gang,
           coalesce((t.option ->> 'fast_fabric')::boolean, false) AS fast_fabric
      FROM blocks b
      LEFT JOIN LATERAL (SELECT p.request -> 'options' -> o.option AS option
                           FROM purchase_orders o JOIN purchases p ON p.id = o.purchase_id
                          WHERE o.key = b.id) AS t ON true
     WHERE b.id = :id
"""

_INSERT_MACHINE = """
    INSERT INTO machines (name, purchase_id, block_id, provider, part)
    SELECT :name, purchase_id, id, provider, :part FROM blocks WHERE id = :block
    ON CONFLICT (name) DO NOTHING
"""

_NOT_TRIED = """
    UPDATE blocks SET tried_at = NULL WHERE id = (SELECT renews FROM purchases WHERE id = :id)
"""

_RECOUNT = """
    UPDATE purchases p
       SET spent = o.spent,
           committed = CASE WHEN p.buying THEN greatest(p.planned, o.committed)
                            ELSE o.committed END
      FROM (SELECT coalesce(sum(spent), 0) AS spent, coalesce(sum(committed), 0) AS committed
              FROM purchase_orders WHERE purchase_id = :id) AS o
     WHERE p.id = :id AND p.state <> 'REFUSED'
"""

_END_IF_OVER = """
    UPDATE purchases
       SET state = 'ENDED', changed_at = clock_timestamp(), ended_at = clock_timestamp()
     WHERE id = :id AND NOT buying AND state NOT IN ('ENDED', 'REFUSED')
       AND NOT EXISTS (SELECT FROM purchase_orders
                        WHERE purchase_id = :id AND state <> 'CLOSED')
       AND NOT EXISTS (SELECT FROM blocks WHERE purchase_id = :id AND state <> 'ENDED')
"""
