"""What reconcile does for DAGs: of terminated jobs, of terminated DAGs, and of what they keep."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.client.reconcile import reconcile
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.dag_view import DagState, StepState
from longshore.models.messages import job_workflow_id
from longshore.models.reconcile import FindingKind, ReconcileRequest
from longshore.workers.doctor.dags import dags as doctors_dags
from longshore.workers.doctor.findings import Level
from longshore.workflows.dag import DagWorkflow
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually
from tests.workflows.test_dags import a_dag, begun, comes_to

AT_ONCE = timedelta(seconds=0.3)
SOON = ReconcileRequest(margin=AT_ONCE, missing_margin=AT_ONCE, second_look=AT_ONCE)


@pytest.mark.exhaustive
async def test_a_terminated_job_has_failed_for_its_dag(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    spec = DagSpec.model_validate({
        "name": "dag", "pool": pool,
        "jobs": {
            "a": {"command": "true"},
            "mend": {"command": "true", "after": {"a": "failure"}},
        },
    })  # fmt: skip
    dag_id = (await longshore.submit_dag(spec)).dag_id
    await node.started(f"{dag_id}.a")
    await temporal.get_workflow_handle(job_workflow_id(f"{dag_id}.a")).terminate()
    mended = asyncio.create_task(node.end(f"{dag_id}.mend"))

    async def is_told() -> bool:
        await reconcile(longshore, SOON)
        return mended.done()

    await eventually(is_told)
    ended = await longshore.wait_dag(dag_id)
    assert ended.state is DagState.SUCCEEDED
    assert {step.name: step.step for step in ended.steps} == {
        "a": StepState.FAILED, "mend": StepState.SUCCEEDED,
    }  # fmt: skip


async def test_the_mutex_of_a_terminated_job_is_free_again(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    first = await begun(longshore, a_dag(pool, {"a": {"mutex": pool}}))
    await node.started(f"{first}.a")
    second = await begun(longshore, a_dag(pool, {"a": {"mutex": pool}}))
    await comes_to(longshore, second, a=StepState.WAITING)
    await temporal.get_workflow_handle(job_workflow_id(f"{first}.a")).terminate()
    passed = asyncio.create_task(node.end(f"{second}.a"))

    async def is_free() -> bool:
        await reconcile(longshore, SOON)
        return passed.done()

    await eventually(is_free)
    assert (await longshore.wait_dag(second)).state is DagState.SUCCEEDED


@pytest.mark.exhaustive
async def test_a_terminated_dag_is_named_and_lets_others_pass(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    x, y = f"{pool}-x", f"{pool}-y"
    first = await begun(longshore, a_dag(pool, {"a": {"mutex": x}}))
    await node.started(f"{first}.a")
    gone = await begun(longshore, a_dag(pool, {"a": {"mutex": [x, y]}}))

    async def waits() -> bool:
        step = await longshore.step(f"{gone}.a")
        return step is not None and "which" in step.reason

    await eventually(waits)
    behind = await begun(longshore, a_dag(pool, {"a": {"mutex": y}}))
    await comes_to(longshore, behind, a=StepState.WAITING)
    await temporal.get_workflow_handle(dag_workflow_id(gone)).terminate()
    passed = asyncio.create_task(node.end(f"{behind}.a"))

    async def has_passed() -> bool:
        await reconcile(longshore, SOON)
        return passed.done()

    await eventually(has_passed)
    report = await reconcile(longshore, SOON)
    (named,) = [each for each in report.findings if each.subject == f"dag {gone}"]
    assert (named.kind, named.mended, named.mend) == (FindingKind.DAG_NOT_FOLLOWED, False, None)
    assert f"longshore dag retry {gone}" in named.problem
    (finding,) = await doctors_dags(temporal, control)
    assert finding.level is Level.WARN
    assert f"no workflow follows {gone}" in finding.says
    await node.end(f"{first}.a")
    assert (await longshore.retry_dag(gone)).jobs == ()
    await node.end(f"{gone}.a")
    assert (await longshore.wait_dag(gone)).state is DagState.SUCCEEDED
    (fine,) = await doctors_dags(temporal, control)
    assert fine.level is Level.OK


@pytest.mark.exhaustive
async def test_a_job_that_was_never_submitted_gives_its_mutex_back(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    """Its DAG was terminated between the commit and the start of the job's workflow."""
    held = await begun(longshore, a_dag(pool, {"a": {"mutex": pool}}), held=True)
    handle = temporal.get_workflow_handle(dag_workflow_id(held))

    async def looked() -> bool:
        """A look that is still under way would submit the job."""
        return (await handle.query(DagWorkflow.status)).progress is not None

    await eventually(looked)
    await handle.terminate()
    async with control.transaction() as connection:
        for statement in (
            "UPDATE dag_jobs SET state = 'SUBMITTING', job_id = :job, mutexes = ARRAY[:mutex],"
            " ready_at = now(), submitted_at = now() WHERE dag_id = :dag",
            "INSERT INTO mutexes SELECT 'default', :mutex, :job, now() WHERE :dag <> ''",
        ):
            row = {"dag": held, "job": f"{held}.a", "mutex": pool}
            await connection.execute(text(statement), row)
    other = await begun(longshore, a_dag(pool, {"a": {"mutex": pool}}))
    passed = asyncio.create_task(node.end(f"{other}.a"))

    async def has_passed() -> bool:
        await reconcile(longshore, SOON)
        return passed.done()

    await eventually(has_passed)
    assert (await longshore.dag(held)).counts == {StepState.WAITING: 1}
    await longshore.retry_dag(held)
    await longshore.release_dag(held)
    await node.end(f"{held}.a")
    assert (await longshore.wait_dag(held)).state is DagState.SUCCEEDED
