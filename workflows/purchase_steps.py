"""The steps of purchases and blocks as activities: timeouts, retries, their line in the UI."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

from longshore.activities.buying.block_decisions import BlockDecisionActivities
from longshore.activities.buying.block_drain import BlockDrainActivities
from longshore.activities.buying.blocks import BlockActivities
from longshore.activities.buying.machine_extension import MachineExtensionActivities
from longshore.activities.buying.machines import MachineActivities
from longshore.activities.buying.orders import OrderActivities
from longshore.activities.buying.purchasing import PurchasingActivities
from longshore.activities.buying.window_reclaim import WindowReclaimActivities
from longshore.models.block import (
    BlockEnd,
    BlockLook,
    BlockRef,
    BlockVerdict,
    Cleared,
    EmptyRequest,
    ExtendRequest,
)
from longshore.models.block_end import GoOnRequest, SaleIntent, SaleSeen
from longshore.models.purchase import (
    AgentsReport,
    AgentsRequest,
    Intended,
    LeftOrders,
    MachineStart,
    Opened,
    OrderIntent,
    OrderRef,
    OrderSeen,
    PurchaseRef,
    PurchaseRequest,
    Refusal,
    Requote,
    RequoteRequest,
    StateChange,
)
from longshore.models.text import count, format_duration
from longshore.workflows.options import (
    BOUGHT_RETRY,
    DATABASE_RETRY,
    DATABASE_TIMEOUT,
    MARKET_HEARTBEAT_TIMEOUT,
    MARKET_RETRY,
    MARKET_TIMEOUT,
)

S = TypeVar("S")
A = TypeVar("A")
R = TypeVar("R")


async def open_purchase(request: PurchaseRequest) -> Opened:
    return await _store(
        PurchasingActivities.open_purchase, request, "store the intent", retry=DATABASE_RETRY
    )


async def leave_orders(purchase_id: str) -> LeftOrders:
    ref = PurchaseRef(purchase_id=purchase_id)
    return await _store(PurchasingActivities.leave_orders, ref, "order nothing more")


async def intend_order(intent: OrderIntent) -> Intended:
    return await _store(
        OrderActivities.intend_order, intent,
        f"store order {intent.key}: {count(intent.nodes, 'node')} by option {intent.option + 1}",
        retry=DATABASE_RETRY,
    )  # fmt: skip


async def place_order(key: str) -> OrderSeen:
    return await _at_market(OrderActivities.place_order, OrderRef(key=key), f"place {key}")


async def look_at_order(key: str) -> OrderSeen:
    return await _at_market(OrderActivities.look_at_order, OrderRef(key=key), f"read {key}")


async def cancel_order(key: str) -> None:
    await _at_market(OrderActivities.cancel_order, OrderRef(key=key), f"cancel {key}")


async def requote(request: RequoteRequest) -> Requote:
    return await _at_market(OrderActivities.requote, request, "ask for the price again")


async def start_machine(start: MachineStart) -> Refusal:
    return await _at_market(MachineActivities.start_machine, start, f"start {start.name}")


async def await_agents(request: AgentsRequest) -> AgentsReport:
    """Wait for agents as long as the request says, and a while for the market to answer."""
    return await workflow.execute_activity_method(
        MachineActivities.await_agents,
        request,
        start_to_close_timeout=request.within + MARKET_TIMEOUT,
        heartbeat_timeout=MARKET_HEARTBEAT_TIMEOUT,
        retry_policy=MARKET_RETRY,
        summary=f"wait for agents, {format_duration(request.within)} at most",
    )


async def mark_purchase(change: StateChange) -> None:
    await _store(PurchasingActivities.mark_purchase, change, change.state.value)


async def settle_purchase(change: StateChange) -> None:
    await _store(PurchasingActivities.settle_purchase, change, f"settle: {change.state.value}")


async def look_at_block(ref: BlockRef, within: timedelta | None = None) -> BlockLook:
    """Look at a block. Raises ActivityError where that has not come `within`."""
    return await _at_market(BlockActivities.look_at_block, ref, "look at its machines", within)


async def take_up_block(ref: BlockRef) -> None:
    await _store(WindowReclaimActivities.take_up_block, ref, "use its paid time again")


async def drain_block(ref: BlockRef) -> None:
    await _at_market(BlockActivities.drain_block, ref, f"drain: {ref.reason}"[:200])


async def clear_block(ref: BlockRef) -> Cleared:
    return await _at_market(
        BlockDrainActivities.clear_block, ref, f"see its jobs off: {ref.reason}"[:200]
    )


async def await_empty(request: EmptyRequest) -> int:
    """Wait until the jobs of a block have gone, until then at most; return how many have not."""
    left = max(request.until - workflow.now(), timedelta(0))
    return await workflow.execute_activity_method(
        BlockDrainActivities.await_empty,
        request,
        start_to_close_timeout=left + DATABASE_TIMEOUT,
        heartbeat_timeout=MARKET_HEARTBEAT_TIMEOUT,
        retry_policy=BOUGHT_RETRY,
        summary=f"wait for its jobs to leave, {format_duration(left)} at most",
    )


async def stop_machines(ref: BlockRef) -> None:
    await _at_market(BlockActivities.stop_machines, ref, "stop its machines")


async def decide_block(ref: BlockRef, within: timedelta | None = None) -> BlockVerdict:
    """Decide what becomes of a block. Raises ActivityError where that has not come `within`."""
    return await _at_market(
        BlockDecisionActivities.decide_block, ref, "keep, sell or renew", within
    )


async def extend_machines(request: ExtendRequest) -> AgentsReport:
    return await _store(
        BlockDecisionActivities.extend_machines, request,
        f"machines of {request.block_id} go on in {request.next_block}",
    )  # fmt: skip


async def go_on(request: GoOnRequest, within: timedelta) -> BlockVerdict:
    """Have a machine go on. Raises ActivityError where that has not come `within`."""
    return await _store(
        MachineExtensionActivities.go_on,
        request,
        f"go on until {request.until:%Y-%m-%d %H:%M} UTC",
        within,
    )


async def intend_sale(intent: SaleIntent) -> SaleSeen:
    return await _store(
        OrderActivities.intend_sale, intent, f"store sale {intent.key} of {intent.machine}"
    )


async def place_sale(key: str) -> SaleSeen:
    return await _at_market(OrderActivities.place_sale, OrderRef(key=key), f"offer {key}")


async def look_at_sale(key: str) -> SaleSeen:
    return await _at_market(OrderActivities.look_at_sale, OrderRef(key=key), f"read {key}")


async def cancel_sale(key: str) -> None:
    await _at_market(OrderActivities.cancel_sale, OrderRef(key=key), f"cancel {key}")


async def settle_sale(key: str) -> None:
    await _store(OrderActivities.settle_sale, OrderRef(key=key), f"settle {key}")


async def close_block(ref: BlockRef) -> BlockEnd:
    return await _store(BlockActivities.close_block, ref, "close its account")


async def _store(
    step: Callable[[Any, A], Awaitable[R]],
    request: A,
    summary: str,
    within: timedelta | None = None,
    retry: RetryPolicy = BOUGHT_RETRY,
) -> R:
    """Run a step that touches the capacity database alone, for ever unless it is `within`."""
    return await workflow.execute_activity_method(
        step,
        request,
        schedule_to_close_timeout=within,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=retry,
        summary=summary,
    )


async def _at_market(
    step: Callable[[Any, A], Awaitable[R]],
    request: A,
    summary: str,
    within: timedelta | None = None,
) -> R:
    """Run a step that talks to a market, for ever unless it is `within`."""
    return await workflow.execute_activity_method(
        step,
        request,
        schedule_to_close_timeout=within,
        start_to_close_timeout=MARKET_TIMEOUT,
        heartbeat_timeout=MARKET_HEARTBEAT_TIMEOUT,
        retry_policy=MARKET_RETRY,
        summary=summary,
    )
