"""A DAG's workflow: what starts when, what an end, a hold, a cancel and a retry do."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from benchmarks.costs import billed
from longshore.activities import dags
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import DAG_WORKFLOW, DagInput, dag_workflow_id
from longshore.models.dag_view import DagState, DagView, StepState
from longshore.models.errors import ConflictError, RefusedError, SpecError
from longshore.models.messages import CONTROL_TASK_QUEUE, job_workflow_id
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.workflows.dag import DagWorkflow
from tests.support.histories import runs
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

A_CYCLE = {
    "name": "x",
    "jobs": {"a": {"command": "x", "after": "b"}, "b": {"command": "x", "after": "a"}},
}
FULL = {
    "name": "x", "defaults": {"env": {"TEXT": "x" * 5000}},
    "jobs": {f"j{number}": {"command": "x"} for number in range(400)},
}  # fmt: skip
"""25 KB as it is given, and 2 MB once each job has what it shares."""
LINE: dict[str, Any] = {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}}


def a_dag(pool: str, jobs: dict[str, dict[str, Any]], **fields: Any) -> DagSpec:
    filled = {name: {"command": "true", **job} for name, job in jobs.items()}
    return DagSpec.model_validate({"name": "dag", "pool": pool, "jobs": filled, **fields})


async def begun(longshore: Longshore, spec: DagSpec, **how: Any) -> str:
    return (await longshore.submit_dag(spec, **how)).dag_id


def steps(dag: DagView) -> dict[str, str]:
    return {step.name: step.step.value for step in dag.steps}


async def comes_to(longshore: Longshore, dag_id: str, **states: StepState) -> DagView:
    """Wait until these jobs of a DAG are in these states."""

    async def there() -> DagView:
        found = await longshore.known_dag(dag_id)
        known = {step.name: step.step for step in found.steps}
        assert {name: known[name] for name in states} == states
        return found

    return await eventually(there)


async def test_each_job_starts_when_the_one_before_has_succeeded(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    dag_id = await begun(longshore, a_dag(pool, LINE))
    for name in "abc":
        assert [job for job, _ in node.runs()][-1:] != [f"{dag_id}.{name}"]
        request = await node.end(f"{dag_id}.{name}")
        assert request.spec.pool == pool
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, steps(ended)) == (
        DagState.SUCCEEDED, dict.fromkeys("abc", "SUCCEEDED"),
    )  # fmt: skip
    assert [job for job, _ in node.runs()] == [f"{dag_id}.{name}" for name in "abc"]
    result = await temporal.get_workflow_handle_for(
        DagWorkflow.run, dag_workflow_id(dag_id)
    ).result()
    assert result.counts == {StepState.SUCCEEDED: 3}
    history = await temporal.get_workflow_handle(dag_workflow_id(dag_id)).fetch_history()
    assert len(history.events) <= 10 * len(LINE) + 20, "ten for each link of a chain"
    assert billed(history)["signal"] <= len(LINE)
    job = await temporal.get_workflow_handle(job_workflow_id(f"{dag_id}.a")).describe()
    assert {pair.key.name: pair.value for pair in job.typed_search_attributes}[
        "LongshoreDag"
    ] == dag_id


async def test_a_failure_runs_its_edge_skips_the_others_and_fails_the_dag(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    tell = {"after": {"b": {"condition": "failure", "catch": False}}}
    dag_id = await begun(longshore, a_dag(pool, {**LINE, "tell": tell}))
    await node.end(f"{dag_id}.a")
    await node.end(f"{dag_id}.b", report=USER_ERROR)
    await node.end(f"{dag_id}.tell")
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, ended.reason) == (DagState.FAILED, "b failed")
    assert steps(ended) == {
        "a": "SUCCEEDED", "b": "FAILED", "c": "SKIPPED", "tell": "SUCCEEDED",
    }  # fmt: skip
    with pytest.raises(WorkflowFailureError, match="failed"):
        await temporal.get_workflow_handle(dag_workflow_id(dag_id)).result()


async def test_a_retry_runs_what_did_not_succeed_under_new_ids(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    mend = {"after": {"b": "failure"}}
    dag_id = await begun(longshore, a_dag(pool, {**LINE, "mend": mend}))
    await node.end(f"{dag_id}.a")
    await node.end(f"{dag_id}.b", report=USER_ERROR)
    with pytest.raises(RefusedError, match="still runs"):
        await longshore.retry_dag(dag_id)
    await node.end(f"{dag_id}.mend", report=USER_ERROR)
    failed = await longshore.wait_dag(dag_id)
    assert failed.state is DagState.FAILED
    assert (await longshore.retry_dag(dag_id)).jobs == ("b", "c", "mend")
    await node.end(f"{dag_id}.b.r2")
    await node.end(f"{dag_id}.c.r2")
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, ended.generation) == (DagState.SUCCEEDED, 2)
    before, after = ({s.name: s.gpu_time for s in each.steps} for each in (failed, ended))
    assert after["mend"] == before["mend"] > timedelta(0)
    assert after["b"] > before["b"] > timedelta(0)
    assert {step.name: step.job_id for step in ended.steps} == {
        "a": f"{dag_id}.a", "b": f"{dag_id}.b.r2", "c": f"{dag_id}.c.r2", "mend": None,
    }  # fmt: skip
    assert [job for job, _ in node.runs()].count(f"{dag_id}.a") == 1
    with pytest.raises(RefusedError, match="nothing runs again"):
        await longshore.retry_dag(dag_id)


async def test_a_cancel_ends_what_runs_and_starts_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    dag_id = await begun(longshore, a_dag(pool, {**LINE, "tell": {"after": {"a": "any"}}}))
    await node.started(f"{dag_id}.a")
    await longshore.cancel_dag(dag_id, "changed my mind")
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, ended.reason) == (DagState.CANCELLED, "changed my mind")
    assert steps(ended) == {
        "a": "CANCELLED", "b": "WITHDRAWN", "c": "WITHDRAWN", "tell": "WITHDRAWN",
    }  # fmt: skip
    found = await temporal.get_workflow_handle(dag_workflow_id(dag_id)).describe()
    assert found.status is WorkflowExecutionStatus.CANCELED
    with pytest.raises(RefusedError, match="has ended already"):
        await longshore.cancel_dag(dag_id)


@pytest.mark.exhaustive
async def test_a_hold_keeps_further_jobs_back(longshore: Longshore, node: ScriptedNode, pool: str):
    dag_id = await begun(longshore, a_dag(pool, LINE), held=True)
    await comes_to(longshore, dag_id, a=StepState.WAITING)
    await longshore.release_dag(dag_id)
    await node.started(f"{dag_id}.a")
    await longshore.hold_dag(dag_id)
    await eventually(lambda: is_held(longshore, dag_id))
    await node.end(f"{dag_id}.a")
    await comes_to(longshore, dag_id, a=StepState.SUCCEEDED, b=StepState.WAITING)
    await longshore.release_dag(dag_id)
    await node.end(f"{dag_id}.b")
    await node.end(f"{dag_id}.c")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED


async def is_held(longshore: Longshore, dag_id: str) -> bool:
    return (await longshore.dag(dag_id)).held


@pytest.mark.exhaustive
async def test_stop_cancels_what_runs_at_the_first_failure(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    jobs: dict[str, Any] = {"a": {}, "long": {}, "b": {"after": "long"}}
    dag_id = await begun(longshore, a_dag(pool, jobs, on_failure="stop"))
    await node.started(f"{dag_id}.long")
    await node.end(f"{dag_id}.a", report=USER_ERROR)
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, steps(ended)) == (
        DagState.FAILED, {"a": "FAILED", "long": "CANCELLED", "b": "SKIPPED"},
    )  # fmt: skip


async def test_it_continues_as_new_and_loses_no_end(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    jobs = {f"j{n}": {"after": f"j{n - 1}"} if n else {} for n in range(6)}
    await temporal.start_workflow(
        DagWorkflow.run,
        DagInput(spec=a_dag(pool, jobs), max_looks_per_run=2),
        id=dag_workflow_id(f"{pool}-line"),
        task_queue=CONTROL_TASK_QUEUE,
    )
    for name in jobs:
        await node.end(f"{pool}-line.{name}")
    ended = await longshore.wait_dag(f"{pool}-line")
    assert set(steps(ended).values()) == {"SUCCEEDED"}
    assert len(await runs(temporal, dag_workflow_id(f"{pool}-line"))) >= 3


@pytest.mark.exhaustive
async def test_a_run_that_continues_another_says_how_far_the_dag_is(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    jobs: dict[str, Any] = {"a": {}, "b": {"after": "a"}}
    handle = await temporal.start_workflow(
        DagWorkflow.run,
        DagInput(spec=a_dag(pool, jobs), max_looks_per_run=1),
        id=dag_workflow_id(f"{pool}-line"),
        task_queue=CONTROL_TASK_QUEUE,
    )
    await node.started(f"{pool}-line.a")

    async def continued() -> bool:
        return len(await runs(temporal, handle.id)) > 1

    await eventually(continued)
    status = await temporal.get_workflow_handle(handle.id).query(DagWorkflow.status)
    assert status.progress
    assert status.progress.counts == {"SUBMITTED": 1, "WAITING": 1}
    for name in jobs:
        await node.end(f"{pool}-line.{name}")
    await longshore.wait_dag(f"{pool}-line")


@pytest.mark.exhaustive
async def test_ends_that_come_during_a_look_share_the_next_one(
    longshore: Longshore, pool: str, temporal: Client, settings: Any, control: Database,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=16)
    jobs: dict[str, Any] = {f"j{number}": {"cpus": 0, "ram": 0} for number in range(16)}
    jobs["end"] = {"after": list(jobs)}
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def long_look(point: str) -> None:
        if point == "advance_dag.after-commit":
            looked.set()
            await go_on.wait()

    async def all_on_record() -> bool:
        ended = "SELECT count(*) FROM jobs WHERE id LIKE :ids AND ended_at IS NOT NULL"
        async with control.transaction() as connection:
            return await connection.scalar(text(ended), {"ids": f"{dag_id}.j%"}) == 16

    async with node.serving():
        await node.register()
        dag_id = await begun(longshore, a_dag(pool, jobs))
        first, *others = [f"{dag_id}.{name}" for name in jobs if name != "end"]
        await asyncio.gather(*map(node.started, (first, *others)))
        monkeypatch.setattr(dags, "failpoint", long_look)
        await node.end(first)
        await looked.wait()
        await asyncio.gather(*map(node.end, others))
        await eventually(all_on_record)
        go_on.set()
        await node.end(f"{dag_id}.end")
        assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED
    history = await temporal.get_workflow_handle(dag_workflow_id(dag_id)).fetch_history()
    signals = sum(bool(each.workflow_execution_signaled_event_attributes.signal_name)
                  for each in history.events)  # fmt: skip
    assert signals == 3, "of the first, of the 15 and of the last"
    assert len(history.events) <= 2 * len(jobs) + 20, "a look for each end takes some ten more"


async def test_the_same_key_is_the_same_dag_and_other_content_is_refused(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    spec = a_dag(pool, {"a": {}}, name=pool)
    first = await longshore.submit_dag(spec, key="1")
    again = await longshore.submit_dag(spec, key="1")
    assert (again.dag_id, again.created) == (first.dag_id, False)
    with pytest.raises(ConflictError, match="other content"):
        await longshore.submit_dag(a_dag(pool, {"a": {"gpus": 2}}, name=pool), key="1")
    await node.end(f"{first.dag_id}.a")
    await longshore.wait_dag(first.dag_id)


async def test_an_id_that_is_used_is_refused_and_changes_nothing(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    dag_id = await begun(longshore, a_dag(pool, {"a": {}}))
    await node.end(f"{dag_id}.a")
    await longshore.wait_dag(dag_id)
    other = DagInput(spec=a_dag(pool, {"a": {}, "z": {}}))
    handle = await temporal.start_workflow(
        DagWorkflow.run, other, id=dag_workflow_id(dag_id), task_queue=CONTROL_TASK_QUEUE
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert "is on record already" in str(failure.value.cause)
    assert steps(await longshore.dag(dag_id)) == {"a": "SUCCEEDED"}


async def test_an_input_without_a_spec_and_one_that_is_wrong_end_with_a_sentence(
    pool: str, temporal: Client, control: Database
):
    for number, (given, says) in enumerate(
        (
            ({}, "no DAG"),
            ({"spec": {"name": "x", "jobs": {}}}, "jobs"),
            ({"spec": A_CYCLE}, "a cycle: a comes after b"),
            (
                {"spec": {"name": "x", "jobs": {"a": {"command": "x", "after": "z"}}}},
                "no such job",
            ),
            ({"spec": FULL}, "is the most: put what is long into files"),
            ({"spec": {"name": "x", "jobs": {"a": {"command": "x", "gpus": 0}}}}, "gpus"),
        )
    ):
        handle = await temporal.start_workflow(
            "DagWorkflow", given, id=dag_workflow_id(f"{pool}-{number}"),
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert says in str(failure.value.cause)


async def test_an_id_that_leaves_no_room_for_those_of_its_jobs_is_refused(
    pool: str, temporal: Client, control: Database
):
    first, retry = DagInput(spec=a_dag(pool, {"a": {}})), DagInput(retry=True)
    letters = "the workflow id must be dag- and letters"
    starts = [
        (f"{pool} blank", first, letters), (f"{pool}-{'x' * 190}", first, letters),
        (f"{pool}\0x", retry, "has a NUL character"),
    ]  # fmt: skip
    for odd, given, why in starts:
        handle = await temporal.start_workflow(
            DagWorkflow.run, given,
            id=dag_workflow_id(odd), task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert why in str(failure.value.cause)


@pytest.mark.exhaustive
async def test_a_dag_whose_workflow_is_terminated_is_told_and_goes_on_with_a_retry(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    dag_id = await begun(longshore, a_dag(pool, LINE))
    await node.started(f"{dag_id}.a")
    await temporal.get_workflow_handle(dag_workflow_id(dag_id)).terminate()
    with pytest.raises(RefusedError, match="has ended from outside"):
        async for _ in longshore.watch_dag(dag_id):
            pass
    with pytest.raises(RefusedError, match="has ended from outside"):
        await longshore.cancel_dag(dag_id)
    await node.end(f"{dag_id}.a")
    assert (await longshore.retry_dag(dag_id)).jobs == ()
    await node.end(f"{dag_id}.b")
    await node.end(f"{dag_id}.c")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED


async def test_a_dag_with_a_cycle_starts_nothing(
    longshore: Longshore, pool: str, control: Database
):
    spec = a_dag(pool, {"a": {"after": "b"}, "b": {"after": "a"}})
    with pytest.raises(SpecError, match="a cycle: a comes after b"):
        await longshore.submit_dag(spec)
    async with control.transaction() as connection:
        found = await connection.scalar(
            text("SELECT count(*) FROM dags WHERE spec->>'pool' = :pool"), {"pool": pool}
        )
    assert found == 0


@pytest.mark.exhaustive
async def test_a_hold_and_a_cancel_of_one_job_keep_the_order_of_the_others(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    jobs: dict[str, Any] = {
        "a": {}, "b": {}, "after-a": {"after": "a"}, "after-b": {"after": "b"},
        "clean": {"after": {"after-a": "any", "after-b": "any"}},
    }  # fmt: skip
    dag_id = await begun(longshore, a_dag(pool, jobs))
    await node.started(f"{dag_id}.b")
    await node.started(f"{dag_id}.a")
    await longshore.hold(f"{dag_id}.a")
    await longshore.cancel(f"{dag_id}.b")
    found = await comes_to(longshore, dag_id, b=StepState.CANCELLED)
    assert steps(found)["after-a"] == "WAITING", "a hold is no end"
    await comes_to(longshore, dag_id, **{"after-b": StepState.SKIPPED})
    await longshore.release(f"{dag_id}.a")
    await node.end(f"{dag_id}.a", attempt=2)
    await node.end(f"{dag_id}.after-a")
    await node.end(f"{dag_id}.clean")
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, ended.reason) == (DagState.FAILED, "b was cancelled")
    order = [job.removeprefix(f"{dag_id}.") for job, _ in node.runs()]
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:] == ["a", "after-a", "clean"]


async def attributes(temporal: Client, dag_id: str) -> dict[str, object]:
    told = await temporal.get_workflow_handle(dag_workflow_id(dag_id)).describe()
    return {
        pair.key.name: pair.value
        for pair in told.typed_search_attributes
        if pair.key.name in SEARCH_ATTRIBUTES
    }


async def test_a_dag_tells_tenant_pool_and_state_and_has_them_from_its_start(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    dag_id = await begun(longshore, a_dag(pool, {"a": {}}, tenant="lab"))
    said = {"Tenant": "lab", "Pool": pool}
    assert await attributes(temporal, dag_id) == {**said, "JobState": "RUNNING"}
    await node.started(f"{dag_id}.a")
    history = await temporal.get_workflow_handle(dag_workflow_id(dag_id)).fetch_history()
    assert "attributes" not in billed(history), "told at its start they cost nothing"
    await longshore.hold_dag(dag_id)

    async def tells(state: str) -> bool:
        return await attributes(temporal, dag_id) == {**said, "JobState": state}

    await eventually(lambda: tells("HELD"))
    await longshore.release_dag(dag_id)
    await eventually(lambda: tells("RUNNING"))


async def test_a_dag_from_any_sdk_has_its_search_attributes(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    handle = await temporal.start_workflow(
        DAG_WORKFLOW,
        {"spec": {"name": "x", "pool": pool, "jobs": {"a": {"command": "true"}}}},
        id=dag_workflow_id(f"{pool}-sdk"), task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    await node.end(f"{pool}-sdk.a")
    await handle.result()
    assert await attributes(temporal, f"{pool}-sdk") == {
        "Tenant": "default", "Pool": pool, "JobState": "RUNNING",
    }  # fmt: skip
