"""Time limits of jobs and pools: which one counts, and what follows when its time is over."""

from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.errors import UnsatisfiableError
from longshore.models.job_status import JobState
from longshore.models.labels import parse_selector
from longshore.models.messages import CONTROL_TASK_QUEUE, JobInput, job_workflow_id
from longshore.models.node_messages import ProcessReport
from longshore.models.pool import PoolSpec
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.workflows.job import JobWorkflow
from tests.support.control import a_spec, lease_ends
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually
from tests.workflows.test_in_place import WISH

PASSED = "its time limit of 1h has passed"
OVER = ProcessReport(
    exit_code=0, failure=FailureClass.TIME_LIMIT, stopped_for=PASSED,
    message=f"stopped ({PASSED}), exit code 0",
)  # fmt: skip
ABOVE = "max_duration is 3h, and pool {pool} lets jobs run for 2h at most: ask for less"


async def test_a_job_that_has_had_its_time_has_failed_and_is_not_tried_again(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    job_id = (await longshore.submit(a_spec(pool, max_duration="1h"))).job_id
    assert (await node.started(job_id)).spec.max_duration == timedelta(hours=1)
    await node.end(job_id, 1, OVER)
    result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.TIME_LIMIT)
    assert (result.attempts, result.message) == (1, OVER.message)
    assert await lease_ends(control, job_id) == ["failed"]
    assert not node.stops


async def test_where_its_retry_policy_says_so_another_attempt_begins(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    spec = a_spec(pool, max_duration="1h", retry={"time_limit": {"max_retries": 1}})
    job_id = (await longshore.submit(spec)).job_id
    await node.end(job_id, 1, OVER)
    await node.started(job_id, 2)
    await node.end(job_id, 2)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    attempts = (await longshore.status(job_id)).attempts
    assert [each.failure for each in attempts] == [FailureClass.TIME_LIMIT, None]


async def test_a_pool_gives_its_limit_to_jobs_that_name_none(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    await longshore.set_pool(PoolSpec(name=pool, max_duration=timedelta(hours=2)))
    job_id = (await longshore.submit(a_spec(pool, expected_duration="9h"))).job_id
    assert (await node.started(job_id)).spec.max_duration == timedelta(hours=2)
    job = await longshore.job(job_id)
    assert job.max_duration == timedelta(hours=2)
    assert job.started_at
    assert job.ends_by == job.started_at + timedelta(hours=2)
    async with control.transaction() as connection:
        expected = await connection.scalar(
            text("SELECT expected_seconds FROM placements WHERE job_id = :id"), {"id": job_id}
        )
    assert expected == 7200, "it is planned for no longer than it may run"
    # Its own stays when the pool changes, also in its next attempt.
    await longshore.set_pool(PoolSpec(name=pool, max_duration=timedelta(hours=1)))
    await longshore.requeue(job_id)
    assert (await node.started(job_id, 2)).spec.max_duration == timedelta(hours=2)
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


async def test_what_asks_for_more_than_its_pool_allows_is_refused(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    await longshore.set_pool(PoolSpec(name=pool, max_duration=timedelta(hours=2)))
    said = ABOVE.format(pool=pool)
    for more in ({}, {"array": "0-9", "gpus": 1}):
        spec = a_spec(pool, max_duration="3h", **more)
        with pytest.raises(UnsatisfiableError, match=said):
            await longshore.submit(spec)
    # Also where nobody looked before.
    started = await temporal.start_workflow(
        JobWorkflow.run, JobInput(spec=a_spec(pool, max_duration="3h")),
        id=job_workflow_id(f"long-{pool}"), task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    with pytest.raises(WorkflowFailureError) as caught:
        await started.result()
    assert said in str(caught.value.cause)
    assert (await longshore.job(f"long-{pool}")).failure is FailureClass.UNSATISFIABLE
    assert (await longshore.submit(a_spec(pool, max_duration="2h"))).created


async def test_slots_of_an_array_have_its_labels_and_the_limit_that_it_was_taken_with(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    await longshore.set_pool(PoolSpec(name=pool, max_duration=timedelta(hours=2)))
    spec = a_spec(pool, array="0-1%1", labels={"sweep": 7})
    array_id = (await longshore.submit(spec, held=True)).job_id
    await eventually(lambda: _is_on_record(longshore, array_id))
    await longshore.set_pool(PoolSpec(name=pool, max_duration=timedelta(minutes=1)))
    await longshore.release(array_id)
    slot = f"{array_id}.s1"
    await node.end_batches(slot)
    assert (await longshore.wait(array_id)).state is JobState.SUCCEEDED
    taken = await longshore.spec(slot)
    assert (taken.labels, taken.max_duration) == ({"sweep": "7"}, timedelta(hours=2))
    selected = await longshore.list(labels=parse_selector(["sweep=7"]), pool=pool)
    assert [job.id for job in selected] == [array_id], "an array is one job of a list"


async def test_an_array_that_was_taken_without_a_limit_gets_none_later(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    array_id = (await longshore.submit(a_spec(pool, array="0-1%1"), held=True)).job_id
    await eventually(lambda: _is_on_record(longshore, array_id))
    await longshore.set_pool(PoolSpec(name=pool, max_duration=timedelta(minutes=1)))
    await longshore.release(array_id)
    await node.end_batches(f"{array_id}.s1")
    assert (await longshore.wait(array_id)).state is JobState.SUCCEEDED
    assert (await longshore.spec(f"{array_id}.s1")).max_duration is None


async def _is_on_record(longshore: Longshore, job_id: str) -> bool:
    return any(job.id == job_id for job in await longshore.list())


async def test_a_gang_ends_together_and_for_its_time(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str
):
    async with serving_one_fabric(temporal, pool, settings.resolve_agent_token(), "ab") as nodes:
        spec = a_spec(pool, gpus=16, cpus=16, ram=32, gang={}, max_duration="1h")
        job_id = (await longshore.submit(spec)).job_id
        ranks = {(await each.started(job_id)).placement.rank: each for each in nodes}
        first = ranks[1]
        await first.end(job_id, report=OVER)  # the other is stopped for it, and says no failure
        result = await longshore.wait(job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.TIME_LIMIT)
    assert result.message == f"rank 1 on {first.id}: {OVER.message}"
    assert result.attempts == 1


async def test_a_job_that_changes_its_size_in_place_ends_as_a_whole(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str
):
    async with serving_one_fabric(temporal, pool, settings.resolve_agent_token(), "abc") as nodes:
        spec = a_spec(pool, **WISH, max_duration="1h")
        job_id = (await longshore.submit(spec)).job_id
        ranks = {(await each.started(job_id)).placement.rank: each for each in nodes}
        await ranks[2].end(job_id, report=OVER)  # no rank that leaves: its job has had its time
        result = await longshore.wait(job_id)
    assert (result.failure, result.attempts) == (FailureClass.TIME_LIMIT, 1)
    assert result.message == f"rank 2 on {ranks[2].id}: {OVER.message}"
    assert sorted(len(each.stops) for each in nodes) == [0, 1, 1]


async def test_a_time_limit_costs_no_action_of_temporal(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    counts = list[Counter[int]]()
    for limit in (None, "1h"):
        job_id = (await longshore.submit(a_spec(pool, max_duration=limit))).job_id
        await node.end(job_id)
        await longshore.wait(job_id)
        history = await temporal.get_workflow_handle(job_workflow_id(job_id)).fetch_history()
        counts.append(Counter(event.event_type for event in history.events))
    billed = (
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
    )  # fmt: skip
    assert [counts[0][kind] for kind in billed] == [counts[1][kind] for kind in billed]
    assert counts[1][EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED] == 3
