"""Purchases at a simulated market with real agents: each ends in the right ledger."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from longshore.models.purchase import PurchaseState
from longshore.workflows.purchase import PurchaseWorkflow
from tests.buying.buyer import DOLLAR, Buyer, Purchase, block_option, pod_option
from tests.support.waiting import eventually

NODE_HOUR = 168 * DOLLAR // 10


def exhaustive(*values: Any) -> Any:
    """Return a case that `make faults` runs."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


async def test_bought_time_becomes_a_node_with_an_agent_and_a_closed_account(buyer: Buyer):
    bought = await buyer.buy()
    assert bought.state is PurchaseState.READY
    (node,) = bought.nodes
    (row,) = await buyer.rows("SELECT * FROM nodes WHERE id = :id", id=node)
    (block,) = await buyer.rows("SELECT * FROM blocks WHERE id = :id", id=bought.orders[0])
    assert (row["state"], row["pool"], row["block_id"]) == ("READY", buyer.pool, block["id"])
    assert row["expires_at"] == block["ends_at"]
    assert block["ends_at"] - block["starts_at"] == timedelta(hours=1)
    assert (block["state"], block["price_micro_per_gpu_hour"]) == ("OPEN", 21 * DOLLAR // 10)
    assert bought.spent == NODE_HOUR
    end = await buyer.let_go(bought.orders[0])
    assert (end.cost, end.used, end.idle) == (NODE_HOUR, 0, NODE_HOUR)
    await buyer.agrees()


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("dropped", {"route": "POST /orders"}),
        ("instance_failed", {}),
        exhaustive("malformed_json", {"route": "POST /orders"}),
        exhaustive("dropped", {"route": "POST /instances"}),
        exhaustive("rate_limited", {"provider": "sfcompute"}),
        exhaustive("server_error", {"provider": "sfcompute"}),
        exhaustive("unknown_status", {"provider": "sfcompute"}),
    ],
)
async def test_passing_trouble_ends_in_one_purchase(buyer: Buyer, fault: str, where: Any):
    buyer.market.fault(fault, **where)
    bought = await buyer.buy()
    assert buyer.market.happened(fault)
    assert (bought.state, len(bought.nodes)) == (PurchaseState.READY, 1)
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()
    assert (await buyer.purchase())["spent"] == NODE_HOUR


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "fault",
    [
        "funds",
        exhaustive("order_unfilled"),
        exhaustive("order_rejected"),
        exhaustive("order_invalid"),
    ],
)
async def test_what_one_market_refuses_the_next_option_brings(buyer: Buyer, fault: str):
    buyer.market.fault(fault, times=-1, provider="sfcompute")
    offer = await buyer.an_offer()
    bought = await buyer.buy(block_option(), pod_option(offer))
    assert (bought.state, len(bought.orders)) == (PurchaseState.READY, 2)
    (order,) = await buyer.rows(
        "SELECT provider FROM orders WHERE nodes > 0 AND purchase_id = :id",
        id=bought.purchase_id,
    )
    assert order["provider"] == "prime"
    await buyer.let_go(bought.orders[1])
    await buyer.agrees()


async def test_nothing_that_can_be_had_costs_nothing(buyer: Buyer):
    bought = await buyer.buy(block_option(limit=DOLLAR))
    assert (bought.state, bought.spent, bought.nodes) == (PurchaseState.ENDED, 0, ())
    assert "bought nothing" in bought.reason
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_limit_is_raised_within_its_cap(buyer: Buyer):
    bought = await buyer.buy(block_option(limit=DOLLAR, cap=3 * DOLLAR, reprices=1))
    assert (bought.state, len(bought.orders), bought.spent) == (
        PurchaseState.READY, 2, NODE_HOUR,
    )  # fmt: skip
    await buyer.let_go(bought.orders[1])
    await buyer.agrees()


async def test_a_limit_is_never_raised_above_its_cap(buyer: Buyer):
    bought = await buyer.buy(block_option(limit=DOLLAR, cap=2 * DOLLAR, reprices=3))
    assert (bought.state, len(bought.orders)) == (PurchaseState.ENDED, 1)
    assert bought.reason.endswith("above the cap of $2.00")
    await buyer.agrees()


async def test_a_part_that_was_filled_is_kept_and_the_rest_is_ordered_again(buyer: Buyer):
    buyer.market.fault("order_partial")
    bought = await buyer.buy(block_option(reprices=1), nodes=2)
    assert (bought.state, len(bought.orders), len(bought.nodes)) == (PurchaseState.READY, 2, 2)
    for order in bought.orders:
        assert (await buyer.let_go(order)).cost == NODE_HOUR
    await buyer.agrees()


async def test_a_fill_that_overtakes_its_cancellation_is_paid_for_and_used(buyer: Buyer):
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "9.00", "nodes": 8})
    buyer.market.fault("cancel_race")
    bought = await buyer.buy(block_option(standing_for=timedelta(seconds=1), partial=False))
    assert buyer.market.happened("cancel_race")
    assert (bought.state, len(bought.nodes)) == (PurchaseState.READY, 1)
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


@pytest.mark.parametrize("fault", ["pod_error", exhaustive("machine_silent")])
async def test_a_machine_that_never_works_is_let_go_and_another_way_is_taken(
    buyer: Buyer, fault: str
):
    buyer.market.fault(fault, provider="prime")
    offer = await buyer.an_offer()
    bought = await buyer.buy(pod_option(offer), block_option(), ready_within=timedelta(seconds=40))
    assert (bought.state, len(bought.orders)) == (PurchaseState.READY, 2)
    (pod,) = await buyer.rows("SELECT state, reason FROM machines WHERE name = :name",
                              name=bought.orders[0])  # fmt: skip
    assert pod["state"] == "ENDED"
    await buyer.let_go(bought.orders[1])
    await buyer.agrees()


async def test_an_answer_that_was_lost_where_there_are_no_keys_makes_no_second_machine(
    buyer: Buyer,
):
    offer = await buyer.an_offer()
    buyer.market.fault("dropped", route="POST /pods/")
    buyer.market.fault("list_lag", times=3, provider="prime")
    bought = await buyer.buy(pod_option(offer))
    assert (bought.state, len(bought.nodes)) == (PurchaseState.READY, 1)
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_purchase_whose_caller_has_gone_is_one_purchase(buyer: Buyer):
    """The same id again, by whoever retries, starts nothing."""
    bought = await buyer.buy()
    row = await buyer.purchase()
    request = buyer.request()
    again = await buyer.temporal.execute_workflow(
        "PurchaseWorkflow", request, id=f"purchase-{row['id']}", task_queue="longshore"
    )
    assert again["state"] == row["state"] == "READY"
    assert len(await buyer.rows("SELECT 1 FROM orders WHERE purchase_id = :id",
                                id=row["id"])) == 1  # fmt: skip
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


async def test_a_cancelled_purchase_cancels_its_order_and_ends(buyer: Buyer):
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "9.00", "nodes": 8})
    handle = await buyer.start(buyer.request(block_option(standing_for=timedelta(hours=1))))
    await eventually(lambda: _stands(buyer))
    await handle.cancel(reason="no longer needed")
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    row = await buyer.purchase()
    assert (row["state"], row["reason"], row["spent"]) == ("ENDED", "no longer needed", 0)
    await buyer.agrees()


async def test_a_block_that_ends_while_its_agent_is_waited_for_ends_the_purchase(buyer: Buyer):
    buyer.market.fault("machine_silent", provider="prime")
    handle = await buyer.start(buyer.request(pod_option(await buyer.an_offer())))
    await eventually(lambda: _is_starting(handle))
    await buyer.let_go(f"{buyer.purchases[-1]}.1")
    bought = await handle.result()
    assert (bought.state, bought.nodes) == (PurchaseState.ENDED, ())
    await buyer.agrees()


async def _is_starting(handle: Purchase) -> bool:
    return (await handle.query(PurchaseWorkflow.status)).state is PurchaseState.STARTING


async def _stands(buyer: Buyer) -> bool:
    found = await buyer.rows(
        "SELECT order_state FROM orders WHERE purchase_id = :id", id=buyer.purchases[-1]
    )
    return [row["order_state"] for row in found] == ["STANDING"]
