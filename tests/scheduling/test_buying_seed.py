"""The seeds' rule: where to buy by the number of GPUs that are short."""

from datetime import timedelta

import pytest

from longshore.models.buying import BuyDecision, CapacityUnderWay, DemandSample, UnmetJob
from longshore.models.job import Tier
from longshore.models.money import micro_of
from tests.support.buying import (
    NOW,
    a_job,
    a_release,
    caps_left,
    cloud,
    decided,
    exchange,
    limits_of,
)

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


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job("long", 2, hours=30), "over the longest window: long needs 1d6h15m"),
        (a_job("large", 12), "no machine of 12 GPUs is for sale"),
        (a_job("broad", vram_per_gpu=141, gpu_type=None), "nothing on the markets can serve"),
        (a_job("wide", cpus=500), "nothing on the markets can serve"),
    ],
)
@pytest.mark.parametrize("market", [BOOK, cloud(("2.40", 2)), cloud(("2.40", 8))])
def test_no_machine_is_bought_on_which_nothing_would_run(job: UnmetJob, why: str, market):
    if job.request.id == "long" and market is not BOOK:
        return  # a machine that runs until it is stopped holds it
    decision = decided([job], market, rule="seed")
    assert decision.plans == ()
    assert why in decision.reason


def test_a_job_that_nothing_holds_has_no_other_bought_more_nor_less():
    wide = a_job("wide", gpus=8, cpus=500)
    for more, provider, gpus in (([a_job("b")], "cloud", 1), ([a_job("b", 8)], "exchange", 8)):
        assert bought(decided([wide, *more], BOOK, OFFERS, rule="seed")) == [(provider, 1, gpus)]
    other = a_job("other", 8, gpu_type="A100")
    assert bought(decided([other, a_job("b", 8)], BOOK, rule="seed")) == [("exchange", 1, 8)]


def test_a_window_that_was_too_short_says_what_it_would_have_to_be():
    decision = decided([a_job("long", 2, hours=30)], BOOK, rule="seed")
    assert limits_of(decision) == {"seed_window": "1d6h15m"}
    longer = decided([a_job("long", 2, hours=30)], BOOK, rule="seed", seed_window="30h15m")
    assert bought(longer) == [("exchange", 1, 8)]


def test_each_node_is_for_a_job_unless_it_is_kept_warm():
    # Of 24 queued GPUs 16 start when n1 and n2 are free: the demand alone is nobody's machine.
    busy = [a_release(name, busy_hours=0.05) for name in ("n1", "n2")]
    jobs = [a_job(str(number), 8, 1) for number in range(3)]
    decision = decided(jobs, BOOK, rule="seed", releases=busy)
    assert sum(plan.nodes for plan in decision.plans) == 1
    # The target is of its type, though nothing waits that names it.
    of_others = cloud(("1.00", 4), kind="A10")
    warm = {"fast_warm_gpus": 4, "fast_warm_type": "H100"}
    assert decided([], of_others, rule="seed", **warm).plans == ()
    assert bought(decided([], OFFERS, of_others, rule="seed", **warm)) == [("cloud", 1, 4)]


@pytest.mark.parametrize(
    ("jobs", "gpus", "hours", "nodes"),
    [(8, 5, 15, 5), (16, 5, 15, 10), (64, 5, 15, 40), (12, 6, 20, 9)],
)
def test_jobs_that_do_not_pack_to_the_gpu_leave_no_node_out_that_one_uses(
    jobs: int, gpus: int, hours: float, nodes: int
):
    waiting = [a_job(str(number), gpus, hours) for number in range(jobs)]
    decision = decided(waiting, BOOK, rule="seed")
    assert bought(decision) == [("exchange", nodes, 8 * nodes)]


def test_a_lot_of_more_than_a_node_is_bought_as_it_is():
    (quote,) = BOOK.quotes
    book = quote.answer.model_copy(update={"lot": 16})
    quotes = (quote.model_copy(update={"answer": book}),)
    by_twos = BOOK.model_copy(update={"quotes": quotes})
    assert bought(decided([a_job(gpus=8)], by_twos, rule="seed")) == [("exchange", 2, 16)]


def test_a_cap_that_keeps_the_rule_from_buying_is_named():
    caps, cheap = caps_left(day=micro_of("100.00")), {"fast_delay_price": "$0.01"}
    decision = decided([a_job(gpus=8)], BOOK, rule="seed", caps=caps, policy=cheap)
    assert decision.reason.startswith("wait: it is over what is left of the cap of today")
    assert list(limits_of(decision)) == ["caps.per_day"]
