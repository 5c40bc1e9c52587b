"""A job that nobody pays for runs on a lent spare; it ends before the gang goes on there."""

import uuid
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.held_differences import HELD_DIFFERENCES
from longshore.client.api import Longshore
from longshore.models.forecast import ForecastKind
from longshore.models.funding import Budget, Tenant
from longshore.models.job_status import JobState
from longshore.models.node_messages import ProcessReport
from longshore.models.settings import Settings
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

STOPPED = ProcessReport(exit_code=143, stopped_for="preempted")


@pytest.fixture
async def three(
    temporal: Client, settings: Settings, control: Database, pool: str
) -> AsyncIterator[list[ScriptedNode]]:
    """Registers three nodes of 8 GPUs in one fabric domain; 0.3 s."""
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "abc") as nodes:
        yield nodes


@pytest.fixture
async def poor(longshore: Longshore) -> str:
    """Makes a tenant with a budget without an envelope: nobody pays for its jobs."""
    name = f"poor-{uuid.uuid4().hex[:8]}"
    await longshore.set_tenant(Tenant(name=name))
    await longshore.apply_budgets([Budget(tenant=name)])
    return name


async def start(
    longshore: Longshore, nodes: list[ScriptedNode], pool: str, poor: str
) -> tuple[str, str, list[ScriptedNode]]:
    """Start a gang on two nodes that lends what stands by on the third, and a job of `poor`
    there; return both, and the nodes by rank, with the spare last."""
    wish = {"group_gpus": 16, "spares_per_group": 8, "lend_spares": True}
    gang = (await longshore.submit(a_spec(pool, gpus=16, cpus=16, ram=32, gang=wish))).job_id
    await eventually(lambda: sum((gang, 1) in node.runs() for node in nodes) == 2)
    ranks = {node.id: node for node in nodes}
    job = await longshore.job(gang)
    guest = (await longshore.submit(a_spec(pool, gpus=4, tenant=poor))).job_id
    (spare,) = (ranks[name] for name in job.spares)
    await spare.started(guest)
    return gang, guest, [*(ranks[name] for name in job.nodes), spare]


async def differences(database: Database) -> list[object]:
    async with database.transaction() as connection:
        return list(await connection.execute(text(HELD_DIFFERENCES)))


async def test_the_swap_ends_the_borrower_first_and_it_waits_again(
    longshore: Longshore, three: list[ScriptedNode], pool: str, poor: str, control: Database
):
    gang, guest, (first, second, spare) = await start(longshore, three, pool, poor)
    assert f"on a spare that {gang} lends" in (await longshore.explain(guest)).headline
    assert (await longshore.job(gang)).lent_to == (guest,)
    assert f"{spare.id} (lent to {guest}) stands by" in (await longshore.explain(gang)).headline
    assert await differences(control) == []
    spare.slow_to_stop = True
    second.leave()
    await eventually(lambda: [stop.key.job_id for stop in spare.stops] == [guest])
    assert (gang, 2) not in first.runs() + spare.runs(), "its borrower has not ended"
    assert await lease_ends(control, guest) == [None] * 4
    await spare.end(guest, 1, STOPPED)
    again = (await first.started(gang, 2)).placement
    assert [rank.node_id for rank in again.ranks] == [first.id, spare.id]
    await spare.started(gang, 2)
    status = await reaches(longshore, guest, JobState.QUEUED)
    assert (status.attempt, status.preemptions) == (2, 1)
    assert await lease_ends(control, guest) == ["preempted"] * 4
    assert len(spare.stops) == 1
    assert (
        spare.stops[0].reason == f"preempted for {gang}, which takes back the spare that it lent"
    )
    assert await differences(control) == []
    for node in (first, spare):
        await node.end(gang, 2)
    assert (await longshore.wait(gang)).state is JobState.SUCCEEDED
    await eventually(lambda: (guest, 2) in first.runs() + spare.runs())
    await longshore.cancel(guest, "enough")


async def test_a_gang_that_ends_leaves_the_gpus_to_whoever_borrowed_them(
    longshore: Longshore, three: list[ScriptedNode], pool: str, poor: str, control: Database
):
    gang, guest, (first, second, spare) = await start(longshore, three, pool, poor)
    for node in (first, second):
        await node.end(gang)
    assert (await longshore.wait(gang)).state is JobState.SUCCEEDED
    assert await lease_ends(control, guest) == ["kept"] * 4 + [None] * 4
    headline = (await longshore.explain(guest)).headline
    assert headline.endswith("; the GPUs are its own since that job gave them up")
    assert await differences(control) == []
    await spare.end(guest)
    assert (await longshore.wait(guest)).state is JobState.SUCCEEDED
    assert spare.stops == []
    assert await differences(control) == []


@pytest.mark.exhaustive
async def test_a_job_is_told_of_the_spare_before_it_is_submitted_and_why_it_gets_none(
    longshore: Longshore, three: list[ScriptedNode], pool: str, poor: str
):
    gang, guest, (_, _, spare) = await start(longshore, three, pool, poor)
    fits = await longshore.forecast(a_spec(pool, gpus=4, tenant=poor))
    assert fits is not None
    assert fits.kind is ForecastKind.STARTS
    assert f"{spare.id} GPUs 4-7: that is a spare of {gang}, which lends" in fits.says
    for other in (a_spec(pool, gpus=4), a_spec(pool, gpus=5, tenant=poor)):
        waits = await longshore.forecast(other)
        assert waits is not None
        assert waits.kind is ForecastKind.WAITS
    wide = (await longshore.submit(a_spec(pool, gpus=5, tenant=poor))).job_id
    itself = (await longshore.submit(a_spec(pool, gpus=5))).job_id
    for job in (wide, itself):
        await reaches(longshore, job, JobState.QUEUED)
    says = f"the spare that {gang} lends on {spare.id} has 4 of 8 GPUs"
    await eventually(lambda: _says(longshore, wide, says))
    assert says not in (await longshore.explain(itself)).headline, "it pays, and borrows nothing"
    for job in (wide, itself, guest, gang):
        await longshore.cancel(job, "enough")


async def _says(longshore: Longshore, job: str, says: str) -> bool:
    headline = (await longshore.explain(job)).headline
    assert says in headline
    return True
