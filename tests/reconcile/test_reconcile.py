"""`reconcile` on real servers: each case made for real, found, mended, and not found again."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from longshore.activities.database import Database
from longshore.activities.queue_rows import lock_job
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    JOB_WORKFLOW,
    JobHistory,
    JobInput,
    job_workflow_id,
    node_workflow_id,
    pool_workflow_id,
)
from longshore.models.reconcile import Finding, FindingKind, ReconcileReport, ReconcileRequest
from longshore.models.settings import Settings
from longshore.workflows.job import JobWorkflow
from longshore.workflows.pool import PoolWorkflow
from longshore.workflows.reconcile import ReconcileWorkflow
from tests.support.control import a_spec, is_queued, lease_ends, reaches
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

ENDED_AT = "SELECT ended_at FROM jobs WHERE id = :id"
LOST_AFTER = timedelta(seconds=6)
"""Of the settings in conftest.py."""
SOON = ReconcileRequest(
    margin=timedelta(seconds=0.3),
    missing_margin=timedelta(seconds=0.3),
    second_look=timedelta(seconds=0.3),
)
AFTER_A_WHILE = ReconcileRequest(
    margin=timedelta(seconds=5),
    missing_margin=timedelta(seconds=5),
    second_look=timedelta(seconds=0.3),
)
"""Longer than a busy machine takes for one step of a job."""


@workflow.defn(sandboxed=False)
class BeforeWorkflow:
    """A run before that of a job: none that is the first may have a history."""

    @workflow.run
    async def run(self, job: JobInput) -> None:
        workflow.continue_as_new(job, workflow=JobWorkflow.run, task_queue=CONTROL_TASK_QUEUE)


async def test_a_job_whose_workflow_was_terminated_in_the_queue_is_recorded_as_failed(
    longshore: Longshore, control: Database, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    await _job(temporal, job_id).terminate(reason="by mistake")
    finding = await _mends(temporal, FindingKind.END_NOT_RECORDED, f"job {job_id}")
    assert "terminated: by mistake" in finding.problem
    assert not await is_queued(control, job_id)
    job = await longshore.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "its workflow was terminated: by mistake")
    assert job.ended_at == (await _job(temporal, job_id).describe()).close_time
    await _finds_nothing(temporal)


@pytest.mark.parametrize("given", [{"command": "false"}, {"gpus": 0}], ids=["read", "unreadable"])
async def test_the_end_of_a_terminated_job_is_its_own_where_its_id_was_started_again_and_refused(
    longshore: Longshore,
    control: Database,
    pool: str,
    temporal: Client,
    given: dict[str, Any],
):
    job_id = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    await _job(temporal, job_id).terminate(reason="by mistake")
    its_own = await _job(temporal, job_id).describe()
    for _ in range(2):
        again = await temporal.start_workflow(
            JOB_WORKFLOW, {"spec": {"name": "other", "command": "true", "pool": pool, **given}},
            id=job_workflow_id(job_id), task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip
        with pytest.raises(WorkflowFailureError):
            await again.result()

    async def is_shown() -> bool:
        """A list of Temporal's may lag."""
        seen = await longshore.job(job_id)
        return (seen.state, seen.ended_at) == (JobState.FAILED, its_own.close_time)

    await eventually(is_shown)
    finding = await _mends(temporal, FindingKind.END_NOT_RECORDED, f"job {job_id}")
    assert "terminated: by mistake" in finding.problem
    job = await longshore.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "its workflow was terminated: by mistake")
    assert job.ended_at == its_own.close_time
    await _finds_nothing(temporal)


@pytest.mark.exhaustive
async def test_the_end_of_a_terminated_job_and_a_late_enqueue_do_not_wait_for_each_other(
    longshore: Longshore, control: Database, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    await _waits_for_a_reason(longshore, job_id)
    await _job(temporal, job_id).terminate()
    subject = f"job {job_id}"
    await eventually(lambda: _would_find(temporal, (FindingKind.END_NOT_RECORDED, subject)))
    async with control.transaction() as enqueue:
        await lock_job(enqueue, job_id)  # as a repeat does
        mending = asyncio.create_task(_found(temporal, SOON))
        await eventually(lambda: _scalar(control, WAITING_FOR_LOCKS))
        nowait = text("SELECT FROM queue WHERE job_id = :id FOR UPDATE NOWAIT")
        await enqueue.execute(nowait, {"id": job_id})
    (finding,) = (await mending).findings
    assert finding.mended
    await _finds_nothing(temporal)


@pytest.mark.exhaustive
async def test_a_job_whose_workflow_was_terminated_in_a_run_gives_its_gpus_back_when_stopped(
    longshore: Longshore, control: Database, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool, gpus=8, stop_grace="3s"))).job_id
    await node.started(job_id)
    await _job(temporal, job_id).terminate()
    finding = await _mends(temporal, FindingKind.END_NOT_RECORDED, f"job {job_id}")
    (stop,) = node.stops
    assert (stop.key.job_id, stop.key.attempt) == (job_id, 1)
    assert stop.grace == timedelta(seconds=3)
    assert finding.problem in stop.reason
    assert await lease_ends(control, job_id) == ["failed"] * 8
    job = await longshore.job(job_id)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    await _finds_nothing(temporal)
    await _runs_through(longshore, node, pool)


@pytest.mark.exhaustive
async def test_gpus_are_not_given_back_while_nobody_knows_that_the_process_has_ended(
    longshore: Longshore, temporal: Client, ledger: Ledger, pool: str
):
    await ledger.register(node_id := f"mute-{uuid.uuid4().hex[:6]}")
    job_id = (await longshore.submit(a_spec(f"empty-{pool}"))).job_id
    await _waits_for_a_reason(longshore, job_id)
    await _place_silently(ledger, job_id, node_id)
    await _job(temporal, job_id).terminate()
    no_answer = SOON.model_copy(update={"node_answers_within": timedelta(seconds=0.3)})
    patient = no_answer.model_copy(update={"missing_margin": timedelta(hours=1)})
    report = await _found(temporal, patient, count=2)
    unmended = {finding.kind: finding for finding in report.findings if not finding.mended}
    assert unmended.keys() == {FindingKind.END_NOT_RECORDED, FindingKind.AGENT_SILENT}
    assert f"node {node_id} did not stop it" in unmended[FindingKind.END_NOT_RECORDED].done
    assert await lease_ends(ledger.database, job_id) == [None]
    assert await _scalar(ledger.database, ENDED_AT, id=job_id) is None
    # Lost, it has fenced itself: now they are free.
    await _reconcile(temporal, no_answer.model_copy(update={"even_most": True}))
    assert await lease_ends(ledger.database, job_id) == ["node-lost"]
    await _mends(temporal, FindingKind.END_NOT_RECORDED, f"job {job_id}")
    assert (await longshore.job(job_id)).state is JobState.FAILED
    await _finds_nothing(temporal)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("control")
async def test_a_pool_whose_workflow_was_terminated_is_started_again(
    longshore: Longshore, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await _waits_for_a_reason(longshore, job_id)
    flow = temporal.get_workflow_handle_for(PoolWorkflow.run, pool_workflow_id(pool))
    await flow.terminate()
    finding = await _mends(temporal, FindingKind.POOL_ASLEEP, f"pool {pool}")
    assert finding.problem == "jobs wait (1), and no workflow works on it"

    async def cycled() -> bool:
        return (await flow.query(PoolWorkflow.status)).last is not None

    await eventually(cycled)
    await _finds_nothing(temporal)
    await _cancelled(longshore, job_id)


async def test_a_node_that_nobody_watches_is_lost_and_its_jobs_queue_again(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    watcher = temporal.get_workflow_handle(node_workflow_id(node.id))
    await watcher.terminate()
    await _mends(temporal, FindingKind.NODE_NOT_WATCHED, f"node {node.id}")
    closed_at = (await watcher.describe()).close_time
    (view,) = await longshore.nodes(pool=pool)
    assert (view.state.value, view.state_reason) == (
        "LOST", "nobody watched it: its workflow has ended",
    )  # fmt: skip
    assert await lease_ends(control, job_id) == ["node-lost"]
    assert closed_at
    lost_at = await _scalar(control, "SELECT state_since FROM nodes WHERE id = :id", id=node.id)
    assert lost_at - closed_at > LOST_AFTER
    assert (await reaches(longshore, job_id, JobState.QUEUED)).attempt == 2
    await _finds_nothing(temporal)
    await _cancelled(longshore, job_id)


async def test_a_placement_whose_signal_was_lost_is_signalled_again(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, ledger: Ledger
):
    job_id = (await longshore.submit(a_spec(f"empty-{pool}"))).job_id
    await _waits_for_a_reason(longshore, job_id)
    await _place_silently(ledger, job_id, node.id)
    finding = await _mends(temporal, FindingKind.PLACEMENT_NOT_HEARD, f"job {job_id}")
    assert finding.problem.startswith(f"attempt 1 holds GPUs of node {node.id}")
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    await _finds_nothing(temporal)


@pytest.mark.exhaustive
async def test_a_job_that_never_heard_of_a_placement_that_was_lost_queues_again(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, ledger: Ledger
):
    job_id = (await longshore.submit(a_spec(f"empty-{pool}"))).job_id
    await _waits_for_a_reason(longshore, job_id)
    await _place_silently(ledger, job_id, node.id)
    node.leave()
    await eventually(lambda: _ended(longshore, pool))
    await _mends(temporal, FindingKind.JOB_NOWHERE, f"job {job_id}")
    assert (await _queued_again(longshore, job_id)) == 2
    await _finds_nothing(temporal)
    await _cancelled(longshore, job_id)


@pytest.mark.exhaustive
async def test_a_gang_that_lost_its_nodes_is_told_of_each_again(
    longshore: Longshore, pool: str, temporal: Client, settings: Settings, ledger: Ledger
):
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        spec = a_spec(f"empty-{pool}", gpus=16, gang={}, stop_grace="1h")
        job_id = (await longshore.submit(spec)).job_id
        await _waits_for_a_reason(longshore, job_id)
        await ledger.rows("DELETE FROM queue WHERE job_id = :id", id=job_id)
        for rank, node in enumerate(nodes):
            await ledger.place(job_id, node=node.id, rank=rank)
            node.leave()
        await eventually(lambda: _ended(longshore, pool))
        await _mends(temporal, FindingKind.JOB_NOWHERE, f"job {job_id}")
        assert (await _queued_again(longshore, job_id)) == 2
        told = (await ledger.signals(job_id, "node_lost"))[-1]
        assert [told["node_id"], *(each["node_id"] for each in told["also"])] == [
            node.id for node in nodes
        ]
        await _cancelled(longshore, job_id)


@pytest.mark.exhaustive
async def test_a_placement_that_is_over_for_its_workflow_is_stopped_and_withdrawn(
    node: ScriptedNode, pool: str, temporal: Client, ledger: Ledger, longshore: Longshore
):
    job_id = f"second-{uuid.uuid4().hex[:10]}"
    history = JobHistory(submitted_at=datetime.now(UTC), attempt=2)
    await temporal.start_workflow(
        BeforeWorkflow.run,
        JobInput(spec=a_spec(f"empty-{pool}"), history=history),
        id=job_workflow_id(job_id),
        task_queue=f"before-{pool}",
    )
    async with Worker(temporal, task_queue=f"before-{pool}", workflows=[BeforeWorkflow]):
        await eventually(lambda: is_queued(ledger.database, job_id))
    await ledger.place(job_id, node=node.id)
    await _mends(temporal, FindingKind.PLACEMENT_OUTDATED, f"job {job_id}")
    assert [stop.key.attempt for stop in node.stops] == [1]
    assert await lease_ends(ledger.database, job_id) == ["withdrawn"]
    assert await is_queued(ledger.database, job_id)
    await _finds_nothing(temporal)
    await _cancelled(longshore, job_id)


async def test_what_is_left_of_an_ended_job_is_ended(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, ledger: Ledger
):
    job_id = await _runs_through(longshore, node, pool)
    await ledger.place(job_id, attempt=2, node=node.id)
    await _mends(temporal, FindingKind.LEFT_AFTER_END, f"job {job_id}")
    assert await lease_ends(ledger.database, job_id) == ["finished", "withdrawn"]
    await ledger.rows(_QUEUE_AGAIN, id=job_id)
    await _mends(temporal, FindingKind.LEFT_AFTER_END, f"job {job_id}")
    assert not await is_queued(ledger.database, job_id)
    await _finds_nothing(temporal)


@pytest.mark.exhaustive
async def test_a_job_without_any_workflow_is_ended_unless_all_jobs_are(
    longshore: Longshore, temporal: Client, ledger: Ledger, pool: str
):
    await ledger.add_job(job_id := f"lost-{uuid.uuid4().hex[:10]}")
    (finding,) = (await _found(temporal, SOON)).findings
    assert (finding.kind, finding.mended) == (FindingKind.WORKFLOW_MISSING, False)
    assert "1 of 1 open jobs have no workflow" in finding.done
    assert (await longshore.job(job_id)).ended_at is None
    other = (await longshore.submit(a_spec(f"empty-{pool}"))).job_id
    await _waits_for_a_reason(longshore, other)
    await _mends(temporal, FindingKind.WORKFLOW_MISSING, f"job {job_id}")
    assert (await longshore.job(job_id)).state is JobState.FAILED
    await _finds_nothing(temporal)
    await _cancelled(longshore, other)


async def test_a_node_without_any_workflow_is_lost_when_a_person_says_so(
    longshore: Longshore, temporal: Client, ledger: Ledger, control: Database
):
    await ledger.register(node_id := f"forgotten-{uuid.uuid4().hex[:6]}")
    report = await _found(temporal, SOON)
    kinds = {finding.kind for finding in report.findings}
    assert kinds == {FindingKind.WORKFLOW_MISSING, FindingKind.AGENT_SILENT}
    assert not any(finding.mended for finding in report.findings)
    await _reconcile(temporal, SOON.model_copy(update={"even_most": True}))
    (view,) = await longshore.nodes(pool=ledger.pool)
    assert (view.id, view.state.value) == (node_id, "LOST")
    await _finds_nothing(temporal)


async def test_what_nothing_explains_is_reported_and_left_as_it_is(
    node: ScriptedNode, temporal: Client, control: Database, longshore: Longshore
):
    stray = await temporal.start_workflow(
        "JobWorkflow", id=job_workflow_id("stray"), task_queue="nobody"
    )
    await _sql(
        control,
        "UPDATE nodes SET cpu_milli_used = 5, state = 'DRAINING' WHERE id = :id",
        id=node.id,
    )
    report = await _found(temporal, SOON, count=3)
    assert {(finding.kind, finding.subject) for finding in report.findings} == {
        (FindingKind.JOB_NOT_RECORDED, "job stray"),
        (FindingKind.NODE_DIFFERS, f"node {node.id}"),
        (FindingKind.LEDGER_DIFFERS, f"node {node.id}"),
    }
    assert not report.settled
    assert not any(finding.mended or finding.mend for finding in report.findings)
    await stray.terminate()
    await _sql(
        control, "UPDATE nodes SET cpu_milli_used = 0, state = 'READY' WHERE id = :id", id=node.id
    )
    await eventually(lambda: _settled(temporal))


async def test_a_dry_run_changes_nothing(
    longshore: Longshore, control: Database, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    await _job(temporal, job_id).terminate()
    report = await _found(temporal, SOON.model_copy(update={"dry_run": True}))
    assert [(each.subject, each.mended) for each in report.findings] == [(f"job {job_id}", False)]
    assert report.findings[0].mend is not None
    assert await is_queued(control, job_id)
    await _mends(temporal, FindingKind.END_NOT_RECORDED, f"job {job_id}")


async def test_a_busy_system_that_is_well_yields_no_findings(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    async def flow(number: int) -> None:
        job_id = (await longshore.submit(a_spec(pool, name=f"flow-{number}"))).job_id
        await node.end(job_id)
        await longshore.wait(job_id)

    flowing = asyncio.gather(*(flow(number) for number in range(20)))
    looks = 0
    while looks < 3 or not flowing.done():
        report = await _reconcile(temporal, AFTER_A_WHILE)
        assert report.findings == ()
        looks += 1
    await flowing


# --- helpers ------------------------------------------------------------------------------


async def _reconcile(temporal: Client, request: ReconcileRequest = SOON) -> ReconcileReport:
    return await temporal.execute_workflow(
        ReconcileWorkflow.run,
        request,
        id=f"reconcile-{uuid.uuid4().hex[:8]}",
        task_queue=CONTROL_TASK_QUEUE,
    )


async def _found(
    temporal: Client, request: ReconcileRequest, *, count: int = 1
) -> ReconcileReport:
    """Reconcile until at least so much is found."""

    async def found() -> ReconcileReport:
        report = await _reconcile(temporal, request)
        assert len(report.findings) >= count, report
        return report

    return await eventually(found)


async def _mends(temporal: Client, kind: FindingKind, subject: str) -> Finding:
    """Wait until there is this to find and nothing else, which is a step that takes its time on a
    busy machine; reconcile, and return it: it is mended, and is all that was found."""
    await eventually(lambda: _would_find(temporal, (kind, subject)))
    (finding,) = (await _found(temporal, SOON)).findings
    assert (finding.kind, finding.subject) == (kind, subject)
    assert finding.mended, finding
    return finding


async def _finds_nothing(temporal: Client) -> None:
    """Wait until the last step has been taken: then nothing is left that anybody has to mend."""
    await eventually(lambda: _would_find(temporal))


async def _would_find(temporal: Client, *expected: tuple[FindingKind, str]) -> bool:
    """Fail unless a look that changes nothing finds these, and nothing else."""
    report = await _reconcile(temporal, SOON.model_copy(update={"dry_run": True}))
    assert [(each.kind, each.subject) for each in report.findings] == list(expected)
    return True


async def _settled(temporal: Client) -> bool:
    return (await _reconcile(temporal)).settled


async def _place_silently(ledger: Ledger, job_id: str, node_id: str) -> None:
    """Leave what a cycle leaves that died between its commit and its signals."""
    await ledger.rows("DELETE FROM queue WHERE job_id = :id", id=job_id)
    await ledger.place(job_id, node=node_id)


async def _runs_through(longshore: Longshore, node: ScriptedNode, pool: str) -> str:
    job_id = (await longshore.submit(a_spec(pool, name="after"))).job_id
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    return job_id


async def _waits_for_a_reason(longshore: Longshore, job_id: str) -> None:
    """Wait until a cycle has left the job in its queue."""
    await reaches(longshore, job_id, JobState.QUEUED)

    async def waits() -> bool:
        return (await longshore.explain(job_id)).last_decision is not None

    await eventually(waits)


async def _queued_again(longshore: Longshore, job_id: str) -> int:
    async def again() -> int:
        status = await longshore.status(job_id)
        assert (status.state, status.attempt > 1) == (JobState.QUEUED, True), status
        return status.attempt

    return await eventually(again)


async def _cancelled(longshore: Longshore, job_id: str) -> None:
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


async def _ended(longshore: Longshore, pool: str) -> bool:
    return all(view.state.value == "GONE" for view in await longshore.nodes(
        pool=pool, with_gone=True
    ))  # fmt: skip


async def _sql(database: Database, statement: str, **values: object) -> None:
    async with database.transaction() as connection:
        await connection.execute(text(statement), values)


async def _scalar(database: Database, statement: str, **values: object) -> Any:
    async with database.transaction() as connection:
        return await connection.scalar(text(statement), values)


def _job(temporal: Client, job_id: str) -> WorkflowHandle[Any, Any]:
    return temporal.get_workflow_handle(job_workflow_id(job_id))


_QUEUE_AGAIN = """
    INSERT INTO queue (job_id, attempt, pool, held, priority, request, submitted_at)
    SELECT id, 3, pool, true, 5, '{}', submitted_at FROM jobs WHERE id = :id
"""
