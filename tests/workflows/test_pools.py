"""A pool: when it wakes, how many jobs one cycle takes, and what continuing as new keeps."""

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from benchmarks.costs import actions
from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.models.errors import StoredError
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, PoolInput, PoolStatus, pool_workflow_id
from longshore.models.pool import PoolSpec
from longshore.models.settings import Settings
from longshore.workflows.pool import PoolWorkflow
from tests.support.control import a_spec, reaches
from tests.support.histories import runs
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def test_a_batch_is_placed_in_few_cycles(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    larger = ScriptedNode(temporal, pool, node.token, gpus=32)
    async with larger.serving():
        await larger.register()
        submitted = await asyncio.gather(*(longshore.submit(a_spec(pool)) for _ in range(30)))
        nodes = (node, larger)
        for job_id in (each.job_id for each in submitted):
            there = await eventually(lambda job_id=job_id: _where(nodes, job_id))
            await there[0].end(job_id)
        results = await asyncio.gather(*(longshore.wait(each.job_id) for each in submitted))
    assert {result.state for result in results} == {JobState.SUCCEEDED}
    cycles = (await _status(temporal, pool)).cycles
    placing = "SELECT count(DISTINCT cycle_id) FROM placements p JOIN jobs j ON j.id = p.job_id"
    assert await _count(control, f"{placing} WHERE j.pool = :pool", pool) <= 25
    pokes = (await actions(temporal, pool_workflow_id(pool)))["signal"]
    assert pokes <= cycles + 3, "more pokes than a cycle can hear"


async def test_continuing_as_new_loses_nothing(
    longshore: Longshore, pool: str, temporal: Client, settings: Settings, control: Database
):
    await temporal.start_workflow(
        PoolWorkflow.run,
        PoolInput(pool=pool, max_cycles_per_run=2),
        id=pool_workflow_id(pool),
        task_queue=CONTROL_TASK_QUEUE,
    )
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=1)
    async with node.serving():
        await node.register()
        jobs = {(await longshore.submit(a_spec(pool))).job_id for _ in range(6)}
        for ended in range(len(jobs)):
            # Jobs enter the queue each by itself: a later one may be placed first.
            await eventually(lambda ended=ended: len(node.runs()) > ended)
            job_id = node.runs()[ended][0]
            await node.end(job_id)
            assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
        assert {job_id for job_id, _ in node.runs()} == jobs
    assert (await _status(temporal, pool)).generation >= 2
    # A last cycle may be committed and not yet counted, or wait for its poke.
    assert await eventually(lambda: _adds_up(temporal, control, pool))


@pytest.mark.exhaustive
async def test_a_pool_that_was_reset_plans_what_comes(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    """It counts its cycles from an earlier number then, and those numbers are on record."""
    for _ in range(2):
        await _runs_and_ends(longshore, node, pool)
    handle = temporal.get_workflow_handle(pool_workflow_id(pool))
    first = await handle.describe()
    task = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    tasks = [
        each.event_id async for each in handle.fetch_history_events() if each.event_type == task
    ]
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace, reason="a test", request_id=uuid.uuid4().hex,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=first.run_id),
            workflow_task_finish_event_id=tasks[0],
        )
    )  # fmt: skip
    for _ in range(2):
        await _runs_and_ends(longshore, node, pool)
    assert (await handle.describe()).run_id != first.run_id


async def test_a_pool_outlives_a_cycle_that_fails(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    """What is stored of the pool cannot be read, until somebody mends that."""
    stored = "UPDATE pools SET spec = CAST(:spec AS jsonb) WHERE name = :pool"
    job_id = (await longshore.submit(a_spec(pool), held=True)).job_id
    await reaches(longshore, job_id, JobState.HELD)
    async with control.transaction() as connection:
        await connection.execute(text(stored), {"pool": pool, "spec": '{"preemption": 7}'})
    await longshore.release(job_id)
    trouble = await eventually(lambda: _trouble(temporal, pool))
    assert "preemption: must be a mapping" in trouble
    async with control.transaction() as connection:
        await connection.execute(text(stored), {"pool": pool, "spec": "{}"})
    handle = temporal.get_workflow_handle_for(PoolWorkflow.run, pool_workflow_id(pool))
    await handle.signal(PoolWorkflow.poke)
    await node.started(job_id)
    await eventually(lambda: _is_well(temporal, pool))  # its cycle tells the job before it ends
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


async def test_settings_of_a_pool_that_cannot_be_read_are_named(
    longshore: Longshore, pool: str, temporal: Client, control: Database
):
    """Of a newer version, say. What waits already goes on waiting."""
    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool))
        await connection.execute(
            text("UPDATE pools SET spec = '{\"preemption\": 7}' WHERE name = :pool"),
            {"pool": pool},
        )
    with pytest.raises(StoredError) as refused:
        await longshore.submit(a_spec(pool))
    assert refused.value.retryable
    said = f"the settings of pool {pool}: preemption: must be a mapping (name: value lines), got 7"
    assert str(refused.value) == said
    await temporal.start_workflow(
        PoolWorkflow.run, PoolInput(pool=pool), id=pool_workflow_id(pool),
        task_queue=CONTROL_TASK_QUEUE, start_signal="poke",
    )  # fmt: skip
    assert await eventually(lambda: _trouble(temporal, pool)) == f"StoredError: {said}"


async def _runs_and_ends(longshore: Longshore, node: ScriptedNode, pool: str) -> None:
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


async def _trouble(temporal: Client, pool: str) -> str:
    return (await _status(temporal, pool)).trouble


async def _is_well(temporal: Client, pool: str) -> bool:
    return not await _trouble(temporal, pool)


async def test_higher_priority_is_placed_first_whoever_came_first(
    longshore: Longshore, pool: str, temporal: Client, settings: Settings, control: Database
):
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=1)
    async with node.serving():
        await node.register()
        first = (await longshore.submit(a_spec(pool, preemptible=False))).job_id
        await node.started(first)
        waiting = {}
        for priority in (1, 9, 5, 9):
            job_id = (await longshore.submit(a_spec(pool, priority=priority))).job_id
            await reaches(longshore, job_id, JobState.QUEUED)
            waiting[job_id] = priority
        await node.end(first)
        await longshore.wait(first)
        for _ in waiting:
            placed = await eventually(lambda: _running(node, longshore))
            await node.end(placed)
            await longshore.wait(placed)
    low, high, middle, high_later = waiting
    assert [job_id for job_id, _ in node.runs()] == [first, high, high_later, middle, low]


async def test_a_pool_whose_jobs_wait_wakes_at_its_interval_without_a_poke(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool, interval=timedelta(milliseconds=300)))
    await _set_state(control, node, "DRAINING")
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    queued = await _status(temporal, pool)
    before = await eventually(lambda: _later_cycle_that_waits(temporal, pool, queued.cycles))
    pokes = (await actions(temporal, pool_workflow_id(pool)))["signal"]
    await _set_state(control, node, "READY")
    await node.started(job_id)
    # A job runs a moment before the cycle that placed it is counted.
    await eventually(lambda: _later_cycle(temporal, pool, before.cycles))
    assert (await actions(temporal, pool_workflow_id(pool)))["signal"] == pokes
    await node.end(job_id)
    await longshore.wait(job_id)


async def test_a_pool_whose_queue_is_empty_sleeps_long(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.end(job_id)
    await longshore.wait(job_id)

    async def last() -> timedelta | None:
        status = await _status(temporal, pool)
        return status.last and status.last.next_wake

    assert await eventually(last) == timedelta(minutes=10)


@pytest.mark.exhaustive
async def test_its_card_says_what_waits_what_the_last_cycle_did_and_what_is_free(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    await node.started((await longshore.submit(a_spec(pool))).job_id)
    wide = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    handle = temporal.get_workflow_handle(pool_workflow_id(pool))

    async def card() -> str:
        asked = "__temporal_workflow_metadata"
        shown = await handle.query(asked, result_type=WorkflowMetadata)
        return shown.current_details if "1 wait." in shown.current_details else ""

    told = await eventually(card)
    assert told.startswith("**Cycle ")
    assert ": 1 job in the queue, 0 placed, 1 wait." in told
    assert "7 of 8 GPUs free." in told
    assert "Without a poke the next one comes after " in told
    await longshore.cancel(wide)


async def _later_cycle(temporal: Client, pool: str, cycles: int) -> bool:
    return (await _status(temporal, pool)).cycles > cycles


def _where(nodes: tuple[ScriptedNode, ...], job_id: str) -> list[ScriptedNode]:
    return [node for node in nodes if (job_id, 1) in node.runs()]


async def _running(node: ScriptedNode, longshore: Longshore) -> str:
    job_id = node.runs()[-1][0]
    return job_id if (await longshore.status(job_id)).state is JobState.RUNNING else ""


async def _status(temporal: Client, pool: str) -> PoolStatus:
    handle = temporal.get_workflow_handle_for(PoolWorkflow.run, pool_workflow_id(pool))
    return await handle.query(PoolWorkflow.status)


async def _adds_up(temporal: Client, control: Database, pool: str) -> bool:
    """Whether each run was counted, and each cycle that placed has a row of its own over all
    runs; of those that change nothing not each is noted."""
    status = await _status(temporal, pool)
    assert len(await runs(temporal, pool_workflow_id(pool))) == status.generation + 1
    stored = await _count(control, "SELECT count(*) FROM cycles WHERE pool = :pool", pool)
    assert stored <= status.cycles
    placed = "SELECT coalesce(sum(placed), 0) FROM cycles WHERE pool = :pool"
    assert await _count(control, placed, pool) == 6
    return True


async def _later_cycle_that_waits(temporal: Client, pool: str, cycles: int) -> PoolStatus:
    status = await _status(temporal, pool)
    assert status.cycles > cycles
    assert status.last
    assert status.last.waiting == 1
    return status


async def _set_state(database: Database, node: ScriptedNode, state: str) -> None:
    """Change the node's row as nobody does: without a poke."""
    async with database.transaction() as connection:
        await connection.execute(
            text("UPDATE nodes SET state = :state WHERE id = :id"), {"state": state, "id": node.id}
        )


async def _count(database: Database, statement: str, pool: str) -> Any:
    async with database.transaction() as connection:
        return await connection.scalar(text(statement), {"pool": pool})
