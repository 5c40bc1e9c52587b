"""A bought window is let go by hand, and somebody bids for its rest."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio.client import WorkflowHandle

from longshore.models.messages import CommandReason
from longshore.workflows.block import BlockWorkflow
from tests.support.market import RunningMarket


async def play(
    market: RunningMarket,
    bought_node: Callable[..., AbstractAsyncContextManager[WorkflowHandle[Any, Any]]],
    may_trade: Callable[..., Awaitable[None]],
) -> None:
    """Buy a node, let it go, and sell what is left of its time."""
    market.book({"side": "sell", "nodes": 8, "dollars_per_gpu_hour": "2.10"})
    async with bought_node("given-up", {"length": "4h"}) as block:
        await may_trade("given-up")
        await block.signal(BlockWorkflow.wake)
        market.book({"side": "buy", "nodes": 1, "dollars_per_gpu_hour": "1.50"})
        await block.signal(BlockWorkflow.let_go, CommandReason(reason="recorded"))
        await block.result()
