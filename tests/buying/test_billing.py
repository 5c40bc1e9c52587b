"""Machines that are billed as they run, at a market whose clock tests move."""

from longshore.models.purchase import PurchaseState
from tests.buying.buyer import Buyer, pod_option


async def test_an_offer_becomes_a_node_that_is_paid_for_until_it_is_stopped(buyer: Buyer):
    offer = await buyer.an_offer()
    bought = await buyer.buy(pod_option(offer))
    assert bought.state is PurchaseState.READY
    assert bought.nodes == bought.orders
    before = await buyer.purchase()
    assert before["committed"] >= offer.price
    buyer.market.advance(600)
    end = await buyer.let_go(bought.orders[0])
    assert 0 < end.cost < offer.price
    await buyer.agrees()
    after = await buyer.purchase()
    assert after["committed"] == after["spent"] == end.cost


async def test_a_machine_that_is_taken_away_is_paid_for_until_then(buyer: Buyer):
    offer = await buyer.an_offer()
    bought = await buyer.buy(pod_option(offer))
    buyer.market.advance(120)
    buyer.market.fault("spot_lost")
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()
