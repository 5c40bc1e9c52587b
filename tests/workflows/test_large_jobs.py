"""Jobs of as many bytes as a spec may have, and of more: Temporal bounds what a message holds."""

import asyncio
import string
import uuid
from datetime import UTC, datetime

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.bounds import json_bytes
from longshore.models.errors import SpecError
from longshore.models.job import MOST_BYTES, JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    JOB_WORKFLOW,
    CommandReason,
    EnqueueReply,
    EnqueueRequest,
    JobInput,
)
from longshore.models.placement import Placed, Rank
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.workers.control import workflow_runner
from longshore.workflows.job import JobWorkflow
from tests.support.control import a_spec, is_queued, lease_ends
from tests.support.histories import pending, timers
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually


def _at_bound(pool: str, **fields: object) -> JobSpec:
    """Return a job with as many bytes as may be."""
    command = ["x" * 100_000] * 9
    left = MOST_BYTES - json_bytes(a_spec(pool, command=[*command, ""], **fields))
    spec = a_spec(pool, command=[*command, "x" * left], **fields)
    assert json_bytes(spec) == MOST_BYTES
    return spec


async def test_a_job_at_the_bound_runs(longshore: Longshore, node: ScriptedNode, pool: str):
    spec = _at_bound(pool)
    job_id = (await longshore.submit(spec, key="\x01" * 2000)).job_id
    assert (await node.end(job_id)).spec == spec
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    assert await longshore.spec(job_id) == spec


async def test_one_above_it_is_refused_and_nothing_is_held(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database, temporal: Client
):
    spec = _at_bound(pool).model_copy(update={"priority": 10})
    said = r"the job has 1,000,001 bytes as JSON \(command 9.*\); 1,000,000 is the most"
    with pytest.raises(SpecError, match=said):
        await longshore.submit(spec)
    job_id = f"large-{uuid.uuid4().hex}"
    handle = await temporal.start_workflow(
        JOB_WORKFLOW, {"spec": spec}, id=f"job-{job_id}", task_queue=CONTROL_TASK_QUEUE
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.message.startswith("spec: the job has 1,000,001 bytes")
    assert not await is_queued(control, job_id)
    assert await lease_ends(control, job_id) == []
    assert node.runs() == []


async def test_a_signal_that_nobody_knows_is_refused_however_long(
    control: Database, temporal: Client
):
    """As long as a start may be: with what a node is told beside it, it would be too long."""
    contract = {"folder": "c", "save_signal": "SIG" + "A" * 2_096_000}
    spec = {"name": "job", "command": "true", "checkpoint": contract}
    handle = await temporal.start_workflow(
        JOB_WORKFLOW, {"spec": spec}, id=f"job-{uuid.uuid4().hex}", task_queue=CONTROL_TASK_QUEUE
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert "checkpoint.save_signal: must be the name of a signal" in str(failure.value.cause)


@pytest.mark.exhaustive
async def test_a_gang_at_the_bound_runs_on_more_nodes_than_one_message_can_start(
    longshore: Longshore, control: Database, temporal: Client, settings: Settings, pool: str
):
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "abcde") as nodes:
        job_id = (await longshore.submit(_at_bound(pool, gpus=40, gang={}))).job_id
        for node in nodes:
            await node.started(job_id)
        for node in nodes:
            await node.end(job_id)
        assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    assert await lease_ends(control, job_id) == ["finished"] * 40
    assert len(await timers(temporal, f"job-{job_id}")) == 2


@pytest.mark.exhaustive
async def test_a_gang_on_more_nodes_than_a_history_can_hold_fails_and_holds_nothing(
    longshore: Longshore, control: Database, temporal: Client, settings: Settings, pool: str
):
    token, names = settings.resolve_agent_token(), string.ascii_lowercase[:20]
    async with serving_one_fabric(temporal, pool, token, names) as nodes:
        job_id = (await longshore.submit(_at_bound(pool, gpus=160, gang={}))).job_id
        result = await longshore.wait(job_id)
        assert (result.state, result.failure) == (JobState.FAILED, FailureClass.UNSATISFIABLE)
        assert "cannot be started on its 20 nodes" in result.message
        assert not any(node.runs() for node in nodes)
    assert await lease_ends(control, job_id) == ["failed"] * 160


@pytest.mark.exhaustive
async def test_a_gang_on_many_nodes_is_stopped_for_a_reason_of_any_length(temporal: Client):
    """With characters that JSON escapes, 4,000 of them take 24 kB for each node: 4.9 MB."""
    queue, nodes = f"only-{uuid.uuid4().hex}", 200

    @activity.defn(name="enqueue")
    async def queued(_request: EnqueueRequest) -> EnqueueReply:
        return EnqueueReply(queued=True)

    async with Worker(
        temporal,
        task_queue=queue,
        workflows=[JobWorkflow],
        activities=[queued],
        workflow_runner=workflow_runner(),
    ):
        spec = a_spec("nobody", gpus=nodes, gang={})
        handle = await temporal.start_workflow(
            JobWorkflow.run, JobInput(spec=spec), id=f"job-{queue}", task_queue=queue
        )

        async def asked(step: str) -> bool:
            return (await pending(temporal, handle.id)).count(step) == nodes

        try:
            await handle.signal(JobWorkflow.placed, _placement_on(nodes, queue))
            await eventually(lambda: asked("run_process"))
            await handle.signal(JobWorkflow.hold, CommandReason(reason="\x01" * 4_000))
            await eventually(lambda: asked("stop_process"))
            assert (await handle.query(JobWorkflow.status)).state is JobState.STOPPING
        finally:
            await handle.terminate()


def _placement_on(nodes: int, job_id: str) -> Placed:
    """Return a placement with a GPU on each of so many nodes, which nobody serves."""
    ranks = tuple(
        Rank(rank=rank, node_id=f"{job_id}-{rank}", epoch=1, gpu_indices=(0,))
        for rank in range(nodes)
    )
    return Placed(
        job_id=job_id, attempt=1, node_id=ranks[0].node_id, epoch=1, gpu_indices=(0,),
        cycle_id="one", placed_at=datetime.now(UTC), ranks=ranks,
    )  # fmt: skip
