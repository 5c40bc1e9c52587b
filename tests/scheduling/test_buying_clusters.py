"""Clusters are for gangs alone, and a gang is bought where its ranks can meet."""

from typing import Any

import pytest

from longshore.models.buying import BuyDecision, MarketView, OptionKind
from longshore.models.market import Level, OrderBook
from longshore.models.money import micro_of
from longshore.models.topology import Gang
from tests.support.buying import a_job, cloud, decided, exchange, with_book

_PLACES = {"fast": "us-west (alder)", "plain": "us-east (birch)", "shut": "eu-north (cedar)"}


def a_gang(name: str = "gang", gpus: int = 16, group: int | None = None, **fields: Any):
    gang = Gang(group_gpus=group or gpus)
    return a_job(name, gpus=gpus, gang=gang, **fields)


def clusters(*offers: tuple[str, int]) -> MarketView:
    """Return a market of clusters: dollars per GPU-hour, and nodes of 8."""
    market = cloud(*((price, 8) for price, _ in offers))
    rows = tuple(
        offer.model_copy(update={"nodes": nodes, "fabric": "Infiniband"})
        for offer, (_, nodes) in zip(market.offers, offers, strict=True)
    )
    return market.model_copy(update={"offers": rows})


def places(fast: str = "3.00", plain: str = "2.50", shut: str = "2.00") -> MarketView:
    """Return an exchange of three places: one has a fabric, one only ports, one neither."""
    asks = tuple(
        Level(price=micro_of(price), gpus=32, place=place)
        for place, price in (("fast", fast), ("plain", plain), ("shut", shut))
    )
    market = with_book(
        exchange(("1.00", 8)), asks=asks, places=_PLACES, fabrics={"fast": "infiniband"},
        closed=("shut",),
    )  # fmt: skip
    by_place = market.capabilities.model_copy(update={"fast_fabric": False})
    return market.model_copy(update={"capabilities": by_place})


def only(market: MarketView, place: str) -> MarketView:
    book = market.quotes[0].answer
    assert isinstance(book, OrderBook)
    return with_book(market, asks=tuple(ask for ask in book.asks if ask.place == place))


def lost(decision: BuyDecision) -> set[str]:
    return {option.lost for option in decision.options if option.lost}


def test_a_gang_takes_a_cluster_that_holds_it_in_one_order():
    decision = decided([a_gang(gpus=16)], clusters(("2.00", 2), ("1.90", 4), ("1.00", 1)))
    (plan,) = decision.plans
    assert (plan.nodes, plan.gpus_per_node, plan.gpus, plan.instance_type) == (
        2, 8, 16, "8xH100-80GB",
    )  # fmt: skip
    assert plan.serves == ("gang",)
    assert plan.fast_fabric
    assert "cluster of 2 x 8xH100-80GB with Infiniband" in decision.reason


def test_a_cluster_costs_all_of_its_machines():
    (one,) = decided([a_job("one", gpus=8)], cloud(("2.00", 8))).plans
    (two,) = decided([a_gang("two", gpus=16)], clusters(("2.00", 2))).plans
    assert two.expected_cost == 2 * one.expected_cost
    assert two.max_total == pytest.approx(2 * one.max_total, abs=1)
    assert two.ends_at(decided([], cloud()).at) == one.ends_at(decided([], cloud()).at)


def test_a_gang_of_one_domain_fits_no_cluster_that_is_smaller():
    assert decided([a_gang(gpus=24)], clusters(("1.00", 2))).plans == ()
    (plan,) = decided([a_gang(gpus=24)], clusters(("1.00", 2), ("4.00", 4))).plans
    assert plan.nodes == 4


def test_a_job_without_a_gang_never_takes_a_cluster():
    jobs = [a_job("small", gpus=4), a_job("whole", gpus=8)]
    decision = decided(jobs, clusters(("0.10", 2)))
    assert decision.plans == ()
    beside = decided(jobs, clusters(("0.10", 2)), cloud(("9.00", 8)))
    assert {plan.nodes for plan in beside.plans} == {1}


def test_a_job_that_no_machine_holds_is_told_of_gangs():
    decision = decided([a_job("large", gpus=16)], clusters(("0.10", 2)), cloud(("9.00", 4)))
    assert decision.plans == ()
    said = next(o for o in decision.options if o.kind is OptionKind.UNPROMISED)
    assert said.lost == (
        "no machine of 16 GPUs is for sale, the largest with H100 has 8: a job that may span "
        "machines says so with `gang`"
    )
    assert said.lost in decision.reason


def test_a_market_that_is_away_may_have_larger_machines():
    there, away = cloud(("9.00", 4)), exchange(away="no answer within 15 s")
    decision = decided([a_job("large", gpus=16)], there, away)
    assert not any(o.kind is OptionKind.UNPROMISED for o in decision.options)


def test_the_seeds_rule_takes_no_cluster():
    decision = decided([a_job("small", gpus=4)], clusters(("0.10", 2)), rule="seed")
    assert decision.plans == ()


def test_a_gang_of_one_domain_is_bought_where_nodes_share_a_fabric():
    (plan,) = decided([a_gang(gpus=16)], places()).plans
    assert (plan.place, plan.nodes, plan.fast_fabric, plan.fabric) == (
        "fast", 2, True, "infiniband",
    )  # fmt: skip


def test_a_gang_whose_groups_fit_a_node_is_bought_where_it_is_cheapest_that_they_meet():
    (plan,) = decided([a_gang(gpus=16, group=8)], places()).plans
    assert (plan.place, plan.fast_fabric) == ("plain", False)
    (plan,) = decided([a_gang(gpus=16, group=8)], places(fast="2.40")).plans
    assert (plan.place, plan.fast_fabric) == ("fast", True)


def test_a_gang_whose_ranks_could_not_meet_is_not_bought():
    decision = decided([a_gang(gpus=16, group=8)], only(places(), "shut"))
    assert decision.plans == ()
    why = "ranks could not reach each other: exchange shut opens no ports between its machines"
    assert why in lost(decision)
    assert why in decision.reason


def test_a_gang_on_one_node_and_other_jobs_are_bought_anywhere():
    (plan,) = decided([a_gang(gpus=8)], only(places(), "shut")).plans
    assert plan.nodes == 1
    (plan,) = decided([a_job("a", gpus=8), a_job("b", gpus=8)], places()).plans
    assert plan.place == "shut"


def test_a_gang_does_not_span_machines_of_several_orders():
    decision = decided(
        [a_gang(gpus=16, group=8), a_job("a", gpus=8)], cloud(("1.00", 8), ("1.00", 8))
    )
    assert all("gang" not in plan.serves for plan in decision.plans)
