"""What buying for a job would probably cost, from prices that were seen."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.preemption_inputs import PreemptionInputs
from longshore.client.preempt_plan import plan_of
from longshore.models.buying import BuyingPolicy
from longshore.models.funding import PoolFunding
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.preemption import SeenPrice, WayKind
from longshore.scheduling.preemption.quotes import rough_quote
from tests.support.packing import a_node
from tests.support.preemption import a_work, nodes_with

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
POLICY = BuyingPolicy(enabled=True)


def a_job(**fields: Any) -> JobRequest:
    defaults: dict[str, Any] = {
        "id": "job", "gpus": 4, "gpu_type": "H100", "submitted_at": NOW,
        "expected_duration": timedelta(minutes=50),
    }  # fmt: skip
    return JobRequest.model_validate({**defaults, **fields})


def seen(
    instance_type: str = "8xH100", ask: int = 2_000_000, gpus: int = 64, market: str = "prime"
) -> SeenPrice:
    return SeenPrice(instance_type=instance_type, ask=ask, gpus=gpus, market=market)


def test_whole_machines_are_paid_from_their_start_to_the_margin_after_the_job():
    """5 minutes to come up, 50 of work and 5 of margin: an hour of 8 GPUs at $2."""
    quote = rough_quote(a_job(), [seen()], POLICY, NOW)
    assert quote is not None
    assert (quote.cost, quote.title) == (16_000_000, "buy 1 x 8xH100")
    assert quote.ready_at == NOW + POLICY.usual_startup


def test_the_cheapest_that_holds_it_counts():
    prices = [seen(ask=3_000_000), seen("8xH200", ask=1_000_000), seen("4xH100", ask=2_500_000)]
    quote = rough_quote(a_job(), prices, POLICY, NOW)
    assert quote is not None
    assert (quote.title, quote.cost) == ("buy 1 x 4xH100", 10_000_000)


def test_a_gang_takes_as_many_machines_as_it_needs():
    quote = rough_quote(a_job(gpus=20, gang={}), [seen()], POLICY, NOW)
    assert quote is not None
    assert quote.title == "buy 3 x 8xH100"


@pytest.mark.parametrize(
    ("job", "price", "policy"),
    [
        pytest.param({"gpu_type": "A100"}, {}, {}, id="other type"),
        pytest.param({"gpus": 9}, {}, {}, id="too many for one machine"),
        pytest.param({}, {"gpus": 4}, {}, id="too few on offer"),
        pytest.param({}, {}, {"enabled": False}, id="buying off"),
        pytest.param({}, {}, {"instance_types": ["8xB200"]}, id="type not allowed"),
        pytest.param({}, {}, {"max_price": {Tier.FAST: 1_000_000}}, id="too dear"),
        pytest.param({"expected_duration": timedelta(hours=30)}, {}, {}, id="too long"),
        pytest.param({"submitted_at": NOW - timedelta(hours=1)}, {}, {}, id="waits for long"),
        pytest.param({"constraints": ["region=sfcompute"]}, {}, {}, id="other market"),
        pytest.param({"constraints": ["zone=a"]}, {}, {}, id="label of no machine for sale"),
    ],
)
def test_there_is_no_quote(job: dict[str, Any], price: dict[str, Any], policy: dict[str, Any]):
    changed = BuyingPolicy.model_validate({"enabled": True, **policy})
    assert rough_quote(a_job(**job), [seen(**price)], changed, NOW) is None


def test_the_market_that_a_job_asks_for_counts():
    prices = [seen(ask=1_000_000), seen(ask=3_000_000, market="sfcompute")]
    quote = rough_quote(a_job(constraints=["region=sfcompute"]), prices, POLICY, NOW)
    assert quote is not None
    assert quote.cost == 24_000_000
    quote = rough_quote(a_job(constraints=["region!=sfcompute"]), prices, POLICY, NOW)
    assert quote is not None
    assert quote.cost == 8_000_000


def test_the_order_of_prices_does_not_matter():
    prices = [seen(), seen("4xH100", ask=4_000_000), seen("8xH100-80GB")]
    assert rough_quote(a_job(), prices, POLICY, NOW) == rough_quote(
        a_job(), prices[::-1], POLICY, NOW
    )


def test_no_rough_quote_comes_in_the_place_of_markets_that_were_asked():
    job = a_job(priority=8)
    low = a_work("low", {"node-a": range(8)}, priority=1)
    inputs = PreemptionInputs(
        spec=PoolSpec(name="p", buying=POLICY), nodes=tuple(nodes_with([low], [a_node("node-a")])),
        running=(low,), queue=(job,), prices=(seen(),),
    )  # fmt: skip
    for bought_nothing in (False, True):
        plan = plan_of(inputs, job, None, NOW, bought_nothing=bought_nothing)
        assert plan is not None
        assert (WayKind.BUY in {way.kind for way in plan.ways}) is not bought_nothing


def test_there_is_no_quote_for_a_job_that_no_budget_pays_for():
    paid, unpaid = a_job(id="paid"), a_job(id="unpaid")
    funding = PoolFunding({}, {"unpaid": "no budget pays"}, frozenset())
    spec = PoolSpec(
        name="p", buying=POLICY, packing=PoolPacking().model_copy(update={"funding": funding})
    )
    inputs = PreemptionInputs(
        spec=spec, nodes=(), running=(), queue=(paid, unpaid), prices=(seen(),)
    )
    assert inputs.quotes(NOW).keys() == {"paid"}
