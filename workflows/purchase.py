"""One purchase: intent, orders, fills, machines with agents; or nothing is left of it."""

import asyncio
import contextlib
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from longshore.models.base import as_reason
    from longshore.models.block import BlockEnd, BlockInput, ExtendRequest, block_workflow_id
    from longshore.models.market import Offer
    from longshore.models.messages import CommandReason
    from longshore.models.purchase import (
        PURCHASE_WORKFLOW,
        AgentsRequest,
        OrderIntent,
        OrderSeen,
        PurchaseOption,
        PurchaseRequest,
        PurchaseState,
        PurchaseStatus,
        RequoteRequest,
        StateChange,
    )
    from longshore.workflows import purchase_steps as steps
    from longshore.workflows.arguments import Started
    from longshore.workflows.block import BlockWorkflow
    from longshore.workflows.starting import start_machines

_LONGEST_AT_ONCE = timedelta(minutes=10)
"""An order that was to fill at once and has not said so by then is cancelled."""
_TIMES_LATE = 3
"""An order that was held up until its time had begun is made anew so often."""
Block = ChildWorkflowHandle[BlockWorkflow, BlockEnd]
_ONE_WINDOW = "one-window"
"""Purchases from before this ordered again when no machine came up on what they had bought."""
_ONE_REFUSAL = "one-refusal"
"""Purchases from before this tried other offers of a market that lets our key buy nothing."""
_FIRST_POLL, _LONGEST_POLL = timedelta(milliseconds=500), timedelta(seconds=30)


@workflow.defn(name=PURCHASE_WORKFLOW)
class PurchaseWorkflow(Started):
    """Completes when what was bought has agents, or when nothing of it is left.

    Each option is tried for the nodes that those before it did not bring.
    """

    @workflow.init
    def __init__(self, request: PurchaseRequest) -> None:
        self._request = request
        self._id = workflow.info().workflow_id.removeprefix("purchase-")
        self._state = PurchaseState.INTENT
        self._reason = ""
        self._stop: str | None = None
        self._orders: dict[str, OrderSeen] = {}
        self._nodes: list[str] = []
        self._shut: set[str] = set()
        """Markets that let our key order nothing, or want money first."""

    @workflow.run
    async def run(self, request: PurchaseRequest) -> PurchaseStatus:
        life = asyncio.create_task(self._live())
        try:
            return await asyncio.shield(life)
        except asyncio.CancelledError:
            # A request, not an order: what was begun at a market is known to its end first.
            self._stop = as_reason(workflow.cancellation_reason() or "cancelled")
            await life
            raise

    @workflow.signal(
        description="Order nothing more; what has been bought is brought up all the same"
    )
    def stop(self, command: CommandReason) -> None:
        """Order nothing more; what has been bought is brought up all the same."""
        self._stop = command.reason or "stopped by hand"

    @workflow.query(description="Where the purchase is, what it ordered, which nodes it brought")
    def status(self) -> PurchaseStatus:
        return PurchaseStatus(
            purchase_id=self._id, state=self._state, reason=self._reason,
            orders=tuple(self._orders), nodes=tuple(self._nodes),
            spent=sum(seen.spent for seen in self._orders.values()),
        )  # fmt: skip

    async def _live(self) -> PurchaseStatus:
        if self._request.settles:
            await self._settle_what_was_left()
            return self.status()
        opened = await steps.open_purchase(self._request)
        self._enter(opened.state, opened.reason)
        if opened.state is not PurchaseState.INTENT:
            return self.status()  # refused; or an earlier run of this id has begun it
        for number, option in enumerate(self._request.options):
            bought = any(seen.nodes for seen in self._orders.values())
            shut = option.provider in self._shut or (option.instead and bought)
            if self._missing and self._stop is None and not shut:
                await self._try_option(number, option)
        await self._settle()
        return self.status()

    @property
    def _missing(self) -> int:
        return max(self._request.nodes - len(self._nodes), 0)

    async def _try_option(self, number: int, option: PurchaseOption) -> None:
        """Order by one option, as often as its price may be asked for again."""
        limit, offer, reprices = option.limit, option.offer, option.reprices
        late = _TIMES_LATE if option.start is None else 0
        while self._missing and self._stop is None:
            before = self._missing
            seen = await self._order(number, option, limit, offer)
            if seen is not None and seen.late and late:
                late -= 1
                continue
            if offer is not None and self._missing < before:
                continue  # each machine, or cluster, is an order of its own
            forbidden = seen is not None and seen.forbidden
            if forbidden and workflow.patched(_ONE_REFUSAL):
                self._shut.add(option.provider)
            if not self._missing or not reprices or forbidden or self._stop is not None:
                return
            reprices -= 1
            quote = await steps.requote(
                RequoteRequest(purchase_id=self._id, option=number, nodes=self._missing)
            )
            if quote.limit is None:
                self._reason = quote.reason
                return
            limit, offer = quote.limit, quote.offer

    async def _order(
        self, number: int, option: PurchaseOption, limit: int, offer: Offer | None
    ) -> OrderSeen | None:
        """Make one order, and bring up what it bought; None where it may not be made."""
        intent = OrderIntent(
            purchase_id=self._id, number=len(self._orders) + 1, option=number,
            nodes=self._missing if offer is None else offer.nodes, limit=limit, offer=offer,
        )  # fmt: skip
        self._orders[intent.key] = OrderSeen(key=intent.key)
        intended = await steps.intend_order(intent)
        if intended.refused:
            self._reason = intended.refused
            return None
        self._enter(PurchaseState.ORDERED)
        seen = await steps.place_order(intent.key)
        if not intended.is_machine:
            seen = await self._until_over(option, seen)
        self._orders[intent.key] = seen
        if not seen.nodes:
            self._reason = seen.refused or f"order {intent.key} bought nothing"
            return seen
        await self._bring_up(seen, is_machine=intended.is_machine)
        return seen

    async def _until_over(self, option: PurchaseOption, seen: OrderSeen) -> OrderSeen:
        """Read an order until it can bring nothing more; ask for its end when its time is up."""
        until = workflow.now() + (option.standing_for or _LONGEST_AT_ONCE)
        wait, asked = _FIRST_POLL, False
        while not seen.over:
            if not asked and (workflow.now() >= until or self._stop is not None):
                await steps.cancel_order(seen.key)
                asked = True
            left = wait if asked else min(wait, max(until - workflow.now(), timedelta(0)))
            await workflow.sleep(left, summary=f"next look at {seen.key}")
            wait = min(2 * wait, _LONGEST_POLL)
            seen = await steps.look_at_order(seen.key)
        return seen

    async def _bring_up(self, seen: OrderSeen, *, is_machine: bool) -> None:
        """Turn what an order bought into nodes, or let it go."""
        self._enter(PurchaseState.FILLED)
        block = await self._start_block(seen.key)
        ready = await self._machines(seen, block, is_machine=is_machine)
        self._nodes += ready
        if ready:
            return
        self._enter(PurchaseState.COMPENSATING, self._reason)
        await steps.mark_purchase(
            StateChange(purchase_id=self._id, state=self._state, reason=self._reason)
        )
        with contextlib.suppress(FailureError):  # it has ended by itself, or by hand
            await block.signal(BlockWorkflow.let_go, CommandReason(reason=self._reason))
        end = await block
        self._orders[seen.key] = seen.model_copy(update={"spent": end.cost})

    async def _start_block(self, block_id: str) -> Block:
        return await workflow.start_child_workflow(
            BlockWorkflow.run,
            BlockInput(block_id=block_id),
            id=block_workflow_id(block_id),
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=f"block {block_id} of pool {self._request.pool}",
        )

    async def _machines(
        self, seen: OrderSeen, block: Block, *, is_machine: bool
    ) -> tuple[str, ...]:
        """Start a machine for each node, and another for one that failed; return the ready.

        Where the time follows that of a block, its machines go on; its own workflow starts those
        that are missing.
        """
        if self._request.renews is not None:
            extended = await steps.extend_machines(
                ExtendRequest(block_id=self._request.renews, next_block=seen.key)
            )
            if extended.ready:
                self._enter(PurchaseState.STARTING)
                return extended.ready
        if seen.window is not None and seen.window.start > workflow.now():
            await workflow.sleep(seen.window.start - workflow.now(), summary="until its time")
        self._enter(PurchaseState.STARTING)
        return await self._ready_machines(seen, block, is_machine=is_machine)

    async def _ready_machines(
        self, seen: OrderSeen, block: Block, *, is_machine: bool
    ) -> tuple[str, ...]:
        """Return the machines that came up. Those that did not are tried again as long as their
        time is paid for, and its rest is of use."""
        ready: tuple[str, ...] = ()
        waiting: list[int] = []
        pause: timedelta | None = None
        started = rounds = 0
        while True:
            if not is_machine:
                more = seen.nodes - len(ready) - len(waiting)
                numbers = [*waiting, *range(started + 1, started + more + 1)]
                started += more
                asked = await start_machines(seen.key, numbers)
                waiting, pause = asked.refused, asked.pause
                self._reason = asked.reason or self._reason
            if len(ready) + len(waiting) < seen.nodes:
                report = await steps.await_agents(
                    AgentsRequest(block_id=seen.key, within=self._request.ready_within)
                )
                ready = report.ready
                if len(ready) >= seen.nodes:
                    return ready
                failed = sorted(report.failed.items())
                self._reason = "; ".join(f"{n}: {why}" for n, why in failed) or self._reason
                if report.block_ends:
                    # Somebody let it go, perhaps because it has done its work: that is no failure
                    # to be made good by another order.
                    self._stop = self._stop or report.block_ends
                    return ready
                rounds += not waiting
                if not waiting and rounds >= (1 if is_machine else self._request.machine_tries):
                    pause = report.again
                    if pause is None:
                        self._buy_no_second_window(seen)
                        return ready
            if pause is not None:
                self._enter(self._state)
                with contextlib.suppress(TimeoutError):
                    await workflow.wait_condition(
                        block.done, timeout=pause, timeout_summary="the next start on paid time"
                    )

    def _buy_no_second_window(self, seen: OrderSeen) -> None:
        """Its time was tried to its end: whoever waits yet has been thought of since."""
        if seen.window is not None and workflow.patched(_ONE_WINDOW):
            self._stop = self._stop or self._reason

    async def _settle(self) -> None:
        """Buy no more. What brought no node has been let go by now."""
        state = PurchaseState.READY if self._nodes else PurchaseState.COMPENSATING
        if not self._missing:
            self._reason = ""  # what was refused on the way is told by its orders and machines
        reason = self._stop or self._reason
        await steps.settle_purchase(StateChange(purchase_id=self._id, state=state, reason=reason))
        self._enter(state if self._nodes else PurchaseState.ENDED, reason)

    async def _settle_what_was_left(self) -> None:
        """Bring to its end what a run before this one had ordered, and order nothing more.

        A block starts what its paid time lacks once its purchase is settled. What is billed as it
        runs is waited for here: an agent that does not come costs money.
        """
        self._stop = "its workflow was ended from outside"
        left = await steps.leave_orders(self._id)
        self._enter(left.state)
        self._nodes += left.nodes
        bought = left.blocks > 0
        for order in left.open:
            seen = await steps.place_order(order.key)
            if not order.is_machine:
                seen = await self._until_over(self._request.options[order.option], seen)
            self._orders[order.key] = seen
            if not seen.nodes:
                continue
            bought = True
            with contextlib.suppress(WorkflowAlreadyStartedError):
                await self._start_block(order.key)
            if order.is_machine:
                report = await steps.await_agents(
                    AgentsRequest(block_id=order.key, within=self._request.ready_within)
                )
                self._nodes += [name for name in report.ready if name not in self._nodes]
        state = PurchaseState.READY if self._nodes else left.state
        if not bought:
            state = PurchaseState.COMPENSATING
        await steps.settle_purchase(
            StateChange(purchase_id=self._id, state=state, reason=self._stop)
        )
        self._enter(state if bought else PurchaseState.ENDED, self._stop)

    def _enter(self, state: PurchaseState, reason: str = "") -> None:
        self._state = state
        self._reason = reason or self._reason
        lines = [f"### {state.value}", "", self._reason, ""]
        lines += [f"- node {node}" for node in self._nodes]
        workflow.set_current_details("\n".join(lines))
