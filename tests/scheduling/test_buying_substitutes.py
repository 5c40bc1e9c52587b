"""What is tried in place of an offer that its seller refuses."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.buying import MarketView, PurchasePlan
from longshore.models.money import micro_of
from tests.support.buying import a_job, caps_left, cloud, decided, exchange

SELLERS = ("datacrunch", "massed", "lambda", "nebius")


def sellers(
    *prices: str, gpus: int = 1, names: tuple[str, ...] = SELLERS, **fields: Any
) -> MarketView:
    """Return a market where each offer is of another seller."""
    market = cloud(*((price, gpus) for price in prices), **fields)
    offers = tuple(
        offer.model_copy(update={"seller": name})
        for offer, name in zip(market.offers, names, strict=False)
    )
    return market.model_copy(update={"offers": offers})


def changed(market: MarketView, number: int, **fields: Any) -> MarketView:
    offers = list(market.offers)
    offers[number] = offers[number].model_copy(update=fields)
    return market.model_copy(update={"offers": tuple(offers)})


def instead_of(plan: PurchasePlan) -> list[str]:
    return [each.offer.seller for each in plan.instead if each.offer]


def test_the_next_sellers_are_tried_in_the_order_of_their_prices():
    (plan,) = decided([a_job()], sellers("2.00", "2.10", "2.20", "2.30")).plans
    assert instead_of(plan) == ["massed", "lambda"]
    first, second = plan.instead
    assert (first.limit, second.limit) == (micro_of("2.10"), micro_of("2.20"))
    assert first.expected_cost == pytest.approx(plan.expected_cost * 2.1 / 2, abs=2)
    assert first.max_total == pytest.approx(plan.max_total * 2.1 / 2, abs=2)
    assert plan.most == second.max_total
    assert first.serves == plan.serves


def test_another_row_of_the_same_seller_is_not_tried():
    market = sellers("2.00", "2.10", names=("datacrunch", "datacrunch"))
    (plan,) = decided([a_job()], market).plans
    assert instead_of(plan) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"spot": True},
        {"variable": True},
        {"prepaid": timedelta(days=1)},
        {"startup": timedelta(minutes=14)},
        {"cpus": 0.5},
        {"refused": "refused at 12:00 UTC: no"},
        {"seller": "massed", "community": True},
        {"instance_type": "1xA100-80GB"},
        {"instance_type": "2xH100-80GB", "gpus": 2},
        {"price": micro_of("10.50")},
    ],
)
def test_what_is_not_like_it_is_not_tried(fields: dict[str, Any]):
    jobs = [a_job(gpu_type=None, cpus=1.0)]
    market = sellers("2.00", "2.10")
    (plan,) = decided(jobs, market, spot=True).plans
    assert instead_of(plan) == ["massed"]
    (plan,) = decided(jobs, changed(market, 1, **fields), spot=True).plans
    assert instead_of(plan) == []


def test_nothing_is_tried_that_costs_more_than_the_next_best_option():
    """The other way is a machine with two GPUs: $1.20 a GPU-hour, $2.40 an hour."""
    small = sellers("2.00", "2.30", "2.50")
    large = cloud(("1.20", 2)).model_copy(update={"provider": "other"})
    offer = large.offers[0].model_copy(update={"provider": "other", "seller": "large"})
    large = large.model_copy(update={"offers": (offer,)})
    (plan,) = decided([a_job()], small, large).plans
    assert plan.offer is not None
    assert (plan.offer.seller, instead_of(plan)) == ("datacrunch", ["massed"])


def test_the_caps_hold_for_what_is_tried_instead():
    market = sellers("2.00", "2.10", "2.20")
    (plan,) = decided([a_job()], market).plans
    first, _ = plan.instead
    caps = caps_left(purchase=first.max_total)
    (plan,) = decided([a_job()], market, caps=caps).plans
    assert instead_of(plan) == ["massed"]
    decision = decided([a_job()], market, caps=caps_left(day=first.max_total - 1))
    assert instead_of(decision.plans[0]) == []
    assert decision.max_total < first.max_total


def test_the_seeds_rule_tries_what_it_might_have_taken():
    market = sellers("2.00", "2.10", "9.00", "2.05")
    (plan,) = decided([a_job()], market, rule="seed", prime_max_price="$3.00").plans
    assert instead_of(plan) == ["nebius", "massed"]


NODE = exchange(("2.00", 8), ("2.20", 8))


def test_in_place_of_node_time_the_next_best_option_of_another_market_is_tried():
    others = sellers("3.00", "2.90", "2.95", gpus=8)
    decision = decided([a_job(gpus=8)], NODE, others)
    (plan,) = decision.plans
    assert plan.provider == "exchange"
    assert instead_of(plan) == ["massed", "lambda"]  # the next best, and what is in its place
    assert [each.limit for each in plan.instead] == [micro_of("2.90"), micro_of("2.95")]
    assert all((each.serves, each.instead) == (plan.serves, ()) for each in plan.instead)
    (chosen,) = [option for option in decision.options if option.chosen]
    assert chosen.max_total == plan.most >= max(each.max_total for each in plan.instead)


@pytest.mark.parametrize(
    ("market", "fields"),
    [
        (cloud(("3.00", 4)), {}),
        (cloud(("3.00", 8)), {"caps": caps_left(day=micro_of("22.00"))}),
        (cloud(("3.00", 8)), {"max_price": {"FAST": "$2.50"}}),
        (cloud(("30.00", 8)), {"fast_patience": "15m", "flex_price": "$4.00"}),
    ],
    ids=["too small", "over a cap", "too dear", "dearer than to wait"],
)
def test_what_would_not_have_been_chosen_is_not_tried_in_place_of_node_time(
    market: MarketView, fields: dict[str, Any]
):
    (plan,) = decided([a_job(gpus=8)], NODE, market, **fields).plans
    assert (plan.provider, plan.instead) == ("exchange", ())


def test_what_serves_only_some_of_the_jobs_is_not_tried_in_place_of_node_time():
    jobs = [a_job("a", 4), a_job("b", 4)]
    (plan,) = decided(jobs, NODE, cloud(("2.90", 4))).plans
    assert plan.serves == ("a", "b")
    assert plan.instead == ()


BOOK = exchange(("2.00", 8), ("2.05", 8), ("9.00", 80))


def test_each_of_several_orders_goes_on_to_the_next_best_for_its_jobs():
    jobs = [a_job("long", 8, hours=10), a_job("short", 8)]
    decision = decided(jobs, BOOK, sellers("3.00", "3.10", "3.20", gpus=8))
    long, short = decision.plans
    assert [plan.provider for plan in (long, short)] == ["exchange", "exchange"]
    assert (long.serves, short.serves) == (("long",), ("short",))
    for plan in (long, short):
        assert instead_of(plan) == ["datacrunch", "massed"]
        assert {each.serves for each in plan.instead} == {plan.serves}
    # Each is paid for as long as its own jobs need.
    assert long.instead[0].expected_cost > 8 * short.instead[0].expected_cost
    (chosen,) = [option for option in decision.options if option.chosen]
    assert chosen.max_total == long.most + short.most

    cap = caps_left(day=chosen.max_total - 1)
    within = decided(jobs, BOOK, sellers("3.00", "3.10", "3.20", gpus=8), caps=cap)
    assert [instead_of(plan) for plan in within.plans] != [instead_of(long), instead_of(short)]
    assert sum(plan.most for plan in within.plans) <= chosen.max_total - 1


def test_a_machine_that_is_bought_beside_node_time_may_be_replaced_by_either():
    jobs = [a_job("long", 8, hours=10), a_job("one", 2, hours=2), a_job("other", 2, hours=2)]
    book = exchange(("1.90", 8), ("2.05", 8))
    pod, _ = decided(jobs, book, sellers("2.30", gpus=4)).plans
    assert (pod.provider, [each.provider for each in pod.instead]) == ("cloud", ["exchange"])
    pod, _ = decided(jobs, book, sellers("2.30", "2.35", gpus=4)).plans
    assert instead_of(pod)[:1] == ["massed"]


def test_several_orders_do_not_share_the_last_machine_of_an_offer():
    jobs = [a_job("long", 8, hours=10), a_job("short", 8)]
    last = changed(sellers("3.00", gpus=8), 0, stock="Low")
    plans = decided(jobs, BOOK, last).plans
    assert [instead_of(plan) for plan in plans] == [["datacrunch"], []]
