"""Reading one purchase, and blocks with their use over time, for people."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.accounts import (
    ACCOUNT_OF_BLOCK,
    ACCOUNT_OF_PURCHASE,
    OF_BLOCK,
    OF_PURCHASE,
)
from longshore.activities.buying.startup_failures import SILENT_SINCE
from longshore.activities.buying.stored_documents import readable, stored_decision, why_unreadable
from longshore.activities.database import Database, clock
from longshore.models.errors import NotFoundError
from longshore.models.spending import (
    BlockDetail,
    BlockUse,
    Happened,
    MachineView,
    OrderView,
    PurchaseDecision,
    PurchaseDetail,
)
from longshore.models.text import format_dollars
from longshore.models.visible import shown

Row = Mapping[str, Any]


class PurchaseDetails:
    """Read-only views of a few things in full. Every call may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def purchase(self, purchase_id: str) -> PurchaseDetail:
        """Return a purchase with its decision, orders, machines and timeline.

        Raises NotFoundError.
        """
        async with self._database.transaction() as connection:
            found = await _rows(connection, _PURCHASE, id=purchase_id)
            if not found:
                raise NotFoundError(
                    f"no purchase {shown(purchase_id)}: `longshore purchases --all` lists them"
                )
            orders = await _rows(connection, _ORDERS, id=purchase_id)
            machines = await _rows(connection, _MACHINES, purchase=purchase_id, blocks=[])
            blocks = await _rows(connection, _BLOCKS_OF_PURCHASE, id=purchase_id)
            money = await _rows(connection, _MONEY, id=purchase_id)
        return _purchase(found[0], orders, machines, blocks, money)

    async def block(self, block_id: str) -> BlockDetail:
        """Return a block with its machines and the jobs on it. Raises NotFoundError."""
        found = await self.blocks([block_id])
        if not found:
            raise NotFoundError(f"no block {shown(block_id)}: `longshore blocks --all` lists them")
        return found[0]

    async def blocks(self, block_ids: Sequence[str]) -> tuple[BlockDetail, ...]:
        """Return those of the blocks that were bought, in this order."""
        ids = list(block_ids)
        async with self._database.transaction() as connection:
            found = await _rows(connection, _BLOCKS, blocks=ids)
            machines = await _rows(connection, _MACHINES, purchase=None, blocks=ids)
            uses = await _rows(connection, _USES, blocks=ids)
            now = await clock(connection)
        made = {row["id"]: _block(row, machines, uses, now) for row in found}
        return tuple(made[block_id] for block_id in ids if block_id in made)


def _purchase(
    row: Row, orders: list[Row], machines: list[Row], blocks: list[Row], money: list[Row]
) -> PurchaseDetail:
    decision, problems = readable(PurchaseDecision, row["decision"])
    unreadable = [f"the decision: {each}" for each in problems]
    if why := why_unreadable(row["request"], row["option"]):
        unreadable.append(f"what was asked for: {why}")
    made = tuple(OrderView.model_validate(dict(each)) for each in orders)
    known = tuple(MachineView.model_validate(dict(each)) for each in machines)
    happened = (*_of_purchase(row, made), *_of_money(money), *_of_machines(known),
                *_of_blocks(blocks))  # fmt: skip
    return PurchaseDetail.model_validate(
        {
            **row,
            "nodes": [each.name for each in known if each.state not in ("FAILED", "ENDED")],
            "orders": len(made), "made": made, "machines": known,
            "blocks": [each["id"] for each in blocks],
            "decided": decision.reason or (_UNKNOWN_WHY if problems else ""),
            "rule": decision.rule, "serves": decision.serves, "left_out": decision.left_out,
            "options": decision.options,
            "unreadable": unreadable,
            "timeline": sorted(happened, key=lambda each: each.at),
        }
    )  # fmt: skip


def _of_purchase(row: Row, orders: Sequence[OrderView]) -> Iterable[Happened]:
    began = "refused" if row["state"] == "REFUSED" else "intent stored"
    reason = f": {row['reason']}" if row["state"] == "REFUSED" and row["reason"] else ""
    yield Happened(
        at=row["created_at"], what="intent",
        text=f"{began}{reason}; at most {format_dollars(row['planned_micro_usd'])}",
    )  # fmt: skip
    for order in orders:
        if order.sent_at is not None:
            yield Happened(
                at=order.sent_at, what="order",
                text=f"order {order.key} sent to {order.provider}: {order.wanted} x "
                f"{order.instance_type}, at most {format_dollars(order.limit_micro_usd)} a "
                "GPU-hour",
            )  # fmt: skip
        if order.refused and order.closed_at is not None:
            yield Happened(at=order.closed_at, what="order",
                           text=f"order {order.key} brought nothing: {order.refused}")  # fmt: skip
    if row["ended_at"] is not None and row["state"] != "REFUSED":
        yield Happened(
            at=row["ended_at"],
            what="end",
            text=f"ended, {format_dollars(row['paid_micro_usd'])} paid",
        )


def _of_money(rows: Iterable[Row]) -> Iterable[Happened]:
    for row in rows:
        what = "sale" if row["kind"] in ("resale", "fee") else "money"
        yield Happened(at=row["at"], what=what,
                       text=_MOVED[row["kind"]].format(format_dollars(row["micro"])))  # fmt: skip


def _of_machines(machines: Iterable[MachineView]) -> Iterable[Happened]:
    for each in machines:
        if each.asked_at is not None:
            refused = each.state == "INTENT" and each.reason
            again = f"; it is tried again, after: {each.reason}" if refused else ""
            yield Happened(
                at=each.asked_at, what="machine", text=f"machine {each.name} asked for{again}"
            )
        if each.registered_at is not None:
            yield Happened(
                at=each.registered_at, what="agent",
                text=f"the agent of {each.name} has registered: it takes jobs",
            )  # fmt: skip
        if each.ended_at is not None:
            why = f": {each.reason}" if each.reason else ""
            yield Happened(
                at=each.ended_at, what="machine", text=f"machine {each.name} ended{why}"
            )


def _of_blocks(blocks: Iterable[Row]) -> Iterable[Happened]:
    for row in blocks:
        if row["ended_at"] is not None:
            why = f": {row['reason']}" if row["reason"] else ""
            yield Happened(at=row["ended_at"], what="block", text=f"block {row['id']} ended{why}")


def _block(row: Row, machines: Iterable[Row], uses: Iterable[Row], now: datetime) -> BlockDetail:
    block = BlockDetail.model_validate(
        {
            **row,
            "machines": [dict(each) for each in machines if each["block_id"] == row["id"]],
            "uses": [
                BlockUse.model_validate(dict(each))
                for each in uses
                if each["block_id"] == row["id"]
            ],
            "decision": stored_decision(row["id"], row["decision"]),
            "measured_at": now,
        }
    )
    return block.measured()


async def _rows(connection: AsyncConnection, statement: str, **values: object) -> list[Row]:
    return [dict(row) for row in (await connection.execute(text(statement), values)).mappings()]


_UNKNOWN_WHY = "What was decided cannot be read."
_MOVED = {
    "purchase": "{} paid",
    "refund": "{} given back",
    "resale": "{} for time that was sold again",
    "fee": "{} fee",
    "usage": "{} booked",
}

_PURCHASE = f"""
    SELECT p.id, p.pool, p.tenant, p.tier, p.state, p.reason, p.committed AS committed_micro_usd,
           p.simulated, p.planned AS planned_micro_usd, p.decision, p.created_at, p.ended_at,
           p.request,
           (SELECT max(o.option) FROM orders o WHERE o.purchase_id = p.id) AS option,
           {OF_PURCHASE}
      FROM purchases p {ACCOUNT_OF_PURCHASE} WHERE p.id = :id
"""

_ORDERS = """
    SELECT key, provider, coalesce(request ->> 'instance_type', '') AS instance_type,
           coalesce((request ->> 'limit')::bigint, 0) AS limit_micro_usd,
           coalesce((request ->> 'nodes')::int, 1) AS wanted, nodes, state, order_id, order_state,
           refused, committed AS committed_micro_usd, spent AS paid_micro_usd, starts_at,
           ends_at, created_at, sent_at, closed_at
      FROM orders WHERE purchase_id = :id ORDER BY number
"""

_MACHINES = f"""
    SELECT m.name, m.block_id, m.provider, m.machine_id, m.state, m.created_at,
           m.asked_at, m.ended_at, n.registered_at,
           -- Of one that its market refuses, and that is asked for again, by what.
           coalesce(nullif(m.reason, ''), CASE m.state WHEN 'INTENT' THEN m.refused END,
                    {SILENT_SINCE}, '') AS reason
      FROM machines m LEFT JOIN nodes n ON n.id = m.name
     WHERE m.purchase_id = :purchase OR m.block_id = ANY(:blocks)
     ORDER BY m.name
"""

_BLOCKS_OF_PURCHASE = """
    SELECT id, reason, ended_at FROM blocks WHERE purchase_id = :id ORDER BY created_at, id
"""

_MONEY = """
    SELECT at, kind, micro FROM ledger
     WHERE purchase_id = :id AND kind <> 'usage' ORDER BY at, id
"""

_BLOCKS = f"""
    SELECT b.id, b.purchase_id, b.pool, b.provider, b.instance_type, b.state, b.reason, b.nodes,
           b.gpus_per_node, b.starts_at, b.ends_at, b.ended_at,
           b.price_micro_per_gpu_hour AS price_micro_usd, b.simulated, o.is_machine, b.decision,
           {OF_BLOCK}
      FROM blocks b JOIN orders o ON o.key = b.id {ACCOUNT_OF_BLOCK}
     WHERE b.id = ANY(:blocks)
"""

_USES = """
    SELECT b.id AS block_id, l.node_id, l.job_id, coalesce(max(j.name), l.job_id) AS job, l.tenant,
           l.attempt,
           sum(CASE WHEN l.slices > 0 THEN bit_count(l.slices::bit(8)) / 8.0
                    ELSE l.milli / 1000.0 END)::float AS gpus,
           greatest(min(l.started_at), b.starts_at) AS started_at,
           CASE WHEN NOT bool_or(l.ended_at IS NULL) THEN least(max(l.ended_at), b.ended_at)
                ELSE b.ended_at END AS ended_at,
           max(l.end_reason) AS end_reason
      FROM blocks b
      JOIN (SELECT id AS node_id, block_id FROM nodes
            UNION SELECT node_id, block_id FROM block_nodes) AS n ON n.block_id = b.id
      JOIN leases l ON l.node_id = n.node_id AND l.borrowed_from IS NULL
       AND l.started_at < coalesce(b.ended_at, 'infinity')
       AND coalesce(l.ended_at, 'infinity') > coalesce(b.starts_at, '-infinity')
      LEFT JOIN jobs j ON j.id = l.job_id
     WHERE b.id = ANY(:blocks)
     GROUP BY b.id, l.node_id, l.job_id, l.tenant, l.attempt
     ORDER BY l.node_id, min(l.started_at), l.job_id
"""
