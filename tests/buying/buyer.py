"""Buys at a simulated market by the real workflows, and compares the ledger with the market."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying import market_refusals
from longshore.activities.buying.blocks import BlockActivities
from longshore.activities.database import Database
from longshore.activities.providers import registry
from longshore.activities.views import set_pool
from longshore.models.block import BlockEnd, BlockLook, BlockRef, block_workflow_id
from longshore.models.market import InstanceType, Offer
from longshore.models.messages import CONTROL_TASK_QUEUE, CommandReason
from longshore.models.pool import PoolSpec
from longshore.models.purchase import (
    PurchaseOption,
    PurchaseRequest,
    PurchaseStatus,
    buying_workflow_id,
    purchase_workflow_id,
)
from longshore.models.reconcile import ReconcileReport, ReconcileRequest
from longshore.scheduling.buying import prices
from longshore.workflows.block import BlockWorkflow
from longshore.workflows.purchase import PurchaseWorkflow
from longshore.workflows.reconcile import ReconcileWorkflow
from tests.support.control import new_pool
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

DOLLAR = 1_000_000
READY_WITHIN = timedelta(seconds=90)
"""Many times what an agent takes to come up; on a loaded machine that is 20 s."""

SOON = 240
"""Seconds: time at a market begins with a full minute, and what is late is waited for twice."""

Rows = Callable[[str], Awaitable[list[dict[str, Any]]]]
Purchase = WorkflowHandle[PurchaseWorkflow, PurchaseStatus]


class Buyer:
    """One pool that buys, and looks at what came of it."""

    def __init__(self, temporal: Client, database: Database, market: RunningMarket) -> None:
        self.temporal = temporal
        self.database = database
        self.market = market
        self.pool = new_pool()
        self.purchases: list[str] = []
        self.before = market.state()

    def request(self, *options: PurchaseOption, **changes: Any) -> PurchaseRequest:
        fields: dict[str, Any] = {
            "pool": self.pool, "options": options or (block_option(),),
            "ready_within": READY_WITHIN,
        }  # fmt: skip
        return PurchaseRequest.model_validate({**fields, **changes})

    async def an_offer(self) -> Offer:
        return await an_offer(self.market)

    async def start(self, request: PurchaseRequest) -> Purchase:
        purchase_id = f"p-{uuid.uuid4().hex[:10]}"
        self.purchases.append(purchase_id)
        return await self.temporal.start_workflow(
            PurchaseWorkflow.run, request, id=purchase_workflow_id(purchase_id),
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip

    async def buy(self, *options: PurchaseOption, **changes: Any) -> PurchaseStatus:
        """Buy, and return what came of it."""
        return await (await self.start(self.request(*options, **changes))).result()

    async def wake(self, block_id: str) -> None:
        """Have a block looked at now, unless it has ended by itself."""
        with contextlib.suppress(RPCError):
            await self.temporal.get_workflow_handle(block_workflow_id(block_id)).signal("wake")

    async def let_go(self, block_id: str) -> BlockEnd:
        """End a block, and return how its account was closed."""
        handle = self.temporal.get_workflow_handle_for(
            BlockWorkflow.run, block_workflow_id(block_id)
        )
        await handle.signal(BlockWorkflow.let_go, CommandReason(reason="the test is over"))
        return await handle.result()

    async def ended(self, block_id: str) -> BlockEnd:
        """Wait until a block has ended, and return how its account was closed."""
        handle = self.temporal.get_workflow_handle_for(
            BlockWorkflow.run, block_workflow_id(block_id)
        )
        await eventually(lambda: self._has_begun(block_id))
        return await asyncio.wait_for(handle.result(), SOON)

    async def _has_begun(self, block_id: str) -> bool:
        try:
            await self.temporal.get_workflow_handle(block_workflow_id(block_id)).describe()
        except RPCError:
            return False
        return True

    async def reconciled(self, request: ReconcileRequest) -> ReconcileReport:
        """Run a pass of reconcile over everything."""
        return await self.temporal.execute_workflow(
            ReconcileWorkflow.run, request, id=f"reconcile-{uuid.uuid4().hex[:8]}",
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip

    async def look(self, block_id: str) -> BlockLook:
        """Look at a block, as its workflow does."""
        steps = BlockActivities(self.database, self.temporal, self.market.settings())
        ref = BlockRef(block_id=block_id)
        return await ActivityEnvironment().run(steps.look_at_block, ref)

    async def close(self) -> None:
        """Have the pool buy no more, whatever still waits there, and let go all that it has."""
        async with self.database.transaction() as connection:
            await set_pool(connection, PoolSpec(name=self.pool))
            await market_refusals.forget(connection)
        with contextlib.suppress(RPCError, WorkflowFailureError):  # none, or one that has failed
            await self.temporal.get_workflow_handle(buying_workflow_id(self.pool)).result()
        bought = await self.rows("SELECT id FROM purchases WHERE pool = :pool", pool=self.pool)
        self.purchases += [row["id"] for row in bought if row["id"] not in self.purchases]
        with contextlib.suppress(AssertionError):  # one that nothing follows any more gets none
            await eventually(self._have_blocks, timeout=20)
        with contextlib.suppress(AssertionError):  # nor does what nothing follows end
            await eventually(self._have_let_go, timeout=30)

    async def _have_let_go(self) -> bool:
        """Let go what is left, and return whether there was none: it would be billed to the next
        test. A block is in the database before its workflow begins, which alone can be told."""
        left = await self.rows(
            "SELECT id FROM blocks WHERE pool = :pool AND state <> 'ENDED'", pool=self.pool
        )
        reason = CommandReason(reason="the test is over")
        for row in left:
            block = self.temporal.get_workflow_handle(block_workflow_id(row["id"]))
            with contextlib.suppress(RPCError):  # it has not begun, or is over
                await block.signal(BlockWorkflow.let_go, reason)
        return not left

    async def _have_blocks(self) -> bool:
        """Return whether all that is being bought has a block, which can be let go."""
        return not await self.rows(
            "SELECT id FROM purchases p WHERE pool = :pool AND state NOT IN ('ENDED', 'REFUSED')"
            " AND NOT EXISTS (SELECT FROM blocks b WHERE b.purchase_id = p.id)",
            pool=self.pool,
        )

    async def let_all_go(self) -> None:
        for purchase_id in self.purchases:
            for row in await self.rows(
                "SELECT id FROM blocks WHERE purchase_id = :id AND state <> 'ENDED'",
                id=purchase_id,
            ):
                try:
                    await self.let_go(row["id"])
                except RPCError:
                    continue  # it is ending by itself

    async def rows(self, statement: str, **values: object) -> list[dict[str, Any]]:
        async with self.database.transaction() as connection:
            found = await connection.execute(text(statement), values)
            return [dict(row) for row in found.mappings()] if found.returns_rows else []

    async def purchase(self) -> dict[str, Any]:
        """Return the row of the last purchase."""
        return (await self.rows("SELECT * FROM purchases WHERE id = :id",
                                id=self.purchases[-1]))[0]  # fmt: skip

    async def agrees(self) -> None:
        """Wait until every purchase has ended, and fail where ledger and market differ."""
        await eventually(self._has_ended)
        wrong = await differences(self.rows, self.pool, self.before, self.market.state())
        assert not wrong, "\n".join(wrong)

    async def agrees_on_nothing(self) -> None:
        """Fail where anything was paid."""
        wrong = await differences(self.rows, self.pool, self.before, self.market.state())
        assert not wrong, "\n".join(wrong)

    async def _has_ended(self) -> bool:
        row = await self.purchase()
        assert row["state"] in ("ENDED", "REFUSED"), row
        return True


def buy_from_begun_minute(patch: pytest.MonkeyPatch) -> None:
    """Have pools buy time from the minute that has begun, as at the turn of one, and not from the
    next: nobody waits for what was bought. tests/buying/test_gangs.py waits for it."""

    def begun(moment: datetime, grain: timedelta) -> datetime:
        return moment.replace(second=0, microsecond=0)

    patch.setattr(prices, "round_up", begun)


async def an_offer(market: RunningMarket) -> Offer:
    """Return the cheapest offer of one H100 that is kept and not prepaid."""
    return (await steady_offers(market))[0]


async def steady_offers(market: RunningMarket) -> list[Offer]:
    """Return the offers of one H100 that are kept and not prepaid, the cheapest first."""
    async with aclosing(registry.connect(market.settings(), "prime")) as provider:
        offers = await provider.offers(InstanceType.parse("1xH100"))
    return [each for each in offers if not (each.spot or each.prepaid or each.unusable)]


def block_option(**changes: Any) -> PurchaseOption:
    """Return one node of 8 H100 for an hour at $2.50 at most."""
    fields: dict[str, Any] = {
        "provider": "sfcompute", "instance_type": "8xH100", "gpus_per_node": 8,
        "length": timedelta(hours=1), "limit": 5 * DOLLAR // 2,
    }  # fmt: skip
    return PurchaseOption.model_validate({**fields, **changes})


def pod_option(offer: Offer, **changes: Any) -> PurchaseOption:
    """Return one machine of an offer, for an hour at most."""
    fields: dict[str, Any] = {
        "provider": "prime", "instance_type": offer.instance_type, "gpus_per_node": offer.gpus,
        "length": timedelta(hours=1), "limit": offer.price, "offer": offer,
    }  # fmt: skip
    return PurchaseOption.model_validate({**fields, **changes})


async def differences(rows: Rows, pool: str, before: Any, after: Any, *beside: str) -> list[str]:
    """Return where what a pool, and those beside it, have booked is not what the market says.

    `rows` returns what a query finds; `before` and `after` are states of the market between which
    nobody else bought. Nothing of an ended purchase may be left anywhere.
    """
    pool = "', '".join((pool, *beside))
    wrong: list[str] = []
    for provider in ("sfcompute", "prime"):
        paid = before["money"][provider]["balance"] - after["money"][provider]["balance"]
        spent = await rows(_SPENT.format(pool=pool, provider=provider))
        if spent[0]["spent"] != paid or spent[0]["booked"] != paid:
            wrong.append(f"{provider} was paid {paid}: {spent[0]}")
    known = {row["order_id"] for row in await rows(_ORDERS.format(pool=pool))}
    for thing in ("orders", "pods"):
        old = {each["id"] for each in before[thing]}
        wrong += [f"nobody here knows {each}" for each in after[thing]
                  if each["id"] not in known | old]  # fmt: skip
    machines = {row["machine_id"]: row["state"] for row in await rows(_MACHINES.format(pool=pool))}
    old = {each["id"] for thing in ("instances", "pods") for each in before[thing]}
    wrong += [
        f"machine {each['id']} runs, and here it is {machines.get(each['id'])}"
        for thing in ("instances", "pods")
        for each in after[thing]
        if each["id"] not in old and each["status"].lower() not in ("terminated", "failed")
        and machines.get(each["id"]) in (None, "ENDED")
    ]  # fmt: skip
    wrong += [f"{row} is left of a block that ended" for row in await rows(_LEFT)]
    wrong += [f"still reserved, or not: {row}" for row in await rows(_RESERVED)]
    wrong += [f"the caps count otherwise: {row}" for row in await rows(DAYS_DIFFER)]
    return wrong


_OF_POOL = "purchase_id IN (SELECT id FROM purchases WHERE pool IN ('{pool}'))"
_ORDERS = f"""
    SELECT order_id FROM orders WHERE {_OF_POOL}
    UNION ALL SELECT s.order_id FROM orders s JOIN blocks b ON b.id = s.block_id
     WHERE b.pool IN ('{{pool}}')
"""
_MACHINES = f"SELECT machine_id, state FROM machines WHERE {_OF_POOL}"
_SPENT = f"""
    SELECT (SELECT coalesce(sum(spent), 0) FROM orders
             WHERE provider = '{{provider}}' AND {_OF_POOL})::bigint
           - (SELECT coalesce(sum(proceeds - fee), 0) FROM orders s JOIN blocks b
                ON b.id = s.block_id AND b.provider = '{{provider}}'
             WHERE b.pool IN ('{{pool}}'))::bigint AS spent,
           (SELECT coalesce(sum(CASE WHEN credit = 'market:{{provider}}' THEN micro
                                     WHEN debit = 'market:{{provider}}' THEN -micro END), 0)
              FROM ledger WHERE {_OF_POOL})::bigint AS booked
"""
_LEFT = """
    SELECT b.account, b.micro FROM balances b JOIN blocks k ON b.account = 'block:' || k.id
     WHERE k.state = 'ENDED' AND b.micro <> 0
"""
_RESERVED = """
    SELECT id, state, committed, spent FROM purchases
     WHERE state IN ('ENDED', 'REFUSED') AND committed <> spent
"""
DAYS_DIFFER = """
    SELECT s.name, s.day, s.committed, sum(p.part) AS of_purchases
      FROM purchase_sums s
      LEFT JOIN (SELECT each.day, each.part
                   FROM purchases p
                  CROSS JOIN LATERAL purchase_days(p.committed, p.split, p.tenant, p.day,
                                                   p.longer, p.longer_days) each) AS p
             ON p.day = s.day
     WHERE s.scope = 'day' GROUP BY s.name, s.day, s.committed
    HAVING s.committed <> coalesce(sum(p.part), 0)
"""
