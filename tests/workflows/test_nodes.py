"""A node from its registration to its end: admitted, drained, restarted, silent, gone."""

import asyncio
import uuid
from datetime import timedelta

import pytest
from pydantic import SecretStr
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.testing import TimeSkipper

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.errors import NotFoundError, RefusedError
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, node_workflow_id
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeInput, NodeStatus
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.models.views import NodeView
from longshore.workers.stack import Stack
from longshore.workflows.node import NodeWorkflow
from tests.support.control import a_spec, lease_ends, on_task_queue, reaches, serving_control
from tests.support.database_away import database_away
from tests.support.histories import runs
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

AT_ONCE = {"node": {"max_retries": 3, "backoff": 0}}


async def test_a_wrong_token_is_refused_and_leaves_no_node(
    longshore: Longshore, skipper: TimeSkipper, control: Database, pool: str
):
    node = ScriptedNode(skipper.client, pool, "not the token")
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await node.register()
    assert _type_of(failure.value) == "TokenError"
    assert "wrong join token" in str(failure.value.cause)
    handle = skipper.client.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(node.id))
    over = await handle.result()
    assert (over.state, over.reason) == ("GONE", "no agent was admitted")
    assert await longshore.nodes(pool=pool, with_gone=True) == ()


async def test_a_wrong_token_does_not_disturb_a_live_node(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    before = node.registered
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await node.register(token="not the token", boot_id="boot-2")
    assert _type_of(failure.value) == "TokenError"
    assert await node.register() == before


async def test_another_agent_is_refused_while_the_first_one_lives(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await node.register(agent_id="another", boot_id="boot-of-another")
    assert _type_of(failure.value) == "NodeTakenError"
    assert f"node {node.id} already has a live agent" in str(failure.value.cause)
    assert (await _view(longshore, pool)).epoch == 1
    node.leave()
    await eventually(lambda: _is(longshore, pool, NodeState.GONE))
    assert (await node.register(agent_id="another", boot_id="boot-of-another")).epoch == 2


async def test_a_repeated_registration_of_one_boot_changes_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    assert (await node.register()).epoch == 1
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1


@pytest.mark.exhaustive
async def test_an_agent_that_starts_anew_gets_a_new_epoch_and_its_jobs_run_again(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    job_id = (await longshore.submit(a_spec(pool, retry=AT_ONCE))).job_id
    assert (await node.started(job_id)).placement.epoch == 1
    assert (await node.register(boot_id="boot-2")).epoch == 2
    again = await node.end(job_id, 2)
    assert again.placement.epoch == 2
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    assert await lease_ends(control, job_id) == ["node-lost", "finished"]
    first = (await longshore.status(job_id)).attempts[0]
    assert first.failure is FailureClass.NODE
    assert "its agent started anew" in first.message


async def test_a_drained_node_finishes_what_it_runs_and_takes_nothing_new(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    first = (await longshore.submit(a_spec(pool))).job_id
    await node.started(first)
    drained = await longshore.drain(node.id, "new driver")
    assert (drained.state, drained.draining, drained.reason) == ("DRAINING", True, "new driver")
    other = ScriptedNode(temporal, pool, node.token)
    async with other.serving():
        await other.register()
        second = (await longshore.submit(a_spec(pool))).job_id
        await other.end(second)
        await longshore.wait(second)
        assert not (await _view(longshore, pool, node.id)).drained
        assert (await longshore.status(first)).state is JobState.RUNNING
        await node.end(first)
        assert (await longshore.wait(first)).attempts == 1
        view = await _view(longshore, pool, node.id)
        assert (view.state, view.drained) == (NodeState.DRAINING, True)
        assert view.state_reason == "new driver"
        assert other.runs() == [(second, 1)]
    third = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, third, JobState.QUEUED)
    assert (await longshore.uncordon(node.id)).state == "READY"
    await node.end(third)
    assert (await longshore.wait(third)).state is JobState.SUCCEEDED


async def test_a_drain_outlives_a_restart_of_the_agent(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    await longshore.drain(node.id, "new driver")
    assert (await node.register(boot_id="boot-2")).epoch == 2
    view = await _view(longshore, pool)
    assert (view.state, view.epoch, view.state_reason) == (NodeState.DRAINING, 2, "new driver")
    assert (await _status(longshore.temporal, node)).draining
    await longshore.uncordon(node.id)
    assert (await _view(longshore, pool)).state is NodeState.READY


async def test_a_drain_of_a_node_that_is_not_there_is_a_clear_error(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    with pytest.raises(NotFoundError, match="no live node no-such-node"):
        await longshore.drain("no-such-node")
    node.leave()
    await eventually(lambda: _is(longshore, pool, NodeState.GONE))
    await _completed(longshore.temporal, node)
    with pytest.raises(
        RefusedError, match=f"node {node.id} is gone, or only its workflow has ended"
    ):
        await longshore.uncordon(node.id)


async def test_a_node_that_leaves_gives_its_jobs_back(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    job_id = (await longshore.submit(a_spec(pool, retry=AT_ONCE))).job_id
    await node.started(job_id)
    node.leave()
    status = await reaches(longshore, job_id, JobState.QUEUED)
    assert status.attempt == 2
    view = await _view(longshore, pool)
    assert (view.state, view.state_reason) == (NodeState.GONE, "agent stopped")
    over = await _completed(longshore.temporal, node)
    assert (over.state, over.epoch) == ("GONE", 1)
    assert await lease_ends(control, job_id) == ["node-lost"]
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


@pytest.mark.exhaustive
async def test_an_agent_that_takes_calls_and_answers_none_is_lost_in_time(
    temporal: Client, settings: Settings, control: Database, pool: str
):
    queue = f"hasty-{uuid.uuid4().hex[:8]}"
    hasty = Settings(state_dir=settings.state_dir, node_lost_after=timedelta(seconds=8))
    longshore = Longshore(on_task_queue(temporal, queue), settings)
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), task_queue=queue)
    async with serving_control(temporal, hasty, task_queue=queue), node.serving():
        await node.register()
        await eventually(lambda: _is(longshore, pool, NodeState.READY))
        node.hangs = True
        hung_at = asyncio.get_running_loop().time()
        await eventually(lambda: _is(longshore, pool, NodeState.LOST))
        assert asyncio.get_running_loop().time() - hung_at > 2
        lost = await _view(longshore, pool, node.id)
        assert lost.state_reason == "its agent hangs: it takes calls and answers none"
        node.hangs = False
        assert (await node.register(boot_id="boot-2")).epoch == 2
        node.leave()
        await _completed(temporal, node)
    await longshore.close()


async def test_nobody_registers_by_the_id_of_another_node(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, settings: Settings
):
    liar = ScriptedNode(temporal, pool, settings.resolve_agent_token(), node_id=node.id)
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await liar.register(through=f"liar-{uuid.uuid4().hex[:8]}")
    assert _type_of(failure.value) == "TokenError"
    assert f"an agent of node {node.id} cannot register as liar-" in str(failure.value.cause)
    assert (await _view(longshore, pool)).epoch == 1


async def test_a_silent_node_is_lost_in_time_and_its_jobs_run_elsewhere(
    temporal: Client, settings: Settings, control: Database, pool: str
):
    queue = f"hasty-{uuid.uuid4().hex[:8]}"
    hasty = Settings(state_dir=settings.state_dir, node_lost_after=timedelta(seconds=9))
    longshore = Longshore(on_task_queue(temporal, queue), settings)
    token = settings.resolve_agent_token()
    async with serving_control(temporal, hasty, task_queue=queue):
        first = ScriptedNode(temporal, pool, token, task_queue=queue)
        other = ScriptedNode(temporal, pool, token, task_queue=queue)
        async with first.serving():
            await first.register()
            job_id = (await longshore.submit(a_spec(pool, retry=AT_ONCE))).job_id
            await first.started(job_id)
            first.fall_silent()
        async with other.serving():
            await other.register()
            request = await other.end(job_id, 2)
            result = await longshore.wait(job_id)
        lost = await _view(longshore, pool, first.id)
        await _completed(temporal, other)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    assert (lost.state, lost.state_reason) == (NodeState.LOST, "its agent is silent")
    silent_for = request.placement.placed_at - lost.registered_at
    assert timedelta(seconds=9) <= silent_for < timedelta(seconds=60)
    await longshore.close()


@pytest.mark.exhaustive
async def test_continuing_as_new_keeps_the_registration_and_the_drain(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str
):
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await temporal.start_workflow(
        NodeWorkflow.run,
        NodeInput(node_id=node.id, max_watches_per_run=1),
        id=node_workflow_id(node.id),
        task_queue=CONTROL_TASK_QUEUE,
    )
    async with node.serving():
        await node.register()
        await longshore.drain(node.id, "new driver")
        for boot in (2, 3):
            assert (await node.register(boot_id=f"boot-{boot}")).epoch == boot
        chain = await eventually(lambda: _runs_of(temporal, node, 3))
        assert len(chain) == 3
        status = await _status(temporal, node)
        assert (status.epoch, status.draining, status.reason) == (3, True, "new driver")
        # The third run has heard of the last registration, or has it from the second.
        card = await _card(temporal, node)
        for told in (
            "**READY**",
            "new driver",
            " x H100 with 80 GB (simulated)",
            "Registration 3",
            f"nodes {node.id}",
        ):
            assert told in card, card
        with pytest.raises(WorkflowUpdateFailedError) as failure:
            await node.register(agent_id="another", boot_id="boot-of-another")
        assert _type_of(failure.value) == "NodeTakenError"
        await longshore.uncordon(node.id)
        job_id = (await longshore.submit(a_spec(pool))).job_id
        assert (await node.end(job_id)).placement.epoch == 3
        assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    assert (await _completed(temporal, node)).state == "GONE"


@pytest.mark.exhaustive
async def test_a_registration_that_waits_long_for_the_database_is_watched_after_all(
    skipper: TimeSkipper, stack: Stack, settings: Settings, database_url: str, pool: str
):
    queue = f"patient-{uuid.uuid4().hex[:8]}"
    own = Settings(state_dir=settings.state_dir, database_url=SecretStr(database_url))
    node = ScriptedNode(skipper.client, pool, settings.resolve_agent_token(), task_queue=queue)
    handle = skipper.client.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(node.id))
    async with serving_control(skipper.client, own, task_queue=queue), node.serving():
        with database_away(stack, database_url):
            registration = asyncio.create_task(node.register())
            await eventually(lambda: _is_later(skipper, handle, timedelta(minutes=6)))
        assert (await registration).epoch == 1
        status = await handle.query(NodeWorkflow.status)
        assert (status.state, status.epoch) == ("READY", 1)
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
        node.leave()
        assert (await handle.result()).state == "GONE"


async def _view(longshore: Longshore, pool: str, node_id: str | None = None) -> NodeView:
    views = await longshore.nodes(pool=pool, with_gone=True)
    return next(view for view in views if node_id in (None, view.id))


async def _is(longshore: Longshore, pool: str, state: NodeState) -> bool:
    return (await _view(longshore, pool)).state is state


async def _status(temporal: Client, node: ScriptedNode) -> NodeStatus:
    handle = temporal.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(node.id))
    return await handle.query(NodeWorkflow.status)


async def _card(temporal: Client, node: ScriptedNode) -> str:
    handle = temporal.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(node.id))
    shown = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return shown.current_details


async def _completed(temporal: Client, node: ScriptedNode) -> NodeStatus:
    handle = temporal.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(node.id))
    return await handle.result()


async def _runs_of(temporal: Client, node: ScriptedNode, count: int) -> list[str]:
    chain = await runs(temporal, node_workflow_id(node.id))
    return chain if len(chain) >= count else []


async def _is_later(
    skipper: TimeSkipper, handle: WorkflowHandle[NodeWorkflow, NodeStatus], than: timedelta
) -> bool:
    try:
        description = await handle.describe()
    except RPCError:
        return False  # not started yet
    return await skipper.get_current_time(handle) - description.start_time > than


def _type_of(error: WorkflowUpdateFailedError) -> str | None:
    assert isinstance(error.cause, ApplicationError)
    return error.cause.type
