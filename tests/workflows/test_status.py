"""What a client is told of jobs whose workflow cannot tell it all."""

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from longshore.client.api import Longshore
from longshore.client.status import progress_of
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import Progress
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


@workflow.defn(sandboxed=False)
class Attempts:
    """Has processes pending side by side, as where one was lost with its node a moment ago."""

    @workflow.run
    async def run(self, fractions: list[float]) -> None:
        await asyncio.gather(
            *(
                workflow.start_activity(
                    "run_process", fraction, start_to_close_timeout=timedelta(minutes=5)
                )
                for fraction in fractions
            )
        )


async def test_a_job_that_was_terminated_has_failed_and_a_watch_of_it_ends(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    await temporal.get_workflow_handle(job_workflow_id(job_id)).terminate("by mistake")
    seen = [status.state async for status in longshore.watch(job_id)]
    assert seen[-1] is JobState.FAILED
    status = await longshore.status(job_id)
    assert (status.state, status.reason) == (JobState.FAILED, "its workflow was terminated")
    assert (await longshore.wait(job_id)).state is JobState.FAILED


async def test_the_progress_is_that_of_the_newest_attempt(temporal: Client):
    over = asyncio.Event()

    @activity.defn(name="run_process")
    async def says(fraction: float) -> None:
        activity.heartbeat(Progress(fraction=fraction))
        await over.wait()

    queue, fractions = f"test-{uuid.uuid4().hex[:8]}", [0.93, 0.41, 0.03]
    async with Worker(temporal, task_queue=queue, workflows=[Attempts], activities=[says]):
        job = await temporal.start_workflow(
            Attempts.run, fractions, id=uuid.uuid4().hex, task_queue=queue
        )
        await eventually(_all_have_spoken(temporal, job.id, len(fractions)))
        progress = await progress_of(temporal, temporal.get_workflow_handle(job.id))
        over.set()
        await job.result()
    assert progress == Progress(fraction=0.03)


def _all_have_spoken(temporal: Client, workflow_id: str, count: int) -> Callable[[], object]:
    async def have_spoken() -> bool:
        found = await temporal.get_workflow_handle(workflow_id).describe()
        pending = found.raw_description.pending_activities
        return sum(bool(each.heartbeat_details.payloads) for each in pending) == count

    return have_spoken
