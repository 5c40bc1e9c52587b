"""The scenes of `tests/histories/record.py` in which time is bought."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.views import set_pool
from longshore.models.block import block_workflow_id
from longshore.models.buying import BuyingPolicy
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    CommandReason,
)
from longshore.models.pool import PoolSpec
from longshore.models.purchase import (
    PurchaseRequest,
    PurchaseStatus,
    buying_workflow_id,
    machine_name,
    order_key,
    purchase_workflow_id,
)
from longshore.workflows.block import BlockWorkflow
from longshore.workflows.purchase import PurchaseWorkflow
from tests.histories.recorder import Recorder
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

_UNSOLD = """
    SELECT 1 FROM orders s JOIN machines m ON m.name = s.machine
      JOIN nodes n ON n.id = m.name AND n.state = 'READY'
     WHERE s.block_id = :name AND s.state = 'UNSOLD' AND m.sale_key IS NULL
"""
_RUNS = "SELECT 1 FROM placements WHERE job_id = :name AND ended_at IS NULL"
_RENEWED = "SELECT 1 FROM purchases WHERE renews = :name AND state = 'READY' AND NOT buying"


class BuyingScenes(Recorder):
    """Buys time, and runs jobs there."""

    async def bought(self) -> None:
        """Buy time that brings no agent, is refused, is cancelled too late, and is let go."""
        market = self._market
        sale: dict[str, Any] = {"side": "sell", "nodes": 8}
        market.book({**sale, "dollars_per_gpu_hour": "2.10"})
        for name, option, changes in (
            ("refused", {"limit": 0}, {}),
            ("repriced", {"limit": 1_000_000, "cap": 3_000_000, "reprices": 1}, {}),
            ("silent", {}, {"machine_tries": 2}),
        ):
            await self._buy(name, option, **changes)
        market.book({**sale, "dollars_per_gpu_hour": "9.00"})
        market.fault("cancel_race")
        await self._buy("late-fill", {"standing_for": "1s", "partial": False})
        market.book({**sale, "dollars_per_gpu_hour": "2.10"})
        await BuyingSwitch(self._database).stop("for the record")
        await self._buy("stopped", {})
        await BuyingSwitch(self._database).resume()
        await self._buy_a_node(market)
        await self._sell_a_node(market)
        await self._renew(market)
        await self._let_go_under_a_job(market)
        await self._decide()

    async def _buy(self, name: str, option: dict[str, Any], **changes: Any) -> PurchaseStatus:
        """Buy one node for an hour that nobody brings an agent to."""
        fields: dict[str, Any] = {
            "provider": "sfcompute", "instance_type": "8xH100", "gpus_per_node": 8,
            "length": "1h", "limit": 2_500_000, **option,
        }  # fmt: skip
        request = PurchaseRequest.model_validate(
            {"pool": "bought", "options": [fields], "ready_within": "2s", **changes}
        )
        bought = await self._temporal.execute_workflow(
            PurchaseWorkflow.run,
            request,
            id=self._record(purchase_workflow_id(name)),
            task_queue=CONTROL_TASK_QUEUE,
        )
        for row in await self._blocks_of(name):
            self._record(block_workflow_id(row))
        return bought

    async def _buy_a_node(self, market: RunningMarket) -> None:
        """Buy a node that gets an agent, and let it go by hand."""
        buying = asyncio.create_task(self._buy("ready", {}, ready_within="60s"))
        name = machine_name(order_key("ready", 1), 1)
        await eventually(lambda: self._is_asked_for(name))
        async with self._node(name, pool="bought"):
            await buying
            block = self._temporal.get_workflow_handle(block_workflow_id(order_key("ready", 1)))
            await block.signal(BlockWorkflow.let_go, CommandReason(reason="no longer needed"))
            await block.result()

    async def _sell_a_node(self, market: RunningMarket) -> None:
        """Buy a node that is idle, and sell its rest; the first time there is no buyer."""
        async with self._bought_node("sold", {"length": "4h"}) as block:
            market.book({"side": "buy", "nodes": 1, "dollars_per_gpu_hour": "1.50"})
            market.fault("order_unfilled")
            await self._may_trade("sold")
            await block.signal(BlockWorkflow.wake)
            await eventually(lambda: self._has(_UNSOLD, "sold.1"))
            await self._tries_again("sold.1")
            await block.signal(BlockWorkflow.wake)
            await block.result()

    async def _renew(self, market: RunningMarket) -> None:
        """Buy a node whose job overruns, and the time after it; let both go."""
        market.book({"side": "sell", "nodes": 8, "dollars_per_gpu_hour": "2.10"})
        async with self._bought_node("renewed", {}) as block:
            job = await self._start_job(
                "overruns", pool="renewed", recorded=False, gpus=8, expected_duration="1ms"
            )
            await eventually(lambda: self._has(_RUNS, "overruns"))
            await self._change(
                "UPDATE blocks SET starts_at = starts_at - interval '4 hours',"
                " ends_at = date_trunc('minute', now()) + interval '20 minutes'"
                " WHERE id = 'renewed.1'"
            )
            await self._may_trade("renewed")
            await block.signal(BlockWorkflow.wake)
            await eventually(lambda: self._has(_RENEWED, "renewed.1"))
            await job.cancel(reason="recorded")
            async with self._database.transaction() as connection:
                next_purchase = await connection.scalar(
                    text("SELECT id FROM purchases WHERE renews = 'renewed.1'")
                )
            self._record(purchase_workflow_id(next_purchase))
            after = self._temporal.get_workflow_handle(
                self._record(block_workflow_id(order_key(next_purchase, 1)))
            )
            for each in (block, after):
                await each.signal(BlockWorkflow.let_go, CommandReason(reason="recorded"))
                await each.result()

    async def _let_go_under_a_job(self, market: RunningMarket) -> None:
        """Let a block go while a job runs there, which leaves first."""
        market.book({"side": "sell", "nodes": 8, "dollars_per_gpu_hour": "2.10"})
        async with self._bought_node("let-go", {}) as block:
            fits: dict[str, Any] = {"pool": "let-go", "expected_duration": "1s"}
            job = await self._start_job("gone", recorded=False, **fits)
            await eventually(lambda: self._has(_RUNS, "gone"))
            await block.signal(BlockWorkflow.let_go, CommandReason(reason="too dear"))
            await block.result()
            await job.cancel(reason="recorded")

    @asynccontextmanager
    async def _bought_node(
        self, name: str, option: dict[str, Any], machine: str = ""
    ) -> AsyncIterator[WorkflowHandle[Any, Any]]:
        """Buy a node that gets an agent, in a pool of its own; yield its block."""
        buying = asyncio.create_task(self._buy(name, option, pool=name, ready_within="60s"))
        machine = machine or machine_name(order_key(name, 1), 1)
        await eventually(lambda: self._is_asked_for(machine))
        async with self._node(machine, pool=name):
            await self._change(f"UPDATE nodes SET block_id = '{name}.1' WHERE id = '{machine}'")
            await buying
            yield self._temporal.get_workflow_handle(block_workflow_id(order_key(name, 1)))

    async def _may_trade(self, pool: str, **fields: Any) -> None:
        policy = BuyingPolicy(enabled=True, startup_limit=timedelta(hours=1), **fields)
        async with self._database.transaction() as connection:
            await set_pool(connection, PoolSpec(name=pool, buying=policy))

    async def _tries_again(self, block: str) -> None:
        """Let a sale that found no buyer be as if it had been long ago."""
        await self._change(f"UPDATE blocks SET tried_at = NULL WHERE id = '{block}'")

    async def _decide(self) -> None:
        """Have a pool decide what it buys for a job that nothing can hold."""
        spec = PoolSpec(name="buys", buying=BuyingPolicy(enabled=True))
        async with self._database.transaction() as connection:
            await set_pool(connection, spec)
        job = await self._start_job("lacking", pool="buys", recorded=False, gpus=8)
        handle = self._temporal.get_workflow_handle(self._record(buying_workflow_id("buys")))
        await eventually(lambda: self._has_decided(handle))
        await job.cancel(reason="decided")

    async def _has_decided(self, handle: WorkflowHandle[Any, Any]) -> bool:
        try:
            return bool((await handle.result())["purchases"])
        except RPCError as error:
            raise AssertionError(str(error)) from error

    async def _is_asked_for(self, name: str) -> bool:
        async with self._database.transaction() as connection:
            found = await connection.scalar(
                text("SELECT state FROM machines WHERE name = :name"), {"name": name}
            )
        return found == "STARTING"

    async def _blocks_of(self, purchase_id: str) -> list[str]:
        ids = text("SELECT id FROM blocks WHERE purchase_id = :id")
        async with self._database.transaction() as connection:
            return list(await connection.scalars(ids, {"id": purchase_id}))
