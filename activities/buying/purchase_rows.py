"""The rows of purchases, blocks and machines: each function is a part of a transaction.

The database refuses what is over a cap, and everything while buying is stopped.
"""

import json
import logging
import re
from collections.abc import Mapping

from psycopg import errors
from sqlalchemy import RowMapping, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database
from longshore.models.errors import NotFoundError
from longshore.models.purchase import PurchaseRequest, PurchaseState
from longshore.models.text import format_dollars

Row = RowMapping
_log = logging.getLogger(__name__)
_REFUSALS = (
    "purchase_cap", "market_switch", "time_is_held", "time_is_sold", "sales_once", "sales_numbers",
)  # fmt: skip
OF_BUDGET = " for the budget of "
"""In what the database says of the money of a budget, and of no other cap."""
_AMOUNT = re.compile(r"\b(\d+) (micro-dollars|at most|is the most)")
"""In what the database says: it counts in micro-dollars, and people do not."""


FAST_FABRIC = """
    coalesce((p.request #>> ARRAY['options', o.option::text, 'fast_fabric'])::boolean, false)
"""
"""The SQL of whether the option that an order `o` of a purchase `p` asks for is of nodes with a
fast link between them."""


def refusal_of(error: DBAPIError) -> str | None:
    """Return why the database refused a purchase, an order or a sale; None for any other error."""
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
            # Shares of nothing, as of jobs without GPUs, are no split.
            "split": json.dumps(request.split) if any(request.split.values()) else None,
        },
    )  # fmt: skip


async def store_intent(database: Database, purchase_id: str, request: PurchaseRequest) -> str:
    """Store an intent, or that the database refuses it; return why it does, if so."""
    try:
        async with database.transaction() as connection:
            await insert_purchase(connection, purchase_id, request)
    except DBAPIError as error:
        refused = refusal_of(error)
        if refused is None:
            raise
        async with database.transaction() as connection:
            await insert_purchase(connection, purchase_id, request, refused=refused)
        return refused
    return ""


async def lock_purchase(connection: AsyncConnection, purchase_id: str) -> Row | None:
    return await _one(
        connection, "SELECT * FROM purchases WHERE id = :id FOR UPDATE", id=purchase_id
    )


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


async def enter(
    connection: AsyncConnection, purchase_id: str | None, state: PurchaseState, reason: str = ""
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


async def ask_for_renewal_again(connection: AsyncConnection, purchase_id: str | None) -> None:
    """Have a renewal asked for again as soon as its market is: this one was no try."""
    await connection.execute(text(_NOT_TRIED), {"id": purchase_id})


async def recount(
    connection: AsyncConnection, purchase_id: str | None, *, asks: bool = False
) -> None:
    """Bring what a purchase has cost, and may cost yet, to what its orders say.

    An order that has cost more than was committed for it counts with what it has cost. While more
    orders may come it keeps what was planned for it, and longer times of machines come on top.

    What is new `asks`: caps and budgets may refuse it. Whatever else they refuse, what was spent
    is on record, and what is committed stays as it was until they bear it: a look, or an end, that
    failed would leave a machine running.
    """
    if asks:
        await connection.execute(text(_RECOUNT), {"id": purchase_id})
        return
    try:
        async with connection.begin_nested():
            await connection.execute(text(_RECOUNT), {"id": purchase_id})
    except DBAPIError as error:
        refused = refusal_of(error)
        if refused is None:
            raise
        _log.warning("what purchase %s has committed stays: %s", purchase_id, refused)
        await connection.execute(text(_SPENT), {"id": purchase_id})


async def paying(connection: AsyncConnection, uses: Mapping[str, int]) -> dict[str, int]:
    """Return by what weights tenants pay for time: the GPU-seconds of the jobs that it is for."""
    found = await connection.execute(
        text("SELECT id, tenant FROM jobs WHERE id = ANY(:ids)"), {"ids": list(uses)}
    )
    split: dict[str, int] = {}
    for row in found:
        split[row.tenant] = split.get(row.tenant, 0) + uses[row.id]
    return {tenant: weight for tenant, weight in split.items() if weight > 0}


async def end_if_over(connection: AsyncConnection, purchase_id: str | None) -> None:
    """End a purchase that buys no more and of which nothing is left at a market."""
    await connection.execute(text(_END_IF_OVER), {"id": purchase_id})
    await recount(connection, purchase_id)


async def _one(connection: AsyncConnection, statement: str, **values: object) -> Row | None:
    return (await connection.execute(text(statement), values)).mappings().first()


_INSERT_PURCHASE = """
    INSERT INTO purchases (id, pool, tenant, tier, state, reason, request, decision, planned,
                           committed, buying, ended_at, renews, split)
    VALUES (:id, :pool, :tenant, :tier, :state, :reason, CAST(:request AS jsonb),
            CAST(:decision AS jsonb), :planned, :committed, NOT :refused,
            CASE WHEN :refused THEN clock_timestamp() END, :renews, CAST(:split AS jsonb))
"""

_BLOCK_TO_START = """
    SELECT b.*, coalesce((t.option ->> 'for_gang')::boolean, false) AS for_gang,
           coalesce((t.option ->> 'fast_fabric')::boolean, false) AS fast_fabric
      FROM blocks b
      LEFT JOIN LATERAL (SELECT p.request -> 'options' -> o.option AS option
                           FROM orders o JOIN purchases p ON p.id = o.purchase_id
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
           committed = CASE WHEN p.buying
                            THEN greatest(p.planned, o.committed - longer.part) + longer.part
                            ELSE o.committed END
      FROM (SELECT coalesce(sum(spent), 0) AS spent,
                   coalesce(sum(greatest(committed, spent)), 0) AS committed
              FROM orders WHERE purchase_id = :id) AS o,
           (SELECT coalesce(sum(part), 0) AS part FROM longer_parts(:id)) AS longer
     WHERE p.id = :id AND p.state <> 'REFUSED'
"""

_SPENT = """
    UPDATE purchases SET spent = (SELECT coalesce(sum(spent), 0) FROM orders
                                   WHERE purchase_id = :id)
     WHERE id = :id AND state <> 'REFUSED'
"""

_END_IF_OVER = """
    UPDATE purchases
       SET state = 'ENDED', changed_at = clock_timestamp(), ended_at = clock_timestamp()
     WHERE id = :id AND NOT buying AND state NOT IN ('ENDED', 'REFUSED')
       AND NOT EXISTS (SELECT FROM orders
                        WHERE purchase_id = :id AND state <> 'CLOSED')
       AND NOT EXISTS (SELECT FROM blocks WHERE purchase_id = :id AND state <> 'ENDED')
"""
