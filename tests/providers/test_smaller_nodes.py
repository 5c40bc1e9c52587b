"""An exchange that sells nodes of four GPUs beside those of eight: both are options."""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from longshore.activities.buying.inputs import look_at
from longshore.activities.providers import registry
from longshore.models.buying import BuyingPolicy, Unmet
from longshore.models.market import InstanceType, OrderRequest, OrderState, Window
from longshore.simulation.market.catalogue import SKUS
from tests.support.buying import a_job, decided
from tests.support.market import RunningMarket, running_market

FOUR = InstanceType.parse("4xH100")


@pytest.fixture
def market() -> Iterator[RunningMarket]:
    """A market with a half of the first SKU's node at $2.20, and whole ones at $2.00; 0.02 s."""
    half = replace(SKUS[0], id="isku_h100half", alias="maple", gpus=4)
    with running_market(skus=(SKUS[0], half)) as running:
        for sku, dollars in (("maple", "2.20"), ("alder", "2.00")):
            order = {"side": "sell", "dollars_per_gpu_hour": dollars, "nodes": 2}
            running.post("books", sku=sku, orders=[order])
        yield running


@pytest.mark.parametrize(("gpus", "kind"), [(2, "4xH100"), (8, "8xH100")])
async def test_the_smallest_node_that_holds_a_job_is_bought_where_it_costs_least(
    market: RunningMarket, gpus: int, kind: str
):
    now = datetime.fromtimestamp(market.now, UTC)
    job = a_job("a", gpus, submitted_at=now)
    policy = BuyingPolicy(enabled=True)
    async with aclosing(registry.connect(market.settings(), "sfcompute")) as exchange:
        views = await look_at([exchange], Unmet(jobs=(job,)), policy, now)
    asked = {quote.instance_type for quote in views[0].quotes}
    assert asked == {"4xH100", "8xH100"} if gpus <= 4 else {"8xH100"}
    (plan,) = decided([job], *views, now=now, enabled=True).plans
    assert (plan.instance_type, plan.nodes, plan.gpus_per_node) == (kind, 1, int(kind[0]))


async def test_a_node_of_four_is_bought_by_the_hour_of_its_gpus(market: RunningMarket):
    start = datetime.fromtimestamp(market.now, UTC).replace(second=0, microsecond=0)
    window = Window(start=start, end=start + timedelta(hours=2))
    async with aclosing(registry.connect(market.settings(), "sfcompute")) as exchange:
        order = await exchange.order(
            OrderRequest(
                key="k", instance_type="4xH100", nodes=1, limit=2_200_020, window=window,
                account=await exchange.make_account("train"),
            )
        )  # fmt: skip
        while not order.state.final:
            order = await exchange.order_by_id(order.id)
    assert order.state is OrderState.FILLED
    (fill,) = order.fills
    assert fill.cost is not None
    assert abs(fill.cost - 2 * 4 * 2_200_000) < 1_000
