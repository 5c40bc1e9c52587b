"""Signals to a job that come twice, late, or in another order than they were sent."""

from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import CommandReason, NodeLost, Waiting, job_workflow_id
from longshore.models.placement import Placement
from longshore.models.retry import FailureClass
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import ScriptedNode

AT_ONCE = {"node": {"max_retries": None, "backoff": 0}}


@pytest.mark.parametrize("times", [1, 3])
async def test_a_loss_that_comes_before_its_placement_ends_that_attempt(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, times: int
):
    template = await _a_placement(longshore, node, pool)
    job_id = (await longshore.submit(a_spec(pool, gpus=16, retry=AT_ONCE))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    job = _workflow(temporal, job_id)
    for _ in range(times):
        lost = NodeLost(node_id=template.node_id, epoch=template.epoch, reason="no power")
        await job.signal("node_lost", lost)
    assert (await longshore.status(job_id)).attempt == 1
    await job.signal("placed", template.model_copy(update={"job_id": job_id}))
    status = await reaches(longshore, job_id, JobState.QUEUED)
    assert (status.attempt, [attempt.failure for attempt in status.attempts]) == (
        2,
        [FailureClass.NODE],
    )
    assert (job_id, 1) not in node.runs()
    await longshore.cancel(job_id)
    assert (await longshore.wait(job_id)).state is JobState.CANCELLED


@pytest.mark.exhaustive
async def test_a_loss_that_is_told_again_does_not_touch_the_next_attempt(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool, retry=AT_ONCE))).job_id
    first = (await node.started(job_id)).placement
    again = await node.register(boot_id="boot-2")
    second = (await node.started(job_id, 2)).placement
    assert (second.epoch, second.node_id) == (again.epoch, first.node_id)
    for _ in range(2):
        lost = NodeLost(node_id=first.node_id, epoch=first.epoch, reason="told again")
        await _workflow(temporal, job_id).signal("node_lost", lost)
    assert (await longshore.status(job_id)).state is JobState.RUNNING
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).attempts == 2


async def test_a_reason_to_wait_that_comes_late_changes_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    before = await reaches(longshore, job_id, JobState.RUNNING)
    for attempt in (0, 1, 2):
        waiting = Waiting(attempt=attempt, reason="late")
        await _workflow(temporal, job_id).signal("waiting", waiting)
    assert await longshore.status(job_id) == before
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_holds_and_releases_of_a_running_job_may_come_twice(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    job = _workflow(temporal, job_id)
    for _ in range(3):
        await job.signal("hold", CommandReason(reason="make room"))
    await reaches(longshore, job_id, JobState.HELD)
    for _ in range(3):
        await job.signal("release", CommandReason())
    await node.started(job_id, 2)
    await job.signal("release", CommandReason(reason="once more"))
    assert (await longshore.status(job_id)).state is JobState.RUNNING
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).attempts == 2
    assert node.runs() == [(job_id, 1), (job_id, 2)]


async def _a_placement(longshore: Longshore, node: ScriptedNode, pool: str) -> Placement:
    """Return a placement on the node, of a job that has ended."""
    job_id = (await longshore.submit(a_spec(pool))).job_id
    placement = (await node.end(job_id)).placement
    await longshore.wait(job_id)
    return placement


def _workflow(temporal: Client, job_id: str) -> WorkflowHandle[Any, Any]:
    return temporal.get_workflow_handle(job_workflow_id(job_id))
