"""A running job that is preempted or moved, at every moment at which that may come."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.errors import RefusedError
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    InterruptRequest,
    JobInput,
    job_workflow_id,
)
from longshore.models.node_messages import ProcessReport
from longshore.models.pool import PoolSpec
from longshore.models.retry import FailureClass
from longshore.workflows.job import JobWorkflow
from tests.support.control import a_spec, is_queued, lease_ends, reaches
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

NO_RETRY = {"node": {"max_retries": 0}, "preempted": {"max_retries": 0}}


async def tell(
    temporal: Client, job_id: str, signal: str, attempt: int = 1, reason: str = "make way"
) -> None:
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    await job.signal(signal, InterruptRequest(attempt=attempt, reason=reason))


@pytest.fixture
async def running(longshore: Longshore, node: ScriptedNode, pool: str) -> str:
    """Starts a job on the node; 0.2 s."""
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    return job_id


@pytest.fixture
async def stopping(running: str, node: ScriptedNode, temporal: Client) -> str:
    """Preempts that job, whose process does not end yet; 0.1 s."""
    node.slow_to_stop = True
    await tell(temporal, running, "preempt")
    await eventually(lambda: node.stops)
    return running


@pytest.mark.parametrize(
    ("signal", "end", "failure", "counts"),
    [
        ("preempt", "preempted", FailureClass.PREEMPTED, (1, 0)),
        ("move", "moved", None, (0, 1)),
    ],
)
async def test_a_displaced_job_is_stopped_with_its_grace_and_runs_again(
    signal: str,
    end: str,
    failure: FailureClass | None,
    counts: tuple[int, int],
    longshore: Longshore,
    node: ScriptedNode,
    temporal: Client,
    control: Database,
    pool: str,
):
    job_id = (await longshore.submit(a_spec(pool, stop_grace="7s"))).job_id
    submitted_at = (await longshore.status(job_id)).submitted_at
    await node.started(job_id)
    await tell(temporal, job_id, signal)
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).attempts == 2
    status = await longshore.status(job_id)
    assert [(stop.reason, stop.grace) for stop in node.stops] == [
        ("make way", timedelta(seconds=7))
    ]
    assert status.submitted_at == submitted_at
    assert (status.preemptions, status.moves) == counts
    first = status.attempts[0]
    assert (first.failure, first.moved) == (failure, signal == "move")
    assert await lease_ends(control, job_id) == [end, "finished"]


async def test_the_gpus_are_not_given_up_before_the_process_has_ended(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    assert (await reaches(longshore, stopping, JobState.STOPPING)).reason == "make way"
    assert await lease_ends(control, stopping) == [None]
    assert not await is_queued(control, stopping)
    await node.end(stopping, report=ProcessReport(exit_code=137, stopped_for="make way"))
    await node.end(stopping, 2)
    await longshore.wait(stopping)
    assert await lease_ends(control, stopping) == ["preempted", "finished"]


@pytest.mark.exhaustive
async def test_a_displaced_job_keeps_its_place_before_later_jobs(
    longshore: Longshore, node: ScriptedNode, temporal: Client, control: Database, pool: str
):
    await longshore.set_pool(PoolSpec(name=pool))  # by age
    first = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await node.started(first)  # jobs enter the queue each by itself: another may be placed first
    later, last = [
        (await longshore.submit(a_spec(pool, gpus=8))).job_id for _ in ("later", "last")
    ]
    for job_id in (later, last):
        await reaches(longshore, job_id, JobState.QUEUED)
    await tell(temporal, first, "preempt")
    # Another may get the GPUs before the first is queued again.
    await eventually(lambda: _waits_or_runs_again(control, node, first))
    await asyncio.gather(node.end(later), node.end(first, 2), node.end(last))
    await longshore.wait(last)
    assert node.runs()[-1] == (last, 1)


async def _waits_or_runs_again(control: Database, node: ScriptedNode, job_id: str) -> bool:
    return (job_id, 2) in node.runs() or await is_queued(control, job_id)


async def test_an_interrupt_request_while_it_stops_stops_nothing_twice(
    longshore: Longshore, node: ScriptedNode, stopping: str, temporal: Client, control: Database
):
    for signal in ("preempt", "move"):
        await tell(temporal, stopping, signal, reason="once more")
    await reaches(longshore, stopping, JobState.STOPPING)
    await node.end(stopping, report=ProcessReport(exit_code=143, stopped_for="make way"))
    await node.end(stopping, 2)
    await longshore.wait(stopping)
    assert len(node.stops) == 1
    assert await lease_ends(control, stopping) == ["preempted", "finished"]


async def test_one_for_an_older_attempt_changes_nothing(
    longshore: Longshore, node: ScriptedNode, running: str, temporal: Client, control: Database
):
    await tell(temporal, running, "move")
    await node.started(running, 2)
    for signal in ("preempt", "move"):
        await tell(temporal, running, signal, attempt=1)
    await node.end(running, 2)
    assert (await longshore.wait(running)).attempts == 2
    assert await lease_ends(control, running) == ["moved", "finished"]
    assert len(node.stops) == 1


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(("signal", "end"), [("preempt", "preempted"), ("move", "moved")])
async def test_one_that_comes_before_the_placement_starts_nothing(
    signal: str,
    end: str,
    longshore: Longshore,
    temporal: Client,
    node: ScriptedNode,
    control: Database,
    pool: str,
):
    job_id = (await longshore.submit(a_spec(pool), held=True)).job_id
    await reaches(longshore, job_id, JobState.HELD)
    await tell(temporal, job_id, signal)
    await longshore.release(job_id)
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).attempts == 2
    assert node.runs() == [(job_id, 2)]
    assert await lease_ends(control, job_id) == [end, "finished"]
    first = (await longshore.status(job_id)).attempts[0]
    assert first.message == "stopped before it started (make way)"


async def test_a_hold_wins(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    await longshore.hold(stopping, "not now")
    await node.end(stopping, report=ProcessReport(exit_code=143, stopped_for="make way"))
    held = await reaches(longshore, stopping, JobState.HELD)
    assert (held.reason, held.attempts[0].failure, held.preemptions) == ("not now", None, 0)
    assert await lease_ends(control, stopping) == ["held"]
    await longshore.cancel(stopping)
    await longshore.wait(stopping)


async def test_one_that_comes_while_it_stops_for_a_hold_changes_nothing(
    longshore: Longshore, node: ScriptedNode, running: str, temporal: Client, control: Database
):
    node.slow_to_stop = True
    await longshore.hold(running, "not now")
    await eventually(lambda: node.stops)
    await tell(temporal, running, "preempt")
    await node.end(running, report=ProcessReport(exit_code=143, stopped_for="not now"))
    await reaches(longshore, running, JobState.HELD)
    assert await lease_ends(control, running) == ["held"]
    assert len(node.stops) == 1
    await longshore.cancel(running)
    await longshore.wait(running)


async def test_a_cancel_wins(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    await longshore.cancel(stopping, "enough")
    await reaches(longshore, stopping, JobState.STOPPING)
    await node.end(stopping, report=ProcessReport(exit_code=143, stopped_for="make way"))
    result = await longshore.wait(stopping)
    assert (result.state, result.message) == (JobState.CANCELLED, "enough")
    assert await lease_ends(control, stopping) == ["cancelled"]


async def test_one_that_succeeds_meanwhile_has_succeeded(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    await node.end(stopping)
    assert (await longshore.wait(stopping)).state is JobState.SUCCEEDED
    assert await lease_ends(control, stopping) == ["finished"]


async def test_one_that_fails_by_itself_meanwhile_has_failed(
    longshore: Longshore, node: ScriptedNode, stopping: str
):
    await node.end(stopping, report=USER_ERROR)
    result = await longshore.wait(stopping)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.USER)


async def test_one_whose_node_is_lost_meanwhile_has_lost_its_node(
    longshore: Longshore, node: ScriptedNode, stopping: str, control: Database
):
    node.leave()
    queued = await reaches(longshore, stopping, JobState.RETRYING, JobState.QUEUED)
    assert queued.attempts[0].failure is FailureClass.NODE
    assert await lease_ends(control, stopping) == ["node-lost"]
    await longshore.cancel(stopping)
    await longshore.wait(stopping)


async def test_a_preemption_uses_up_a_retry_and_a_move_does_not(
    longshore: Longshore, node: ScriptedNode, temporal: Client, control: Database, pool: str
):
    job_id = (await longshore.submit(a_spec(pool, retry=NO_RETRY))).job_id
    for attempt in (1, 2):
        await node.started(job_id, attempt)
        await tell(temporal, job_id, "move", attempt)
    await node.started(job_id, 3)
    await tell(temporal, job_id, "preempt", 3)
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.PREEMPTED)
    status = await longshore.status(job_id)
    assert (status.preemptions, status.moves) == (1, 2)
    assert await lease_ends(control, job_id) == ["moved", "moved", "preempted"]


async def test_a_job_is_queued_again_by_hand(
    longshore: Longshore, node: ScriptedNode, running: str, control: Database
):
    await reaches(longshore, running, JobState.RUNNING)
    assert await longshore.requeue(running, "a better node is there") == running
    await node.end(running, 2)
    await longshore.wait(running)
    first = (await longshore.status(running)).attempts[0]
    assert (first.moved, node.stops[0].reason) == (True, "a better node is there")
    assert await lease_ends(control, running) == ["moved", "finished"]
    with pytest.raises(RefusedError, match="SUCCEEDED: only one that runs"):
        await longshore.requeue(running)


@pytest.mark.exhaustive
async def test_counts_outlive_continuing_as_new(
    longshore: Longshore, node: ScriptedNode, temporal: Client, pool: str
):
    job = await temporal.start_workflow(
        JobWorkflow.run,
        JobInput(spec=a_spec(pool), max_attempts_per_run=1),
        id=job_workflow_id(f"again-{pool}"),
        task_queue=CONTROL_TASK_QUEUE,
    )
    job_id = f"again-{pool}"
    for attempt, signal in ((1, "move"), (2, "preempt")):
        await node.started(job_id, attempt)
        await tell(temporal, job_id, signal, attempt)
    await node.end(job_id, 3)
    handle = temporal.get_workflow_handle_for(JobWorkflow.run, job.id)
    assert (await handle.result()).attempts == 3
    status = await handle.query(JobWorkflow.status)
    assert (status.preemptions, status.moves) == (1, 1)


async def test_all_ranks_of_a_gang_are_stopped(
    longshore: Longshore, node: ScriptedNode, temporal: Client, control: Database, pool: str
):
    other = ScriptedNode(temporal, pool, node.token)
    async with other.serving():
        await other.register()
        spec = a_spec(pool, gpus=16, gang={"unlabelled_nodes": True})
        job_id = (await longshore.submit(spec)).job_id
        for each in (node, other):
            await each.started(job_id)
        await tell(temporal, job_id, "preempt")
        for each in (node, other):
            await each.end(job_id, 2)
        assert (await longshore.wait(job_id)).attempts == 2
        assert [len(each.stops) for each in (node, other)] == [1, 1]
    ends = await lease_ends(control, job_id)
    assert (ends.count("preempted"), ends.count("finished")) == (16, 16)
