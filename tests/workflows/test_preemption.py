"""Running jobs of a lower class are preempted for one that waits, and go on afterwards."""

from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import LeaseEnd
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def test_a_lower_class_gives_way_and_goes_on_afterwards(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    low = (await longshore.submit(a_spec(pool, gpus=8, priority=3))).job_id
    await node.started(low)
    high = (await longshore.submit(a_spec(pool, gpus=8, priority=8))).job_id
    await node.started(high)
    (stop,) = node.stops
    assert (stop.key.job_id, stop.key.attempt) == (low, 1)
    assert high in stop.reason
    await reaches(longshore, low, JobState.QUEUED)
    await node.end(high)
    await node.end(low, attempt=2)
    result = await longshore.wait(low)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    assert await lease_ends(control, low) == [*["preempted"] * 8, *["finished"] * 8]
    status = await longshore.status(low)
    assert status.attempts[0].failure is FailureClass.PREEMPTED
    assert status.preemptions == 1
    ((for_job, plan),) = await _preemptions(control, low)
    assert for_job == high
    assert [victim["job_id"] for victim in plan["victims"]] == [low]
    assert plan["value"] > plan["cost"] > 0
    gave_way = (await longshore.explain(low)).gave_way
    assert gave_way is not None
    assert gave_way.model_dump(mode="json") == plan
    assert (await longshore.explain(high)).gave_way is None


async def test_only_as_many_as_needed_give_way_and_the_youngest_first(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    older = []
    for _ in range(4):
        job_id = (await longshore.submit(a_spec(pool, gpus=2, priority=3))).job_id
        await node.started(job_id)
        older.append(job_id)
    high = (await longshore.submit(a_spec(pool, gpus=2, priority=8))).job_id
    await node.started(high)
    assert [stop.key.job_id for stop in node.stops] == older[-1:]
    for job_id in (*older[:-1], high):
        await node.end(job_id)
    await node.end(older[-1], attempt=2)
    assert (await longshore.wait(older[-1])).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_an_equal_class_and_one_that_says_no_keep_their_gpus(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    equal = (await longshore.submit(a_spec(pool, gpus=4, priority=8))).job_id
    no = (await longshore.submit(a_spec(pool, gpus=4, priority=0, preemptible=False))).job_id
    await node.started(equal)
    await node.started(no)
    high = (await longshore.submit(a_spec(pool, gpus=4, priority=8))).job_id
    await reaches(longshore, high, JobState.QUEUED)
    await eventually(lambda: _looked_at(control, high))
    assert node.stops == []
    await node.end(no)
    await node.started(high)
    assert await _preemptions(control, no) == await _preemptions(control, equal) == []
    for job_id in (equal, high):
        await node.end(job_id)
        await longshore.wait(job_id)


@pytest.mark.exhaustive
async def test_freed_gpus_are_not_taken_by_others_of_the_lower_class(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    """One victim leaves at once, the other saves for longer: what is free meanwhile is kept."""
    slow = (await longshore.submit(a_spec(pool, gpus=4, priority=3))).job_id
    await node.started(slow)
    quick = (await longshore.submit(a_spec(pool, gpus=4, priority=3))).job_id
    await node.started(quick)
    node.slow_to_stop = True
    high = (await longshore.submit(a_spec(pool, gpus=8, priority=8))).job_id
    await eventually(lambda: len(node.stops) == 2)
    explained = await longshore.explain(high)
    assert explained.headline.startswith("waits until others have given way")
    assert explained.making_room is not None
    assert {each.job_id for each in explained.making_room.victims} == {slow, quick}
    await node.end(quick, report=stopped(node, quick))
    await reaches(longshore, quick, JobState.QUEUED)
    small = (await longshore.submit(a_spec(pool, gpus=1, priority=3))).job_id
    await reaches(longshore, small, JobState.QUEUED)
    await node.end(slow, report=stopped(node, slow))
    await node.started(high)
    runs = await longshore.explain(high)
    assert (runs.making_room, runs.made_room) == (None, explained.making_room)
    assert small not in {job_id for job_id, _ in node.runs()}
    node.slow_to_stop = False
    await node.end(high)
    for job_id, attempt in ((quick, 2), (slow, 2), (small, 1)):
        await node.end(job_id, attempt=attempt)
        assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_a_gang_gives_way_whole(
    longshore: Longshore,
    node: ScriptedNode,
    pool: str,
    temporal: Client,
    settings: Settings,
    control: Database,
):
    other = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    async with other.serving():
        await other.register()
        wide = {"gpus": 16, "gang": {"unlabelled_nodes": True}, "priority": 2}
        gang = (await longshore.submit(a_spec(pool, **wide))).job_id
        await node.started(gang)
        await other.started(gang)
        high = (await longshore.submit(a_spec(pool, gpus=8, priority=8))).job_id
        there = await eventually(lambda: [n for n in (node, other) if (high, 1) in n.runs()])
        assert [len(each.stops) for each in (node, other)] == [1, 1]
        await there[0].end(high)
        for each in (node, other):
            await each.end(gang, attempt=2)
        assert (await longshore.wait(gang)).state is JobState.SUCCEEDED
        assert set(await lease_ends(control, gang)) == {LeaseEnd.PREEMPTED, LeaseEnd.FINISHED}


@pytest.mark.exhaustive
async def test_a_job_that_waited_a_month_goes_first_and_is_not_stopped_for_the_one_behind_it(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    first = (await longshore.submit(a_spec(pool, gpus=8, priority=9))).job_id
    await node.started(first)
    low, high = [
        (await longshore.submit(a_spec(pool, gpus=8, priority=priority))).job_id
        for priority in (4, 5)
    ]
    for job_id in (low, high):
        await reaches(longshore, job_id, JobState.QUEUED)
    assert (await longshore.explain(low)).ahead == 1
    async with control.transaction() as connection:
        await connection.execute(
            text("UPDATE queue SET queued_at = queued_at - interval '31 days' WHERE job_id = :id"),
            {"id": low},
        )
    assert (await longshore.explain(low)).ahead == 0
    await node.end(first)
    await node.started(low)
    ran = (await longshore.explain(low)).job
    assert (ran.priority, ran.counted_as, ran.waited.days) == (4, 5, 31)
    # When the next cycle looks at this one, that which placed the first has been over for long.
    late = (await longshore.submit(a_spec(pool, gpus=8, priority=0))).job_id
    await eventually(lambda: _looked_at(control, late))
    assert (node.stops, await _preemptions(control, low)) == ([], [])
    for job_id in (low, high, late):
        await node.end(job_id)
        assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


def stopped(node: ScriptedNode, job_id: str) -> ProcessReport:
    """Return the report of a process that saved and left when it was asked to."""
    (stop,) = [stop for stop in node.stops if stop.key.job_id == job_id]
    return ProcessReport(exit_code=143, stopped_for=stop.reason)


async def _preemptions(control: Database, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    async with control.transaction() as connection:
        rows = await connection.execute(
            text("SELECT for_job, plan FROM preemptions WHERE job_id = :id ORDER BY attempt"),
            {"id": job_id},
        )
        return [(row.for_job, row.plan) for row in rows]


async def _looked_at(control: Database, job_id: str) -> bool:
    """Whether a cycle has decided about the job since it was queued."""
    async with control.transaction() as connection:
        decided = text("SELECT decided_at IS NOT NULL FROM queue WHERE job_id = :id")
        return bool(await connection.scalar(decided, {"id": job_id}))
