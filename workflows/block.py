"""One block from its purchase to its end: looks, drain, the end of its machines, its account."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from longshore.models.block import (
        BLOCK_WORKFLOW,
        ENDING,
        BlockEnd,
        BlockInput,
        BlockLook,
        BlockRef,
        BlockVerdict,
        EmptyRequest,
    )
    from longshore.models.block_end import BlockOptionKind, GoOnRequest
    from longshore.models.messages import CommandReason
    from longshore.models.text import dollars
    from longshore.workflows import block_end
    from longshore.workflows import purchase_steps as steps
    from longshore.workflows.arguments import Started
    from longshore.workflows.options import DATABASE_TIMEOUT, MARKET_TIMEOUT
    from longshore.workflows.starting import start_again


_LOOKS_AGAIN = (BlockOptionKind.LET_GO, BlockOptionKind.GO_ON)
"""What changes the block at once."""
_LOOK_AGAIN = timedelta(seconds=30)
"""After a block could not be looked at for `MARKET_TIMEOUT`."""
_STARTS_AGAIN = "starts-again"
"""Blocks from before this left paid time unused whose machine had ended."""
_STOPS_SILENT = "stops-silent"
"""Blocks from before this kept a machine whose agent was silent for as long as it was paid for."""
_SELLS_REST = "sells-rest"
"""Windows that were let go before this were not offered to others."""
_TELLS_LATE = "tells-late"
"""Blocks from before this did not ask whether a commitment came about that they gave up."""
_SEES_OFF = "see-jobs-off"
"""Blocks that were let go before this lost what ran there with their machines."""


@workflow.defn(name=BLOCK_WORKFLOW)
class BlockWorkflow(Started):
    """Completes with how the block's account was closed; nothing of it is left then.

    A block outlives the workflow of its purchase. What is known of it is in the capacity database.
    """

    @workflow.init
    def __init__(self, block: BlockInput) -> None:
        self._block = block
        self._let_go = block.let_go
        self._draining = block.draining
        self._woken = False
        self._until: datetime | None = None
        """Until when its machine goes on, also where that is not seen by a look yet."""
        self._starting: asyncio.Task[None] | None = None
        """Machines that are brought up in place of those that have ended."""

    @workflow.run
    async def run(self, block: BlockInput) -> BlockEnd:
        if block.takes_up:
            await steps.take_up_block(self._ref())
        look = block.seen
        while True:
            look = await self._look(look)
            reason = self._reason_to_end(look)
            if reason:
                break
            decides = look.decides and not self._draining
            if (decides or look.goes_on) and await self._decide(look):
                continue
            if look.idle and not look.decides and not self._draining:
                # A job may have been placed at this moment: it finishes, and nothing follows it.
                await self._drain(look.idle)
                continue
            if not self._draining and workflow.now() >= look.drain_at:
                await self._drain(f"{ENDING} {look.ends_at:%Y-%m-%d %H:%M} UTC")
            if look.silent and not self._draining and workflow.patched(_STOPS_SILENT):
                await self._stop_silent(look.silent)
                continue
            await self._start_again(look)
            await self._wait(look)
            if self._starting is None and workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                seen = BlockLook(ends_at=look.ends_at, drain_at=look.drain_at)
                workflow.continue_as_new(
                    block.model_copy(
                        update={
                            "let_go": self._let_go,
                            "draining": self._draining,
                            "seen": seen,
                            "takes_up": False,
                        }
                    )
                )
        if self._let_go is not None and workflow.patched(_SEES_OFF):
            await self._see_off(reason)
            if look.sells and workflow.patched(_SELLS_REST):
                await self._sell_rest()
        elif not self._draining:
            await self._drain(reason)
        await steps.stop_machines(self._ref(reason))
        if self._starting is not None:
            await self._starting  # nothing that it waits for can come up any more
        end = await steps.close_block(self._ref(reason))
        workflow.set_current_details(
            f"Ended: {reason}. {dollars(end.cost)}, of which {dollars(end.idle)} idle."
        )
        return end

    @workflow.signal(description="End the block before its time; what runs there is queued again")
    def let_go(self, command: CommandReason) -> None:
        """End the block before its time; what runs there leaves first, and is queued again."""
        self._let_go = command.reason or "terminated by hand"

    @workflow.signal(description="Look at the block now")
    def wake(self) -> None:
        """Look at the block now."""
        self._woken = True

    async def _look(self, last: BlockLook | None) -> BlockLook:
        """Look at the block. Where nothing lets it be looked at any more, its drain and its end
        come as they were seen last, and whoever ends it early is heard."""
        if last is None:
            return await steps.look_at_block(self._ref())
        if self._until is not None and self._until > last.ends_at:
            longer = self._until - last.ends_at
            moments = {"ends_at": self._until, "drain_at": last.drain_at + longer}
            last = last.model_copy(update=moments)
        try:
            return await steps.look_at_block(self._ref(), self._left(last))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("it cannot be looked at now: %s", error.cause)
            return BlockLook(
                ends_at=last.ends_at, drain_at=last.drain_at, look_at=workflow.now() + _LOOK_AGAIN
            )

    def _reason_to_end(self, look: BlockLook) -> str:
        if self._let_go is not None:
            return self._let_go
        if look.ends:
            return look.ends
        if look.over:
            return "its machines have ended"
        if look.idle and self._draining:
            return look.idle
        return "its time is over" if workflow.now() >= look.ends_at else ""

    async def _decide(self, look: BlockLook) -> bool:
        """Decide what becomes of the block, and do it; return whether to look again at once."""
        try:
            verdict = await self._verdict(look)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # It stays as it is, and is decided at the next look: whatever that is, its end comes.
            workflow.logger.warning("nothing is decided of the block now: %s", error.cause)
            return False
        lines = [f"### {verdict.kind.value}", "", verdict.reason, ""]
        workflow.set_current_details(
            "\n".join([*lines, *(f"- {line}" for line in verdict.considered)])
        )
        if verdict.kind is BlockOptionKind.RENEW:
            await block_end.renew(verdict)
        for intent in verdict.sales:
            await block_end.sell(intent)
        if verdict.kind is BlockOptionKind.LET_GO:
            # A job may have been placed at this moment: it finishes, and nothing follows it.
            await self._drain(verdict.reason)
        if verdict.kind is BlockOptionKind.GO_ON:
            self._draining = False  # where it drained, that was for its end
        return bool(verdict.sales) or verdict.kind in _LOOKS_AGAIN

    async def _verdict(self, look: BlockLook) -> BlockVerdict:
        """Return what is decided, in time for the drain, or the end of a block that drains. Raises
        ActivityError."""
        verdict = await steps.decide_block(self._ref(), self._left(look))
        if verdict.until is None:
            return verdict
        request = GoOnRequest(
            block_id=self._block.block_id, until=verdict.until, uses=verdict.uses
        )
        try:
            return self._noted(request, await steps.go_on(request, self._left(look)))
        except ActivityError as error:
            if is_cancelled_exception(error) or not workflow.patched(_TELLS_LATE):
                raise
            again = await steps.look_at_block(self._ref(), self._left(look))
            if again.ends_at < request.until:
                raise
            # Its money is committed, and its nodes may not be told: to run again does that.
            return self._noted(request, await steps.go_on(request, self._left(again)))

    def _noted(self, request: GoOnRequest, verdict: BlockVerdict) -> BlockVerdict:
        if verdict.kind is BlockOptionKind.GO_ON:
            self._until = request.until
        return verdict

    def _left(self, look: BlockLook) -> timedelta:
        """Return for how long a step is waited for: until the drain, or the end of a block that
        drains, and as long as a step may take at least. Waited for until its end, jobs had no time
        to leave."""
        by = look.ends_at if self._draining else look.drain_at
        return max(min(by - workflow.now(), MARKET_TIMEOUT), DATABASE_TIMEOUT)

    async def _stop_silent(self, machines: tuple[str, ...]) -> None:
        """Stop machines whose agents do not come back: the next look starts others."""
        await steps.stop_machines(
            BlockRef(
                block_id=self._block.block_id, machines=machines,
                reason="its agent had been silent for too long: another is started",
            )
        )  # fmt: skip

    async def _start_again(self, look: BlockLook) -> None:
        """Begin to bring up what the block lacks, and look again when that has come to its end."""
        if self._starting is not None and self._starting.done():
            await self._starting  # where it failed, this does
            self._starting = None
        if self._starting is not None or self._draining or look.awaits is None:
            return
        if workflow.patched(_STARTS_AGAIN):
            self._starting = asyncio.create_task(self._bring_up(look.starts, look.awaits))

    async def _bring_up(self, numbers: Sequence[int], within: timedelta) -> None:
        try:
            await start_again(self._block.block_id, numbers, within)
        finally:
            self._woken = True

    async def _drain(self, reason: str) -> None:
        await steps.drain_block(self._ref(reason))
        self._draining = True

    async def _see_off(self, reason: str) -> None:
        """Have the jobs leave before the machines do: each has its grace, and is queued again."""
        self._draining = True
        cleared = await steps.clear_block(self._ref(reason))
        if cleared.gone_by is not None:
            await steps.await_empty(
                EmptyRequest(block_id=self._block.block_id, until=cleared.gone_by)
            )

    async def _sell_rest(self) -> None:
        """Sell what others bid for of the time that is given up."""
        verdict = await steps.decide_block(self._ref())
        for intent in verdict.sales:
            await block_end.sell(intent)

    async def _wait(self, look: BlockLook) -> None:
        """Return when there is something to do: an end, a drain, a look, or a signal."""
        moments = [look.ends_at, workflow.now() + self._block.look_every]
        if not self._draining:
            moments.append(look.drain_at)
        if look.idle_at is not None and look.idle_at > workflow.now():
            moments.append(look.idle_at)
        if look.look_at is not None:
            moments.append(look.look_at)
        left: timedelta = max(_first(moments) - workflow.now(), timedelta(0))
        try:
            await workflow.wait_condition(
                lambda: self._let_go is not None or self._woken,
                timeout=left,
                timeout_summary="next look",
            )
        except TimeoutError:
            return
        self._woken = False

    def _ref(self, reason: str = "") -> BlockRef:
        return BlockRef(block_id=self._block.block_id, reason=reason)


def _first(moments: list[datetime]) -> datetime:
    return min(moments)
