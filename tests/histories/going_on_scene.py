"""A machine that is billed as it runs goes on: a cap refuses it, then nothing does."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from temporalio.client import WorkflowHandle

from longshore.activities.providers import registry
from longshore.models.messages import CommandReason
from longshore.workflows.block import BlockWorkflow
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

_RUNS = "SELECT 1 FROM placements WHERE job_id = :name AND ended_at IS NULL"
_REFUSED = "SELECT 1 FROM blocks WHERE id = :name AND decision ->> 'kind' = 'keep'"
_GOES_ON = """
    SELECT 1 FROM blocks b JOIN nodes n ON n.block_id = b.id AND n.state = 'READY'
     WHERE b.id = :name AND b.ends_at > now() + interval '5 minutes' AND b.state = 'OPEN'
"""
_ENDS_SOON = (
    "UPDATE orders SET starts_at = starts_at - interval '4 hours' WHERE key = 'goes-on.1'",
    "UPDATE blocks SET starts_at = starts_at - interval '4 hours',"
    " ends_at = now() + interval '2 minutes' WHERE id = 'goes-on.1'",
)


async def play(
    market: RunningMarket,
    bought_node: Callable[..., AbstractAsyncContextManager[WorkflowHandle[Any, Any]]],
    start_job: Callable[..., Awaitable[Any]],
    may_trade: Callable[..., Awaitable[None]],
    change: Callable[[str], Awaitable[None]],
    has: Callable[[str, str], Awaitable[bool]],
) -> None:
    """Buy a machine whose job overruns; it is drained for its end by then, and goes on."""
    async with aclosing(registry.connect(market.settings(), "prime")) as provider:
        offer = next(each for each in await provider.offers() if not (each.spot or each.unusable))
    option = {
        "provider": "prime", "instance_type": offer.instance_type, "gpus_per_node": offer.gpus,
        "limit": offer.price, "offer": offer,
    }  # fmt: skip
    async with bought_node("goes-on", option, machine="goes-on.1") as block:
        fits: dict[str, Any] = {"pool": "goes-on", "expected_duration": "1ms"}
        job = await start_job("overruns-too", recorded=False, **fits)
        await eventually(lambda: has(_RUNS, "overruns-too"))
        for statement in _ENDS_SOON:
            await change(statement)
        await may_trade("goes-on", caps={"per_purchase": 1})
        await block.signal(BlockWorkflow.wake)
        await eventually(lambda: has(_REFUSED, "goes-on.1"))
        await may_trade("goes-on")
        await block.signal(BlockWorkflow.wake)
        await eventually(lambda: has(_GOES_ON, "goes-on.1"))
        await job.cancel(reason="recorded")
        await block.signal(BlockWorkflow.let_go, CommandReason(reason="recorded"))
        await block.result()
