"""A job whose workflow was ended from outside is the same everywhere before that is recorded."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from longshore.client.api import Longshore
from longshore.console.fleet import Fleet
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult, JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, JobInput, job_workflow_id
from longshore.models.settings import Settings
from longshore.workers.schedules import RECONCILE, ensure_schedule
from longshore.workflows.job import JobWorkflow
from tests.client.conftest import Command
from tests.support.control import a_spec, reaches
from tests.support.histories import reset_to, tasks_done
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

BY_HAND = "`longshore reconcile` records that, and frees what it may hold"


@pytest.fixture
async def api(temporal: Client, settings: Settings) -> Any:
    client = Longshore(temporal, settings)
    yield client
    await client.close()


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("runs", [True, False], ids=["runs", "waits"])
async def test_a_terminated_job_has_failed_wherever_one_looks(
    longshore: Command,
    api: Longshore,
    settings: Settings,
    node: ScriptedNode,
    pool: str,
    temporal: Client,
    runs: bool,
) -> None:
    before = (await api.submit(a_spec(pool, gpus=64))).job_id
    job_id = (await api.submit(a_spec(pool, gpus=1 if runs else 64))).job_id
    after = (await api.submit(a_spec(pool, gpus=64))).job_id
    was = JobState.RUNNING if runs else JobState.QUEUED
    for each, state in ((before, JobState.QUEUED), (job_id, was), (after, JobState.QUEUED)):
        await reaches(api, each, state)
    await temporal.get_workflow_handle(job_workflow_id(job_id)).terminate("by mistake")

    async def listed(*options: str) -> list[dict[str, Any]]:
        return json.loads((await longshore("jobs", "--json", "--pool", pool, *options)).out)

    async def is_listed() -> bool:
        """A list of Temporal's may lag."""
        return next(j for j in await listed() if j["id"] == job_id)["state"] == "FAILED"

    await eventually(is_listed)
    job = json.loads((await longshore("job", "--json", job_id)).out)
    why = json.loads((await longshore("why", "--json", job_id)).out)
    in_list = await listed()
    assert [each["id"] for each in in_list] == [after, job_id, before]
    seen = [in_list[1], job["job"], job["status"], why["job"]]
    assert {each["state"] for each in seen} == {"FAILED"}
    assert {each["reason"] for each in seen} == {f"its workflow was terminated; {BY_HAND}"}
    assert why["headline"].endswith(f"its workflow was terminated; {BY_HAND}")
    assert [each["id"] for each in await listed("--state", "failed")] == [job_id]
    going_on = await listed("--state", "running", "--state", "queued")
    assert [each["id"] for each in going_on] == [after, before]
    assert [each["id"] for each in await listed("--limit", "2")] == [after, job_id]
    for command in ("jobs", "job", "why"):
        ran = await longshore(command, *([] if command == "jobs" else [job_id]))
        assert "its workflow was terminated" in " ".join(ran.out.split())
        assert ("ended with its workflow" in " ".join(ran.out.split())) == (
            runs and command != "jobs"
        )

    pages = Fleet(settings)
    report = await pages.report(job_id)
    shown = [report.job, report.status, (await pages.explain(job_id)).job]
    shown += [each for each in await pages.jobs(pool=pool) if each.id == job_id]
    await pages.close()
    assert [each.state for each in shown if each] == [JobState.FAILED] * 4


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("runs", [True, False], ids=["runs", "waits"])
async def test_a_terminated_job_has_failed_also_where_the_same_is_started_again(
    longshore: Command,
    api: Longshore,
    settings: Settings,
    node: ScriptedNode,
    pool: str,
    temporal: Client,
    runs: bool,
) -> None:
    spec = a_spec(pool, gpus=1 if runs else 64)
    job_id = (await api.submit(spec)).job_id
    await reaches(api, job_id, JobState.RUNNING if runs else JobState.QUEUED)
    await temporal.get_workflow_handle(job_workflow_id(job_id)).terminate("by mistake")
    again = await temporal.start_workflow(
        JobWorkflow.run, JobInput(spec=spec), id=job_workflow_id(job_id),
        task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    with pytest.raises(WorkflowFailureError) as refused:
        await asyncio.wait_for(again.result(), 60)
    assert "is not on record as ended: give this one another id" in str(refused.value.cause)

    pages = Fleet(settings)

    async def has_failed() -> bool:
        """A list of Temporal's may lag."""
        in_list = json.loads((await longshore("jobs", "--json", "--pool", pool)).out)
        job = json.loads((await longshore("job", "--json", job_id)).out)
        why = json.loads((await longshore("why", "--json", job_id)).out)
        report, listed = await pages.report(job_id), await pages.jobs(pool=pool)
        shown = [report.job, (await pages.explain(job_id)).job, *listed]
        states = {each["state"] for each in (*in_list, job["job"], why["job"])}
        assert states | {each.state for each in shown} == {JobState.FAILED}
        assert (job["status"], report.status) == (None, None)
        assert "its id was started again" in report.missing[0]
        return report.job.reason == f"its workflow was terminated; {BY_HAND}"

    await eventually(has_failed)
    await pages.close()
    assert [each.state async for each in api.watch(job_id)] == [JobState.FAILED]
    assert (await api.wait(job_id)).state is JobState.FAILED


async def test_it_says_when_the_reconcile_looks_that_frees_what_it_holds(
    api: Longshore, node: ScriptedNode, pool: str, temporal: Client
) -> None:
    """Not the next, where that comes so early that it takes the end for a step under way."""
    await ensure_schedule(temporal, RECONCILE, timedelta(seconds=30))
    job_id = (await api.submit(a_spec(pool))).job_id
    await node.started(job_id)
    await temporal.get_workflow_handle(job_workflow_id(job_id)).terminate()
    job = await api.job(job_id)
    assert job.ended_at
    schedule = temporal.get_schedule_handle(RECONCILE.schedule)
    coming = (await schedule.describe()).info.next_action_times
    late = next(each for each in coming if each >= job.ended_at + timedelta(minutes=1))
    await schedule.delete()
    assert job.reason == (
        f"its workflow was terminated; the reconcile at {late:%H:%M:%S} UTC records that, "
        "and frees what it may hold"
    )


async def test_a_job_that_was_reset_after_its_end_stays_as_it_ended_for_who_waits_and_watches(
    longshore: Command,
    api: Longshore,
    node: ScriptedNode,
    pool: str,
    temporal: Client,
) -> None:
    job_id = (await api.submit(a_spec(pool))).job_id
    await node.end(job_id, report=USER_ERROR)
    ended = await api.wait(job_id)
    flow = job_workflow_id(job_id)
    await reset_to(temporal, flow, (await tasks_done(temporal, flow))[0])
    with pytest.raises(WorkflowFailureError, match="Workflow execution failed"):
        await asyncio.wait_for(temporal.get_workflow_handle(flow).result(), 60)
    waited = await Longshore(temporal, api.settings).wait(job_id)
    assert waited == ended.model_copy(update={"ended_at": waited.ended_at})
    watched = await longshore("watch", job_id)
    assert (watched.code, "(user, exit code 3)" in watched.out) == (3, True)
    assert "after the job had ended: it stays as it ended" in watched.err
    lines = (await longshore("watch", "--json", job_id)).out.splitlines()
    result = JobResult.model_validate(json.loads(lines[-1])["result"])
    assert result == ended.model_copy(update={"ended_at": result.ended_at})


@pytest.mark.exhaustive
async def test_a_terminated_array_has_failed_in_lists_too(
    api: Longshore, settings: Settings, node: ScriptedNode, pool: str, temporal: Client
) -> None:
    spec = a_spec(pool).model_dump() | {"array": "0-1"}
    array_id = (await api.submit(JobSpec.model_validate(spec))).job_id
    await node.batch_of(f"{array_id}.s1")
    await temporal.get_workflow_handle(job_workflow_id(array_id)).terminate("by mistake")
    pages = Fleet(settings)

    async def has_failed() -> bool:
        """A list of Temporal's may lag."""
        listed = [*await api.list(pool=pool), *await pages.jobs(pool=pool)]
        states = {each.state for each in listed if each.id == array_id}
        return states == {JobState.FAILED} == {(await api.job(array_id)).state}

    await eventually(has_failed)
    await pages.close()
