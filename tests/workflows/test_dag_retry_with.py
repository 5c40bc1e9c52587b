"""A retry with another file: what it changes runs again, and all behind that; nothing else."""

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy

from longshore.client.api import Longshore
from longshore.models.dag_messages import DagInput, dag_workflow_id
from longshore.models.dag_view import DagState
from longshore.models.errors import RefusedError, SpecError
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.workflows.dag import DagWorkflow
from tests.support.scripted_node import ScriptedNode
from tests.workflows.test_dags import a_dag, begun, steps

JOBS = {"a": {}, "side": {}, "b": {"after": "a"}, "c": {"after": "b"}}


async def ended(longshore: Longshore, node: ScriptedNode, pool: str) -> str:
    dag_id = await begun(longshore, a_dag(pool, JOBS))
    for name in JOBS:
        await node.end(f"{dag_id}.{name}")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED
    return dag_id


async def test_what_has_changed_and_all_behind_it_runs_again(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    dag_id = await ended(longshore, node, pool)
    with pytest.raises(RefusedError, match="changes none of its jobs"):
        await longshore.retry_dag(dag_id, a_dag(pool, JOBS))
    changed = {**JOBS, "b": {"after": "a", "command": "false"}, "new": {"after": "side"}}
    spec = a_dag(pool, changed)
    plan = await longshore.plan_retry(dag_id, spec)
    assert (plan.jobs, plan.changed, plan.new) == (("b", "c", "new"), ("b",), ("new",))
    assert (await longshore.dag(dag_id)).generation == 1, "only planned"
    assert await longshore.retry_dag(dag_id, spec) == plan
    asked = await node.end(f"{dag_id}.b.r2")
    assert asked.spec.command == "false"
    await node.end(f"{dag_id}.c.r2")
    await node.end(f"{dag_id}.new.r2")
    again = await longshore.wait_dag(dag_id)
    assert (again.state, again.generation) == (DagState.SUCCEEDED, 2)
    assert steps(again) == dict.fromkeys(changed, "SUCCEEDED")
    assert [job for job, _ in node.runs()].count(f"{dag_id}.side") == 1


async def test_a_file_that_leaves_a_job_out_or_comes_too_early_is_refused(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    dag_id = await begun(longshore, a_dag(pool, {"a": {}}))
    await node.started(f"{dag_id}.a")
    with pytest.raises(RefusedError, match="has not ended"):
        await longshore.retry_dag(dag_id, a_dag(pool, {"a": {"gpus": 2}}))
    await node.end(f"{dag_id}.a")
    await longshore.wait_dag(dag_id)
    without = a_dag(pool, {"z": {}})
    with pytest.raises(SpecError, match="a is not in the file"):
        await longshore.retry_dag(dag_id, without)
    cycle = a_dag(pool, {"a": {"after": "z"}, "z": {"after": "a"}})
    with pytest.raises(SpecError, match="a cycle"):
        await longshore.retry_dag(dag_id, cycle)
    handle = await temporal.start_workflow(  # as another SDK may
        DagWorkflow.run,
        DagInput(retry=True, spec=without),
        id=dag_workflow_id(dag_id),
        task_queue=CONTROL_TASK_QUEUE,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert "a is not in the file" in str(failure.value.cause)
    found = await longshore.dag(dag_id)
    assert (found.state, steps(found)) == (DagState.SUCCEEDED, {"a": "SUCCEEDED"})
