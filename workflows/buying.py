"""One decision of a pool about buying, and the purchases that come of it.

It is apart from the pool's workflow, which no market may hold up; and apart from its purchases,
which outlive it. One of a pool runs at a time: its id is the pool's.
"""

import contextlib
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from longshore.activities.buying.decisions import BuyingActivities
    from longshore.models.block import BlockInput, block_workflow_id
    from longshore.models.purchase import (
        BUYING_WORKFLOW,
        Bought,
        BuyingInput,
        BuyingRequest,
        purchase_workflow_id,
    )
    from longshore.models.text import count
    from longshore.workflows.block import BlockWorkflow
    from longshore.workflows.options import MARKET_HEARTBEAT_TIMEOUT
    from longshore.workflows.purchase import PurchaseWorkflow

_DECISION_TIMEOUT = timedelta(minutes=2)
_A_FEW_TIMES = RetryPolicy(maximum_attempts=5)
"""The pool asks again as long as jobs wait."""


@workflow.defn(name=BUYING_WORKFLOW)
class BuyingWorkflow:
    """Begun by a pool's cycle when jobs are left waiting and the pool may buy."""

    @workflow.run
    async def run(self, buying: BuyingInput) -> Bought:
        began = workflow.now()
        bought = await workflow.execute_activity_method(
            BuyingActivities.decide_buying,
            BuyingRequest(pool=buying.pool, decision_id=workflow.info().run_id),
            start_to_close_timeout=_DECISION_TIMEOUT,
            heartbeat_timeout=MARKET_HEARTBEAT_TIMEOUT,
            retry_policy=_A_FEW_TIMES,
            summary=f"what pool {buying.pool} buys now",
        )
        for purchase_id, request in sorted(bought.purchases.items()):
            await workflow.start_child_workflow(
                PurchaseWorkflow.run,
                request,
                id=purchase_workflow_id(purchase_id),
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=f"{count(request.nodes, 'node')} for pool {buying.pool}",
            )
        workflow.set_current_details(
            "\n".join([bought.reason, "", *(f"- {line}" for line in bought.considered)])
        )
        for block_id in bought.takes_up:
            with contextlib.suppress(WorkflowAlreadyStartedError):  # an earlier decision has
                await workflow.start_child_workflow(
                    BlockWorkflow.run,
                    BlockInput(block_id=block_id, takes_up=True),
                    id=block_workflow_id(block_id),
                    parent_close_policy=ParentClosePolicy.ABANDON,
                    static_summary=f"block {block_id} of pool {buying.pool}, taken up again",
                )
        left = buying.at_least - (workflow.now() - began)
        if left > timedelta(0):
            await workflow.sleep(left, summary="the next decision")
        return bought
