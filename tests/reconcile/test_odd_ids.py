"""Workflows under ids that no row can have: whoever may start one does not stop the others."""

import uuid
from datetime import timedelta

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.client.reconcile import reconcile
from longshore.models.block import BLOCK_WORKFLOW
from longshore.models.dag_messages import DAG_WORKFLOW
from longshore.models.messages import ARRAY_WORKFLOW, JOB_WORKFLOW, NODE_WORKFLOW, POOL_WORKFLOW
from longshore.models.purchase import PURCHASE_WORKFLOW
from longshore.models.reconcile import ReconcileRequest
from longshore.models.service_messages import SERVICE_WORKFLOW
from tests.support.control import a_spec
from tests.support.waiting import eventually

AT_ONCE = timedelta(seconds=0.1)
SOON = ReconcileRequest(margin=AT_ONCE, missing_margin=AT_ONCE, second_look=AT_ONCE)


KINDS = {
    JOB_WORKFLOW: "job-", ARRAY_WORKFLOW: "job-", DAG_WORKFLOW: "dag-", NODE_WORKFLOW: "node-",
    POOL_WORKFLOW: "pool-", BLOCK_WORKFLOW: "block-", PURCHASE_WORKFLOW: "purchase-",
    SERVICE_WORKFLOW: "service-",
}  # fmt: skip


@pytest.mark.exhaustive
async def test_ids_with_nul_stop_neither_reconcile_nor_the_list_of_jobs(
    longshore: Longshore, temporal: Client, control: Database, pool: str
):
    job_id = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    # No worker asks this queue: they go on until somebody ends them.
    flows = [
        await temporal.start_workflow(
            kind, id=f"{prefix}{kind}{uuid.uuid4().hex[:8]}\0", task_queue="nobody"
        )
        for kind, prefix in KINDS.items()
    ]

    async def listed(state: str) -> bool:
        query = f"TaskQueue = 'nobody' AND ExecutionStatus = '{state}'"
        found = {each.id async for each in temporal.list_workflows(query)}
        return found >= {flow.id for flow in flows}

    await eventually(lambda: listed("Running"))
    for _ in range(2):
        await reconcile(longshore, SOON)
    for flow in flows:
        await flow.terminate()
    await eventually(lambda: listed("Terminated"))
    assert [each.id for each in await longshore.list(pool=pool)] == [job_id]
    await reconcile(longshore, SOON)
