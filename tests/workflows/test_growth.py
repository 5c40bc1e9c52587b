"""A running malleable job grows by itself when GPUs are idle."""

from datetime import timedelta

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.growth import Growing
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import RunProcessRequest
from longshore.models.pool import PoolSpec
from longshore.models.settings import Settings
from longshore.scheduling import growth
from longshore.workflows.job import JobWorkflow
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

SIZES = {"min": 2, "max": 8, "step": 2}
SAVES = {"folder": "saved", "grace": "0s"}


def size_of(request: RunProcessRequest) -> int:
    return len(request.placement.gpu_indices)


@pytest.fixture
async def quick(longshore: Longshore, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has jobs of the pool grow when GPUs were idle for a tenth of a second."""
    monkeypatch.setattr(growth, "TO_START", timedelta(0))
    soon = timedelta(seconds=0.1)
    await longshore.set_pool(PoolSpec(name=pool, interval=soon, grow_after=soon))


async def hungry(longshore: Longshore, node: ScriptedNode, pool: str) -> tuple[str, str]:
    """Start a malleable job on 4 of 8 GPUs beside one of 4; return both, that one last."""
    other = (await longshore.submit(a_spec(pool, gpus=4))).job_id
    await node.started(other)
    job_id = (await longshore.submit(a_spec(pool, malleable=SIZES, checkpoint=SAVES))).job_id
    assert size_of(await node.started(job_id)) == 4
    return job_id, other


async def test_it_grows_after_another_has_ended_and_says_what_that_earns(
    longshore: Longshore, node: ScriptedNode, pool: str, quick: None, control: Database
):
    job_id, other = await hungry(longshore, node, pool)
    kept = (await longshore.explain(job_id)).growth
    assert kept is not None
    assert kept.reason == "4 of 8 desired GPUs: no more are free for it"
    await node.end(other)
    request = await node.started(job_id, 2)
    assert (size_of(request), request.gpus_before) == (8, 4)
    assert await lease_ends(control, job_id) == ["resized"] * 4 + [None] * 8
    status = await longshore.status(job_id)
    assert (status.resizes, status.preemptions, status.moves) == (1, 0, 0)
    explanation = await longshore.explain(job_id)
    (change,) = explanation.sizes
    assert (change.gpus_before, change.gpus, change.end_reason) == (4, 8, "resized")
    assert change.reason.startswith("grown from 4 to 8 GPUs: it ends ")
    assert "which earns $" in change.reason
    assert "of work in no save" in change.reason
    assert explanation.growth is None  # it has what it is to have
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).attempts == 2


async def test_why_says_until_when_it_waits_for_idle_gpus(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    job_id, other = await hungry(longshore, node, pool)
    await node.end(other)
    await longshore.wait(other)
    decided = (await longshore.explain(job_id)).growth
    assert decided is not None
    said = "4 of 8 desired GPUs: 4 more GPUs would be free, the last of them since "
    assert decided.reason.startswith(said)
    assert decided.again is not None
    assert timedelta(minutes=4) < decided.again - decided.at <= timedelta(minutes=5)
    assert (await longshore.status(job_id)).attempt == 1


@pytest.mark.exhaustive
async def test_a_job_that_waits_and_could_run_there_goes_first(
    longshore: Longshore, node: ScriptedNode, pool: str, quick: None
):
    job_id, other = await hungry(longshore, node, pool)
    wide = (await longshore.submit(a_spec(pool, gpus=8, priority=5))).job_id
    await reaches(longshore, wide, JobState.QUEUED)
    await node.end(other)

    async def it_is_said() -> bool:
        decided = (await longshore.explain(job_id)).growth
        return decided is not None and f"{wide} waits, and could run there" in decided.reason

    await eventually(it_is_said)
    assert (await longshore.status(job_id)).attempt == 1
    await longshore.cancel(wide)
    assert size_of(await node.started(job_id, 2)) == 8


@pytest.mark.exhaustive
async def test_it_grows_for_this_attempt_and_to_one_of_its_sizes_only(
    longshore: Longshore, temporal: Client, node: ScriptedNode, pool: str
):
    job_id, _ = await hungry(longshore, node, pool)
    job = temporal.get_workflow_handle_for(JobWorkflow.run, job_workflow_id(job_id))
    grown = Growing(attempt=1, gpus_before=4, gpus=6, reason="grown for a test")
    for odd in ({"attempt": 2}, {"gpus": 5}, {"gpus": 10}):
        await job.signal(JobWorkflow.grow, grown.model_copy(update=odd))
    assert (await longshore.status(job_id)).state is JobState.RUNNING
    assert node.stops == []
    await longshore.resize(job_id, 4)  # it is to have no more: who decided did not know yet
    await job.signal(JobWorkflow.grow, grown)
    assert (await longshore.status(job_id)).state is JobState.RUNNING
    await longshore.resize(job_id, 8)
    for _ in range(2):  # told again
        await job.signal(JobWorkflow.grow, grown)
    # Nothing is free after all: it has what it had.
    assert size_of(await node.started(job_id, 2)) == 4
    assert [stop.reason for stop in node.stops] == ["grown for a test"]
    assert (await longshore.explain(job_id)).sizes == ()
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).attempts == 2


@pytest.mark.exhaustive
async def test_a_gang_grows_by_whole_groups_onto_another_node(
    longshore: Longshore,
    temporal: Client,
    settings: Settings,
    control: Database,
    pool: str,
    quick: None,
):
    sizes = {"min": 8, "max": 24, "step": 8}
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        other = (await longshore.submit(a_spec(pool, gpus=8))).job_id
        await eventually(lambda: any((other, 1) in node.runs() for node in nodes))
        spec = a_spec(pool, gang={"group_gpus": 8}, malleable=sizes, checkpoint=SAVES)
        job_id = (await longshore.submit(spec)).job_id
        await eventually(lambda: any((job_id, 1) in node.runs() for node in nodes))
        assert (await longshore.job(job_id)).size == "8/24"
        await next(node for node in nodes if (other, 1) in node.runs()).end(other)
        requests = [await node.started(job_id, 2) for node in nodes]
        assert [size_of(request) for request in requests] == [8, 8]
        assert {request.gpus_before for request in requests} == {8}
        assert await lease_ends(control, job_id) == ["resized"] * 8 + [None] * 16
        kept = (await longshore.explain(job_id)).growth
        assert kept is not None
        assert kept.reason.startswith("16 of 24 desired GPUs: ")
        for node in nodes:
            await node.end(job_id, 2)
        assert (await longshore.wait(job_id)).attempts == 2
