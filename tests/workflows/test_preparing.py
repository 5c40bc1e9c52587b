"""What a job needs is brought to its node while it waits; and what nodes say that they hold."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.data import HeldData
from longshore.models.errors import EndedError
from longshore.models.job_status import JobState
from longshore.models.messages import PREPARE_ACTIVITY, job_workflow_id
from longshore.models.node_messages import Prepare
from longshore.models.settings import Settings
from tests.support.control import a_spec, reaches
from tests.support.histories import activities
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

DATA = {"data": {"set": {"from": "s3://sets/set/", "size": "1GB"}}}


@pytest.fixture
async def waiting(longshore: Longshore, node: ScriptedNode, pool: str) -> AsyncIterator[str]:
    """A job that waits behind one on the only node, where what it needs is being brought."""
    first = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await node.started(first)
    job_id = (await longshore.submit(a_spec(pool, gpus=8, **DATA))).job_id
    await eventually(lambda: [each.job_id for each in node.prepares] == [job_id])
    yield job_id
    with contextlib.suppress(EndedError):
        await longshore.cancel(first)


async def test_what_a_job_needs_is_brought_while_it_waits_and_it_starts_there(
    longshore: Longshore, node: ScriptedNode, waiting: str, temporal: Client
):
    (asked,) = node.prepares
    assert (asked.node_id, asked.spec.data["set"].source) == (node.id, "s3://sets/set/")
    assert asked.expected_start is not None
    assert (await longshore.status(waiting)).state is JobState.QUEUED
    first, _ = node.runs()[0]
    await node.end(first)
    await node.end(waiting)
    assert (await longshore.wait(waiting)).state is JobState.SUCCEEDED
    # It was left to go on: the agent goes on with it at the start.
    done = await activities(temporal, job_workflow_id(waiting))
    assert done.count(PREPARE_ACTIVITY) == 1


async def test_a_job_that_brings_nothing_runs_no_activity_more(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    first = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await node.started(first)
    job_id = (await longshore.submit(a_spec(pool, gpus=8, data={"mine": "1GB"}))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)

    async def reserved() -> bool:
        return (await longshore.job(job_id)).estimated_start is not None

    await eventually(reserved)  # a cycle has told all that it tells
    await node.end(first)
    await node.end(job_id)
    await longshore.wait(job_id)
    assert await activities(temporal, job_workflow_id(job_id)) == [
        "enqueue", "run_process", "finish",
    ]  # fmt: skip
    assert node.prepares == []


@pytest.mark.exhaustive
async def test_it_is_given_up_where_the_job_is_placed_elsewhere(
    longshore: Longshore, node: ScriptedNode, waiting: str, temporal: Client, settings: Settings
):
    other = ScriptedNode(temporal, node.pool, settings.resolve_agent_token())
    async with other.serving():
        await other.register()
        await other.end(waiting)
        await eventually(lambda: node.gave_up == [waiting])
        assert (await longshore.wait(waiting)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_it_goes_over_to_the_node_that_is_named_next(
    node: ScriptedNode, waiting: str, temporal: Client, settings: Settings
):
    other = ScriptedNode(temporal, node.pool, settings.resolve_agent_token())
    async with other.serving():
        job = temporal.get_workflow_handle(job_workflow_id(waiting))
        for _ in range(2):
            await job.signal("prepare", Prepare(attempt=1, node_ids=(other.id,), deficit=0.5))
        await eventually(lambda: node.gave_up == [waiting])
        await eventually(lambda: [each.job_id for each in other.prepares] == [waiting])
        assert other.prepares[0].deficit == 0.5
        await job.signal("prepare", Prepare(attempt=7, node_ids=(node.id,)))
        await job.signal("hold", {"reason": "later"})
        await eventually(lambda: other.gave_up == [waiting])
    assert len(node.prepares) == 1


async def test_a_job_that_is_cancelled_gives_it_up(
    longshore: Longshore, node: ScriptedNode, waiting: str
):
    await longshore.cancel(waiting)
    await eventually(lambda: node.gave_up == [waiting])
    assert (await longshore.wait(waiting)).state is JobState.CANCELLED


@pytest.mark.exhaustive
async def test_a_preparation_that_fails_fails_no_job(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    node.cannot_prepare = True
    first = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await node.started(first)
    job_id = (await longshore.submit(a_spec(pool, gpus=8, **DATA))).job_id
    await eventually(lambda: len(node.prepares) == 3)

    async def told() -> bool:
        status = await longshore.status(job_id)
        assert status.state is JobState.QUEUED
        return [each.partition("the store is")[2] for each in status.not_brought] == [" away"]

    await eventually(told)
    await node.end(first)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    assert len(node.prepares) == 3
    assert (await longshore.status(job_id)).not_brought == ()


async def test_what_a_node_says_that_it_holds_is_recorded(node: ScriptedNode, control: Database):
    async def held() -> list[tuple[str, int, int]]:
        async with control.transaction() as connection:
            rows = await connection.execute(
                text(
                    "SELECT name, bytes, total FROM node_data WHERE node_id = :node AND held"
                    " ORDER BY name"
                ),
                {"node": node.id},
            )
            return [tuple(row) for row in rows]

    async def holds(*expected: tuple[str, int, int]) -> None:
        async def recorded() -> bool:
            return await held() == list(expected)

        await eventually(recorded)

    a_set = HeldData(name="set", tenant="default", source="s3://sets/set/", bytes=40, total=100)
    await node.holds(a_set, HeldData(name="image a:1", bytes=5, total=5))
    await holds(("image a:1", 5, 5), ("set", 40, 100))
    for so_far in range(50, 110, 10):
        await node.holds(a_set.model_copy(update={"bytes": so_far}))
    await holds(("set", 100, 100))
    await node.holds()
    await holds()
