"""Nodes of machines that ended by plan are gone; those that a market took are lost."""

import pytest

from tests.buying.buyer import Buyer, an_offer, pod_option
from tests.support.waiting import eventually


@pytest.mark.exhaustive
async def test_the_node_of_a_machine_that_is_stopped_is_gone_and_that_of_one_taken_is_lost(
    buyer: Buyer,
):
    """The silence of an agent tells of both; of the one it is known why."""
    block = await buyer.buy()
    pod = await buyer.buy(pod_option(await an_offer(buyer.market)))
    buyer.market.fault("spot_lost")
    await buyer.wake(pod.orders[0])
    await buyer.let_go(block.orders[0])
    nodes: dict[str, dict[str, str]] = await eventually(lambda: _nodes_over(buyer))
    gone, lost = nodes[block.nodes[0]], nodes[pod.nodes[0]]
    assert gone["state"] == "GONE"
    assert gone["state_reason"] in (
        "its machine was stopped: the test is over", "agent stopped"
    )  # fmt: skip
    status = await buyer.temporal.get_workflow_handle(f"node-{gone['id']}").result()
    assert (status["state"], status["reason"]) == ("GONE", gone["state_reason"])
    assert lost["state"] == "LOST"


async def _nodes_over(buyer: Buyer) -> dict[str, dict[str, str]]:
    found = await buyer.rows(
        "SELECT id, state, state_reason FROM nodes WHERE pool = :pool"
        " AND state IN ('LOST', 'GONE')", pool=buyer.pool
    )  # fmt: skip
    assert len(found) == 2
    return {row["id"]: row for row in found}
