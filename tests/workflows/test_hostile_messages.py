"""Messages that are made to hold up the control worker. Whoever sends them has no join token."""

import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError

from longshore.client.api import Longshore
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, job_workflow_id, node_workflow_id
from longshore.models.node_messages import NodeInput, Registration
from longshore.workflows.node import NodeWorkflow
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode
from tests.workflows.test_dags import a_dag, begun

A_ROW = [0, 1, "NV18"]
ODD = (None, b"abc", Payload(data=b"abc"))
"""What a converter gives on as it is, whatever the handler takes."""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (100_000, "bytes as JSON; 500,000 is the most"),
        (30_000, "inventory.topology.links[0][0]: must be "),
    ],
)
async def test_a_registration_with_very_many_rows_is_refused_and_holds_up_nobody(
    temporal: Client, longshore: Longshore, node: ScriptedNode, pool: str, rows: int, said: str
):
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await _register(temporal, {"gpus": [0], "links": [A_ROW] * rows})
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "SpecError"
    assert said in cause.message
    assert cause.message.endswith(Registration.instead)
    assert len(cause.message) < 1_000
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


async def _register(temporal: Client, topology: dict[str, Any]) -> None:
    node_id = f"hostile-{uuid.uuid4().hex[:8]}"
    registration = {
        "identity": {"node_id": node_id, "agent_id": "a", "boot_id": "b"},
        "inventory": {
            "gpu_type": "H100", "gpus": [{"index": 0, "model": "H100", "vram": 80}],
            "cpus": 8, "ram": 64, "topology": topology,
        },
        "issued_at": "2026-11-20T12:00:00Z",
    }  # fmt: skip
    start = WithStartWorkflowOperation(
        NodeWorkflow.run,
        NodeInput(node_id=node_id),
        id=node_workflow_id(node_id),
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        task_queue=CONTROL_TASK_QUEUE,
    )
    await temporal.execute_update_with_start_workflow(
        "register", registration, start_workflow_operation=start
    )


@pytest.mark.parametrize("what", ODD, ids=["nothing", "bytes", "protobuf"])
async def test_signals_and_updates_that_bring_no_json_change_nothing(
    temporal: Client, longshore: Longshore, node: ScriptedNode, pool: str, what: Any
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    for signal in ("placed", "waiting", "paid", "node_lost", "preempt", "move", "release"):
        await job.signal(signal, what)
    of_node = temporal.get_workflow_handle(node_workflow_id(node.id))
    for signal in ("spot_notice", "holds"):
        await of_node.signal(signal, what)
    for handle, update in ((job, "resize"), (of_node, "register"), (of_node, "drain")):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(update, what)
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "SpecError"
    await longshore.cancel(job_id)
    assert (await longshore.wait(job_id)).state is JobState.CANCELLED
    for handle in (job, of_node):
        async for event in handle.fetch_history_events():
            assert event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


@pytest.mark.parametrize("what", ODD, ids=["nothing", "bytes", "protobuf"])
async def test_a_dag_hears_no_signal_that_brings_no_json(
    temporal: Client, longshore: Longshore, node: ScriptedNode, pool: str, what: Any
):
    dag_id = await begun(longshore, a_dag(pool, {"a": {}}))
    handle = temporal.get_workflow_handle(dag_workflow_id(dag_id))
    await handle.signal("cancel_job", what)
    await node.end(f"{dag_id}.a")
    await longshore.wait_dag(dag_id)
    async for event in handle.fetch_history_events():
        assert event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
