"""A malleable job: it starts on the GPUs that fit, and goes on with fewer where it has to."""

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job import JobState
from longshore.models.messages import RunProcessRequest
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import ScriptedNode

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
