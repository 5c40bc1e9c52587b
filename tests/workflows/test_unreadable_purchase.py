"""A purchase whose row cannot be read is given up before it orders."""

import asyncio
import uuid

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from longshore.models.purchase import (
    Intended,
    Opened,
    OrderIntent,
    PurchaseRequest,
    PurchaseState,
    purchase_workflow_id,
)
from longshore.workflows.purchase import PurchaseWorkflow
from tests.buying.buyer import block_option


class Unreadable:
    """The activities of purchases, of which one cannot read the row."""

    def __init__(self, step: str) -> None:
        self._step = step

    @activity.defn
    async def open_purchase(self, request: PurchaseRequest) -> Opened:
        self._read("open_purchase")
        return Opened(state=PurchaseState.INTENT)

    @activity.defn
    async def intend_order(self, intent: OrderIntent) -> Intended:
        self._read("intend_order")
        raise AssertionError(intent)

    def _read(self, here: str) -> None:
        if here == self._step:
            raise ApplicationError("request: it cannot be read", type="ValidationError")


@pytest.mark.parametrize("step", ["open_purchase", "intend_order"])
async def test_a_purchase_is_given_up_whose_row_cannot_be_read_before_it_orders(
    temporal: Client, step: str
):
    steps, queue = Unreadable(step), f"purchases-{uuid.uuid4().hex}"
    request = PurchaseRequest(options=(block_option(),))
    async with Worker(
        temporal, task_queue=queue, workflows=[PurchaseWorkflow],
        activities=[steps.open_purchase, steps.intend_order],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):  # fmt: skip
        bought = temporal.execute_workflow(
            PurchaseWorkflow.run, request, id=purchase_workflow_id(queue), task_queue=queue
        )
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(bought, 20)
