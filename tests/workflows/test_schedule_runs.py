"""Runs of schedules: the job or DAG of a time, what an overlap does, and backfills."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from longshore.client.api import Longshore
from longshore.models.dag import DagSpec
from longshore.models.errors import RefusedError, SpecError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, job_workflow_id
from longshore.models.schedule import Overlap, ScheduleTimes, ScheduleView
from longshore.models.schedule_messages import ScheduleRunInput, run_id, schedule_id
from longshore.workflows.schedule_run import ScheduleRunWorkflow
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

NIGHTLY = ScheduleTimes(cron=("0 2 * * *",))
FIRST = datetime(2026, 11, 1, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def a_job(pool: str, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "train", "pool": pool, "command": "true", **fields})


async def made(longshore: Longshore, pool: str, **how: Any) -> str:
    """Make a schedule with the name of the test's pool."""
    await longshore.create_schedule(pool, a_job(pool), NIGHTLY, **how)
    return pool


async def comes_to(longshore: Longshore, name: str, *states: str) -> ScheduleView:
    """Wait until the runs of a schedule are in these states, newest first."""

    async def there() -> ScheduleView:
        found = await longshore.schedule(name)
        assert [run.state for run in found.runs] == list(states), found.runs
        return found

    return await eventually(there)


@pytest.mark.exhaustive
async def test_a_trigger_runs_the_job_under_an_id_of_ours_and_tells_its_end(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    name = await made(longshore, pool)
    triggered = await longshore.trigger_schedule(name)
    assert triggered.id is not None
    request = await node.end(triggered.id)
    assert request.spec == a_job(pool)
    found = await comes_to(longshore, name, "SUCCEEDED")
    (run,) = found.runs
    assert (run.id, run.ended, found.started) == (triggered.id, True, 1)
    assert found.simulated
    assert run.id == run_id(name, run.at)
    starter = temporal.get_workflow_handle_for(
        ScheduleRunWorkflow.run, f"schedule-{name}-{run.at:%FT%TZ}"
    )
    result = await starter.result()
    assert (result.id, result.state) == (triggered.id, "SUCCEEDED")
    job = await temporal.get_workflow_handle(job_workflow_id(triggered.id)).describe()
    attributes = {pair.key.name: pair.value for pair in job.typed_search_attributes}
    assert (attributes["Pool"], attributes["Tenant"]) == (pool, "default")
    assert job.parent_id == starter.id


@pytest.mark.exhaustive
async def test_a_failure_is_the_runs_failure_and_a_cancel_by_its_user_is_none(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    name = await made(longshore, pool, pause_on_failure=True)
    first = await longshore.trigger_schedule(name)
    assert first.id is not None
    await node.started(first.id)
    await longshore.cancel(first.id, "not today")
    found = await comes_to(longshore, name, "CANCELLED")
    assert (found.runs[0].reason, found.paused) == ("not today", False)
    await eventually(lambda: _is_another_second(found))
    second = await longshore.trigger_schedule(name)
    assert second.id is not None
    await node.end(second.id, report=USER_ERROR)

    async def paused() -> ScheduleView:
        view = await longshore.schedule(name)
        assert view.paused
        return view

    view = await eventually(paused)
    assert [run.state for run in view.runs] == ["FAILED", "CANCELLED"]
    assert "paused due to workflow failure" in view.note
    assert await longshore.resume_schedule(name)


async def _is_another_second(found: ScheduleView) -> bool:
    return datetime.now(UTC).replace(microsecond=0) > found.runs[0].at


async def test_a_run_that_overlaps_is_left_out_or_takes_the_place_of_the_other(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    name = await made(longshore, pool)
    first = await longshore.trigger_schedule(name)
    assert first.id is not None
    await node.started(first.id)
    with pytest.raises(RefusedError, match=f"{first.id} has not ended, and the overlap is skip"):
        await longshore.trigger_schedule(name)
    view = await longshore.schedule(name)
    await eventually(lambda: _is_another_second(view))
    waits = await longshore.trigger_schedule(name, overlap=Overlap.CANCEL_OTHER)
    second = waits.id or (await comes_to(longshore, name, "RUNNING", "CANCELLED")).runs[0].id
    assert second != first.id
    assert (await longshore.wait(first.id)).state is JobState.CANCELLED
    await node.end(second)
    found = await comes_to(longshore, name, "SUCCEEDED", "CANCELLED")
    assert found.runs[1].reason == f"another run of schedule {name} is due"


@pytest.mark.exhaustive
async def test_a_backfill_runs_each_time_once_and_again_only_when_told(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    name = await made(longshore, pool)
    until = FIRST + DAY
    asked = await longshore.backfill_schedule(name, FIRST, until, dry_run=True)
    assert (asked.times, (await longshore.schedule(name)).started) == ((FIRST, until), 0)
    await longshore.backfill_schedule(name, FIRST, until)
    first, second = run_id(name, FIRST), run_id(name, until)
    await node.started(first)
    assert second not in [job for job, _ in node.runs()], "one after the other"
    await node.end(first)
    await node.end(second, report=USER_ERROR)
    await comes_to(longshore, name, "FAILED", "SUCCEEDED")
    with pytest.raises(RefusedError, match=rf"{first} of 2 times has succeeded: --again"):
        await longshore.backfill_schedule(name, FIRST, until)
    await longshore.backfill_schedule(name, until, until)
    await node.end(f"{second}.r2")
    await comes_to(longshore, name, "SUCCEEDED", "FAILED", "SUCCEEDED")
    again = await longshore.backfill_schedule(name, FIRST, FIRST, again=True)
    assert again.again == (first,)
    await node.end(f"{first}.r2")
    found = await comes_to(longshore, name, "SUCCEEDED", "SUCCEEDED", "FAILED", "SUCCEEDED")
    assert [run.id for run in found.runs] == [f"{first}.r2", f"{second}.r2", second, first]


async def test_a_schedule_starts_a_dag(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    jobs = {"a": {"command": "true"}, "b": {"command": "true", "after": "a"}}
    spec = DagSpec.model_validate({"name": "line", "pool": pool, "jobs": jobs})
    every = ScheduleTimes(every=timedelta(hours=6), offset=timedelta(hours=1))
    await longshore.create_schedule(pool, spec, every)
    dag_id = (await longshore.trigger_schedule(pool)).id
    await node.end(f"{dag_id}.a")
    dag = await temporal.get_workflow_handle(f"dag-{dag_id}").describe()
    told = {pair.key.name: pair.value for pair in dag.typed_search_attributes}
    assert (told["Tenant"], told["Pool"], told["JobState"]) == ("default", pool, "RUNNING")
    await node.end(f"{dag_id}.b", report=USER_ERROR)
    found = await comes_to(longshore, pool, "FAILED")
    assert (found.runs[0].id, found.runs[0].reason, found.what) == (dag_id, "b failed", "line")
    assert found.simulated
    assert [(at.hour - 1) % 6 for at in found.next] == [0] * 10


@pytest.mark.exhaustive
async def test_a_schedule_starts_an_array(longshore: Longshore, node: ScriptedNode, pool: str):
    await longshore.create_schedule(pool, a_job(pool, array="0-3%1"), NIGHTLY)
    array_id = (await longshore.trigger_schedule(pool)).id
    assert array_id is not None
    await node.end_batches(f"{array_id}.s1")
    found = await comes_to(longshore, pool, "SUCCEEDED")
    assert (found.runs[0].id, found.runs[0].reason) == (array_id, "4 elements succeeded")
    with pytest.raises(SpecError, match="has 1,000,000 elements"):
        await longshore.create_schedule(f"{pool}-2", a_job(pool, array="0-999999"), NIGHTLY)


@pytest.mark.exhaustive
async def test_a_run_whose_workflow_was_ended_from_outside_is_taken_over_by_the_next_of_its_time(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    name = await made(longshore, pool)
    await longshore.backfill_schedule(name, FIRST, FIRST)
    job_id = run_id(name, FIRST)
    await node.started(job_id)
    starter = f"schedule-{name}-{FIRST:%FT%TZ}"
    await temporal.get_workflow_handle(starter).terminate()
    assert (await longshore.status(job_id)).state is JobState.RUNNING, "the job goes on"

    async def is_seen() -> bool:
        found = await temporal.get_schedule_handle(schedule_id(name)).describe()
        return not found.info.running_actions

    async def another_runs() -> bool:
        found = await temporal.get_workflow_handle(starter).describe()
        return found.status is WorkflowExecutionStatus.RUNNING

    await eventually(is_seen)
    await longshore.backfill_schedule(name, FIRST, FIRST)
    await eventually(another_runs)
    await temporal.get_workflow_handle(starter).cancel(reason="no longer needed")
    assert (await longshore.wait(job_id)).message == "no longer needed"

    async def ended() -> bool:
        found = await temporal.get_workflow_handle(starter).describe()
        return found.status is WorkflowExecutionStatus.CANCELED

    await eventually(ended)
    assert [job for job, _ in node.runs()] == [job_id], "one job of this time"


async def test_the_same_time_started_twice_at_once_is_one_job(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    given = ScheduleRunInput(schedule=pool, job=a_job(pool))

    async def start() -> Any:
        return await temporal.start_workflow(
            ScheduleRunWorkflow.run,
            given,
            id=f"schedule-{pool}-{FIRST:%FT%TZ}",
            task_queue=CONTROL_TASK_QUEUE,
        )

    found = await asyncio.gather(start(), start(), return_exceptions=True)
    assert sum(isinstance(each, Exception) for each in found) == 1
    await node.end(run_id(pool, FIRST))
    (handle,) = [each for each in found if not isinstance(each, BaseException)]
    assert (await handle.result()).id == run_id(pool, FIRST)
    assert len(node.runs()) == 1
