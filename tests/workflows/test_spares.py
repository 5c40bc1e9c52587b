"""A gang with spares: one of its nodes goes, and another takes its place without a queue."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

Nodes = dict[str, ScriptedNode]


@pytest.fixture
async def three(
    temporal: Client, settings: Settings, control: Database, pool: str
) -> AsyncIterator[Nodes]:
    """Registers three nodes of 8 GPUs in one fabric domain; their ids; 0.3 s."""
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "abc") as nodes:
        yield {node.id: node for node in nodes}


@pytest.fixture
async def gang(longshore: Longshore, three: Nodes, pool: str) -> str:
    """Starts a job of 16 GPUs on two of the nodes, with the third to stand by; 0.2 s."""
    wish = {"group_gpus": 16, "spares_per_group": 8}
    job_id = (await longshore.submit(a_spec(pool, gpus=16, cpus=16, ram=32, gang=wish))).job_id
    await eventually(lambda: sum((job_id, 1) in node.runs() for node in three.values()) == 2)
    return job_id


async def test_a_spare_takes_the_rank_of_a_lost_node_and_nobody_else_its_gpus(
    longshore: Longshore, three: Nodes, gang: str, control: Database, pool: str
):
    first, second, spare = await by_rank(control, gang, three)
    behind = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await reaches(longshore, behind, JobState.QUEUED)
    second.leave()
    again = (await first.started(gang, 2)).placement
    taken = (await spare.started(gang, 2)).placement
    assert [rank.node_id for rank in taken.ranks] == [first.id, spare.id]
    assert (again.rank, taken.rank, taken.spares) == (0, 1, ())
    assert taken.reason.startswith(f"{spare.id} takes the place of {second.id} (rank 1): ")
    ends = await lease_ends(control, gang)
    assert sorted(ends, key=str) == [None] * 16 + ["node-lost"] * 8 + ["swapped"] * 16
    assert (await longshore.job(behind)).state is JobState.QUEUED
    status = await reaches(longshore, gang, JobState.RUNNING)
    assert (status.attempt, status.attempts[0].spares) == (2, (spare.id,))
    assert status.attempts[0].failure is FailureClass.NODE
    assert status.attempts[0].spares_said == taken.reason
    await first.end(gang, 2)
    await spare.end(gang, 2)
    assert (await longshore.wait(gang)).state is JobState.SUCCEEDED
    await eventually(lambda: (behind, 1) in first.runs() + spare.runs())
    for node in (first, spare):
        if (behind, 1) in node.runs():
            await node.end(behind)


async def test_the_master_itself_may_be_replaced(
    longshore: Longshore, three: Nodes, gang: str, control: Database
):
    first, second, spare = await by_rank(control, gang, three)
    first.leave()
    taken = (await second.started(gang, 2)).placement
    assert [rank.address for rank in taken.ranks] == [f"{spare.id}.test", f"{second.id}.test"]
    assert (await spare.started(gang, 2)).placement.rank == 0
    await _ends_well(longshore, gang, 2, spare, second)
    assert (await longshore.job(gang)).nodes == (spare.id, second.id)


@pytest.mark.exhaustive
async def test_with_the_spare_used_up_the_next_loss_goes_to_the_queue(
    longshore: Longshore, three: Nodes, gang: str, control: Database
):
    first, second, spare = await by_rank(control, gang, three)
    second.leave()
    await spare.started(gang, 2)
    await first.started(gang, 2)
    first.leave()
    status = await reaches(longshore, gang, JobState.QUEUED)
    assert (status.attempt, status.attempts[-1].spares) == (3, ())
    assert None not in await lease_ends(control, gang)
    await longshore.cancel(gang, "enough")


@pytest.mark.exhaustive
async def test_a_spare_that_goes_itself_is_given_up_and_the_gang_runs_on(
    longshore: Longshore, three: Nodes, gang: str, control: Database
):
    first, second, spare = await by_rank(control, gang, three)
    spare.leave()
    await eventually(lambda: _has(control, gang, ["node-lost"] * 8))
    assert not first.stops
    assert not second.stops
    assert (await longshore.job(gang)).spares == ()
    second.leave()
    status = await reaches(longshore, gang, JobState.RETRYING, JobState.QUEUED)
    assert status.attempts[0].spares_said.startswith("no spare is left for rank 1")
    await longshore.cancel(gang, "enough")


@pytest.mark.exhaustive
async def test_a_drained_node_is_left_for_the_spare_with_grace(
    longshore: Longshore, three: Nodes, gang: str, control: Database
):
    first, second, spare = await by_rank(control, gang, three)
    await second.drain("new disk", move=True, at_once=True)
    taken = (await spare.started(gang, 2)).placement
    assert taken.reason == (
        f"{spare.id} takes the place of {second.id} (rank 1): new disk"
    )  # fmt: skip
    assert len(second.stops) == len(first.stops) == 1
    ends = await lease_ends(control, gang)
    assert sorted(ends, key=str) == [None] * 16 + ["moved"] * 8 + ["swapped"] * 16
    await first.started(gang, 2)
    status = await longshore.status(gang)
    assert (status.moves, status.attempts[0].moved) == (1, True)
    await _ends_well(longshore, gang, 2, first, spare)


async def test_a_drained_spare_is_given_up_without_a_word_to_the_job(
    longshore: Longshore, three: Nodes, gang: str, control: Database
):
    first, second, spare = await by_rank(control, gang, three)
    await spare.drain("new disk", move=True)
    await eventually(lambda: _has(control, gang, ["moved"] * 8))
    await _ends_well(longshore, gang, 1, first, second)
    assert not first.stops
    assert not second.stops


@pytest.mark.exhaustive
async def test_a_job_that_is_held_keeps_no_spare(
    longshore: Longshore, three: Nodes, gang: str, control: Database
):
    first, second, _ = await by_rank(control, gang, three)
    first.slow_to_stop = second.slow_to_stop = True
    second.leave()
    await eventually(lambda: first.stops)
    await longshore.hold(gang, "look at it first")
    await first.end(gang, 1, ProcessReport(exit_code=143, stopped_for="lost"))
    await reaches(longshore, gang, JobState.HELD)
    assert None not in await lease_ends(control, gang)
    await longshore.cancel(gang, "enough")


async def test_a_cancelled_gang_gives_its_spares_back_too(
    longshore: Longshore, three: Nodes, gang: str, control: Database
):
    await longshore.cancel(gang, "enough")
    await longshore.wait(gang)
    assert await lease_ends(control, gang) == ["cancelled"] * 24


async def by_rank(control: Database, job_id: str, nodes: Nodes) -> list[ScriptedNode]:
    """Return the nodes of the first attempt: by rank, then what stands by."""
    async with control.transaction() as connection:
        names = await connection.scalars(
            text(
                "SELECT node_id FROM placements WHERE job_id = :id AND attempt = 1 ORDER BY rank"
            ),
            {"id": job_id},
        )
        return [nodes[name] for name in names]


async def _has(control: Database, job_id: str, over: list[str]) -> bool:
    return sorted(end for end in await lease_ends(control, job_id) if end) == over


async def _ends_well(
    longshore: Longshore, job_id: str, attempt: int, *nodes: ScriptedNode
) -> None:
    for node in nodes:
        await node.end(job_id, attempt)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
