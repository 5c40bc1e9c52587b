"""What a block's workflow does of a decision: a sale from its intent to its end, a renewal."""

import contextlib
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from longshore.models.block import BlockRef, BlockVerdict
    from longshore.models.block_end import SaleIntent, SaleSeen
    from longshore.models.purchase import PURCHASE_WORKFLOW, purchase_workflow_id
    from longshore.workflows import purchase_steps as steps

_LONGEST = timedelta(minutes=2)
"""A sale is to fill at once; one that has not said so by then is cancelled."""
_FIRST_POLL, _LONGEST_POLL = timedelta(milliseconds=500), timedelta(seconds=30)


async def sell(intent: SaleIntent) -> SaleSeen:
    """Sell the rest of a node's time, and end its machine; without a buyer jobs get it back."""
    seen = await steps.intend_sale(intent)
    if seen.over:
        return seen
    seen = await _until_over(await steps.place_sale(intent.key))
    if seen.sold:
        # Its time is somebody else's soon: the market would end any machine that is too many.
        await steps.stop_machines(
            BlockRef(
                block_id=intent.block_id, machines=(intent.machine,), reason="its time was sold"
            )
        )
    await steps.settle_sale(intent.key)
    return seen


async def renew(verdict: BlockVerdict) -> None:
    """Begin the purchase of the time after a block; it goes on by itself."""
    assert verdict.renewal is not None
    with contextlib.suppress(WorkflowAlreadyStartedError):
        await workflow.start_child_workflow(
            PURCHASE_WORKFLOW,
            verdict.renewal,
            id=purchase_workflow_id(verdict.purchase_id),
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=f"the time after block {verdict.renewal.renews}",
        )


async def _until_over(seen: SaleSeen) -> SaleSeen:
    """Read a sale until it can bring nothing more; ask for its end when that takes long."""
    until = workflow.now() + _LONGEST
    wait, asked = _FIRST_POLL, False
    while not seen.over:
        if not asked and workflow.now() >= until:
            await steps.cancel_sale(seen.key)
            asked = True
        await workflow.sleep(wait, summary=f"next look at {seen.key}")
        wait = min(2 * wait, _LONGEST_POLL)
        seen = await steps.look_at_sale(seen.key)
    return seen
