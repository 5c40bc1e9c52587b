"""Nodes of machines that ended by plan are gone; those that a market took are lost."""

from tests.buying.buyer import Buyer, an_offer, pod_option
from tests.support.waiting import eventually


async def test_the_node_of_a_machine_that_is_stopped_is_gone_and_not_lost(buyer: Buyer):
    bought = await buyer.buy()
    await buyer.let_go(bought.orders[0])
    await eventually(lambda: _nodes_over(buyer))
    (node,) = await _nodes_over(buyer)
    assert node["state"] == "GONE"
    assert node["state_reason"] in (
        "its machine was stopped: the test is over", "agent stopped"
    )  # fmt: skip
    status = await buyer.temporal.get_workflow_handle(f"node-{node['id']}").result()
    assert (status["state"], status["reason"]) == ("GONE", node["state_reason"])


async def test_the_node_of_a_machine_that_its_market_took_is_lost(buyer: Buyer):
    offer = await an_offer(buyer.market)
    bought = await buyer.buy(pod_option(offer))
    buyer.market.fault("spot_lost")
    await buyer.temporal.get_workflow_handle(f"block-{bought.orders[0]}").signal("wake")
    await eventually(lambda: _nodes_over(buyer))
    (node,) = await _nodes_over(buyer)
    assert node["state"] == "LOST"


async def _nodes_over(buyer: Buyer) -> list[dict[str, str]]:
    found = await buyer.rows(
        "SELECT id, state, state_reason FROM nodes WHERE pool = :pool"
        " AND state IN ('LOST', 'GONE')", pool=buyer.pool
    )  # fmt: skip
    assert found
    return found
