"""What may come while a job's process is being stopped, which takes its time."""

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

AGAIN = {"node": {"max_retries": None, "backoff": 0}}


@pytest.fixture
async def stopping(longshore: Longshore, node: ScriptedNode, pool: str) -> str:
    """Starts a job on a node that is slow to stop processes; 0.2 s."""
    node.slow_to_stop = True
    job_id = (await longshore.submit(a_spec(pool, retry=AGAIN))).job_id
    await node.started(job_id)
    return job_id


async def test_a_second_cancel_while_stopping_changes_nothing(
    longshore: Longshore, node: ScriptedNode, stopping: str, temporal: Client, control: Database
):
    for reason in ("first", "second"):
        await longshore.cancel(stopping, reason)
        await reaches(longshore, stopping, JobState.STOPPING)
    await node.end(stopping, report=ProcessReport(exit_code=143, stopped_for="first"))
    result = await longshore.wait(stopping)
    assert (result.state, result.message) == (JobState.CANCELLED, "first")
    assert len(node.stops) == 1
    assert await lease_ends(control, stopping) == ["cancelled"]


async def test_a_job_that_succeeds_before_its_stop_signal_has_succeeded(
    longshore: Longshore, node: ScriptedNode, stopping: str, temporal: Client
):
    await longshore.cancel(stopping)
    await eventually(lambda: node.stops)
    await node.end(stopping)
    assert (await longshore.wait(stopping)).state is JobState.SUCCEEDED
    handle = temporal.get_workflow_handle(job_workflow_id(stopping))
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_cancelled_job_whose_node_is_lost_meanwhile_is_cancelled(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    await longshore.cancel(stopping, "enough")
    await eventually(lambda: node.stops)
    node.leave()
    result = await longshore.wait(stopping)
    assert (result.state, result.failure) == (JobState.CANCELLED, FailureClass.CANCELLED)
    assert await lease_ends(control, stopping) == ["node-lost"]


async def test_a_cancel_wins_over_a_hold(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    await longshore.hold(stopping, "make room")
    await reaches(longshore, stopping, JobState.STOPPING)
    await longshore.cancel(stopping, "enough")
    await node.end(stopping, report=ProcessReport(exit_code=143, stopped_for="make room"))
    result = await longshore.wait(stopping)
    assert (result.state, result.message) == (JobState.CANCELLED, "enough")
    assert await lease_ends(control, stopping) == ["cancelled"]


@pytest.mark.parametrize("length", [10_000, 1_900_000])
async def test_a_reason_of_any_length_arrives_cut(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, length: int
):
    """An agent's report repeats it: with more than Temporal takes in, it would never arrive."""
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    await handle.signal("hold", {"reason": "R" * length})
    await reaches(longshore, job_id, JobState.HELD)
    cut = "R" * 3_999 + "…"
    assert [stop.reason for stop in node.stops] == [cut]
    assert (await longshore.status(job_id)).reason == cut


async def test_a_long_reason_of_a_cancel_is_cut(
    longshore: Longshore, node: ScriptedNode, stopping: str
):
    await longshore.cancel(stopping, "R" * 1_000_000)
    await eventually(lambda: node.stops)
    await node.end(stopping, report=ProcessReport(exit_code=143, stopped_for="R"))
    assert (await longshore.wait(stopping)).message == "R" * 3_999 + "…"


async def test_a_job_that_is_released_while_it_stops_runs_again(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    await longshore.hold(stopping, "make room")
    await reaches(longshore, stopping, JobState.STOPPING)
    await longshore.release(stopping)
    await node.end(stopping, report=ProcessReport(exit_code=143, stopped_for="make room"))
    await node.end(stopping, 2)
    assert (await longshore.wait(stopping)).attempts == 2
    assert await lease_ends(control, stopping) == ["held", "finished"]


async def test_a_held_job_whose_node_is_lost_while_it_stops_stays_held(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    await longshore.hold(stopping, "make room")
    await reaches(longshore, stopping, JobState.STOPPING)
    node.leave()
    held = await reaches(longshore, stopping, JobState.HELD)
    assert (held.attempt, held.reason) == (2, "make room")
    await longshore.cancel(stopping)
    assert (await longshore.wait(stopping)).state is JobState.CANCELLED
