"""Starts of every workflow by the Temporal UI, its CLI or any SDK, with what cannot be read."""

import asyncio
import inspect
import uuid
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError

from longshore.activities.database import Database
from longshore.client.payloads import data_converter
from longshore.models.block import BLOCK_WORKFLOW
from longshore.models.dag_messages import DAG_WORKFLOW
from longshore.models.messages import (
    ARRAY_WORKFLOW,
    CONTROL_TASK_QUEUE,
    JOB_WORKFLOW,
    NODE_WORKFLOW,
    POOL_WORKFLOW,
)
from longshore.models.price_messages import PRICE_WORKFLOW
from longshore.models.purchase import BUYING_WORKFLOW, PURCHASE_WORKFLOW
from longshore.models.reconcile import RECONCILE_WORKFLOW, ReconcileReport, ReconcileRequest
from longshore.models.schedule_messages import SCHEDULE_RUN_WORKFLOW
from longshore.models.service_messages import SERVICE_WORKFLOW
from longshore.workers.versioning import VERSIONED_WORKFLOWS, WORKFLOWS

_ENCODED = RawValue(Payload(metadata={"encoding": b"binary/encrypted"}, data=b"xyz"))
_NO_JSON = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b'{"pool": '))
_OPTION = {
    "provider": "x", "instance_type": "h100", "gpus_per_node": 8, "length": "1h", "limit": 1,
}  # fmt: skip
_UNREADABLE: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("none", (), ""),
    ("null", (None,), ""),
    ("text", ("x",), "input: must be a mapping"),
    ("number", (7,), "input: must be a mapping"),
    ("list", (["x"],), "input: must be a mapping"),
    ("bytes", (b"x",), "the input must be JSON"),
    ("encoded", (_ENCODED,), "its encoding is binary/encrypted"),
    ("no-json", (_NO_JSON,), "is not JSON"),
    ("two", ({}, {}), "give one input, not 2"),
    ("empty", ({},), "is required"),
)


def _input_of(kind: type) -> inspect.Parameter | None:
    _self, *inputs = inspect.signature(kind.run).parameters.values()  # pyright: ignore
    return inputs[0] if inputs else None


def _name(kind: type) -> str:
    name = workflow._Definition.must_from_class(kind).name  # pyright: ignore
    assert name is not None
    return name


_JOBS = (JOB_WORKFLOW, ARRAY_WORKFLOW)
_WITH_INPUT = [kind for kind in WORKFLOWS if _input_of(kind)]
_WITHOUT = [kind for kind in WORKFLOWS if not _input_of(kind)]


async def _said(temporal: Client, name: str, *inputs: object) -> str:
    handle = await temporal.start_workflow(
        name, args=inputs, id=f"start-{uuid.uuid4().hex}", task_queue=CONTROL_TASK_QUEUE
    )
    return await _how_it_failed(handle)


async def _how_it_failed(handle: WorkflowHandle[Any, Any], kind: str = "SpecError") -> str:
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == kind
    return cause.message


@pytest.mark.parametrize(
    ("inputs", "said"), [each[1:] for each in _UNREADABLE], ids=[each[0] for each in _UNREADABLE]
)
@pytest.mark.parametrize("kind", _WITH_INPUT, ids=_name)
async def test_a_start_with_what_cannot_be_read_ends_with_a_sentence(
    temporal: Client, control: Database, kind: type, inputs: tuple[object, ...], said: str
):
    if inputs == ({},) and _name(kind) in (RECONCILE_WORKFLOW, DAG_WORKFLOW, SERVICE_WORKFLOW):
        return  # all of it has defaults
    wanted = _input_of(kind)
    assert wanted is not None
    told = await _said(temporal, _name(kind), *inputs)
    assert (said or wanted.annotation.instead) in told
    if said.startswith("input") and _name(kind) not in _JOBS:  # these name the job's fields
        assert wanted.annotation.instead in told


@pytest.mark.parametrize(
    "inputs", [({},), ("x", "y"), (_ENCODED, 7)], ids=["one", "two", "encoded"]
)
@pytest.mark.parametrize("kind", _WITHOUT, ids=_name)
async def test_an_input_of_what_takes_none_is_not_read(
    temporal: Client, control: Database, kind: type, inputs: tuple[object, ...]
):
    handle = await temporal.start_workflow(
        _name(kind), args=inputs, id=f"start-{uuid.uuid4().hex}", task_queue=CONTROL_TASK_QUEUE
    )
    await asyncio.wait_for(handle.result(), 60)


_OF_ONE: tuple[tuple[str, dict[str, object], str], ...] = (
    (JOB_WORKFLOW, {"spec": {"name": "x", "command": "true"}}, "job-{id}"),
    (ARRAY_WORKFLOW, {"spec": {"name": "x", "command": "true", "array": "0-1"}}, "job-{id}"),
    (DAG_WORKFLOW, {"spec": {"name": "x", "jobs": {"a": {"command": "true"}}}}, "dag-{id}"),
    (
        SCHEDULE_RUN_WORKFLOW,
        {"schedule": "nobodys", "job": {"name": "x", "command": "true"}},
        "schedule-nobodys",
    ),
    (POOL_WORKFLOW, {"pool": "some"}, "pool-some"),
    (NODE_WORKFLOW, {"node_id": "some"}, "node-some"),
    (BUYING_WORKFLOW, {"pool": "some"}, "buying-some"),
    (PRICE_WORKFLOW, {"pool": "some"}, "price-some"),
    (PURCHASE_WORKFLOW, {"options": [_OPTION]}, "purchase-{id}"),
    (BLOCK_WORKFLOW, {"block_id": "some.1"}, "block-some.1"),
    (SERVICE_WORKFLOW, {}, "service-{id}"),
)


_MINIMAL = {RECONCILE_WORKFLOW: {}, **{name: given for name, given, _ in _OF_ONE}}


@pytest.mark.parametrize(("name", "given", "wanted"), _OF_ONE, ids=[name for name, *_ in _OF_ONE])
async def test_a_start_under_an_id_that_nobody_looks_for_ends_with_the_right_one(
    temporal: Client, control: Database, name: str, given: dict[str, object], wanted: str
):
    """It would act beside the workflow that has the id. Also one that is signalled at once."""
    for signal in (None, "nothing"):
        own = f"other-{uuid.uuid4().hex}"
        handle = await temporal.start_workflow(
            name, given, id=own, task_queue=CONTROL_TASK_QUEUE, start_signal=signal
        )
        said = await _how_it_failed(handle)
        right = wanted.format(id=own)
        assert said == f"the workflow id must be {right}, not {own}: others find it by that id"
        events = [event.event_type async for event in handle.fetch_history_events()]
        assert EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED not in events


@pytest.mark.parametrize(("name", "given", "wanted"), _OF_ONE, ids=[name for name, *_ in _OF_ONE])
async def test_a_start_under_an_id_that_no_database_holds_ends_with_a_sentence(
    temporal: Client, control: Database, name: str, given: dict[str, object], wanted: str
):
    own = wanted.format(id=f"n{uuid.uuid4().hex[:8]}") + "\0"
    handle = await temporal.start_workflow(name, given, id=own, task_queue=CONTROL_TASK_QUEUE)
    said = await _how_it_failed(handle)
    assert own.replace("\0", r"\x00") in said
    assert "\0" not in said
    assert "NUL character" in said or "letters, digits" in said
    events = [event.event_type async for event in handle.fetch_history_events()]
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED not in events


@pytest.mark.parametrize(
    ("name", "given", "id"),
    [*_OF_ONE, (RECONCILE_WORKFLOW, {"margin": "P9D"}, "reconcile-{id}")],
    ids=[*(name for name, *_ in _OF_ONE), RECONCILE_WORKFLOW],
)
async def test_a_start_with_a_name_that_nobody_knows_does_nothing_and_names_it(
    temporal: Client, control: Database, name: str, given: dict[str, object], id: str
):
    """Who mistakes `dry_run` would have everything mended."""
    handle = await temporal.start_workflow(
        name, {**given, "dryrun": True}, id=id.format(id=uuid.uuid4().hex[:8]),
        task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    assert (await _how_it_failed(handle)).startswith("dryrun: no such field")
    events = [event.event_type async for event in handle.fetch_history_events()]
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED not in events


async def test_what_a_newer_version_writes_out_is_taken_as_far_as_it_is_known(
    temporal: Client, control: Database
):
    newer = {**ReconcileRequest(dry_run=True).model_dump(mode="json"), "of_a_newer": {"a": 1}}
    handle = await temporal.start_workflow(
        RECONCILE_WORKFLOW, newer, id=f"reconcile-{uuid.uuid4().hex[:8]}",
        task_queue=CONTROL_TASK_QUEUE, result_type=ReconcileReport,
    )  # fmt: skip
    assert (await asyncio.wait_for(handle.result(), 60)).dry_run


@pytest.mark.parametrize("kind", _WITH_INPUT, ids=_name)
def test_every_input_knows_what_is_a_mistake_and_what_a_newer_version_says(kind: type):
    wanted = _input_of(kind)
    assert wanted is not None
    minimal = _MINIMAL[_name(kind)]
    whole = wanted.annotation.model_validate(minimal)
    everything = {**whole.model_dump(mode="json"), "of_a_newer": 1}
    assert wanted.annotation.model_validate({**minimal, "x": 1, "a": 2}).unknown == ("a", "x")
    assert wanted.annotation.model_validate(everything).unknown == whole.unknown == ()


async def test_a_block_that_nobody_has_stored_is_over(temporal: Client, control: Database):
    handle = await temporal.start_workflow(
        BLOCK_WORKFLOW, {"block_id": "none.1"}, id="block-none.1", task_queue=CONTROL_TASK_QUEUE
    )
    end = await asyncio.wait_for(handle.result(), 60)
    assert (end["cost"], end["reason"]) == (0, "the capacity database has no such block")


def test_where_nothing_is_wanted_what_came_is_dropped_as_the_sdk_drops_it():
    """So a signal that takes nothing has its effect, whatever comes with it."""
    ours, theirs = data_converter.payload_converter, pydantic_data_converter.payload_converter
    payloads = theirs.to_payloads(["x", {"y": 1}])
    assert ours.from_payloads(payloads, []) == theirs.from_payloads(payloads, []) == []


def test_each_version_of_a_workflow_takes_the_same():
    plain = {_name(kind): _input_of(kind) for kind in WORKFLOWS}
    assert {_name(kind): _input_of(kind) for kind in VERSIONED_WORKFLOWS} == plain


@pytest.mark.parametrize(
    "kind", dict.fromkeys((*WORKFLOWS, *VERSIONED_WORKFLOWS)), ids=lambda kind: kind.__name__
)
def test_every_message_that_a_workflow_takes_is_described_in_temporal(kind: type):
    definition = workflow._Definition.must_from_class(kind)  # pyright: ignore
    handlers = {**definition.signals, **definition.updates, **definition.queries}
    assert [name for name, each in handlers.items() if not each.description] == []
