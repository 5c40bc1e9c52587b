"""What reconcile does for a DAG: the end of a terminated job is an end like any other."""

import asyncio
from datetime import timedelta

from temporalio.client import Client

from longshore.client.api import Longshore
from longshore.client.reconcile import reconcile
from longshore.models.dag import DagSpec, DagState, StepState
from longshore.models.messages import job_workflow_id
from longshore.models.reconcile import ReconcileRequest
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

AT_ONCE = timedelta(seconds=0.3)
SOON = ReconcileRequest(margin=AT_ONCE, missing_margin=AT_ONCE, second_look=AT_ONCE)


async def test_a_terminated_job_has_failed_for_its_dag(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    spec = DagSpec.model_validate({
        "name": "dag", "pool": pool,
        "jobs": {
            "a": {"command": "true"},
            "mend": {"command": "true", "after": {"a": "failure"}},
        },
    })  # fmt: skip
    dag_id = (await longshore.submit_dag(spec)).dag_id
    await node.started(f"{dag_id}.a")
    await temporal.get_workflow_handle(job_workflow_id(f"{dag_id}.a")).terminate()
    mended = asyncio.create_task(node.end(f"{dag_id}.mend"))

    async def is_told() -> bool:
        await reconcile(longshore, SOON)
        return mended.done()

    await eventually(is_told)
    ended = await longshore.wait_dag(dag_id)
    assert ended.state is DagState.SUCCEEDED
    assert {step.name: step.step for step in ended.steps} == {
        "a": StepState.FAILED, "mend": StepState.SUCCEEDED,
    }  # fmt: skip
