"""Time that nobody needs is sold again: once, never from under a job, and the ledger agrees."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from longshore.activities.buying.block_end_views import BlockEndViews
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.activities.buying.startup_failures import FAILURES
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.models.block import FOR_SALE, mend_of_sale
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from tests.buying.buyer import DOLLAR, SOON, Buyer, block_option
from tests.buying.test_pool_buys import may_buy
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually

LONG = timedelta(hours=4)
FEE_BPS = 400


def bids(buyer: Buyer, *prices: str) -> None:
    """Have strangers bid for a node each, at these prices, beside 8 nodes for sale."""
    buyer.market.book(
        {"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8},
        *({"side": "buy", "dollars_per_gpu_hour": price, "nodes": 1} for price in prices),
    )


async def sales_of(buyer: Buyer, block: str) -> list[dict[str, Any]]:
    return await buyer.rows("SELECT * FROM orders WHERE block_id = :id ORDER BY number", id=block)


async def settled(buyer: Buyer, block: str) -> list[dict[str, Any]]:
    found = await sales_of(buyer, block)
    assert found, "nothing is sold yet"
    assert all(sale["state"] in ("SOLD", "UNSOLD") for sale in found), found
    return found


async def ended(buyer: Buyer, block: str) -> Any:
    handle = buyer.temporal.get_workflow_handle(f"block-{block}")
    return await asyncio.wait_for(handle.result(), SOON)


async def test_an_idle_node_is_sold_until_the_end_of_its_block(buyer: Buyer):
    bids(buyer, "1.50")
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=LONG))
    (block,) = bought.orders
    await buyer.wake(block)
    end = await ended(buyer, block)
    (sale,) = await sales_of(buyer, block)
    hours = (sale["ends_at"] - sale["starts_at"]) / timedelta(hours=1)
    assert (sale["state"], hours >= 2, hours % 1) == ("SOLD", True, 0)
    # The market trades in millionths of a dollar for a node-minute.
    assert abs(sale["proceeds"] - hours * 8 * 3 * DOLLAR / 2) < 8 * hours * 60
    assert sale["fee"] == sale["proceeds"] * FEE_BPS // 10_000
    assert (end["cost"], end["resold"]) == (end["idle"] + end["resold"], sale["proceeds"])
    await buyer.agrees()
    (cost,) = [each for each in await PurchaseViews(buyer.database).costs("block", limit=1000)
               if each.name == block]  # fmt: skip
    assert (cost.resold_micro_usd, cost.fees_micro_usd) == (sale["proceeds"], sale["fee"])
    shown = await BlockEndViews(buyer.database).of_block(block)
    assert shown.decision is not None
    assert (shown.decision.kind, [each.key for each in shown.sales]) == ("sell", [f"{block}.s1"])
    assert shown.decision.reason.startswith("sell 1 node")


@pytest.mark.exhaustive
async def test_what_a_job_uses_is_kept_and_the_node_beside_it_is_sold(
    buyer: Buyer, longshore: Longshore
):
    bids(buyer, "1.80", "1.60")
    bought = await buyer.buy(block_option(length=LONG), nodes=2)
    (block,) = bought.orders
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1h")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    (holds,) = await buyer.rows("SELECT node_id FROM placements WHERE job_id = :id", id=job.job_id)
    await may_buy(buyer)
    await buyer.wake(block)
    await eventually(lambda: settled(buyer, block))
    (sale,) = await sales_of(buyer, block)
    assert (sale["state"], sale["machine"] != holds["node_id"]) == ("SOLD", True)
    await eventually(lambda: _has_ended(buyer, sale["machine"]))
    assert (await longshore.status(job.job_id)).state is JobState.RUNNING
    (why,) = (await longshore.explain(job.job_id)).blocks
    assert (why.block_id, [each.kind.value for each in why.options if each.gain]) == (
        block, ["sell"],
    )  # fmt: skip
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_time_that_finds_no_buyer_is_used_again(buyer: Buyer):
    bids(buyer, "1.50")
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=LONG))
    (block,) = bought.orders
    buyer.market.fault("order_unfilled")
    await buyer.wake(block)
    await eventually(lambda: settled(buyer, block))
    (sale,) = await sales_of(buyer, block)
    assert (sale["state"], sale["proceeds"]) == ("UNSOLD", 0)

    async def ready_again() -> bool:
        (node,) = await buyer.rows("SELECT n.state, n.expires_at, b.ends_at, m.sale_key"
                                   " FROM nodes n JOIN blocks b ON b.id = n.block_id"
                                   " JOIN machines m ON m.name = n.id"
                                   " WHERE b.id = :id", id=block)  # fmt: skip
        assert (node["state"], node["sale_key"]) == ("READY", None)
        return node["expires_at"] == node["ends_at"]

    await eventually(ready_again)
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.parametrize(
    "fault",
    [
        "dropped",
        pytest.param("malformed_json", marks=pytest.mark.exhaustive),
        pytest.param("order_rejected", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_fault_at_the_sale_sells_at_most_once(buyer: Buyer, fault: str):
    bids(buyer, "1.50", "1.40")
    bought = await buyer.buy(block_option(length=LONG))
    (block,) = bought.orders
    await may_buy(buyer)
    where: dict[str, Any] = {} if fault == "order_rejected" else {"route": "POST /orders"}
    buyer.market.fault(fault, **where)
    await buyer.wake(block)
    await eventually(lambda: settled(buyer, block))
    (sale,) = await sales_of(buyer, block)
    assert buyer.market.happened(fault)
    assert sale["state"] == ("UNSOLD" if fault == "order_rejected" else "SOLD")
    if sale["state"] == "UNSOLD":
        await buyer.let_go(block)
    else:
        await ended(buyer, block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_who_asks_why_is_told_that_the_time_of_a_node_is_for_sale(
    buyer: Buyer, longshore: Longshore
):
    bids(buyer, "1.50")
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=LONG))
    (block,), (node,) = bought.orders, bought.nodes
    buyer.market.fault("server_error", times=-1, provider="sfcompute", route="POST /orders")
    await buyer.wake(block)

    async def is_for_sale() -> bool:
        (row,) = await buyer.rows("SELECT drain_reason FROM nodes WHERE id = :id", id=node)
        return row["drain_reason"] == FOR_SALE

    await eventually(is_for_sale, SOON)
    async with buyer.database.transaction() as connection:  # nothing is bought for who waits
        await set_pool(connection, PoolSpec(name=buyer.pool))
    # Longer than until the offered time begins, and shorter than until the block ends.
    waits = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="130m"))
    await reaches(longshore, waits.job_id, JobState.QUEUED)
    told = await longshore.explain(waits.job_id)
    assert mend_of_sale(node, block) in told.hints
    assert not [hint for hint in told.hints if "uncordon" in hint]
    await longshore.cancel(waits.job_id)
    await longshore.wait(waits.job_id)
    buyer.market.clear_faults()
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_who_asks_why_is_told_that_somebody_drains_a_bought_node(
    buyer: Buyer, longshore: Longshore
):
    bought = await buyer.buy(block_option(length=LONG))
    (block,), (node,) = bought.orders, bought.nodes
    await longshore.drain(node, "new disk")
    waits = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    await reaches(longshore, waits.job_id, JobState.QUEUED)
    told = await longshore.explain(waits.job_id)
    assert told.decision
    assert [each.reason for each in told.decision.rejections] == ["is draining (new disk)"]
    assert told.hints[0] == f"let {node} take jobs again: `longshore uncordon {node}`"
    # Where its block ends too, no uncordon would last, whoever was the last to shut it.
    into = "UPDATE blocks SET state = :state, reason = 'no more' WHERE id = :id"
    await buyer.rows(into, state="DRAINING", id=block)
    told = await longshore.explain(waits.job_id)
    assert not [hint for hint in told.hints if "uncordon" in hint]
    assert f"add a node: {node} is on its way out" in told.hints
    await buyer.rows(into, state="OPEN", id=block)
    await longshore.cancel(waits.job_id)
    await longshore.wait(waits.job_id)
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_low_bid_is_not_taken_while_jobs_to_come_use_the_time(buyer: Buyer):
    bids(buyer)
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=LONG))
    await buyer.wake(bought.orders[0])

    async def decided() -> dict[str, Any]:
        (row,) = await buyer.rows("SELECT decision FROM blocks WHERE id = :id",
                                  id=bought.orders[0])  # fmt: skip
        assert row["decision"] is not None
        return row["decision"]

    assert (await eventually(decided))["kind"] == "keep"
    assert await sales_of(buyer, bought.orders[0]) == []
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


async def test_the_database_keeps_jobs_off_what_is_for_sale_and_sales_off_jobs(
    buyer: Buyer, longshore: Longshore, buying: Database
):
    bought = await buyer.buy(block_option(length=LONG))
    (block,), (node,) = bought.orders, bought.nodes
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1h")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    with pytest.raises(IntegrityError, match="a job holds"):
        await buyer.rows("UPDATE machines SET sale_key = 'x' WHERE name = :name", name=node)
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.rows("UPDATE machines SET sale_key = 'x' WHERE name = :name", name=node)
    with pytest.raises(IntegrityError, match="for sale already"):
        await buyer.rows("UPDATE machines SET sale_key = 'y' WHERE name = :name", name=node)
    waits = await longshore.submit(a_spec(buyer.pool, gpus=8))
    await eventually(lambda: _is_refused(buying, waits.job_id, node))
    await longshore.cancel(waits.job_id)
    await buyer.rows("UPDATE machines SET sale_key = NULL WHERE name = :name", name=node)
    await buyer.let_go(block)
    await buyer.agrees()


async def test_nothing_is_sold_while_buying_is_stopped(buyer: Buyer):
    bought = await buyer.buy(block_option(length=LONG))
    (block,) = bought.orders
    (row,) = await buyer.rows("SELECT ends_at FROM blocks WHERE id = :id", id=block)
    switch = BuyingSwitch(buyer.database)
    await switch.stop("a test")
    try:
        with pytest.raises(IntegrityError, match="buying is stopped"):
            await buyer.rows(
                "INSERT INTO orders (key, side, block_id, number, machine, provider, starts_at,"
                " ends_at, request, is_machine, committed)"
                " VALUES ('k', 'sell', :id, 1, :node, 'sfcompute', now(), :ends, '{}', false, 0)",
                id=block, node=bought.nodes[0], ends=row["ends_at"],
            )  # fmt: skip
    finally:
        await switch.resume()
    await buyer.let_go(block)
    await buyer.agrees()


async def _is_refused(database: Database, job_id: str, node: str) -> bool:
    """Fail unless the job waits, after a cycle that looked at the node."""
    async with database.transaction() as connection:
        placed = await connection.scalar(
            text("SELECT count(*) FROM placements WHERE job_id = :id"), {"id": job_id}
        )
        cycles = await connection.scalar(
            text("SELECT count(*) FROM cycles c JOIN nodes n ON n.pool = c.pool"
                 " WHERE n.id = :node AND c.refused > 0"), {"node": node},
        )  # fmt: skip
    assert placed == 0
    return bool(cycles)


async def _has_ended(buyer: Buyer, machine: str) -> bool:
    (row,) = await buyer.rows("SELECT state, reason FROM machines WHERE name = :name",
                              name=machine)  # fmt: skip
    assert (row["state"], row["reason"]) == ("ENDED", "its time was sold")
    return True


@pytest.mark.exhaustive  # 40 s; failed machines' time is sold below
async def test_paid_time_on_which_nothing_may_be_started_is_sold(buyer: Buyer):
    """A token that may order, and sell, and not start."""
    buyer.market.fault("forbidden", times=-1, provider="sfcompute", route="POST /instances")
    bids(buyer, "1.50")
    await may_buy(buyer)
    bought = await buyer.start(
        buyer.request(block_option(length=LONG), ready_within=timedelta(seconds=5))
    )
    block = f"{buyer.purchases[-1]}.1"

    async def sold() -> dict[str, Any]:
        await buyer.wake(block)
        (sale,) = await settled(buyer, block)
        return sale

    sale = await eventually(sold, SOON, interval=1)
    assert (sale["state"], sale["proceeds"] > 0) == ("SOLD", True)
    over = await asyncio.wait_for(bought.result(), SOON)
    assert (over.state.value, over.nodes, len(over.orders)) == ("ENDED", (), 1)
    assert "its time was sold" in over.reason
    await buyer.agrees()
    (machine,) = await buyer.rows("SELECT * FROM machines WHERE block_id = :id", id=block)
    assert (machine["state"], machine["machine_id"]) == ("ENDED", None)


@pytest.mark.exhaustive  # over a minute; failed machines' time is sold below
async def test_of_two_nodes_that_may_not_be_started_the_one_without_a_buyer_is_tried_on(
    buyer: Buyer,
):
    buyer.market.fault("forbidden", times=-1, provider="sfcompute", route="POST /instances")
    bids(buyer, "1.50")
    await may_buy(buyer)
    bought = await buyer.start(
        buyer.request(block_option(length=LONG), nodes=2, ready_within=timedelta(seconds=25))
    )
    block = f"{buyer.purchases[-1]}.1"

    async def sold() -> dict[str, Any]:
        await buyer.wake(block)
        (sale,) = await settled(buyer, block)
        return sale

    sale = await eventually(sold, SOON, interval=1)
    buyer.market.clear_faults()
    over = await asyncio.wait_for(bought.result(), SOON)
    assert (over.state.value, len(over.nodes), len(over.orders)) == ("READY", 1, 1)
    machines = await buyer.rows("SELECT name, state FROM machines WHERE block_id = :id"
                                " ORDER BY name", id=block)  # fmt: skip
    states = {each["name"]: each["state"] for each in machines if each["state"] != "FAILED"}
    assert states == {sale["machine"]: "ENDED", over.nodes[0]: "READY"}
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("short_pauses")
async def test_paid_time_whose_machines_fail_again_and_again_is_sold(buyer: Buyer):
    buyer.market.fault("instance_failed", times=-1)
    bids(buyer, "1.50")
    await may_buy(buyer)
    bought = await buyer.start(
        buyer.request(block_option(length=LONG), ready_within=timedelta(seconds=5))
    )
    over = await asyncio.wait_for(bought.result(), SOON)
    assert (over.state.value, over.nodes, len(over.orders)) == ("ENDED", (), 1)
    (block,) = over.orders
    (sale,) = await settled(buyer, block)
    assert (sale["state"], sale["proceeds"] > 0) == ("SOLD", True)
    machines = await buyer.rows("SELECT * FROM machines WHERE block_id = :id", id=block)
    assert len(machines) >= FAILURES
    assert [row["name"] for row in machines if row["sale_key"]] == [sale["machine"]]
    await buyer.agrees()
