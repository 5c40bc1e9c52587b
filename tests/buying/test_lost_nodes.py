"""A node of a bought window whose machine ends before its time is started again on that time."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.buying.market_refusals import closed_markets
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.startup_failures import FAILURES
from longshore.activities.database import clock
from longshore.activities.providers import registry
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseState
from longshore.scheduling.buying.start_backoff import FIRST_PAUSE, LONGEST_PAUSE, next_start
from tests.buying.buyer import SOON, Buyer, block_option
from tests.buying.test_pool_buys import may_buy
from tests.buying.test_resale import bids, settled
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)
LONG = timedelta(hours=4)


async def ends_at_its_market(buyer: Buyer, node: str) -> None:
    """End a machine as its market would: nobody here is told."""
    (row,) = await buyer.rows("SELECT machine_id FROM machines WHERE name = :name", name=node)
    async with aclosing(registry.connect(buyer.market.settings(), "sfcompute")) as market:
        await market.stop_machine(row["machine_id"])


async def machines_of(buyer: Buyer, block: str) -> dict[str, str]:
    rows = await buyer.rows("SELECT name, state FROM machines WHERE block_id = :id", id=block)
    return {row["name"]: row["state"] for row in rows}


async def are_up(buyer: Buyer, block: str, count: int) -> dict[str, str]:
    """Return the machines of a block, once so many of them have agents."""
    found = await machines_of(buyer, block)
    assert list(found.values()).count("READY") == count, found
    return found


@pytest.mark.exhaustive
@pytest.mark.usefixtures("short_pauses")
async def test_the_job_of_a_machine_that_ended_goes_on_in_the_same_window(
    buyer: Buyer, longshore: Longshore
):
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=LONG))
    (block,), (node,) = bought.orders, bought.nodes
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1h")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await ends_at_its_market(buyer, node)

    async def runs_again() -> bool:
        status = await longshore.status(job.job_id)
        return (status.state, status.attempt) == (JobState.RUNNING, 2)

    await eventually(runs_again, SOON)
    # The agent takes the job at once; its block notes a moment later that the machine is up.
    machines = await eventually(lambda: are_up(buyer, block, 1))
    assert machines == {node: "ENDED", f"{block}.m2": "READY"}
    purchases = await buyer.rows("SELECT id, state FROM purchases WHERE pool = :pool",
                                 pool=buyer.pool)  # fmt: skip
    assert [row["state"] for row in purchases] == ["READY"]
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.let_go(block)
    await buyer.agrees()


async def test_of_two_machines_the_one_that_ended_is_started_again(buyer: Buyer):
    bought = await buyer.buy(block_option(length=LONG), nodes=2)
    (block,), (lost, _) = bought.orders, bought.nodes
    await ends_at_its_market(buyer, lost)
    await buyer.wake(block)
    machines = await eventually(lambda: _is_replaced(buyer, block, lost), SOON)
    assert machines == {lost: "ENDED", bought.nodes[1]: "READY", f"{block}.m3": "READY"}
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("short_pauses")
async def test_a_node_whose_machines_end_again_and_again_is_sold(buyer: Buyer):
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=LONG))
    (block,), (node,) = bought.orders, bought.nodes
    # Only now: the first agent may be slow on a loaded machine, and the others never come.
    within = "UPDATE purchases SET request = jsonb_set(request, '{ready_within}', '\"PT5S\"')"
    await buyer.rows(f"{within} WHERE id = :id", id=buyer.purchases[-1])
    buyer.market.fault("instance_failed", times=-1)
    await ends_at_its_market(buyer, node)
    bids(buyer, "1.50")
    await buyer.wake(block)
    end = await buyer.ended(block)
    (sale,) = await settled(buyer, block)
    assert (sale["state"], sale["proceeds"] > 0) == ("SOLD", True)
    assert end.resold == sale["proceeds"]
    assert len(await machines_of(buyer, block)) >= FAILURES
    assert sale["machine"] != node
    await buyer.agrees()


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.exhaustive  # 37 s; tests/scheduling/test_block_end.py decides it
async def test_a_machine_whose_agent_stays_silent_is_stopped_and_another_is_started(
    buyer: Buyer, longshore: Longshore
):
    """Its market says that it runs, and bills it: what is paid is used."""
    silence = timedelta(seconds=20)
    await may_buy(buyer, usual_startup=silence)
    bought = await buyer.buy(block_option(length=LONG))
    (block,), (node,) = bought.orders, bought.nodes
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1h")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    buyer.market.fault("machine_falls_silent")

    async def is_told() -> bool:
        (machine,) = (await PurchaseDetails(buyer.database).block(block)).machines
        return machine.reason.startswith("its agent has been silent since")

    await eventually(is_told)
    async with buyer.database.transaction() as connection:
        pool = PoolSpec(name=buyer.pool)
        closed = await closed_markets(connection, pool, await clock(connection))
    assert "has 0 of 1 machines, which are tried again: its agent has been" in closed["sfcompute"]

    async def runs_again() -> bool:
        status = await longshore.status(job.job_id)
        return (status.state, status.attempt) == (JobState.RUNNING, 2)

    await eventually(runs_again, SOON)
    machines = await eventually(lambda: are_up(buyer, block, 1))
    assert machines == {node: "ENDED", f"{block}.m2": "READY"}
    (lost, _) = (await PurchaseDetails(buyer.database).block(block)).machines
    assert lost.reason == "its agent had been silent for too long: another is started"
    (seen,) = await buyer.rows("SELECT state_since FROM nodes WHERE id = :id", id=node)
    assert lost.ended_at is not None
    assert lost.ended_at >= seen["state_since"] + silence
    purchases = await buyer.rows("SELECT id FROM purchases WHERE pool = :pool", pool=buyer.pool)
    assert len(purchases) == 1
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.let_go(block)
    await buyer.agrees()


async def test_an_agent_that_is_silent_for_a_moment_keeps_its_machine(buyer: Buyer):
    bought = await buyer.buy(block_option(length=LONG))
    (block,), (node,) = bought.orders, bought.nodes
    lost = (
        "UPDATE nodes SET state = 'LOST', state_since = clock_timestamp() - CAST(:ago AS interval)"
    )
    await buyer.rows(f"{lost} WHERE id = :id", id=node, ago=timedelta(minutes=4))
    assert (await buyer.look(block)).silent == ()
    await buyer.rows(f"{lost} WHERE id = :id", id=node, ago=timedelta(minutes=6))
    assert (await buyer.look(block)).silent == (node,)
    late = "UPDATE blocks SET ends_at = clock_timestamp() + interval '9 minutes' WHERE id = :id"
    await buyer.rows(late, id=block)
    assert (await buyer.look(block)).silent == ()  # another would be of no use


@pytest.mark.exhaustive
async def test_time_that_has_not_begun_is_looked_at_when_it_does(buyer: Buyer):
    """As that after another block, whose machines may not all go on."""
    bought = await buyer.buy(block_option(length=LONG))
    (block,) = bought.orders
    begins = datetime.now(UTC) + timedelta(minutes=2)
    await buyer.rows("UPDATE blocks SET starts_at = :at WHERE id = :id", id=block, at=begins)
    assert (await buyer.look(block)).look_at == begins
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_time_after_a_block_whose_machines_have_not_all_gone_on_is_used_whole(buyer: Buyer):
    first = await buyer.buy(block_option())
    (old,), (node,) = first.orders, first.nodes
    second = await buyer.buy(block_option(), nodes=2, renews=old)
    assert (second.state, second.nodes) == (PurchaseState.READY, (node,))
    (block,) = second.orders
    await buyer.wake(block)
    assert await eventually(lambda: are_up(buyer, block, 1), SOON) == {f"{block}.m1": "READY"}
    await buyer.let_go(old)
    assert await are_up(buyer, block, 2) == {node: "READY", f"{block}.m1": "READY"}
    await buyer.let_go(block)
    await buyer.agrees()


def test_starts_on_paid_time_pause_for_longer_each_time_while_it_is_of_use():
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    end, least = now + timedelta(hours=1), timedelta(minutes=15)
    assert next_start(0, now, now, end, least) == now + FIRST_PAUSE
    assert next_start(3, now, now, end, least) == now + 4 * FIRST_PAUSE
    assert next_start(99, now, now, end, least) == now + LONGEST_PAUSE
    late = now + timedelta(minutes=44)
    assert next_start(1, now, late, end, least) == late
    assert next_start(1, now, late + timedelta(minutes=2), end, least) is None


async def _is_replaced(buyer: Buyer, block: str, lost: str) -> dict[str, Any]:
    found = await are_up(buyer, block, 2)
    assert found[lost] == "ENDED", found
    return found
