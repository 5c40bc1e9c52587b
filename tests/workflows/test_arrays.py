"""An array's workflow and its slots, on a scripted node."""

import pytest
from temporalio.client import Client, WorkflowFailureError

from benchmarks.costs import billed
from longshore.client.api import Longshore
from longshore.client.submission import new_job_id
from longshore.models.array_messages import ArrayInput
from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagState
from longshore.models.elements import ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import (
    ARRAY_WORKFLOW,
    CONTROL_TASK_QUEUE,
    JOB_WORKFLOW,
    JobInput,
    job_workflow_id,
)
from longshore.models.retry import FailureClass
from longshore.models.search import SEARCH_ATTRIBUTES
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


def a_spec(pool: str, array: object, **fields: object) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "array", "command": "true", "pool": pool, "array": array, **fields}
    )


async def test_an_array_takes_few_actions_and_few_slots(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    array_id = (await longshore.submit(a_spec(pool, "0-39"))).job_id
    slots = [f"{array_id}.s{number}" for number in range(1, 9)]
    await node.end_batches(*slots)
    assert (await longshore.wait(array_id)).state is JobState.SUCCEEDED
    actions = 0
    for job_id in (array_id, *slots):
        handle = temporal.get_workflow_handle(job_workflow_id(job_id))
        actions += billed(await handle.fetch_history()).total()
    # 8 slots of 6 actions, 2 for each of some 25 batches, and those of the array.
    assert actions < 160, "as single jobs they would take 240"


async def test_an_array_runs_as_soon_as_an_element_does(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    """Its workflow learns of that only with its next look."""
    array_id = (await longshore.submit(a_spec(pool, "0-1%1"))).job_id
    await node.batch_of(f"{array_id}.s1")

    async def runs() -> bool:
        status = await longshore.status(array_id)
        assert (status.state, status.reason) == (
            JobState.RUNNING, "of 2 elements 1 running, 1 waiting"
        )  # fmt: skip
        return True

    await eventually(runs)
    assert (await longshore.job(array_id)).state is JobState.RUNNING
    async for status in longshore.watch(array_id):
        assert status.state is JobState.RUNNING
        break
    await node.end_batch(f"{array_id}.s1")
    await node.end_batch(f"{array_id}.s1")
    assert (await longshore.wait(array_id)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_a_node_that_is_lost_for_good_costs_what_may_have_run(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    retry = {"node": {"max_retries": 2, "backoff": 0}}
    array_id = (await longshore.submit(a_spec(pool, "0-1%1", retry=retry))).job_id
    await node.batch_of(f"{array_id}.s1")
    node.loses_reports = True
    await node.register(boot_id="another life")
    await node.batch_of(f"{array_id}.s1", attempt=2)
    node.loses_reports = False
    await node.end_batch(f"{array_id}.s1", attempt=2)
    await eventually(lambda: node.end_batch(f"{array_id}.s1", attempt=2))
    assert (await longshore.wait(array_id)).state is JobState.SUCCEEDED
    found = await longshore.elements(array_id, all_attempts=True)
    assert [(each.index, each.attempt, each.failure) for each in found] == [
        (0, 1, FailureClass.NODE), (0, 2, None), (1, 1, None),
    ]  # fmt: skip


@pytest.mark.exhaustive
async def test_an_array_is_a_job_of_a_dag(longshore: Longshore, node: ScriptedNode, pool: str):
    spec = DagSpec.model_validate(
        {
            "name": "dag", "pool": pool,
            "jobs": {
                "sweep": {"command": "true", "array": "0-1%1"},
                "mend": {"command": "true", "after": {"sweep": "failure"}},
            },
        }
    )  # fmt: skip
    dag_id = (await longshore.submit_dag(spec)).dag_id
    await node.end_batch(f"{dag_id}.sweep.s1", failure=FailureClass.USER)
    await node.end_batch(f"{dag_id}.sweep.s1")
    await node.end(f"{dag_id}.mend")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED


async def test_an_array_started_as_a_job_is_refused_and_the_other_way_round(
    temporal: Client, node: ScriptedNode, pool: str
):
    for workflow, given, says in (
        (JOB_WORKFLOW, JobInput(spec=a_spec(pool, "0-1")), "ArrayWorkflow runs arrays"),
        (
            ARRAY_WORKFLOW,
            ArrayInput(spec=JobSpec(name="x", command="true", pool=pool)),
            "JobWorkflow runs a single job",
        ),
        (ARRAY_WORKFLOW, ArrayInput(spec=a_spec(pool, "a.csv")), "a.csv is a file of whoever"),
    ):
        job_id = job_workflow_id(f"{pool}-{len(says)}")
        handle = await temporal.start_workflow(
            workflow, given, id=job_id, task_queue=CONTROL_TASK_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert says in str(failed.value.cause)


async def test_the_same_key_again_is_the_same_array(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    spec = a_spec(pool, "0")
    first = await longshore.submit(spec, key="k")
    again = await longshore.submit(spec, key="k")
    assert (first.created, again.created, again.job_id) == (True, False, first.job_id)
    await node.end_batch(f"{first.job_id}.s1")
    assert (await longshore.wait(first.job_id)).state is JobState.SUCCEEDED
    array = (await longshore.report(first.job_id)).array
    assert array
    assert array.counts == {ElementState.SUCCEEDED: 1}


async def test_an_array_from_any_sdk_has_its_search_attributes(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    array_id = new_job_id(a_spec(pool, "0"), None)
    handle = await temporal.start_workflow(
        ARRAY_WORKFLOW,
        {"spec": {"name": "x", "command": "true", "pool": pool, "array": "0", "gpus": 2}},
        id=job_workflow_id(array_id), task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    await node.batch_of(f"{array_id}.s1")

    async def runs() -> bool:
        told = (await handle.describe()).typed_search_attributes
        found = {pair.key.name: pair.value for pair in told if pair.key.name in SEARCH_ATTRIBUTES}
        return found == {
            "Tenant": "default", "Pool": pool, "JobState": "RUNNING", "GpuCount": 2,
            "PriorityClass": 5,
        }  # fmt: skip

    await eventually(runs)
    assert (await handle.query("status", result_type=JobStatus)).state is JobState.RUNNING
    await node.end_batch(f"{array_id}.s1")
    await handle.result()
