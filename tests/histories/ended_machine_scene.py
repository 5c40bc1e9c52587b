"""A machine of a bought window ends at its market, and is started again on that time."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from temporalio.client import WorkflowHandle

from longshore.activities.providers import registry
from longshore.models.messages import CommandReason
from longshore.workflows.block import BlockWorkflow
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

_ENDED = "SELECT 1 FROM machines WHERE name = :name AND state = 'ENDED'"
_UP = "SELECT 1 FROM machines WHERE name = :name AND state = 'READY'"


async def play(
    market: RunningMarket,
    bought_node: Callable[..., AbstractAsyncContextManager[WorkflowHandle[Any, Any]]],
    node: Callable[..., AbstractAsyncContextManager[Any]],
    is_asked_for: Callable[[str], Awaitable[bool]],
    has: Callable[[str, str], Awaitable[bool]],
) -> None:
    """Buy a node, end its machine, and let the block go once another is there in its place."""
    market.book({"side": "sell", "nodes": 8, "dollars_per_gpu_hour": "2.10"})
    async with bought_node("machine-ended", {"length": "4h"}) as block:
        async with aclosing(registry.connect(market.settings(), "sfcompute")) as provider:
            machines = await provider.machines()
            first = next(each for each in machines if each.name == "machine-ended.1.m1")
            await provider.stop_machine(first.id)
        await block.signal(BlockWorkflow.wake)
        await eventually(lambda: has(_ENDED, "machine-ended.1.m1"))
        await eventually(lambda: is_asked_for("machine-ended.1.m2"))
        async with node("machine-ended.1.m2", pool="machine-ended"):
            await eventually(lambda: has(_UP, "machine-ended.1.m2"))
            await block.signal(BlockWorkflow.let_go, CommandReason(reason="recorded"))
            await block.result()
