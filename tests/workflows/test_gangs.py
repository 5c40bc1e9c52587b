"""A job on several nodes: all ranks or none, and one end for all of them."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.logstore import LogStore
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import NodeEpoch, NodeLost, job_workflow_id
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import SUCCESS, USER_ERROR, ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

FULL = "OSError: [Errno 28] No space left on device"
AGAIN = {"node": {"max_retries": None, "backoff": 0}}

Pair = tuple[ScriptedNode, ScriptedNode]


@pytest.fixture
async def pair(
    temporal: Client, settings: Settings, control: Database, pool: str
) -> AsyncIterator[Pair]:
    """Registers two nodes of 8 GPUs in one fabric domain; 0.2 s."""
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        yield nodes[0], nodes[1]


@pytest.fixture
async def gang(longshore: Longshore, pair: Pair, pool: str) -> str:
    """Starts a job of 16 GPUs on both nodes; 0.2 s."""
    spec = a_spec(pool, gpus=16, cpus=16, ram=32, gang={}, retry=AGAIN)
    job_id = (await longshore.submit(spec)).job_id
    for node in pair:
        await node.started(job_id)
    return job_id


async def test_each_rank_is_told_of_all_and_the_job_ends_with_the_last(
    longshore: Longshore, pair: Pair, gang: str, control: Database
):
    placements = [(await node.started(gang)).placement for node in pair]
    assert sorted(placement.rank for placement in placements) == [0, 1]
    for node, placement in zip(pair, placements, strict=True):
        assert placement.node_id == node.id
        assert placement.gpu_indices == tuple(range(8))
        assert {rank.address for rank in placement.ranks} == {f"{n.id}.test" for n in pair}
    await pair[0].end(gang)
    status = await reaches(longshore, gang, JobState.RUNNING)
    assert {status.attempts[-1].node_id, *status.attempts[-1].other_nodes} == {
        node.id for node in pair
    }
    await pair[1].end(gang)
    assert (await longshore.wait(gang)).state is JobState.SUCCEEDED
    assert await lease_ends(control, gang) == ["finished"] * 16
    assert not pair[0].stops
    assert not pair[1].stops


@pytest.mark.exhaustive
async def test_output_of_any_rank_that_is_not_stored_is_told_and_on_record(
    longshore: Longshore, pair: Pair, gang: str
):
    lacking, other = sorted(pair, key=lambda node: node.id)
    store = LogStore(longshore.settings.resolve_log_store())
    store.write(gang, 1, lacking.id, "stdout", 0, b"part")
    store.write_end(gang, 1, other.id)
    for node, error in ((other, ""), (lacking, FULL)):
        await node.end(gang, report=ProcessReport(message="finished", log_error=error))
    result = await longshore.wait(gang)
    why = f"rank {(await lacking.started(gang)).placement.rank} on {lacking.id}: {FULL}"
    assert result.state is JobState.SUCCEEDED
    assert result.message == f"finished; its output is not all stored: {why}"
    assert (await longshore.status(gang)).attempts[-1].log_error == why
    assert await longshore.missing_logs(gang) == why
    report = await longshore.report(gang)
    assert report.job.reason == report.attempts[-1].end_message == result.message


async def test_the_failure_of_one_rank_ends_the_others_and_is_what_is_told(
    longshore: Longshore, pair: Pair, gang: str, control: Database
):
    await pair[1].end(gang, report=USER_ERROR)
    result = await longshore.wait(gang)
    assert (result.state, result.failure, result.exit_code) == (
        JobState.FAILED, FailureClass.USER, 3,
    )  # fmt: skip
    assert f"on {pair[1].id}: exit code 3" in result.message
    assert [stop.reason for stop in pair[0].stops] == [
        f"rank {(await pair[1].started(gang)).placement.rank} on {pair[1].id} has failed"
    ]
    assert await lease_ends(control, gang) == ["failed"] * 16


async def test_no_gpu_is_given_up_before_the_last_rank_has_stopped(
    longshore: Longshore, pair: Pair, gang: str, control: Database
):
    pair[0].slow_to_stop = True
    await longshore.cancel(gang, "enough")
    await eventually(lambda: pair[0].stops and pair[1].stops)
    await reaches(longshore, gang, JobState.STOPPING)
    assert await lease_ends(control, gang) == [None] * 16
    await pair[0].end(gang, report=ProcessReport(exit_code=143, stopped_for="enough"))
    result = await longshore.wait(gang)
    assert (result.state, result.message) == (JobState.CANCELLED, "enough")
    assert await lease_ends(control, gang) == ["cancelled"] * 16


async def test_with_a_lost_node_the_others_stop_and_the_whole_gang_waits_again(
    longshore: Longshore, pair: Pair, gang: str, control: Database
):
    pair[0].slow_to_stop = True
    pair[1].leave()
    await eventually(lambda: pair[0].stops)
    # The lost node's leases have ended; those of the other hold until its process has.
    assert sorted(await lease_ends(control, gang), key=str) == [None] * 8 + ["node-lost"] * 8
    await pair[0].end(gang, report=ProcessReport(exit_code=143, stopped_for="lost"))
    status = await reaches(longshore, gang, JobState.QUEUED)
    assert status.attempts[-1].failure is FailureClass.NODE
    assert pair[1].id in status.attempts[-1].message
    assert None not in await lease_ends(control, gang)
    await pair[1].register(boot_id="boot-2")


@pytest.mark.exhaustive
async def test_a_gang_that_loses_a_dozen_nodes_at_once_waits_again(
    longshore: Longshore, pool: str, temporal: Client, settings: Settings, control: Database
):
    """A loss that is told twice, too, is one."""
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "abcdefghijkl") as nodes:
        spec = a_spec(pool, gpus=96, cpus=96, ram=192, gang={}, retry=AGAIN)
        gang = (await longshore.submit(spec)).job_id
        placement = (await nodes[0].started(gang)).placement
        first = NodeLost(node_id=placement.node_id, epoch=placement.epoch, reason="it burns")
        for node in nodes:
            await node.started(gang)
            node.slow_to_stop = True
        job = temporal.get_workflow_handle(job_workflow_id(gang))
        for _ in range(2):
            await job.signal("node_lost", first)
        for node in nodes:
            node.leave()
        status = await reaches(longshore, gang, JobState.QUEUED)
        assert status.attempts[-1].failure is FailureClass.NODE
        assert await lease_ends(control, gang) == ["node-lost"] * 96


async def test_a_gang_hears_of_all_its_lost_nodes_in_one_message(
    longshore: Longshore, pair: Pair, pool: str, temporal: Client
):
    """As reconcile tells it, also to a job whose older version has forgotten of some."""
    spec = a_spec(pool, gpus=16, gang={}, retry={"node": {"max_retries": 0}})
    gang = (await longshore.submit(spec)).job_id
    for node in pair:
        node.slow_to_stop = True
        await node.started(gang)
    ranks = (await pair[0].started(gang)).placement.ranks
    first, other = (NodeEpoch(node_id=rank.node_id, epoch=rank.epoch) for rank in ranks)
    job = temporal.get_workflow_handle(job_workflow_id(gang))
    lost = NodeLost(node_id=first.node_id, epoch=first.epoch, reason="told again", also=(other,))
    await job.signal("node_lost", lost)
    result = await longshore.wait(gang)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("other_runs", [False, True])
async def test_a_rank_that_succeeded_before_its_agent_died_counts_where_all_others_did(
    longshore: Longshore, pair: Pair, gang: str, control: Database, other_runs: bool
):
    """Where another rank was still at work the gang runs again whole."""
    first, second = pair
    for node in pair:
        await node.started(gang)
    second.loses_reports = True
    await second.end(gang)
    await eventually(lambda: second.lost_reports == 1)
    second.loses_reports = False
    if not other_runs:
        await first.end(gang)
    await second.register(boot_id="boot-2")
    if other_runs:
        for node in pair:
            await node.end(gang, 2)
    result = await longshore.wait(gang)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1 + other_runs)


async def test_a_rank_that_is_refused_keeps_none_of_the_others_running(
    longshore: Longshore, pair: Pair, pool: str
):
    pair[1].refusal = "it is fenced off"
    spec = a_spec(pool, gpus=16, gang={}, retry={"node": {"max_retries": 0}})
    job_id = (await longshore.submit(spec)).job_id
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
    assert "it is fenced off" in result.message


@pytest.mark.exhaustive
async def test_a_gang_that_does_not_fit_waits_and_takes_nothing(
    longshore: Longshore, pair: Pair, pool: str, control: Database
):
    small = (await longshore.submit(a_spec(pool, gpus=4))).job_id
    await reaches(longshore, small, JobState.RUNNING)
    wide = (await longshore.submit(a_spec(pool, gpus=16, gang={}))).job_id
    await reaches(longshore, wide, JobState.QUEUED)
    await eventually(lambda: _is_told_why(longshore, wide))
    assert await lease_ends(control, wide) == []
    for node in pair:
        if (small, 1) in node.runs():
            await node.end(small, report=SUCCESS)
    for node in pair:
        await node.end(wide)
    assert (await longshore.wait(wide)).state is JobState.SUCCEEDED


async def _is_told_why(longshore: Longshore, job_id: str) -> bool:
    return "together" in (await longshore.job(job_id)).reason


async def test_the_node_is_named_that_could_not_start_its_rank(
    longshore: Longshore, pair: Pair, gang: str
):
    no_command = ProcessReport(failure=FailureClass.START, exit_code=127, message="no such file")
    await pair[1].end(gang, 1, no_command)
    result = await longshore.wait(gang)
    assert (result.failure, result.attempts) == (FailureClass.START, 1)
    (attempt,) = (await longshore.status(gang)).attempts
    assert attempt.failed_on == pair[1].id
