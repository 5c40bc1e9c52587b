"""Messages to a job that are late, double or wrong, and jobs that other programs start."""

import asyncio
import uuid
from typing import Any

import pytest
from sqlalchemy import text
from temporalio import workflow as definitions
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from benchmarks.costs import actions
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.client.submission import new_job_id
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    JOB_WORKFLOW,
    JobInput,
    job_workflow_id,
    node_workflow_id,
)
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeStatus
from longshore.models.retry import FailureClass
from longshore.workers.versioning import WORKFLOWS
from longshore.workflows.job import JobWorkflow
from longshore.workflows.node import NodeWorkflow
from tests.support.control import a_spec, is_queued, lease_ends, reaches
from tests.support.histories import reset_to, runs, tasks_done
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

PLAIN = {"name": "x", "command": "true"}


async def test_a_placement_that_is_signalled_twice_runs_once(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    placement = (await node.started(job_id)).placement
    for _ in range(3):
        await _workflow(temporal, job_id).signal("placed", placement)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1
    assert node.runs() == [(job_id, 1)]


async def test_a_late_placement_of_an_older_attempt_is_ignored(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    first = (await node.started(job_id)).placement
    await longshore.hold(job_id)
    await reaches(longshore, job_id, JobState.HELD)
    await _workflow(temporal, job_id).signal("placed", first)
    await _workflow(temporal, job_id).signal("placed", first.model_copy(update={"attempt": 9}))
    assert (await longshore.status(job_id)).state is JobState.HELD
    await longshore.release(job_id)
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).attempts == 2
    assert node.runs() == [(job_id, 1), (job_id, 2)]


async def test_a_placement_of_a_job_that_was_terminated_is_withdrawn(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    job_id = (await longshore.submit(a_spec(pool, gpus=16))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    await eventually(lambda: is_queued(control, job_id))
    await _workflow(temporal, job_id).terminate()
    larger = ScriptedNode(temporal, pool, node.token, gpus=16)
    async with larger.serving():
        await larger.register()
        ends = await eventually(lambda: _when_ended(control, job_id))
    assert ends == ["withdrawn"] * 16
    assert larger.runs() == []


async def test_a_bad_input_fails_the_workflow(temporal: Client, control: Database):
    for bad in (
        {"spec": {"name": "x", "command": "true", "gpus": "many"}},
        {"spec": {"name": "Not A Name", "command": "true"}},
        {"spec": {"name": "x", "command": "true", "gpu": 1}},
        {"name": "x"},
        "x",
    ):
        handle = await _start_plain(temporal, f"job-bad-{uuid.uuid4().hex[:8]}", bad)
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(handle.result(), 60)
        assert isinstance(failure.value.cause, ApplicationError)
        assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED


async def test_a_refusal_of_very_many_mistakes_fits_into_what_temporal_takes(
    temporal: Client, control: Database
):
    for bad in (
        {"spec": PLAIN, **{str(number): 0 for number in range(150_000)}},
        {"spec": {**PLAIN, "env": {str(number): 0 for number in range(70_000)}}},
    ):
        handle = await _start_plain(temporal, f"job-bad-{uuid.uuid4().hex[:8]}", bad)
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(handle.result(), 60)
        assert isinstance(failure.value.cause, ApplicationError)
        assert failure.value.cause.message.splitlines()[-1] in (
            "and 149,900 more mistakes", "input: has 70,000 mistakes: is it of this kind at all?"
        )  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"spec": {**PLAIN, "env": {"A\nB": "x"}}}, r"spec.env.A\nB: "),
        ({"spec": {**PLAIN, "data": {"a\u202eb": -1}}}, r"spec.data.a\u202eb"),
        ({"spec": PLAIN, "a\rb": 1}, r"a\x0db: no such field"),
    ],
    ids=["newline", "direction", "beside the spec"],
)
async def test_keys_in_a_refusal_are_written_out(
    temporal: Client, control: Database, bad: object, said: str
):
    handle = await _start_plain(temporal, f"job-bad-{uuid.uuid4().hex[:8]}", bad)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.message.startswith(said)


async def test_plain_json_by_name_runs_a_job(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = new_job_id(a_spec("default", name="x"), None)
    spec = {"name": "x", "command": "true", "pool": pool, "vram_per_gpu": "10GB", "gpus": 2,
            "gpu_type": "H100"}  # fmt: skip
    handle = await _start_plain(temporal, f"job-{job_id}", {"spec": spec})
    await node.end(job_id)
    result = await handle.result()
    assert (result["job_id"], result["state"], result["exit_code"]) == (job_id, "SUCCEEDED", 0)
    assert (await longshore.job(job_id)).name == "x"
    described = await handle.describe()
    assert not described.raw_description.pending_activities
    told = described.typed_search_attributes
    assert {pair.key.name: pair.value for pair in told if pair.key.name != "BuildIds"} == {
        "Tenant": "default", "Pool": pool, "JobState": "RUNNING", "NodeId": node.id,
        "GpuCount": 2, "GpuType": "H100", "PriorityClass": 5,
    }  # fmt: skip
    shown = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    summary = f"x: 2 x H100 with 10GB, FAST, class 5, tenant default, pool {pool}"
    assert shown.current_details.startswith(f"{summary}\n")


@pytest.mark.exhaustive
async def test_a_reason_that_the_database_cannot_store_holds_up_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = new_job_id(a_spec("default", name="x"), None)
    handle = await _start_small(temporal, job_id, pool)
    await node.started(job_id)
    await handle.signal("preempt", {"attempt": 1, "reason": "\0a\0b", "for_job": "other"})
    await node.started(job_id, 2)
    await handle.signal("hold", {"reason": "a\0b"})
    held = await reaches(longshore, job_id, JobState.HELD)
    assert held.reason == "ab"
    await handle.signal("release", {})
    await node.end(job_id, 3)
    assert (await handle.result())["state"] == "SUCCEEDED"


def signals_of(workflow: type) -> list[str]:
    """Return the signals that a class of workflow takes, those that are async too."""
    found = definitions._Definition.must_from_class(workflow).signals
    return [name for name, each in found.items() if name is not None and each.arg_types]


def test_signals_are_named_as_their_methods():
    """So that it is known what each takes (`workflows.arguments`)."""
    for workflow in WORKFLOWS:
        for name in signals_of(workflow):
            assert callable(getattr(workflow, name))
    assert {"stop_elements", "hold"} < set(signals_of(JobWorkflow))
    assert "holds" in signals_of(NodeWorkflow)


async def test_a_signal_whose_arguments_do_not_fit_changes_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    """As the Temporal UI sends it where the field of the input is left empty."""
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    watched = temporal.get_workflow_handle(node_workflow_id(node.id))
    for handle, of in ((job, JobWorkflow), (watched, NodeWorkflow)):
        for name in signals_of(of):
            await handle.signal(name)
            await handle.signal(name, args=[{"reason": "x"}, {"reason": "y"}])
    await longshore.hold(job_id)
    await reaches(longshore, job_id, JobState.HELD)
    told = await watched.query("status", result_type=NodeStatus)
    assert told.state == NodeState.READY.value
    await longshore.cancel(job_id)
    assert (await longshore.wait(job_id)).state is JobState.CANCELLED


async def test_an_id_that_has_ended_and_is_started_again_shows_how_it_ended(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = new_job_id(a_spec("default", name="x"), None)
    first = await _start_small(temporal, job_id, pool)
    await node.end(job_id)
    await first.result()
    again = await _start_small(temporal, job_id, pool)
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(again.result(), 60)
    report = await longshore.report(job_id)
    assert (report.job.state, report.status) == (JobState.SUCCEEDED, None)
    assert (report.job.exit_code, report.job.attempt, len(report.attempts)) == (0, 1, 1)
    assert "its id was started again at" in " ".join(report.missing)
    status = await longshore.status(job_id)
    assert (status.state, status.reason) == (JobState.SUCCEEDED, report.job.reason)
    assert [each.state async for each in longshore.watch(job_id)] == [JobState.SUCCEEDED]
    result = await longshore.wait(job_id)
    assert (result.state, result.exit_code) == (JobState.SUCCEEDED, 0)
    assert node.runs() == [(job_id, 1)]


@pytest.mark.exhaustive
async def test_a_key_holds_longer_than_temporal_keeps_the_workflow(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    """As after the retention of the namespace. Another workflow of that id would be refused."""
    key = f"weekly-{pool}"
    first = await longshore.submit(a_spec(pool, name="weekly"), key=key)
    await node.end(first.job_id)
    assert (await longshore.wait(first.job_id)).state is JobState.SUCCEEDED
    await temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=job_workflow_id(first.job_id)),
        )
    )

    async def is_gone() -> bool:
        return not await longshore.exists(first.job_id)

    await eventually(is_gone)
    again = await longshore.submit(a_spec(pool, name="weekly"), key=key)
    assert (again.job_id, again.created) == (first.job_id, False)
    assert (await longshore.wait(first.job_id)).state is JobState.SUCCEEDED
    assert not await longshore.exists(first.job_id), "nothing was started"


async def test_the_smallest_plain_json_is_a_job_of_the_default_pool(
    longshore: Longshore, temporal: Client, control: Database
):
    job_id = new_job_id(a_spec("default", name="x"), None)
    await _start_plain(temporal, f"job-{job_id}", {"spec": {"name": "x", "command": "true"}})
    await reaches(longshore, job_id, JobState.QUEUED)
    view = await longshore.job(job_id)
    assert (view.pool, view.tenant, view.gpus) == ("default", "default", 1)
    await longshore.cancel(job_id)
    assert (await longshore.wait(job_id)).state is JobState.CANCELLED


async def test_a_job_workflow_needs_an_id_that_signals_can_find(
    temporal: Client, control: Database
):
    handle = await _start_plain(
        temporal, f"mine-{uuid.uuid4().hex[:8]}", {"spec": {"name": "x", "command": "true"}}
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert f"must be job-{handle.id}, not {handle.id}" in str(failure.value.cause)


@pytest.mark.parametrize(
    "job_id", ["a/b", "A B", "ünï", ".", "..", "-x", "%s", "", "x" * 300, "a\nb"]
)
async def test_an_id_that_names_no_folder_is_refused_and_nothing_is_held(
    longshore: Longshore, temporal: Client, control: Database, pool: str, job_id: str
):
    plain = {"spec": {"name": "x", "command": "true", "pool": pool}}
    handle = await _start_plain(temporal, f"job-{job_id}", plain)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert "must be job- and 1 to 201 letters" in str(failure.value.cause)
    assert await longshore.list(pool=pool) == ()


def _raw(data: bytes, encoding: str | bytes) -> RawValue:
    encoding = encoding.encode() if isinstance(encoding, str) else encoding
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), 'give an input: {"spec": {...}}'),
        ((None,), 'give an input: {"spec": {...}}'),
        (({"spec": {"name": "x", "command": "x"}}, {"more": 1}), "give one input, not 2"),
        (("x", "y", "z"), "give one input, not 3"),
        (({},), "spec: is required"),
        ((["spec"],), "input: must be a mapping"),
        (({"spec": {"name": "x"}},), "give a command to run, an image, or both"),
        (({"spec": {"name": "x", "command": "a\0b"}},), "must not hold a NUL character"),
        (({"spec": {"name": "x", "command": "x", "expected_duration": "99999999h"}},),
         "ten years at most"),
        (({"spec": {"name": "x", "command": "x"}, "heldd": True},), "heldd: no such field"),
        (({"spec": {"name": "x", "command": "x"}, "key": "k" * 20_000},),
         "key: must have at most 2000 bytes"),
        (({"spec": {"name": "x", "command": "x"},
           "history": {"submitted_at": "0001-01-01T00:00:00Z", "attempt": -5}},),
         "history.attempt: must be at least 1"),
        (({"spec": {"name": "x", "command": "x"},
           "history": {"submitted_at": "2026-01-01T00:00:00Z", "attempt": 1,
                       "retries": {"node": -5}}},), "history.retries.node: must be at least 0"),
        (({"spec": {"name": "x", "command": "x"},
           "history": {"submitted_at": "2026-01-01T00:00:00Z", "attempt": 2}},),
         "history: is what a job carries over"),
        (({"spec": {"name": "x", "command": "x"}, "key": "a\0b"},),
         "key: must not hold a NUL character"),
        ((b"spec",), "the input must be JSON"),
        ((_raw(b"xyz", "binary/encrypted"),), "its encoding is binary/encrypted"),
        ((_raw(b"x", "binary/encrypted"), _raw(b"{}", "json/plain")),
         "its encoding is binary/encrypted, json/plain"),
        ((_raw(b"{}", "json/protobuf"),), "its encoding is json/protobuf"),
        ((_raw(b"xyz", ""),), "its encoding is none"),
        ((_raw(b"xyz", b"\xff\xfe"),), "its encoding is \N{REPLACEMENT CHARACTER}"),
        ((_raw(b'{"spec": ', "json/plain"),), "is not JSON: EOF while parsing a value"),
        ((_raw(b'{"spec": {"name": "\\ud800"}}', "json/plain"),),
         "is not JSON: unexpected end of hex escape"),
    ],
)  # fmt: skip
async def test_a_start_with_an_input_that_cannot_be_read_ends_with_a_sentence(
    temporal: Client, control: Database, given: tuple[object, ...], said: str
):
    handle = await temporal.start_workflow(
        JOB_WORKFLOW, args=given, id=f"job-{uuid.uuid4().hex}", task_queue=CONTROL_TASK_QUEUE
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert said in str(failure.value.cause)


async def test_an_id_that_ended_before_is_refused_and_does_not_hang(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.end(job_id)
    await longshore.wait(job_id)
    plain = {"spec": {"name": "again", "command": "true", "pool": pool}}
    handle = await _start_plain(temporal, job_workflow_id(job_id), plain)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert "has ended before" in str(failure.value.cause)
    assert (await longshore.job(job_id)).state is JobState.SUCCEEDED
    shown = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert "### Refused at " in shown.current_details
    assert "has ended before (SUCCEEDED)" in shown.current_details


async def test_an_id_of_which_no_end_is_on_record_is_refused_and_changes_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    """Temporal takes the id of a workflow that was terminated at once."""
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    await temporal.get_workflow_handle(job_workflow_id(job_id)).terminate()
    plain = {"spec": {"name": "other", "command": "false", "pool": f"{pool}-other"}}
    handle = await _start_plain(temporal, job_workflow_id(job_id), plain)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    assert "is not on record as ended: give this one another id" in str(failure.value.cause)
    assert await lease_ends(control, job_id) == [None]
    async with control.transaction() as connection:
        row = await connection.execute(
            text("SELECT pool, ended_at FROM jobs WHERE id = :id"), {"id": job_id}
        )
    assert row.one() == (pool, None)


async def test_a_job_that_was_reset_goes_on(
    longshore: Longshore, pool: str, temporal: Client, control: Database
):
    """Its newest run began later than the job: it is the same job for all that."""
    job_id = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    first = await job.describe()
    # Its first task is done anew: it enqueues again.
    await reset_to(
        temporal, job_workflow_id(job_id), (await tasks_done(temporal, job_workflow_id(job_id)))[0]
    )
    await reaches(longshore, job_id, JobState.QUEUED)
    assert (await job.describe()).run_id != first.run_id
    assert await is_queued(control, job_id)
    assert (await longshore.report(job_id)).status is not None
    listed = [await longshore.job(job_id), *await longshore.list(pool=pool)]
    assert [each.state for each in listed] == [JobState.QUEUED] * 2
    await longshore.cancel(job_id)
    assert (await longshore.wait(job_id)).state is JobState.CANCELLED


@pytest.mark.parametrize("to", ["its first step", "its wait for a place"])
async def test_a_job_that_was_reset_after_its_end_stays_as_it_ended(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, to: str
):
    """Its newest run is refused, or waits for a place that no cycle gives it."""
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.end(job_id)
    await longshore.wait(job_id)
    job = _workflow(temporal, job_id)
    done = await tasks_done(temporal, job_workflow_id(job_id))
    await reset_to(
        temporal, job_workflow_id(job_id), done[0] if to == "its first step" else done[1]
    )
    if to == "its first step":
        await reaches(longshore, job_id, JobState.SUCCEEDED)
    else:
        await reaches(longshore, job_id, JobState.QUEUED)

    async def is_told(what: str) -> bool:
        report = await longshore.report(job_id)
        assert (report.job.state, report.status) == (JobState.SUCCEEDED, None)
        assert "its workflow was reset at " in report.missing[0]
        assert "after the job had ended: it stays as it ended" in report.missing[0]
        return what in report.missing[0]

    cancel = f"`longshore cancel {job_id}` ends it"
    assert await is_told(cancel) is (to == "its wait for a place")
    if to == "its wait for a place":
        await longshore.cancel(job_id)
    with pytest.raises(WorkflowFailureError) as refused:
        await asyncio.wait_for(job.result(), 60)
    if to == "its first step":
        why = str(refused.value.cause)
        assert "had ended (SUCCEEDED) when its workflow was reset" in why
    assert not await is_told(cancel)
    assert node.runs() == [(job_id, 1)]


@pytest.mark.exhaustive
async def test_a_job_that_continues_as_new_keeps_what_it_went_through(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    spec = a_spec(pool, retry={"user": {"max_retries": 3, "backoff": 0}})
    job_id = new_job_id(spec, None)
    await temporal.start_workflow(
        JobWorkflow.run,
        JobInput(spec=spec, max_attempts_per_run=2),
        id=job_workflow_id(job_id),
        task_queue=CONTROL_TASK_QUEUE,
    )
    for attempt in (1, 2, 3):
        await node.end(job_id, attempt, USER_ERROR)
    await node.started(job_id, 4)
    await longshore.hold(job_id, "until tomorrow")
    held = await reaches(longshore, job_id, JobState.HELD)
    assert (held.attempt, held.reason) == (5, "until tomorrow")
    assert len(await runs(temporal, job_workflow_id(job_id))) == 3
    await longshore.release(job_id)
    await node.end(job_id, 5, USER_ERROR)
    result = await longshore.wait(job_id)
    assert (result.failure, result.attempts) == (FailureClass.USER, 5)
    status = await longshore.status(job_id)
    assert [attempt.attempt for attempt in status.attempts] == [1, 2, 3, 4, 5]
    assert [attempt.failure for attempt in status.attempts].count(FailureClass.USER) == 4
    first, *_, last = await runs(temporal, job_workflow_id(job_id))
    assert (await actions(temporal, job_workflow_id(job_id), last))["activity"] < 8
    started = await temporal.get_workflow_handle(job_workflow_id(job_id), run_id=first).describe()
    assert abs((status.submitted_at - started.start_time).total_seconds()) < 1


async def _start_small(temporal: Client, job_id: str, pool: str) -> WorkflowHandle[Any, Any]:
    plain = {"spec": {"name": "x", "command": "true", "pool": pool}}
    return await _start_plain(temporal, f"job-{job_id}", plain)


async def _start_plain(
    temporal: Client, workflow_id: str, content: object
) -> WorkflowHandle[Any, Any]:
    return await temporal.start_workflow(
        JOB_WORKFLOW, content, id=workflow_id, task_queue=CONTROL_TASK_QUEUE
    )


async def _when_ended(database: Database, job_id: str) -> list[str | None]:
    ends = await lease_ends(database, job_id)
    return ends if all(ends) else []


def _workflow(temporal: Client, job_id: str) -> WorkflowHandle[Any, Any]:
    return temporal.get_workflow_handle(job_workflow_id(job_id))
