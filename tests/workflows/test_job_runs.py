"""A job from submit to its end, on a scripted node."""

from client.api import Longshore
from models.job import JobState
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode


async def test_a_job_that_fits_runs_and_succeeds(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    submitted = await longshore.submit(a_spec(pool, gpus=2))
    request = await node.end(submitted.job_id)
    result = await longshore.wait(submitted.job_id)
    assert result.state is JobState.SUCCEEDED
    assert request.placement.gpu_indices == (0, 1)
    assert (await longshore.job(submitted.job_id)).state is JobState.SUCCEEDED
    assert all(gpu.job_id is None for gpu in (await longshore.nodes(pool=pool))[0].gpus)
