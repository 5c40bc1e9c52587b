"""What is bought by least cost: worked cases in dollars."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.models.buying import (
    BookQuote,
    BuyDecision,
    BuyingPolicy,
    BuyingRule,
    CapacityUnderWay,
    DemandSample,
    OptionKind,
    PurchasePlan,
)
from longshore.models.caps_left import BudgetLeft, CapsLeft
from longshore.models.job import Tier
from longshore.models.market import InstanceType, Level, NoQuoteReason, Window
from longshore.models.money import MICRO, micro_of
from longshore.models.placement import RejectionCode
from longshore.models.pool import PoolPacking
from longshore.models.spending import named
from longshore.models.text import at_most
from longshore.models.topology import Conformance, Gang, SameConformance
from longshore.scheduling.buying.costs import Candidate, Scene, after, costed, usual_demand
from longshore.scheduling.buying.fleet import Fleet, holds, nodes_of, shape_of
from longshore.scheduling.buying.options import windows_to_ask
from longshore.scheduling.buying.prices import pod_sources
from longshore.scheduling.packer import check
from tests.support.buying import (
    NOW,
    a_job,
    a_release,
    away_exchange,
    book_of,
    caps_left,
    cloud,
    decided,
    empty_exchange,
    exchange,
    limits_of,
    with_book,
)

HOUR = timedelta(hours=1)
BOOK = exchange(("2.00", 64), ("2.20", 64))
OFFERS = cloud(("2.40", 1), ("2.30", 2), ("2.20", 4), ("2.50", 8))


def chosen(decision: BuyDecision):
    return [option for option in decision.options if option.chosen and option.plans]


def test_one_small_job_takes_the_smallest_offer_and_pays_it_while_used():
    decision = decided([a_job()], BOOK, OFFERS)
    (plan,) = decision.plans
    # 5 min to come up, 1 h of work, 10 min idle before it is stopped: 75 min at $2.40.
    assert plan.offer is not None
    assert plan.offer.id == "o0"
    assert plan.expected_cost == micro_of("3.00")
    assert plan.max_total == micro_of("3.20")  # and the margin of 5 minutes
    assert plan.window is None
    assert plan.serves == ("a",)


@pytest.mark.parametrize("rule", list(BuyingRule))
def test_nothing_is_bought_for_a_job_that_names_the_fingerprints_of_its_machines(rule: BuyingRule):
    job = a_job(conformance=Conformance(allowed=("1f0e6b2c9d4a7e35",)))
    alone = decided([job], BOOK, OFFERS, rule=rule)
    assert alone.plans == ()
    (option,) = alone.options
    assert (option.kind, option.title) == (OptionKind.UNPROMISED, "buy for a")
    assert alone.reason == f"wait: {option.lost}"
    assert "no market says which driver" in option.lost
    beside = decided([job, a_job("b")], BOOK, OFFERS, rule=rule)
    (plan,) = beside.plans
    assert (plan.serves, plan.nodes) == (("b",), 1)


@pytest.mark.parametrize("rule", list(BuyingRule))
def test_a_job_that_wants_any_known_fingerprint_is_bought_for_where_no_node_has_said(
    rule: BuyingRule,
):
    job = a_job(conformance=Conformance(known=True))
    silent = a_release()
    (plan,) = decided([job], BOOK, OFFERS, releases=[silent], rule=rule).plans
    assert plan.serves == ("a",)
    # It is what the machine's agent reports that then counts.
    (coming,) = Fleet(PoolPacking()).with_bought(plan, "new", None).nodes
    wants = PoolPacking()
    assert check(coming, job.request, wants, NOW) is None
    assert check(coming.model_copy(update={"conformance": "1f"}), job.request, wants, NOW) is None
    told = check(coming.model_copy(update={"conformance": None}), job.request, wants, NOW)
    assert told is not None
    assert told.code is RejectionCode.CONFORMANCE
    said = a_release(conformance="1f0e6b2c9d4a7e35")
    assert decided([job], BOOK, OFFERS, releases=[said], rule=rule).plans == ()


def test_markets_are_not_asked_for_a_job_that_none_can_promise_to_hold():
    named = a_job(conformance=Conformance(allowed=("1f",))).request
    shape = shape_of("8xH100-80GB")
    assert shape is not None
    assert holds(shape, a_job(conformance=Conformance(known=True)).request)
    assert not holds(shape, named)
    assert not holds(shape, a_job(gang=Gang(same_conformance=SameConformance.REQUIRE)).request)


def test_a_full_node_of_work_takes_a_block_that_is_just_long_enough():
    decision = decided([a_job(gpus=8, hours=4)], BOOK, OFFERS)
    (plan,) = decision.plans
    assert plan.provider == "exchange"
    assert plan.window == Window(start=NOW, end=NOW + 4.25 * HOUR)
    assert plan.expected_cost == micro_of("2.00") * 8 * 17 // 4
    assert plan.limit >= micro_of("2.00")
    order = plan.order("buy-1")
    assert (order.nodes, order.window, order.limit) == (1, plan.window, plan.limit)


def test_a_longer_block_is_taken_where_it_serves_more_of_the_queue_for_less():
    # Two jobs of a whole node, one after the other, on the only node that there is at $1.00.
    book = exchange(("1.00", 8), ("9.00", 8))
    jobs = [a_job("a", 8, 2), a_job("b", 8, 2)]
    decision = decided(jobs, book, fast_delay_price=micro_of("0.50"))
    (option,) = chosen(decision)
    assert option.kind is OptionKind.LONGER_BLOCK
    assert option.plans[0].serves == ("a", "b")
    assert option.plans[0].nodes == 1


def test_jobs_share_what_is_bought_as_the_packer_packs_them():
    # 3 + 3 + 3 GPUs are 9, and fit two nodes; 5 + 5 + 5 are 15, and need three.
    small = decided([a_job(name, 3, 4) for name in "abc"], BOOK)
    large = decided([a_job(name, 5, 4) for name in "abc"], BOOK)
    assert sum(plan.nodes for plan in small.plans) == 2
    assert sum(plan.nodes for plan in large.plans) == 3


def test_jobs_of_two_types_are_bought_for_in_rounds():
    jobs = [a_job("a", 8, 4), a_job("b", 1, 1, gpu_type="L40S", vram_per_gpu=48)]
    market = cloud(("0.90", 1)).model_copy(update={"provider": "other"})
    offer = market.offers[0].model_copy(update={"instance_type": "1xL40S-48GB"})
    decision = decided(jobs, BOOK, market.model_copy(update={"offers": (offer,)}))
    assert {plan.provider: plan.serves for plan in decision.plans} == {
        "exchange": ("a",),
        "other": ("b",),
    }


def test_large_jobs_get_a_block_and_small_ones_machines_beside_it():
    jobs = [a_job("large", 8, 8), a_job("small", 1, 1)]
    (option,) = chosen(decided(jobs, BOOK, OFFERS))
    assert {plan.gpus: plan.serves for plan in option.plans} == {8: ("large",), 1: ("small",)}


def test_one_ask_is_not_bought_twice():
    # Of the cheap node there is one; a second one, for another window, costs the next ask.
    book = exchange(("1.00", 8), ("2.00", 8))
    decision = decided(
        [a_job("a", 8, 1.5), a_job("b", 8, 20)], book, fast_delay_price=micro_of("100.00")
    )
    hours = sorted(
        (plan.window.hours, plan.expected_cost) for plan in decision.plans if plan.window
    )
    assert len(hours) == 2
    dear = max(cost / length for length, cost in hours)
    assert dear == pytest.approx(micro_of("16.00"))
    tiers = [a_job("a", 8, 2), a_job("b", 8, 2, tier=Tier.FLEX)]
    fast, flex = decided(tiers, book, flex_price=micro_of("9.00")).plans
    assert flex.expected_cost == pytest.approx(2 * fast.expected_cost, abs=1)


def test_a_fast_job_waits_for_a_release_when_that_costs_less():
    jobs, node = [a_job(gpus=8, hours=1)], a_release(busy_hours=0.5)
    dear = decided(jobs, BOOK, OFFERS, releases=[node])
    cheap = decided(jobs, BOOK, OFFERS, releases=[node], fast_delay_price=micro_of("1.00"))
    # Half an hour of 8 GPUs is $40.00 of delay at $10.00, and $4.00 at $1.00.
    assert dear.plans
    assert cheap.plans == ()
    assert cheap.reason.startswith("wait: that costs least")
    assert cheap.options[0].delay == micro_of("4.00")


def test_what_a_flex_job_costs_decides_when_it_starts():
    job = a_job(gpus=8, hours=4, tier=Tier.FLEX)
    assert decided([job], BOOK, flex_price=micro_of("2.00")).plans == ()
    (plan,) = decided([job], BOOK, flex_price=micro_of("2.50")).plans
    assert plan.tier is Tier.FLEX


def test_a_flex_job_that_cannot_wait_is_bought_for_within_the_cap():
    late = NOW + timedelta(minutes=10)
    job = a_job(gpus=8, hours=4, tier=Tier.FLEX, start_by=late)
    patient = a_job(gpus=8, hours=4, tier=Tier.FLEX, start_by=NOW + 10 * HOUR)
    prices = {"flex_price": micro_of("1.00")}
    assert decided([job], BOOK, policy=prices).plans
    assert decided([patient], BOOK, policy=prices).plans == ()
    capped = decided([job], BOOK, max_price={Tier.FLEX: micro_of("1.50")}, policy=prices)
    assert capped.plans == ()


def test_offers_that_come_up_too_late_or_may_be_taken_away_are_not_bought():
    slow = cloud(("1.00", 1), startup=timedelta(minutes=20))
    spot = cloud(("1.00", 1), spot=True)
    assert decided([a_job()], slow).plans == ()
    assert decided([a_job()], spot).plans == ()
    assert decided([a_job()], spot, spot=True).plans
    assert decided([a_job()], slow, startup_limit=timedelta(minutes=20)).plans


def test_prepaid_hours_are_paid_whatever_is_used():
    prepaid = cloud(("2.00", 1), prepaid=10 * HOUR)
    (plan,) = decided([a_job()], prepaid).plans
    assert plan.expected_cost == micro_of("20.00")


def test_time_that_is_sold_again_counts_at_a_share_of_the_bid_less_the_fee():
    book = exchange(("2.00", 64), bids=[("1.60", 8)])
    job = a_job(gpus=8, hours=1)
    only = Window(start=NOW, end=NOW + 5 * HOUR)
    quote = book.quotes[0].model_copy(update={"window": only})
    market = book.model_copy(update={"quotes": (quote,)})
    decision = decided([job], market, resale_share=0.5, resale_fee=0.1, shortest_window=5 * HOUR)
    (option,) = chosen(decision)
    # It comes up at 12:05, is used until 13:05: 3 h 55 min of 8 GPUs at half of $1.60 less 10 %.
    assert option.leftover == pytest.approx(micro_of("0.72") * 8 * 235 / 60, rel=1e-6)
    assert option.committed == micro_of("80.00")
    assert "with delay and without $22.56 left over $" in decision.reason


def test_demand_of_late_makes_unused_time_worth_something():
    demand = (DemandSample(at=NOW - HOUR, queued=2, used=6), DemandSample(at=NOW, queued=8))
    jobs = [a_job(gpus=2, hours=1), a_job("b", gpus=2, hours=1)]
    alone = decided(jobs, BOOK)
    busy = decided(jobs, BOOK, unmet={"demand": demand})
    block = next(o for o in alone.options if o.kind is OptionKind.BLOCK)
    same = next(o for o in busy.options if o.title == block.title)
    assert block.leftover == 0
    assert 0 < same.leftover < same.committed
    assert usual_demand(demand, Tier.FAST, NOW) == 8.0


OF_BUDGETS = CapsLeft(
    budgets={"default": BudgetLeft(day=10**9), "root": BudgetLeft(month=micro_of("1.00"))},
    above={"default": ("default", "root")},
)


def test_what_is_left_for_a_tenant_is_the_least_of_its_cap_and_of_budgets_above():
    both = OF_BUDGETS.model_copy(update={"caps": caps_left(default=7, other=9).caps})
    assert OF_BUDGETS.of_tenant("default") == micro_of("1.00")
    assert (both.of_tenant("default"), both.of_tenant("other")) == (7, 9)
    assert CapsLeft().of_tenant("default") is None


@pytest.mark.parametrize(
    ("caps", "why", "held_by"),
    [
        (caps_left(purchase=micro_of("1.00")), "cap of a purchase", "caps.per_purchase"),
        (caps_left(day=micro_of("1.00")), "cap of today", "caps.per_day"),
        (caps_left(FAST=0), "for FAST", "caps.per_tier_day.FAST"),
        (caps_left(default=1), "for default", "caps.per_tenant_day"),
        (OF_BUDGETS, "over the money of the budget of root this month", "budget"),
        (CapsLeft(stopped="too dear today"), "buying is stopped: too dear today", "stopped"),
        (CapsLeft(unreadable="p-1"), "it cannot be read what comes of p-1", "unreadable"),
    ],
)
@pytest.mark.parametrize("rule", list(BuyingRule))
def test_nothing_is_bought_over_a_cap_and_the_reason_says_which(
    caps: CapsLeft, why: str, held_by: str, rule: BuyingRule
):
    decision = decided([a_job()], BOOK, OFFERS, caps=caps, rule=rule)
    assert decision.plans == ()
    assert why in decision.reason
    assert [*limits_of(decision)] == [held_by]


def test_over_the_money_of_a_budget_it_says_whose_how_much_and_until_when():
    left = BudgetLeft(
        day=micro_of("1.00"), per_day=micro_of("500"), day_ends=datetime(2026, 11, 27, tzinfo=UTC)
    )
    caps = CapsLeft(budgets={"root": left}, above={"default": ("root",)})
    decision = decided([a_job()], BOOK, OFFERS, caps=caps)
    assert re.search(
        r"it is over the money of the budget of root today: its part may cost "
        r"\$\d+\.\d\d, \$1.00 of \$500.00 is left until 2026-11-27 00:00 UTC",
        decision.reason,
    ), decision.reason
    part = micro_of(re.findall(r"part may cost \$([\d.]+)", decision.reason)[0])
    assert (
        limits_of(decision)["budget"]
        == f"money.per_day of the budget of root to {at_most(part + 499 * MICRO)}"
    )


def test_what_alone_keeps_from_buying_is_named():
    assert decided([a_job()], BOOK, OFFERS).limits == ()
    nowhere = decided([a_job()])
    assert (nowhere.reason, limits_of(nowhere)) == (
        "wait: no market is configured", {"no-market": ""},
    )  # fmt: skip
    cheap = decided([a_job()], BOOK, OFFERS, policy={"max_price": {"FAST": "$0.10"}})
    assert "max_price.FAST is $0.10" in cheap.reason
    assert [*limits_of(cheap)] == ["max_price.FAST"]
    # No setting lets it: nothing of that kind is for sale, or nothing is bought for it at all.
    assert decided([a_job(gpu_type="B999")], BOOK, OFFERS).limits == ()
    named = a_job(conformance=Conformance(allowed=("1f",)))
    assert decided([named]).limits == ()


def test_caps_are_used_up_by_what_was_chosen_before():
    jobs = [a_job("a", 8, 4), a_job("b", 8, 4, tier=Tier.FLEX)]
    prices = {"flex_price": micro_of("3.00")}
    both = decided(jobs, BOOK, policy=prices)
    most = both.plans[0].max_total
    of_budget = CapsLeft(budgets={"root": BudgetLeft(day=most)}, above={"default": ("root",)})
    assert [plan.tier for plan in both.plans] == [Tier.FAST, Tier.FLEX]
    for caps in (caps_left(day=most), of_budget):
        one = decided(jobs, BOOK, caps=caps, policy=prices)
        assert [plan.tier for plan in one.plans] == [Tier.FAST]


def test_nothing_is_bought_for_what_is_there_or_comes_in_time():
    coming = CapacityUnderWay(
        id="p1", instance_type="8xH100-80GB", nodes=1, expected_at=NOW + timedelta(minutes=10)
    )
    jobs = [a_job("a", 8, 2)]
    for there, why in (
        (decided(jobs, BOOK, OFFERS, under_way=[coming]),
         "nothing more is lacking: p1, under way, will hold 1 job"),
        (decided(jobs, BOOK, OFFERS, releases=[a_release()]), "nothing is lacking"),
        (decided(jobs, BOOK, OFFERS, releases=[a_release(busy_hours=0.08)]), "nothing is lacking"),
    ):  # fmt: skip
        assert there.plans == ()
        assert there.reason == why
    more = decided([*jobs, a_job("b", 8, 2)], BOOK, OFFERS, under_way=[coming])
    assert [plan.gpus for plan in more.plans] == [8]


def test_capacity_that_ends_too_soon_holds_nobody():
    ends = NOW + 2 * HOUR
    coming = CapacityUnderWay(
        id="p1", instance_type="8xH100-80GB", nodes=1, expected_at=NOW, until=ends
    )
    assert decided([a_job(gpus=8, hours=2)], BOOK, under_way=[coming]).plans
    assert not decided([a_job(gpus=8, hours=1.9)], BOOK, under_way=[coming]).plans


@pytest.mark.parametrize(
    ("market", "reason", "words"),
    [
        (away_exchange(), NoQuoteReason.UNREACHABLE, "exchange is away: no answer within 15 s"),
        (empty_exchange(), NoQuoteReason.EMPTY, "the book has no asks"),
    ],
)
def test_a_market_without_a_price_is_waited_for(market, reason: NoQuoteReason, words: str):
    decision = decided([a_job()], market)
    assert decision.plans == ()
    assert [quote.reason for quote in decision.waits_for] == [reason]
    assert decision.reason.startswith("wait: ")
    assert words in decision.reason
    assert [option.kind for option in decision.options] == [OptionKind.WAIT]


def test_a_gang_gets_its_nodes_together():
    job = a_job(gpus=16, hours=3, gang=Gang())
    (plan,) = decided([job], BOOK, OFFERS).plans
    assert (plan.provider, plan.nodes) == ("exchange", 2)


def test_the_warm_target_counts_idle_nodes():
    decision = decided([], BOOK, OFFERS, fast_warm_gpus=8)
    assert ", for the warm target; with delay" in decision.reason
    assert named(decision.plans[0].serves) == ("the warm target",)
    assert not decided([], BOOK, OFFERS, fast_warm_gpus=8, enabled=False).plans
    assert not decided([], BOOK, OFFERS, fast_warm_gpus=8, releases=[a_release()]).plans


def test_the_warm_target_has_one_type_of_gpu():
    cheap = cloud(("0.40", 8), kind="RTX4090-24GB")
    (plan,) = decided([], BOOK, cheap, fast_warm_gpus=8).plans
    assert "RTX4090" in plan.instance_type
    (plan,) = decided([], BOOK, cheap, fast_warm_gpus=8, fast_warm_type="H100").plans
    assert "H100" in plan.instance_type


def test_a_warm_node_is_bought_anew_when_it_ends_and_not_long_before():
    def bought_where_it_lasts(minutes: int) -> bool:
        ends_at = NOW + timedelta(minutes=minutes)
        release = a_release(expires_at=ends_at)
        return bool(decided([], BOOK, OFFERS, fast_warm_gpus=8, releases=[release]).plans)

    assert not bought_where_it_lasts(21)
    assert bought_where_it_lasts(19)


def test_nothing_is_bought_by_a_pool_that_was_not_allowed_to_or_within_the_cooldown():
    off = decided([a_job()], BOOK, OFFERS, enabled=False)
    assert (off.plans, off.reason) == ((), "buying is off for this pool")
    bought = {"last_bought_at": NOW - timedelta(minutes=1)}
    cooling = decided([a_job()], BOOK, unmet=bought, cooldown=timedelta(minutes=5))
    assert cooling.plans == ()
    assert "12:04:00" in cooling.reason
    assert [*limits_of(cooling)] == ["cooldown"]
    assert decided([a_job()], BOOK, unmet=bought, cooldown=timedelta(seconds=30)).plans


def test_only_allowed_types_are_bought():
    assert not decided([a_job(gpu_type=None)], BOOK, instance_types=("8xH200",)).plans
    assert decided([a_job()], BOOK, instance_types=("8xh100",)).plans
    assert decided([a_job()], OFFERS, instance_types=("8xH100",)).plans
    with pytest.raises(ValueError, match="instance type"):
        decided([], instance_types=("many",))


def test_asks_must_hold_for_the_whole_window():
    short = Level(price=micro_of("1.00"), gpus=64, start=NOW, end=NOW + 2 * HOUR)
    dear = exchange(("3.00", 64))
    market = with_book(dear, asks=(short, *book_of(dear).asks))
    (within,) = decided([a_job(gpus=8, hours=1)], market).plans
    (beyond,) = decided([a_job(gpus=8, hours=3)], market).plans
    assert within.expected_cost == micro_of("1.00") * 8 * 5 // 4
    assert beyond.expected_cost == micro_of("3.00") * 8 * 13 // 4


def test_an_order_is_filled_in_one_place():
    here, there = (
        Level(price=micro_of(price), gpus=gpus, place=place)
        for price, gpus, place in (("1.00", 8, "west"), ("1.50", 16, "east"))
    )
    market = with_book(exchange(("9.00", 8)), asks=(here, there))
    (one,) = decided([a_job(gpus=8, hours=3)], market).plans
    (two,) = decided([a_job(gpus=16, hours=3, gang=Gang())], market).plans
    assert (one.place, one.nodes) == ("west", 1)
    assert (two.place, two.nodes) == ("east", 2)
    assert two.order("k").place == "east"


def test_a_decision_can_be_stored_and_is_the_same_again():
    jobs = [a_job(str(number), 3, 2) for number in range(9)]
    first = decided(jobs, BOOK, OFFERS)
    again = decided(reversed(jobs), BOOK, OFFERS)
    assert again.model_dump_json() == first.model_dump_json()
    assert BuyDecision.model_validate_json(first.model_dump_json()) == first
    assert all(InstanceType.parse(plan.instance_type) for plan in first.plans)


def test_windows_end_with_what_runs_in_them():
    # One job of a whole node and two small ones that fit another: two nodes, each for its time.
    jobs = [a_job("long", 8, 6), a_job("a", 4, 1), a_job("b", 4, 2)]
    decision = decided(jobs, BOOK)
    ends = {plan.serves: plan.window.length for plan in decision.plans if plan.window}
    assert ends == {
        ("long",): 6.25 * HOUR,
        ("a", "b"): 2.25 * HOUR,
    }
    # Jobs that may wait go through one node, one after the other, where that is all there is.
    row = [a_job(name, 8, 2, tier=Tier.FLEX) for name in "abc"]
    (plan,) = decided(row, exchange(("1.00", 8))).plans
    assert plan.window is not None
    assert plan.nodes == 1
    assert plan.window.length == 6.25 * HOUR
    (exact,) = decided(row, exchange(("1.00", 8)), window_step=timedelta(minutes=1)).plans
    assert exact.window is not None
    assert exact.window.length == timedelta(hours=6, minutes=10)


def test_nodes_of_a_gang_share_one_order():
    gang = a_job("gang", gpus=16, hours=2, gang=Gang())
    decision = decided([gang, a_job("long", 8, 6)], BOOK)
    of_gang = [plan for plan in decision.plans if "gang" in plan.serves]
    assert [plan.nodes for plan in of_gang] in ([2], [3])


def test_markets_are_asked_for_the_windows_that_are_compared():
    jobs = [a_job("a", 8, 2).request, a_job("b", 8, 5).request]
    grain = timedelta(minutes=1)
    asked = windows_to_ask(jobs, BuyingPolicy(), grain, NOW + timedelta(seconds=30))
    assert {window.start for window in asked} == {NOW + grain}
    assert [window.hours for window in asked] == [2.25, 4.5, 5.25, 9, 24]
    seed = BuyingPolicy(rule=BuyingRule.SEED)
    assert [window.hours for window in windows_to_ask(jobs, seed, grain, NOW)] == [24]
    nobody = windows_to_ask([], BuyingPolicy(), grain, NOW)
    assert [window.hours for window in nobody] == [1]
    # What is asked for is what is decided on: each window of a book that names its own.
    quotes = tuple(BOOK.quotes[0].model_copy(update={"window": window}) for window in asked)
    market = BOOK.model_copy(update={"quotes": quotes})
    (plan,) = decided([a_job("a", 8, 2)], market, now=NOW + timedelta(seconds=30)).plans
    assert plan.window == asked[0]


def test_a_machine_that_is_billed_as_it_runs_is_no_longer_there_for_what_comes_after():
    # The machine for the short job ends before the long one would; each has one of its own.
    jobs = [a_job("long", 1, 8), a_job("short", 1, 0.5)]
    decision = decided(jobs, cloud(("2.00", 1)))
    served = {plan.serves: plan for plan in decision.plans}
    assert set(served) == {("long",), ("short",)}
    ends = {serves: plan.ends_at(NOW) for serves, plan in served.items()}
    # Start-up, work, 10 minutes idle and the margin of 5.
    assert ends["short",] == NOW + timedelta(minutes=5 + 30 + 10 + 5)
    assert ends["long",] == NOW + timedelta(minutes=5 + 480 + 10 + 5)


def test_what_a_round_chose_ends_for_the_next_one():
    # Were the machine there for ever, a job of two hours would be placed there for nothing.
    scene, _ = _one_machine()
    (source,) = pod_sources([cloud(("2.00", 1))], Tier.FAST, scene.policy)
    option = costed(scene, Candidate(OptionKind.PODS, pods=(source,)))
    beside = replace(after(scene, option), jobs=(a_job("next", hours=2),))
    (node,) = beside.fleet.nodes
    # Start-up and work 65 min, 10 min more if it comes up late, and the margin of 5.
    assert node.expires_at == option.plans[0].ends_at(NOW) == NOW + timedelta(minutes=80)
    assert beside.outlook().starts == {"next": None}


def test_what_differs_in_its_price_alone_is_looked_ahead_for_once():
    scene, plan = _one_machine()
    found = scene.outlook([plan])
    dearer = plan.model_copy(update={"limit": 2 * plan.limit, "max_total": 2 * plan.max_total})
    assert scene.outlook([dearer]) is found
    assert scene.outlook([plan, dearer]) is not found
    assert scene.outlook() is not found
    assert scene.outlook([plan], {"a"}).starts == {"a": None}
    assert replace(scene, jobs=()).outlook([plan]).starts == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 2}, {"shape": shape_of("1xH200-141GB")}, {"tier": Tier.FLEX},
        {"provider": "another"}, {"ready_at": NOW + HOUR}, {"place": "elsewhere"},
        {"fast_fabric": True},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_what_other_nodes_are_made_of_is_looked_ahead_for_anew(changes: dict[str, Any]):
    scene, plan = _one_machine()
    other = plan.model_copy(update=changes)
    made = [scene.fleet.with_bought(bought, "new", None) for bought in (plan, other)]
    assert made[0] != made[1]
    assert scene.outlook([plan]) is not scene.outlook([other])
    assert nodes_of(plan, None) != nodes_of(plan, NOW + HOUR)


def _one_machine() -> tuple[Scene, PurchasePlan]:
    """Return a scene in which one job waits, and a machine that might be bought for it."""
    policy = BuyingPolicy(enabled=True)
    scene = Scene(Tier.FAST, (a_job(),), Fleet(PoolPacking()), policy, CapsLeft(), 0.0, NOW)
    (source,) = pod_sources([cloud(("2.00", 1))], Tier.FAST, policy)
    return scene, source.plan(NOW + HOUR, Tier.FAST, policy, NOW)


def test_the_price_that_flex_hopes_for_rises_until_its_latest_start():
    # 1 GPU for 2 h at $2.10, with start-up and idle time 2 h 15 min: $4.73, that is $2.36 an hour.
    offers = cloud(("2.10", 1))
    early = a_job(hours=2, tier=Tier.FLEX, submitted_at=NOW - 4 * HOUR, start_by=NOW + 20 * HOUR)
    late = a_job(hours=2, tier=Tier.FLEX, submitted_at=NOW - 20 * HOUR, start_by=NOW + 4 * HOUR)
    assert decided([early], offers).plans == ()  # $2.00 x (1 + 0.25 x 4/24) = $2.08
    assert decided([late], offers).expected_cost == micro_of("4.725")  # up to $2.41
    assert decided([late], offers, flex_rise=0).plans == ()
    (waited, *_) = decided([late], offers, flex_rise=0.6).options
    assert (waited.kind, waited.delay) == (OptionKind.WAIT, micro_of("6.00"))  # 2 h x $3.00


@pytest.mark.parametrize("bar", ["start_above", "buy_above"])
def test_nothing_is_bought_for_a_job_whose_score_is_below_the_threshold(bar: str):
    def decision(least: float) -> BuyDecision:
        packing = PoolPacking.model_validate({"score": {"profile": "sensitive", bar: least}})
        jobs = [a_job(priority=2), a_job("b", priority=8)]
        return decided(jobs, BOOK, OFFERS, packing=packing)

    some = decision(0.5)
    assert [plan.serves for plan in some.plans] == [("b",)]
    (low,) = (option for option in some.options if option.kind is OptionKind.LOW_SCORE)
    assert low.title == "buy for a"
    assert f"its score of 0.23 is below the pool's `{bar}` of 0.5 (priority 0.9" in low.lost
    none = decision(1.0)
    assert none.plans == ()
    assert "its score of" in none.reason
    assert sorted(sum((plan.serves for plan in decision(0.0).plans), ())) == ["a", "b"]


def test_nodes_of_four_gpus_are_bought_one_by_one():
    book = book_of(exchange(("3.00", 40))).model_copy(
        update={"instance_type": "4xGB200", "lot": 4}
    )
    market = exchange().model_copy(
        update={"quotes": (BookQuote(instance_type="4xGB200", answer=book),)}
    )
    (plan,) = decided([a_job(gpus=4, gpu_type="GB200", vram_per_gpu=0)], market).plans
    assert (plan.nodes, plan.gpus) == (1, 4)
