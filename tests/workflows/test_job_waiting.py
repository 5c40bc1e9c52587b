"""A job that waits: in the queue, under hold, in a backoff; and what ends the wait."""

import asyncio
import uuid
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import TimeSkipper

from longshore.activities.database import Database
from longshore.activities.signals import Signals
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.client.submission import new_job_id
from longshore.models.dag import DagSpec
from longshore.models.errors import UnsatisfiableError
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, JobInput, job_workflow_id
from longshore.models.pool import Growth, PoolSpec
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.workflows.job import JobWorkflow
from tests.support.control import (
    a_spec,
    is_queued,
    lease_ends,
    on_task_queue,
    reaches,
    serving_control,
)
from tests.support.histories import activities, timers, was_signalled
from tests.support.scripted_node import DIED, USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)
ENDLESS = {"user": {"max_retries": 2, "backoff": "1h", "max_backoff": "10h"}}


async def test_retries_wait_longer_each_time(
    hasty: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await hasty.submit(a_spec(pool, retry=ENDLESS))).job_id
    for attempt in (1, 2, 3):
        await node.end(job_id, attempt, USER_ERROR)
    result = await hasty.wait(job_id)
    assert (result.failure, result.attempts) == (FailureClass.USER, 3)
    assert await timers(temporal, job_workflow_id(job_id)) == [HOUR, 2 * HOUR]
    status = await hasty.status(job_id)
    assert result.ended_at
    assert result.ended_at - status.submitted_at > 3 * HOUR


async def test_a_job_that_has_run_has_no_queue_timeout(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    again = {"node": {"max_retries": 1, "backoff": 0}}
    job_id = (await longshore.submit(a_spec(pool, queue_timeout="2h", retry=again))).job_id
    await node.started(job_id)
    await longshore.cordon(node.id)
    await node.end(job_id, 1, DIED)
    assert (await reaches(longshore, job_id, JobState.QUEUED)).attempt == 2
    await longshore.cancel(job_id)
    await longshore.wait(job_id)
    assert await timers(temporal, job_workflow_id(job_id)) == [2 * HOUR]


async def test_a_job_that_nobody_places_gives_up_after_its_queue_timeout(
    hasty: Longshore, pool: str, control: Database
):
    job_id = (await hasty.submit(a_spec(pool, queue_timeout="2h"))).job_id
    result = await hasty.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.QUEUE_TIMEOUT)
    assert (result.message, result.attempts) == ("no placement within 2h", 0)
    assert result.ended_at
    assert result.ended_at - (await hasty.status(job_id)).submitted_at >= 2 * HOUR
    assert not await is_queued(control, job_id)


async def test_time_under_hold_does_not_count_towards_the_queue_timeout(
    hasty: Longshore, skipper: TimeSkipper, pool: str, temporal: Client, control: Database
):
    with skipper.with_time_skipping_disabled():
        job_id = (await hasty.submit(a_spec(pool, queue_timeout="1h"))).job_id
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    await reaches(hasty, job_id, JobState.QUEUED)
    assert await skipper.fast_forward(job, HOUR / 4)
    await hasty.hold(job_id)
    await reaches(hasty, job_id, JobState.HELD)
    assert await skipper.fast_forward(job, 5 * HOUR)
    await hasty.release(job_id)
    await reaches(hasty, job_id, JobState.QUEUED)
    assert await skipper.fast_forward(job, 2 * HOUR) is False, "the job had ended before"
    assert (await hasty.wait(job_id)).failure is FailureClass.QUEUE_TIMEOUT
    whole, rest = await timers(temporal, job.id)
    assert whole == HOUR
    assert HOUR / 2 < rest <= HOUR * 3 / 4


@pytest.mark.parametrize("how", ["queued", "held"])
async def test_a_waiting_job_is_cancelled_at_once(
    longshore: Longshore, control: Database, pool: str, temporal: Client, how: str
):
    job_id = (await longshore.submit(a_spec(pool), held=how == "held")).job_id
    await reaches(longshore, job_id, JobState.HELD if how == "held" else JobState.QUEUED)
    await longshore.cancel(job_id, "changed my mind")
    result = await longshore.wait(job_id)
    assert (result.state, result.message) == (JobState.CANCELLED, "changed my mind")
    assert not await is_queued(control, job_id)
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    assert (await job.describe()).status is WorkflowExecutionStatus.CANCELED
    assert await activities(temporal, job.id) == ["enqueue", "finish"]


async def test_a_job_is_cancelled_in_its_backoff(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    job_id = (await longshore.submit(a_spec(pool, retry=ENDLESS))).job_id
    await node.end(job_id, report=USER_ERROR)
    status = await reaches(longshore, job_id, JobState.RETRYING)
    assert status.reason == "user (exit code 3); retry 1 of 2 after 1h"
    await longshore.cancel(job_id)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.CANCELLED, 1)


async def test_a_plain_cancel_of_the_workflow_is_a_cancel_of_the_job(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    await temporal.get_workflow_handle(job_workflow_id(job_id)).cancel()
    assert (await longshore.wait(job_id)).state is JobState.CANCELLED
    assert [stop.key.job_id for stop in node.stops] == [job_id]
    assert await lease_ends(control, job_id) == ["cancelled"]


async def test_a_cancel_that_comes_with_the_placement_leaves_nothing_running(
    temporal: Client, settings: Settings, control: Database, node: ScriptedNode, pool: str
):
    queue = f"paused-{uuid.uuid4().hex[:8]}"
    longshore = Longshore(on_task_queue(temporal, queue), settings)
    async with serving_control(temporal, settings, task_queue=queue):
        job_id = (await longshore.submit(a_spec(pool), held=True)).job_id
        await reaches(longshore, job_id, JobState.HELD)
    # Nobody runs the job's workflow now: what comes waits for it, and comes in one piece.
    async with control.transaction() as connection:
        await connection.execute(
            text("UPDATE queue SET held = false WHERE job_id = :id"), {"id": job_id}
        )
    await Signals(temporal).poke_pool(pool)
    await eventually(lambda: was_signalled(temporal, job_workflow_id(job_id), "placed"))
    await longshore.cancel(job_id, "just in time")
    async with serving_control(temporal, settings, task_queue=queue):
        result = await longshore.wait(job_id)
    assert (result.state, result.message) == (JobState.CANCELLED, "just in time")
    assert await lease_ends(control, job_id) == ["cancelled"]
    # Whichever of start and stop comes first to the node, the attempt is stopped there.
    assert [stop.key.job_id for stop in node.stops] == [job_id]
    await longshore.close()


async def test_a_job_held_at_submit_waits_for_its_release(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    job_id = (await longshore.submit(a_spec(pool), held=True)).job_id
    other = (await longshore.submit(a_spec(pool))).job_id
    await node.end(other)
    await longshore.wait(other)
    status = await longshore.status(job_id)
    assert (status.state, status.reason) == (JobState.HELD, "held at submit")
    await longshore.release(job_id)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1


async def test_a_queued_job_that_is_held_is_not_placed_until_its_release(
    longshore: Longshore, control: Database, pool: str, temporal: Client, settings: Settings
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    await longshore.hold(job_id, "not yet")

    async def is_kept() -> bool:
        """Its workflow says that it is held a moment before the queue knows."""
        return (await longshore.job(job_id)).state is JobState.HELD

    await eventually(is_kept)
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    async with node.serving():
        await node.register()
        other = (await longshore.submit(a_spec(pool))).job_id
        await node.end(other)
        assert await lease_ends(control, job_id) == []
        await longshore.release(job_id)
        await node.end(job_id)
        assert (await longshore.wait(job_id)).attempts == 1
    assert (await activities(temporal, job_workflow_id(job_id))).count("set_hold") == 2


@pytest.mark.exhaustive
async def test_holds_and_releases_in_any_order_lose_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    jobs = [(await longshore.submit(a_spec(pool))).job_id for _ in range(6)]
    for turn in range(3):
        await asyncio.gather(*(longshore.hold(job, f"hold {turn}") for job in jobs))
        await asyncio.gather(*(longshore.release(job) for job in jobs))

    async def runs_again(job_id: str) -> int | None:
        status = await longshore.status(job_id)
        on_node = (job_id, status.attempt) in node.runs()
        return status.attempt if status.state is JobState.RUNNING and on_node else None

    for job_id in jobs:
        await node.end(job_id, await eventually(lambda job_id=job_id: runs_again(job_id)) or 0)
        result = await longshore.wait(job_id)
        assert result.state is JobState.SUCCEEDED
        ends = await lease_ends(control, job_id)
        assert ends == ["held"] * (result.attempts - 1) + ["finished"]


async def test_a_fixed_pool_refuses_what_it_can_never_hold(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool, growth=Growth.FIXED))
    spec = a_spec(pool, gpus=16)
    with pytest.raises(UnsatisfiableError, match="could ever hold 16 x any GPU"):
        await longshore.submit(spec)
    # Another client may start the workflow without asking first.
    job_id = new_job_id(spec, None)
    await temporal.start_workflow(
        JobWorkflow.run,
        JobInput(spec=spec),
        id=job_workflow_id(job_id),
        task_queue=CONTROL_TASK_QUEUE,
    )
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.UNSATISFIABLE)
    assert "the pool is fixed" in result.message
    assert (await longshore.job(job_id)).failure is FailureClass.UNSATISFIABLE


@pytest.mark.exhaustive
async def test_what_a_fixed_pool_has_taken_waits_for_its_nodes_to_start_again(
    longshore: Longshore, pool: str, control: Database, temporal: Client, settings: Settings
):
    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool, growth=Growth.FIXED))
    token = settings.resolve_agent_token()
    node, successor = (ScriptedNode(temporal, pool, token) for _ in range(2))
    again = {"node": {"max_retries": 1, "backoff": 0}}
    async with node.serving(), successor.serving():
        await node.register()
        job_id = (await longshore.submit(a_spec(pool, gpus=5, retry=again))).job_id
        await node.started(job_id)
        array_id = (await longshore.submit(a_spec(pool, retry=again, array="0-3%1"))).job_id
        await node.batch_of(f"{array_id}.s1")
        steps = {"a": {"command": "true", "retry": again}}
        dag = DagSpec.model_validate({"name": "dag", "pool": pool, "jobs": steps})
        dag_id = (await longshore.submit_dag(dag)).dag_id
        await node.started(f"{dag_id}.a")
        node.leave()
        for its in (job_id, f"{array_id}.s1", f"{dag_id}.a"):
            assert (await reaches(longshore, its, JobState.QUEUED)).attempt == 2
        with pytest.raises(UnsatisfiableError, match="has no nodes, and is fixed"):
            await longshore.submit(a_spec(pool))
        await successor.register()
        await successor.batch_of(f"{array_id}.s1", 2)
        for its in (job_id, f"{dag_id}.a"):
            await successor.end(its, 2)
            assert (await longshore.wait(its)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_an_open_pool_keeps_what_is_too_large_until_a_large_enough_node_comes(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, settings: Settings
):
    job_id = (await longshore.submit(a_spec(pool, gpus=16))).job_id

    await reaches(longshore, job_id, JobState.QUEUED)

    async def reason() -> str:
        return (await longshore.job(job_id)).reason

    assert "gpus" in (await eventually(reason)).lower()
    larger = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=16)
    async with larger.serving():
        await larger.register()
        await larger.end(job_id)
        assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_why_says_when_the_next_attempt_comes(
    longshore: Longshore, node: ScriptedNode, pool: str
) -> None:
    job_id = (await longshore.submit(a_spec(pool, retry=ENDLESS))).job_id
    await node.end(job_id, report=USER_ERROR)
    status = await reaches(longshore, job_id, JobState.RETRYING)
    assert status.next_attempt == status.since + timedelta(hours=1)
    told = await longshore.explain(job_id)
    assert told.job.state is JobState.RETRYING
    says = f"the next waits for GPUs from {status.next_attempt:%Y-%m-%d %H:%M:%S} UTC on, in "
    assert says in told.headline
    await longshore.cancel(job_id)
    await longshore.wait(job_id)
    assert (await longshore.status(job_id)).next_attempt is None
