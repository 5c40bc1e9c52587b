"""The seeds' rule: where to buy by the number of GPUs that are short."""

from datetime import timedelta

import pytest

from longshore.models.buying import BuyDecision, CapacityUnderWay, DemandSample
from longshore.models.job import Tier
from longshore.models.money import micro_of
from tests.support.buying import NOW, a_job, a_release, cloud, decided, exchange

BOOK = exchange(("2.00", 640))
OFFERS = cloud(("2.40", 1), ("2.30", 2), ("2.20", 4), ("2.50", 8))


def bought(decision: BuyDecision) -> list[tuple[str, int, int]]:
    """Return provider, nodes and GPUs of each order."""
    return [(plan.provider, plan.nodes, plan.gpus) for plan in decision.plans]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, ("cloud", 1, 1)),
        (2, ("cloud", 1, 2)),
        (3, ("cloud", 1, 4)),
        (7, ("cloud", 1, 8)),
        (8, ("exchange", 1, 8)),
        (9, ("exchange", 2, 16)),
        (17, ("exchange", 3, 24)),
    ],
)
def test_the_size_decides_where(gpus: int, expected: tuple[str, int, int]):
    jobs = [a_job(str(number)) for number in range(gpus)]
    assert bought(decided(jobs, BOOK, OFFERS, rule="seed")) == [expected]


@pytest.mark.parametrize(
    ("factor", "queued", "gpus"),
    [(1.0, 10, 16), (1.2, 10, 16), (1.5, 16, 24), (1.9, 4, 8), (1.24, 4, 4)],
)
def test_the_warm_target_is_the_whole_part_of_demand_times_the_factor(
    factor: float, queued: int, gpus: int
):
    jobs = [a_job(str(number)) for number in range(queued)]
    decision = decided(jobs, BOOK, OFFERS, rule="seed", fast_safety_factor=factor)
    assert [plan.gpus for plan in decision.plans] == [gpus]


def test_used_gpus_count_for_the_target_and_coming_ones_against_it():
    busy = [a_release("n1", busy_hours=5), a_release("n2", busy_hours=5)]
    coming = CapacityUnderWay(id="p", instance_type="8xH100-80GB", nodes=1, expected_at=NOW)
    # 16 used x 1.5 = 24: 8 are short, or none when a node is coming.
    short = decided([], BOOK, OFFERS, rule="seed", fast_safety_factor=1.5, releases=busy)
    enough = decided(
        [], BOOK, rule="seed", fast_safety_factor=1.5, releases=busy, under_way=[coming]
    )
    assert bought(short) == [("exchange", 1, 8)]
    assert enough.plans == ()


def test_windows_are_a_day():
    (plan,) = decided([a_job(gpus=8)], BOOK, rule="seed").plans
    assert plan.window is not None
    assert plan.window.length == timedelta(hours=24)
    assert plan.expected_cost == micro_of("384.00")


@pytest.mark.parametrize(
    ("market", "policy"),
    [
        (cloud(("4.00", 1)), {"prime_max_price": micro_of("3.00")}),
        (cloud(("2.00", 1), startup=timedelta(hours=1)), {}),
        (cloud(("2.00", 4)), {"prime_max_gpus": 2}),
        (cloud(), {}),
    ],
)
def test_a_small_need_takes_a_whole_node_where_no_offer_will_do(market, policy):
    assert bought(decided([a_job()], BOOK, market, rule="seed", **policy)) == [("exchange", 1, 8)]


def test_sustained_demand_is_consolidated_on_whole_nodes():
    def samples(*queued: int) -> dict[str, object]:
        times = [NOW - timedelta(minutes=40 - 10 * number) for number in range(len(queued))]
        pairs = zip(times, queued, strict=True)
        return {"demand": tuple(DemandSample(at=at, queued=n) for at, n in pairs)}

    jobs = [a_job(gpus=2)]
    for queued, provider in (
        ((8, 9, 12, 8), "exchange"),
        ((8, 9, 7, 8), "cloud"),
        ((8, 0, 9, 9), "cloud"),
    ):
        decision = decided(jobs, BOOK, OFFERS, rule="seed", unmet=samples(*queued))
        assert [plan.provider for plan in decision.plans] == [provider]


def test_each_tier_is_bought_up_to_its_cap_a_gpu_hour_and_without_one_at_any_price():
    dear = exchange(("24.00", 64))
    flex, fast = a_job(gpus=8, tier=Tier.FLEX), a_job(gpus=8)
    refused = decided([flex], dear, rule="seed")
    assert refused.plans == ()
    assert refused.reason == (
        "wait: over the price limit: 8xH100-80GB costs $24.00 a GPU-hour, and max_price.FLEX is "
        "$10.00"
    )
    another = a_job(gpus=8, tier=Tier.FLEX, gpu_type="H200")
    assert decided([another], dear, rule="seed").reason == (
        "wait: nothing on the markets can serve these jobs"
    )
    slow = {"usual_startup": "10m", "startup_limit": "1m"}
    assert decided([flex], exchange(("9.00", 64)), rule="seed", policy=slow).reason == (
        "wait: over the start-up limit: 8xH100-80GB takes 10m to come up, and startup_limit is 1m"
    )
    assert decided([flex], exchange(("10.00", 64)), rule="seed").plans
    unlimited = {"max_price": {"FAST": "none"}}
    assert decided([fast], dear, rule="seed").plans == ()
    assert decided([fast], dear, rule="seed", policy=unlimited).plans


def test_the_other_ways_stand_beside_the_choice_with_their_price():
    decision = decided([a_job()], BOOK, OFFERS, rule="seed")
    assert len(decision.options) == 3
    assert [option.chosen for option in decision.options] == [False, True, False]
    assert all(option.lost for option in decision.options if not option.chosen)
    assert decision.options[2].committed == micro_of("384.00")
