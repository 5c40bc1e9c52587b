"""A job that is not to start before its `begin`: it is kept out of placement until then."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.dag import DagSpec
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import job_workflow_id
from longshore.models.retry import FailureClass
from tests.support.control import a_spec, is_queued, lease_ends, reaches
from tests.support.histories import activities, timers
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)


async def _submitted(
    hasty: Longshore, skipper: TimeSkipper, pool: str, *, held: bool = False, **fields: object
) -> str:
    with skipper.with_time_skipping_disabled():
        job_id = (await hasty.submit(a_spec(pool, **fields), held=held)).job_id
    await reaches(hasty, job_id, JobState.HELD)
    return job_id


async def _queue_row(control: Database, job_id: str) -> tuple[bool, bool]:
    async with control.transaction() as connection:
        row = await connection.execute(
            text("SELECT held, begin_only FROM queue WHERE job_id = :id"), {"id": job_id}
        )
        held, begin_only = row.one()
        return held, begin_only


async def test_it_is_placed_when_its_begin_has_come_and_a_release_changes_nothing(
    hasty: Longshore, longshore: Longshore, skipper: TimeSkipper, node: ScriptedNode, pool: str,
    temporal: Client, control: Database,
):  # fmt: skip
    job_id = await _submitted(hasty, skipper, pool, begin="2h")
    view = await hasty.job(job_id)
    assert view.begins_at == view.submitted_at + 2 * HOUR
    assert (view.state, view.begin_only) == (JobState.HELD, True)
    assert view.reason.startswith("begins at ")
    await hasty.release(job_id)
    other = (await longshore.submit(a_spec(pool))).job_id
    await node.end(other)  # so a cycle has looked at the queue
    await longshore.wait(other)
    assert (await hasty.status(job_id)).state is JobState.HELD
    assert await _queue_row(control, job_id) == (True, True)
    assert await lease_ends(control, job_id) == []
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    assert await skipper.fast_forward(job, 3 * HOUR)
    await node.end(job_id)
    assert (await hasty.wait(job_id)).state is JobState.SUCCEEDED
    (until,) = await timers(temporal, job.id)
    assert HOUR < until <= 2 * HOUR
    assert (await activities(temporal, job.id)).count("set_hold") == 1


async def test_a_hold_of_its_user_and_its_begin_both_have_to_be_over(
    hasty: Longshore, skipper: TimeSkipper, node: ScriptedNode, pool: str, temporal: Client,
    control: Database,
):  # fmt: skip
    job_id = await _submitted(hasty, skipper, pool, held=True, begin="2h")
    status = await hasty.status(job_id)
    assert status.reason.startswith("held at submit; begins at ")
    view = await hasty.job(job_id)
    assert (view.begin_only, view.reason.startswith("held; begins at ")) == (False, True)
    await hasty.release(job_id)

    async def waits_for_begin_alone() -> JobStatus:
        assert await _queue_row(control, job_id) == (True, True)
        return await hasty.status(job_id)

    released = await eventually(waits_for_begin_alone)
    assert (released.state, released.reason[:10]) == (JobState.HELD, "begins at ")
    await hasty.hold(job_id, "not yet")

    async def is_kept() -> bool:
        return await _queue_row(control, job_id) == (True, False)

    await eventually(is_kept)
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    assert await skipper.fast_forward(job, 3 * HOUR)

    async def says_the_hold_alone() -> bool:
        return (await hasty.status(job_id)).reason == "not yet"

    await eventually(says_the_hold_alone)
    assert await lease_ends(control, job_id) == []
    await hasty.release(job_id)
    await node.end(job_id)
    assert (await hasty.wait(job_id)).attempts == 1


async def test_its_queue_timeout_counts_from_its_begin(
    hasty: Longshore, pool: str, temporal: Client, control: Database
):
    job_id = (await hasty.submit(a_spec(pool, begin="5h", queue_timeout="1h"))).job_id
    result = await hasty.wait(job_id)
    assert result.failure is FailureClass.QUEUE_TIMEOUT
    before, timeout = await timers(temporal, job_workflow_id(job_id))
    assert 4 * HOUR < before <= 5 * HOUR
    assert timeout == HOUR
    assert not await is_queued(control, job_id)


async def test_it_is_cancelled_before_its_begin(
    longshore: Longshore, pool: str, control: Database
):
    at = datetime.now(UTC) + HOUR
    job_id = (await longshore.submit(a_spec(pool, begin=at.isoformat()))).job_id
    await reaches(longshore, job_id, JobState.HELD)
    await longshore.cancel(job_id, reason="changed my mind")
    result = await longshore.wait(job_id)
    assert (result.state, result.message) == (JobState.CANCELLED, "changed my mind")
    assert not await is_queued(control, job_id)


@pytest.mark.parametrize("begin", ["2026-01-01T00:00:00Z", "0s"])
async def test_a_begin_that_is_past_is_as_none(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, begin: str
):
    job_id = (await longshore.submit(a_spec(pool, begin=begin))).job_id
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    assert (await longshore.job(job_id)).begins_at is None
    assert await timers(temporal, job_workflow_id(job_id)) == []
    assert "set_hold" not in await activities(temporal, job_workflow_id(job_id))


@pytest.mark.exhaustive
async def test_an_array_opens_no_slot_before_its_begin_and_its_slots_do_not_wait_again(
    hasty: Longshore, skipper: TimeSkipper, node: ScriptedNode, pool: str, temporal: Client
):
    array_id = await _submitted(hasty, skipper, pool, array="0-1%1", begin="2h")
    view = await hasty.job(array_id)
    assert (view.state, view.begin_only) == (JobState.HELD, True)
    await hasty.release(array_id)  # it looks again, and finds nothing to do

    async def has_looked() -> bool:
        done = await activities(temporal, job_workflow_id(array_id))
        return done.count("advance_array") == 2

    await eventually(has_looked)
    status = await hasty.status(array_id)
    assert (status.state, status.reason[:10]) == (JobState.HELD, "begins at ")
    array = temporal.get_workflow_handle(job_workflow_id(array_id))
    assert await skipper.fast_forward(array, 3 * HOUR)
    await node.end_batches(f"{array_id}.s1")
    assert (await hasty.wait(array_id)).state is JobState.SUCCEEDED
    slot = await hasty.job(f"{array_id}.s1")
    assert slot.begins_at is None


async def test_the_begin_of_a_job_of_a_dag_counts_from_when_it_is_submitted(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    jobs = {
        "first": {"command": "true", "pool": pool},
        "then": {"command": "true", "pool": pool, "begin": "1h", "after": ["first"]},
    }
    dag_id = (
        await longshore.submit_dag(DagSpec.model_validate({"name": "dag", "jobs": jobs}))
    ).dag_id
    await node.end(f"{dag_id}.first")
    await longshore.wait(f"{dag_id}.first")

    async def waits() -> bool:
        step = await longshore.step(f"{dag_id}.then")
        return step is not None and step.state is JobState.HELD

    await eventually(waits)
    first, then = [await longshore.job(f"{dag_id}.{name}") for name in jobs]
    assert first.ended_at
    assert then.begins_at
    assert then.begins_at >= first.ended_at + HOUR
    await longshore.cancel_dag(dag_id)
