"""What a client is told of jobs whose workflow cannot tell it all."""

from temporalio.client import Client

from client.api import Longshore
from models.job import JobState
from models.messages import job_workflow_id
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode


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
