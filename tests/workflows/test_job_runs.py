"""A job from submit to its end on scripted nodes; once as it runs, once replayed at every step."""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from benchmarks.costs import actions
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import NodeLost, job_workflow_id
from longshore.models.node_messages import ProcessReport, StopProcessRequest
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from tests.support.control import (
    a_spec,
    lease_ends,
    on_task_queue,
    reaches,
    serving_control,
)
from tests.support.scripted_node import USER_ERROR, ScriptedNode


@pytest.fixture(params=[pytest.param("cached", marks=pytest.mark.exhaustive), "replayed"])
async def longshore(
    request: pytest.FixtureRequest, temporal: Client, settings: Settings, control: Database
) -> AsyncIterator[Longshore]:
    """A client; with "replayed" starts a worker that forgets jobs after every step; 0.3 s."""
    if request.param == "cached":
        client = Longshore(temporal, settings)
        yield client
        await client.close()
        return
    queue = f"replayed-{uuid.uuid4().hex[:8]}"
    async with serving_control(temporal, settings, task_queue=queue, max_cached_workflows=0):
        client = Longshore(on_task_queue(temporal, queue), settings)
        yield client
        await client.close()


async def test_a_job_that_fits_runs_and_succeeds_in_few_actions(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    submitted = await longshore.submit(a_spec(pool, gpus=2))
    request = await node.end(submitted.job_id)
    result = await longshore.wait(submitted.job_id)
    assert result.state is JobState.SUCCEEDED
    assert (result.exit_code, result.attempts) == (0, 1)
    assert request.placement.gpu_indices == (0, 1)
    assert (await longshore.job(submitted.job_id)).state is JobState.SUCCEEDED
    assert await lease_ends(control, submitted.job_id) == ["finished"] * 2
    assert all(gpu.job_id is None for gpu in (await longshore.nodes(pool=pool))[0].gpus)
    cost = await actions(temporal, job_workflow_id(submitted.job_id))
    assert cost == {"start": 1, "signal": 1, "activity": 3, "upsert": 1}
    assert cost.total() <= 6


async def test_a_user_error_is_not_tried_again(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.end(job_id, report=USER_ERROR)
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.USER)
    assert (result.exit_code, result.attempts) == (3, 1)
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    assert await lease_ends(control, job_id) == ["failed"]
    assert (await longshore.job(job_id)).failure is FailureClass.USER


@pytest.mark.exhaustive
async def test_retries_are_counted_by_class(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    at_once = {"max_retries": 1, "backoff": 0}
    job_id = (
        await longshore.submit(a_spec(pool, retry={"user": at_once, "out_of_memory": at_once}))
    ).job_id
    killed = ProcessReport(failure=FailureClass.OUT_OF_MEMORY, exit_code=137, message="killed")
    await node.end(job_id, 1, USER_ERROR)
    await node.end(job_id, 2, killed)
    await node.end(job_id, 3, USER_ERROR)
    result = await longshore.wait(job_id)
    assert (result.failure, result.attempts) == (FailureClass.USER, 3)
    attempts = (await longshore.status(job_id)).attempts
    assert [(a.attempt, a.failure, a.exit_code) for a in attempts] == [
        (1, FailureClass.USER, 3),
        (2, FailureClass.OUT_OF_MEMORY, 137),
        (3, FailureClass.USER, 3),
    ]
    assert await lease_ends(control, job_id) == ["failed"] * 3


async def test_a_cancel_stops_the_process_with_its_own_signal_and_grace(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    checkpoint = {"folder": "state", "signal": "SIGUSR1", "grace": "7s"}
    job_id = (await longshore.submit(a_spec(pool, checkpoint=checkpoint))).job_id
    await node.started(job_id)
    await longshore.cancel(job_id, "no longer needed")
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.CANCELLED, FailureClass.CANCELLED)
    assert result.message == "no longer needed"
    assert node.stops == [
        StopProcessRequest(
            key=PlacementKey(job_id=job_id, attempt=1), signal="SIGUSR1",
            grace=timedelta(seconds=7), reason="no longer needed",
        )
    ]  # fmt: skip
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    assert await lease_ends(control, job_id) == ["cancelled"]
    assert (await longshore.job(job_id)).state is JobState.CANCELLED


async def test_a_hold_stops_a_running_job_and_a_release_runs_it_again(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    await longshore.hold(job_id, "make room")
    held = await reaches(longshore, job_id, JobState.HELD)
    assert (held.attempt, held.reason) == (2, "make room")
    assert [stop.reason for stop in node.stops] == ["make room"]
    assert await lease_ends(control, job_id) == ["held"]
    assert (await longshore.job(job_id)).state is JobState.HELD
    await longshore.release(job_id)
    await node.end(job_id, 2)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    assert await lease_ends(control, job_id) == ["held", "finished"]


async def test_a_lost_node_sends_its_job_elsewhere(
    longshore: Longshore,
    node: ScriptedNode,
    pool: str,
    temporal: Client,
    settings: Settings,
    control: Database,
):
    at_once = {"node": {"max_retries": 1, "backoff": 0}}
    job_id = (await longshore.submit(a_spec(pool, gpus=8, retry=at_once))).job_id
    first = (await node.started(job_id)).placement
    other = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    async with other.serving():
        await other.register()
        for node_id, epoch in ((node.id, first.epoch + 1), ("elsewhere", first.epoch)):
            wrong = NodeLost(node_id=node_id, epoch=epoch, reason="of no concern")
            await handle.signal("node_lost", wrong)
        assert (await longshore.status(job_id)).state is JobState.RUNNING
        node.leave()
        await other.end(job_id, 2)
        result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    attempts = (await longshore.status(job_id)).attempts
    assert [attempt.failure for attempt in attempts] == [FailureClass.NODE, None]
    assert attempts[0].message == f"node {node.id} was lost: agent stopped"
    assert await lease_ends(control, job_id) == ["node-lost"] * 8 + ["finished"] * 8
    assert node.stops == []


@pytest.mark.exhaustive
async def test_a_node_that_refuses_a_process_counts_as_a_failure_of_the_node(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    node.refusal = "registration 1 of this node is over"
    at_once = {"node": {"max_retries": 2, "backoff": 0}}
    job_id = (await longshore.submit(a_spec(pool, retry=at_once))).job_id
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
    assert result.attempts == 3
    assert "registration 1 of this node is over" in result.message
    assert await lease_ends(control, job_id) == ["node-lost", "node-lost", "failed"]
