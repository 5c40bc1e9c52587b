"""A seller that refuses is not asked again for a while: its offers are left out, another's taken.

The first list of the market, which all of this is within, has the sellers that are named.
"""

from contextlib import AsyncExitStack, aclosing
from datetime import timedelta

import pytest

from longshore.activities.buying.inputs import look_at
from longshore.activities.buying.market_refusals import refused_offers
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.providers import registry
from longshore.client.api import Longshore
from longshore.models.buying import BuyingPolicy, RefusedOffer, Unmet
from longshore.models.errors import InvalidOrderError, OfferRefusedError
from longshore.models.job_status import JobState
from longshore.models.market import OrderRequest
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseState
from tests.buying.buyer import Buyer, block_option, pod_option, steady_offers
from tests.buying.test_pool_buys import bought
from tests.support.buying import NOW, a_job, decided
from tests.support.control import a_spec
from tests.support.market import RunningMarket

ORDERS = """
    SELECT request #>> '{{offer,seller}}' AS seller, refused, refused_finally, nodes
      FROM orders WHERE purchase_id = '{id}' ORDER BY number
"""

ROWS = """
    SELECT provider, request ->> 'place' AS place, refused, refused_finally, nodes
      FROM orders WHERE purchase_id = '{id}' ORDER BY number
"""


async def test_one_purchase_goes_on_to_the_next_seller_and_later_ones_leave_the_first_out(
    buyer: Buyer, longshore: Longshore
):
    first = (await steady_offers(buyer.market))[0]
    buyer.market.fault("seller_refuses", -1, provider="prime", seller=first.seller)
    policy = BuyingPolicy(enabled=True)
    await longshore.set_pool(PoolSpec(name=buyer.pool, buying=policy))
    wanted = {"gpu_type": "H100", "expected_duration": "1m"}
    job = await longshore.submit(a_spec(buyer.pool, gpus=1, **wanted))
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    refused, taken = await buyer.rows(ORDERS.format(id=purchase["id"]))
    assert (refused["seller"], refused["refused_finally"]) == (first.seller, True)
    assert "is not supported by the provider" in refused["refused"]
    assert (taken["seller"] != first.seller, taken["nodes"]) == (True, 1)
    detail = await PurchaseDetails(buyer.database).purchase(purchase["id"])
    assert detail.reason == ""  # it has what it wanted; that it was refused first is past
    assert any("is not supported by the provider" in each.text for each in detail.timeline)

    again = await longshore.submit(a_spec(buyer.pool, gpus=2, **wanted))
    assert (await longshore.wait(again.job_id)).state is JobState.SUCCEEDED
    (later,) = [row for row in await bought(buyer) if row["id"] != purchase["id"]]
    assert first.seller not in {
        row["seller"] for row in await buyer.rows(ORDERS.format(id=later["id"]))
    }
    (said,) = later["decision"]["left_out"]
    assert f"of {first.seller} with image simulated-longshore, refused at" in said
    assert "image custom_template is not supported by the provider" in said
    told = await PurchaseDetails(buyer.database).purchase(later["id"])
    assert told.left_out == (said,)

    assert [each.seller for each in await left_out(buyer, policy)] == [first.seller]
    assert await left_out(buyer, BuyingPolicy(refused_for=timedelta(0))) == ()
    await BuyingSwitch(buyer.database).resume()
    assert await left_out(buyer, policy) == ()
    await buyer.let_all_go()


async def left_out(buyer: Buyer, policy: BuyingPolicy) -> tuple[RefusedOffer, ...]:
    async with buyer.database.transaction() as connection:
        return await refused_offers(connection, policy)


async def test_what_was_bought_and_failed_is_not_bought_elsewhere_without_a_decision(
    buyer: Buyer,
):
    one, other = (await steady_offers(buyer.market))[:2]
    buyer.market.fault("pod_error")
    bought = await buyer.buy(pod_option(one), pod_option(other, instead=True))
    assert (bought.state, len(bought.orders)) == (PurchaseState.ENDED, 1)
    await buyer.agrees()


async def test_time_on_which_the_token_may_start_nothing_is_not_paid_for(buyer: Buyer):
    buyer.market.fault("forbidden", -1, provider="sfcompute", route="GET /instances")
    bought = await buyer.buy(block_option())
    assert (bought.state, bought.spent) == (PurchaseState.ENDED, 0)
    assert "LONGSHORE_SFCOMPUTE_TOKEN the right" in bought.reason
    assert buyer.market.state()["orders"] == buyer.before["orders"]
    await buyer.agrees()


async def test_a_real_market_without_a_template_or_image_is_looked_at_and_not_bought_from(
    market: RunningMarket,
):
    settings = market.settings(market="real")
    async with AsyncExitStack() as stack:
        markets = [
            await stack.enter_async_context(aclosing(each))
            for each in registry.connect_all(settings).values()
        ]
        views = await look_at(markets, Unmet(jobs=(a_job(),)), BuyingPolicy(), NOW)
    decision = decided([a_job()], *views)
    assert decision.plans == ()
    for name in ("LONGSHORE_PRIME_TEMPLATE", "LONGSHORE_SFCOMPUTE_IMAGE"):
        assert f"nothing is bought there, since no agent would come up: set {name}" in (
            decision.reason
        )


@pytest.mark.parametrize(
    ("fault", "kind"), [("seller_refuses", OfferRefusedError), ("pod_cap", InvalidOrderError)]
)
async def test_what_is_refused_for_the_account_is_no_fault_of_the_seller(
    market: RunningMarket, fault: str, kind: type[Exception]
):
    offer = (await steady_offers(market))[0]
    market.fault(fault, provider="prime")
    request = OrderRequest(
        key="p-1.1", instance_type=offer.instance_type, nodes=1, offer=offer, limit=offer.price
    )
    async with aclosing(registry.connect(market.settings(), "prime")) as provider:
        with pytest.raises(InvalidOrderError) as raised:
            await provider.order(request)
    assert type(raised.value) is kind


@pytest.mark.exhaustive
async def test_a_row_that_the_exchange_refuses_is_followed_by_the_next_and_left_out_later(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "0.10", "nodes": 8})
    buyer.market.fault("order_rejected", -1, provider="sfcompute")
    policy = BuyingPolicy(enabled=True)
    await longshore.set_pool(PoolSpec(name=buyer.pool, buying=policy))
    wanted = {"gpu_type": "H100", "expected_duration": "1h"}
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, **wanted))
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    refused, taken = await buyer.rows(ROWS.format(id=purchase["id"]))
    assert (refused["provider"], refused["nodes"]) == ("sfcompute", 0)
    assert refused["refused_finally"]
    assert (taken["provider"], taken["nodes"]) == ("prime", 1)
    await buyer.let_all_go()

    again = await longshore.submit(a_spec(buyer.pool, gpus=8, **wanted))
    assert (await longshore.wait(again.job_id)).state is JobState.SUCCEEDED
    (later,) = [row for row in await bought(buyer) if row["id"] != purchase["id"]]
    asked = await buyer.rows(ROWS.format(id=later["id"]))
    assert refused["place"] not in {row["place"] for row in asked}
    said = "; ".join(later["decision"]["left_out"])
    assert ", refused at " in said

    assert refused["place"] in {each.place for each in await left_out(buyer, policy)}
    assert await left_out(buyer, BuyingPolicy(refused_for=timedelta(0))) == ()
    await BuyingSwitch(buyer.database).resume()
    assert await left_out(buyer, policy) == ()
    await buyer.let_all_go()
    await buyer.agrees()
