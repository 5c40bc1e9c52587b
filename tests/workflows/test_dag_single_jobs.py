"""One job of a DAG that waits for others: cancelled, asked about, and run again by a retry."""

import pytest
from temporalio.client import Client

from longshore.client.api import Longshore
from longshore.models.dag_messages import CancelDagJob, dag_workflow_id
from longshore.models.dag_view import DagState, StepState
from longshore.models.errors import NotFoundError, NotSubmittedError, RefusedError
from longshore.workflows.dag import DagWorkflow
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.workflows.test_dags import a_dag, begun, comes_to, steps

JOBS = {
    "a": {}, "b": {"after": "a"}, "c": {"after": "b"}, "clean": {"after": {"b": "any"}},
    "mend": {"after": {"b": "failure"}},
}  # fmt: skip


async def test_one_that_waits_is_cancelled_alone_and_runs_at_a_retry(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    dag_id = await begun(longshore, a_dag(pool, JOBS))
    await node.started(f"{dag_id}.a")
    assert await longshore.cancel(f"{dag_id}.b", "not today") == f"{dag_id}.b"
    found = await comes_to(longshore, dag_id, b=StepState.WITHDRAWN)
    assert {step.name: step.reason for step in found.steps}["b"] == "not today"
    await node.end(f"{dag_id}.clean")  # for which any end is enough, though a still runs
    with pytest.raises(NotSubmittedError, match=r"never submitted: it is WITHDRAWN \(not today\)"):
        await longshore.cancel(f"{dag_id}.b")
    await node.end(f"{dag_id}.a")
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, ended.reason) == (DagState.FAILED, "b was cancelled before it started")
    assert steps(ended) == {
        "a": "SUCCEEDED", "b": "WITHDRAWN", "c": "SKIPPED", "clean": "SUCCEEDED",
        "mend": "SKIPPED",
    }  # fmt: skip
    assert set((await longshore.retry_dag(dag_id)).jobs) == {"b", "c", "clean", "mend"}
    await node.started(f"{dag_id}.b.r2")
    await longshore.cancel(f"{dag_id}.c.r2")
    await comes_to(longshore, dag_id, c=StepState.WITHDRAWN)
    await node.end(f"{dag_id}.b.r2")
    await node.end(f"{dag_id}.clean.r2")
    assert (await longshore.wait_dag(dag_id)).state is DagState.FAILED


async def test_what_can_be_done_with_one_that_waits_is_said_alike_everywhere(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    dag_id = await begun(longshore, a_dag(pool, JOBS, name=pool))
    await node.started(f"{dag_id}.a")
    for ref in (f"{dag_id}.b", f"{pool}.b"):
        for ask in (longshore.hold, longshore.release, longshore.requeue, longshore.job):
            with pytest.raises(NotSubmittedError) as refused:
                await ask(ref)
            assert str(refused.value) == (
                f"job {dag_id}.b is in no queue yet: it is WAITING, and waits for the success of "
                f"a. `longshore cancel {dag_id}.b` cancels it; `longshore dag hold {dag_id}` has "
                "its DAG submit no further job"
            )
    assert (await longshore.job(f"{pool}.a")).id == f"{dag_id}.a", "by the name of the DAG too"
    with pytest.raises(NotFoundError, match="no job"):
        await longshore.cancel(f"{dag_id}.none")
    assert await longshore.cancel(f"{pool}.a") == f"{dag_id}.a"
    await node.end(f"{dag_id}.clean")
    assert (await longshore.wait_dag(dag_id)).state is DagState.FAILED
    with pytest.raises(RefusedError, match="has ended already"):
        await longshore.cancel_dag_job(dag_id, "c")


@pytest.mark.exhaustive
async def test_one_that_is_submitted_by_then_gets_its_grace(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    """As another SDK may ask the workflow, and as it comes where a job starts meanwhile."""
    dag_id = await begun(longshore, a_dag(pool, {"a": {}, "b": {}}))
    await node.started(f"{dag_id}.a")
    handle = temporal.get_workflow_handle(dag_workflow_id(dag_id))
    for name in ("a", "unknown"):
        await handle.signal(DagWorkflow.cancel_job, CancelDagJob(name=name, reason="no"))
    await comes_to(longshore, dag_id, a=StepState.CANCELLED)
    await node.end(f"{dag_id}.b")
    ended = await longshore.wait_dag(dag_id)
    assert steps(ended) == {"a": "CANCELLED", "b": "SUCCEEDED"}


@pytest.mark.exhaustive
async def test_a_failure_that_was_caught_can_be_tried_again(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    spec = a_dag(pool, {"a": {}, "mend": {"after": {"a": "failure"}}})
    dag_id = await begun(longshore, spec)
    await node.end(f"{dag_id}.a", report=USER_ERROR)
    await node.end(f"{dag_id}.mend")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED
    plan = await longshore.plan_retry(dag_id)
    assert plan.jobs == ("a", "mend")
    assert await longshore.plan_retry(dag_id, spec) == plan, "an unchanged file says the same"
    assert await longshore.retry_dag(dag_id) == plan
    await node.end(f"{dag_id}.a.r2")
    ended = await longshore.wait_dag(dag_id)
    assert steps(ended) == {"a": "SUCCEEDED", "mend": "SKIPPED"}
    for again in (None, spec):
        with pytest.raises(RefusedError, match="nothing runs again"):
            await longshore.retry_dag(dag_id, again)
