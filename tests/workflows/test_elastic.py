"""A malleable job: it starts on the GPUs that fit, and goes on with fewer where it has to."""

import asyncio
import uuid
from datetime import timedelta

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.queue_rows import lock_job
from longshore.client.api import Longshore
from longshore.models.elastic import Malleable
from longshore.models.errors import RefusedError
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, JobInput, job_workflow_id
from longshore.models.node_messages import RunProcessRequest
from longshore.workflows.job import JobWorkflow
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

SIZES = {"min": 2, "max": 8, "step": 2}


def size_of(request: RunProcessRequest) -> int:
    return len(request.placement.gpu_indices)


async def test_it_starts_on_what_fits_and_says_so(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    other = (await longshore.submit(a_spec(pool, gpus=3))).job_id
    await node.started(other)
    job_id = (await longshore.submit(a_spec(pool, malleable=SIZES, cpus=8))).job_id
    request = await node.started(job_id)
    assert (size_of(request), request.gpus_before) == (4, None)
    job = await longshore.job(job_id)
    assert (job.gpus, job.size) == (4, "4/8")
    assert job.reason.startswith("4 of 8 desired GPUs, as many as fit now; ")
    nodes = await longshore.nodes(pool=pool)
    assert nodes[0].cpus_used == 1 + 4  # half of its GPUs, half of its cores
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_one_that_was_stopped_goes_on_with_what_is_left(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    job_id = (await longshore.submit(a_spec(pool, malleable=SIZES))).job_id
    assert size_of(await node.started(job_id)) == 8
    await longshore.hold(job_id)
    await reaches(longshore, job_id, JobState.HELD)
    assert (await longshore.job(job_id)).size == "8"  # of one that waits, the desired one
    other = (await longshore.submit(a_spec(pool, gpus=5))).job_id
    await node.started(other)
    await longshore.release(job_id)
    request = await node.started(job_id, 2)
    assert (size_of(request), request.gpus_before) == (2, 8)
    await node.end(job_id, 2)
    await longshore.wait(job_id)


@pytest.fixture
async def running(longshore: Longshore, node: ScriptedNode, pool: str) -> str:
    """Starts a malleable job that saves on all 8 GPUs; 0.2 s."""
    spec = a_spec(pool, malleable=SIZES, checkpoint={"folder": "saved", "grace": "7s"})
    job_id = (await longshore.submit(spec)).job_id
    await node.started(job_id)
    return job_id


async def test_a_running_job_is_stopped_and_goes_on_with_its_new_size(
    longshore: Longshore, node: ScriptedNode, running: str, control: Database
):
    reply = await longshore.resize(running, 4, "make room")
    assert (reply.gpus, reply.restarts, reply.desired) == (8, 4, 4)
    assert reply.reason.startswith("from 8 to 4 GPUs, 4 desired; $")
    request = await node.started(running, 2)
    assert (size_of(request), request.gpus_before) == (4, 8)
    assert [stop.grace for stop in node.stops] == [timedelta(seconds=7)]
    assert await lease_ends(control, running) == ["resized"] * 8 + [None] * 4
    status = await longshore.status(running)
    assert (status.resizes, status.preemptions, status.moves) == (1, 0, 0)
    assert status.attempts[0].resized
    (change,) = (await longshore.explain(running)).sizes
    assert (change.gpus_before, change.gpus, change.end_reason) == (8, 4, "resized")
    assert "resized make room: from 8 to 4 GPUs" in change.reason
    assert "of work is in no save" in change.reason
    assert (await longshore.job(running)).size == "4"
    await node.end(running, 2)
    assert (await longshore.wait(running)).attempts == 2


async def test_sizes_are_written_in_the_order_in_which_they_were_asked_for(
    longshore: Longshore, running: str, control: Database, temporal: Client
):
    job = temporal.get_workflow_handle(job_workflow_id(running))

    async def writes() -> int:
        pending = (await job.describe()).raw_description.pending_activities
        return [each.activity_type.name for each in pending].count("resize")

    async def both_asked() -> bool:
        accepted = "workflow_execution_update_accepted_event_attributes"
        return [each.HasField(accepted) for each in (await job.fetch_history()).events].count(
            True
        ) == 2

    async with control.transaction() as connection:
        await lock_job(connection, running)
        first = asyncio.create_task(longshore.resize(running, 4))
        await eventually(writes)
        second = asyncio.create_task(longshore.resize(running, 8))
        await eventually(both_asked)
        assert await writes() == 1
    assert [(await first).desired, (await second).desired] == [4, 8]


@pytest.mark.exhaustive
async def test_it_grows_where_the_gpus_are_free_and_its_own_count(
    longshore: Longshore, node: ScriptedNode, running: str, pool: str
):
    await longshore.resize(running, 4)
    await node.started(running, 2)
    other = (await longshore.submit(a_spec(pool, gpus=2))).job_id
    await node.started(other)
    reply = await longshore.resize(running, 8)
    assert (reply.gpus, reply.restarts) == (4, 6)  # 4 of its own, 2 are free
    assert size_of(await node.started(running, 3)) == 6


@pytest.mark.exhaustive
async def test_it_is_not_stopped_for_nothing(
    longshore: Longshore, node: ScriptedNode, running: str, pool: str
):
    await longshore.resize(running, 4)
    await node.started(running, 2)
    other = (await longshore.submit(a_spec(pool, gpus=4))).job_id
    await node.started(other)
    stops = len(node.stops)
    reply = await longshore.resize(running, 8)
    assert (reply.gpus, reply.restarts) == (4, None)
    assert reply.reason == "it keeps its 4 GPUs: stopped now, it would have 4 GPUs"
    assert (await longshore.resize(running, 4)).reason == "it has 4 GPUs already"
    assert len(node.stops) == stops
    assert (await longshore.status(running)).state is JobState.RUNNING


async def test_jobs_that_wait_before_it_keep_it_from_being_stopped(
    longshore: Longshore, node: ScriptedNode, running: str, pool: str
):
    urgent = (await longshore.submit(a_spec(pool, gpus=8, priority=9))).job_id
    await reaches(longshore, urgent, JobState.QUEUED)
    reply = await longshore.resize(running, 4)
    assert reply.restarts is None
    assert reply.reason.startswith("it keeps its 8 GPUs: stopped now, it would wait (for 2 GPUs")


@pytest.mark.exhaustive
async def test_a_queued_job_asks_for_its_new_size(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    job_id = (await longshore.submit(a_spec(pool, malleable=SIZES), held=True)).job_id
    await reaches(longshore, job_id, JobState.HELD)
    reply = await longshore.resize(job_id, 2)
    assert reply.reason == "it starts on up to 2 GPUs when it is placed"
    assert (await longshore.job(job_id)).size == "2"
    await longshore.release(job_id)
    assert size_of(await node.started(job_id)) == 2
    assert (await longshore.spec(job_id)).malleable == Malleable(min=2, max=8, step=2, desired=2)


@pytest.mark.exhaustive
async def test_what_cannot_be_is_refused_with_what_to_do(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    async def refused(job_id: str, gpus: int) -> str:
        with pytest.raises(RefusedError) as error:
            await longshore.resize(job_id, gpus)
        return str(error.value)

    rigid = (await longshore.submit(a_spec(pool))).job_id
    await node.started(rigid)
    assert "submit it with `malleable`" in await refused(rigid, 2)
    job_id = (await longshore.submit(a_spec(pool, malleable=SIZES))).job_id
    await node.started(job_id)
    assert "gpus is 3, which is not min (2) and a number of steps of 2" in await refused(job_id, 3)
    assert "the job has 2 to 8 GPUs in steps of 2, desired 8" in await refused(job_id, 16)
    assert "it would start from the beginning" in await refused(job_id, 2)
    assert (await longshore.resize(job_id, 2, from_start=True)).restarts == 2
    await node.end(job_id, 2)
    await longshore.wait(job_id)
    assert "has ended already" in await refused(job_id, 4)


@pytest.mark.exhaustive
async def test_a_size_that_was_asked_for_survives_a_new_run_of_its_workflow(
    longshore: Longshore, node: ScriptedNode, temporal: Client, pool: str
):
    job_id = f"resized-{uuid.uuid4().hex[:8]}"
    spec = a_spec(pool, malleable=SIZES, checkpoint={"folder": "saved"})
    await temporal.start_workflow(
        JobWorkflow.run,
        JobInput(spec=spec, max_attempts_per_run=1),
        id=job_workflow_id(job_id),
        task_queue=CONTROL_TASK_QUEUE,
    )
    for attempt, gpus in enumerate((4, 6, 2), 1):
        await node.started(job_id, attempt)
        assert (await longshore.resize(job_id, gpus)).restarts == gpus
        assert size_of(await node.started(job_id, attempt + 1)) == gpus
    assert (await longshore.status(job_id)).resizes == 3
    await node.end(job_id, 4)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


async def test_it_is_shrunk_for_a_higher_class_and_goes_on_at_once_with_the_rest(
    longshore: Longshore, node: ScriptedNode, control: Database, pool: str
):
    spec = a_spec(pool, malleable=SIZES, priority=3, retry={"preempted": {"max_retries": 0}})
    job_id = (await longshore.submit(spec)).job_id
    await node.started(job_id)
    high = (await longshore.submit(a_spec(pool, gpus=3, priority=8))).job_id
    await node.started(high)
    request = await node.started(job_id, 2)
    assert (size_of(request), request.gpus_before) == (4, 8)
    (stop,) = node.stops
    assert stop.reason == f"shrunk to 4 GPUs for {high} of class 8"
    assert await lease_ends(control, job_id) == ["resized"] * 8 + [None] * 4
    status = await longshore.status(job_id)
    assert (status.resizes, status.preemptions) == (1, 0)  # a preemption would have ended it
    explanation = await longshore.explain(job_id)
    assert explanation.gave_way is not None
    assert [victim.gpus_left for victim in explanation.gave_way.victims] == [4]
    assert [(each.gpus_before, each.gpus) for each in explanation.sizes] == [(8, 4)]
    await node.end(high)
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
