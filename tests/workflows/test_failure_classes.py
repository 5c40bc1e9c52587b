"""A failed attempt is classified before it is tried again: whose fault it was decides."""

from typing import Any, cast

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from tests.support.control import a_spec, lease_ends
from tests.support.scripted_node import SUCCESS, USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

NO_COMMAND = ProcessReport(failure=FailureClass.START, exit_code=127, message="command not found")
OFTEN = {"max_retries": 5, "backoff": 0}


async def test_what_two_nodes_cannot_start_is_not_tried_on_a_third(
    longshore: Longshore,
    node: ScriptedNode,
    pool: str,
    temporal: Client,
    settings: Settings,
    control: Database,
):
    job_id = (await longshore.submit(a_spec(pool, gpus=8, retry={"start": OFTEN}))).job_id
    await node.started(job_id)
    other, third = (ScriptedNode(temporal, pool, settings.resolve_agent_token()) for _ in "ab")
    async with other.serving():
        await other.register()
        await longshore.cordon(node.id, "only one of them takes it next")
        await node.end(job_id, 1, NO_COMMAND)
        await other.started(job_id, 2)
        async with third.serving():
            await third.register()
            await other.end(job_id, 2, NO_COMMAND)
            result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.START)
    assert (result.attempts, result.exit_code) == (2, 127)
    assert result.message == (
        "command not found; no other node is tried: it could not be started on "
        + " and ".join(sorted((node.id, other.id)))
    )
    assert third.runs() == []
    assert await lease_ends(control, job_id) == ["failed"] * 16


@pytest.mark.exhaustive
async def test_what_one_node_cannot_start_is_tried_as_often_as_its_rule_says(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    retry = {"start": {"max_retries": 2, "backoff": 0}}
    job_id = (await longshore.submit(a_spec(pool, retry=retry))).job_id
    for attempt in (1, 2, 3):
        await node.end(job_id, attempt, NO_COMMAND)
    result = await longshore.wait(job_id)
    assert (result.failure, result.attempts, result.message) == (
        FailureClass.START, 3, "command not found",
    )  # fmt: skip


async def test_a_class_that_only_a_newer_agent_knows_is_tried_again_as_the_nodes(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    newer = {"exit_code": 1, "failure": "gpu_fault", "message": "GPU 3 is gone"}
    retry = {"node": {"max_retries": 1, "backoff": 0}, "user": {"max_retries": 0}}
    job_id = (await longshore.submit(a_spec(pool, retry=retry))).job_id
    for attempt in (1, 2):
        await node.end(job_id, attempt, cast(Any, newer))
    result = await longshore.wait(job_id)
    assert (result.failure, result.attempts) == (FailureClass.NODE, 2)
    assert result.message == (
        "failed as 'gpu_fault', a class that this version does not know: GPU 3 is gone"
    )
    assert await lease_ends(control, job_id) == ["node-lost", "failed"]


async def test_what_a_job_wrote_steers_no_screen_that_shows_its_failure(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    said = ProcessReport(failure=FailureClass.START, message="no \x1b[31mRED\u202eevil\u00ad")
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.end(job_id, 1, said)
    with pytest.raises(WorkflowFailureError) as failure:
        await temporal.get_workflow_handle(job_workflow_id(job_id)).result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.message == r"no \x1b[31mRED\u202eevil\xad"
    assert (await longshore.wait(job_id)).message == said.message


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(
    ("cut_off", "failure", "says"),
    [
        (True, FailureClass.NETWORK, "it was cut off from the server"),
        (False, FailureClass.NODE, "was lost: its agent started anew"),
    ],
)
async def test_a_node_that_was_cut_off_is_told_from_one_whose_agent_died(
    longshore: Longshore,
    node: ScriptedNode,
    pool: str,
    control: Database,
    cut_off: bool,
    failure: FailureClass,
    says: str,
):
    retry = {"node": {"max_retries": 1, "backoff": 0}}
    job_id = (await longshore.submit(a_spec(pool, retry=retry))).job_id
    await node.started(job_id)
    await node.register(boot_id="boot-2", cut_off=cut_off)
    await node.end(job_id, 2)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    first = (await longshore.status(job_id)).attempts[0]
    assert first.failure is failure
    assert says in first.message
    assert await lease_ends(control, job_id) == ["node-lost", "finished"]


async def test_what_ended_while_its_node_was_cut_off_does_not_run_again(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    node.loses_reports = True
    await node.end(job_id)
    await eventually(lambda: node.lost_reports == 1)
    node.loses_reports = False
    await node.register(boot_id="boot-2", cut_off=True)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    assert node.runs() == [(job_id, 1)]
    assert await lease_ends(control, job_id) == ["node-lost"]


@pytest.mark.parametrize(
    ("report", "attempts"),
    [
        (SUCCESS, 1),
        (USER_ERROR, 2),  # perhaps of what killed its agent
        (ProcessReport(exit_code=0, stopped_for="the agent stopped"), 2),
    ],
)
async def test_what_succeeded_before_its_agent_died_does_not_run_again(
    longshore: Longshore,
    node: ScriptedNode,
    pool: str,
    control: Database,
    report: ProcessReport,
    attempts: int,
):
    retry = {"node": {"max_retries": 1, "backoff": 0}}
    job_id = (await longshore.submit(a_spec(pool, retry=retry))).job_id
    await node.started(job_id)
    node.loses_reports = True
    await node.end(job_id, 1, report)
    await eventually(lambda: node.lost_reports == 1)
    node.loses_reports = False
    await node.register(boot_id="boot-2")
    if attempts > 1:
        await node.end(job_id, attempts)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, attempts)
    assert await lease_ends(control, job_id) == ["node-lost", "finished"][:attempts]


async def test_a_process_that_ended_for_want_of_the_server_has_failed_by_the_network(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    cut = ProcessReport(failure=FailureClass.NETWORK, exit_code=137, message="cut off")
    retry = {"network": {"max_retries": 1, "backoff": 0}, "node": {"max_retries": 0}}
    job_id = (await longshore.submit(a_spec(pool, retry=retry))).job_id
    await node.end(job_id, 1, cut)
    await node.end(job_id, 2, cut)
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NETWORK)
    assert await lease_ends(control, job_id) == ["node-lost", "failed"]
