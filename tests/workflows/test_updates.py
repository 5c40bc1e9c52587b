"""Updates of every workflow by the Temporal UI, its CLI or any SDK, with what cannot be read."""

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from longshore.client.api import Longshore
from longshore.models.array_messages import ElementsRequest
from longshore.models.base import Input
from longshore.models.departures import ExpiryChange, NodeDrain
from longshore.models.messages import CommandReason, job_workflow_id, node_workflow_id
from longshore.models.node import NodeState
from longshore.models.node_messages import Registration
from longshore.models.resize import Resize
from longshore.workers.versioning import WORKFLOWS
from longshore.workflows.array import ArrayWorkflow
from longshore.workflows.job import JobWorkflow
from longshore.workflows.node import NodeWorkflow
from tests.support.control import a_spec
from tests.support.ledger import registration
from tests.support.scripted_node import ScriptedNode

_ENCODED = RawValue(Payload(metadata={"encoding": b"binary/encrypted"}, data=b"xyz"))
_UNREADABLE: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("none", (), ""),
    ("null", (None,), ""),
    ("number", (5,), "input: must be a mapping"),
    ("text", ("x",), "input: must be a mapping"),
    ("list", (["x"],), "input: must be a mapping"),
    ("encoded", (_ENCODED,), "its encoding is binary/encrypted"),
    ("two", ({}, {}), "give one input, not 2"),
)


def _updates_of(kind: type) -> dict[str, type[Input]]:
    """Return what each update takes, by its name."""
    found = workflow._Definition.must_from_class(kind).updates  # pyright: ignore
    return {str(name): each.arg_types[0] for name, each in found.items() if each.arg_types}


_OF_NODES = _updates_of(NodeWorkflow)


_OF_JOBS = _updates_of(JobWorkflow)


def test_which_workflows_have_updates_and_each_says_what_it_takes():
    with_updates = {kind: _updates_of(kind) for kind in WORKFLOWS if _updates_of(kind)}
    assert set(with_updates) == {NodeWorkflow, JobWorkflow, ArrayWorkflow}
    for found in with_updates.values():
        assert [name for name, takes in found.items() if not takes.instead] == []


@pytest.mark.parametrize("name", _OF_JOBS)
async def test_an_update_of_a_job_with_what_cannot_be_read_changes_nothing(
    temporal: Client, longshore: Longshore, node: ScriptedNode, pool: str, name: str
):
    job_id = (await longshore.submit(a_spec(pool, malleable={"min": 1, "max": 2}))).job_id
    await node.started(job_id)
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    for what, inputs, said in (*_UNREADABLE, ("zero", ({"gpus": 0},), "gpus: must be at least 1")):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(name, args=inputs)
        cause = refused.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "SpecError", what
        assert (said or _OF_JOBS[name].instead) in cause.message
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1


@pytest.mark.parametrize("name", _OF_NODES)
async def test_an_update_with_what_cannot_be_read_is_refused_with_a_sentence(
    temporal: Client, longshore: Longshore, node: ScriptedNode, pool: str, name: str
):
    handle = temporal.get_workflow_handle(node_workflow_id(node.id))
    for what, inputs, said in _UNREADABLE:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(name, args=inputs)
        cause = refused.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "SpecError", what
        assert (said or _OF_NODES[name].instead) in cause.message
    (view,) = await longshore.nodes(pool=pool)
    assert view.state is NodeState.READY


async def test_a_field_that_cannot_be_read_is_named(temporal: Client, node: ScriptedNode):
    handle = temporal.get_workflow_handle(node_workflow_id(node.id))
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update("drain", {"reason": "x", "by": "soon"})
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.message == (
        "by: must be a time with its zone, such as 2026-11-20T12:00:00Z, got 'soon'\n"
        'give an input: {"reason": "WHY", "move": true}, or {}'
    )


async def _refusal(temporal: Client, workflow_id: str, update: str, given: object) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await temporal.get_workflow_handle(workflow_id).execute_update(update, given)
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "SpecError"
    return cause.message


async def test_a_field_that_there_is_not_is_refused(
    temporal: Client, longshore: Longshore, node: ScriptedNode, pool: str
):
    """What was meant by it would not be done: `move` of a drain, in other words."""
    for name in ("cordon", "uncordon", "lift", "drain", "undrain"):
        said = await _refusal(temporal, node_workflow_id(node.id), name, {"evict": True})
        assert said == f"evict: no such field\n{_OF_NODES[name].instead}"
    expiry = {"expires_at": None, "why": "x"}
    said = await _refusal(temporal, node_workflow_id(node.id), "expiry_changed", expiry)
    assert said.startswith("why: no such field\n")
    (view,) = await longshore.nodes(pool=pool)
    assert (view.state, view.state_reason) == (NodeState.READY, "")
    job_id = (await longshore.submit(a_spec(pool, malleable={"min": 1, "max": 2}))).job_id
    await node.started(job_id)
    size = {"gpus": 2, "restart": True}
    said = await _refusal(temporal, job_workflow_id(job_id), "resize", size)
    assert said == 'restart: no such field\ngive an input: {"gpus": 8}'
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1


@pytest.mark.parametrize(
    "given",
    [
        CommandReason(), NodeDrain(), ExpiryChange(expires_at=None), Resize(gpus=1),
        ElementsRequest(indices="1"), registration("a-pool", "a-node"),
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_what_a_newer_version_sends_is_taken_as_far_as_it_is_known(given: Input):
    sent = {**given.model_dump(mode="json"), "of_a_newer": 1}
    assert type(given).model_validate(sent).unknown == ()


def test_that_is_all_that_updates_take():
    found = {takes for kind in WORKFLOWS for takes in _updates_of(kind).values()}
    known = {CommandReason, NodeDrain, ExpiryChange, Resize, ElementsRequest, Registration}
    assert found == known
