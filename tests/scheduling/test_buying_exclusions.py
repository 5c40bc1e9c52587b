"""What a policy leaves out: sellers, community hosts, regions, countries."""

from typing import Any

import pytest

from longshore.models.buying import (
    Among,
    BuyDecision,
    BuyingPolicy,
    MarketView,
    Option,
    RefusedOffer,
)
from longshore.models.market import Level
from longshore.models.money import micro_of
from longshore.scheduling.buying.exclusions import with_refused
from tests.support.buying import NOW, a_job, book_of, cloud, decided, exchange, with_book

ROWS: tuple[dict[str, Any], ...] = (
    {"id": "o0", "seller": "runpod", "community": True, "region": "eu_west", "country": "NL"},
    {"id": "o1", "seller": "Nebius", "region": "eu_north", "country": "FI"},
    {"id": "o2", "seller": "lambdalabs", "region": "united_states", "country": "US"},
)
"""Each dearer than the one before."""


def three_sellers() -> MarketView:
    market = cloud(("1.00", 1), ("2.00", 1), ("3.00", 1))
    offers = tuple(
        offer.model_copy(update=row) for offer, row in zip(market.offers, ROWS, strict=True)
    )
    return market.model_copy(update={"offers": offers})


def chosen(decision: BuyDecision) -> Option:
    return next(option for option in decision.options if option.chosen)


def row_of(decision: BuyDecision) -> str:
    (plan,) = decision.plans
    assert plan.offer is not None
    return plan.offer.id


@pytest.mark.parametrize(
    ("policy", "row"),
    [
        ({"community": True}, "o0"),
        ({}, "o1"),
        ({"sellers": {"exclude": "nebius"}}, "o2"),
        ({"sellers": {"include": ["lambdalabs"]}}, "o2"),
        ({"community": True, "regions": {"include": ["eu_north"]}}, "o1"),
        ({"regions": {"exclude": ["eu_north"]}}, "o2"),
        ({"countries": {"include": ["us"]}}, "o2"),
        ({"community": True, "countries": {"exclude": "NL, FI"}}, "o2"),
    ],
)
def test_the_cheapest_offer_that_the_policy_takes_is_bought(policy: dict[str, Any], row: str):
    assert row_of(decided([a_job()], three_sellers(), **policy)) == row


def test_what_is_left_out_is_counted_by_its_reason():
    decision = decided([a_job()], three_sellers(), sellers={"exclude": ["nebius", "lambdalabs"]})
    assert decision.plans == ()
    assert decision.reason == (
        "wait: nothing on the markets that is not left out can serve these jobs"
    )
    assert decision.left_out == (
        "3 offers are left out: 2 of sellers that the policy leaves out (`sellers`), 1 of "
        "community hosts (`community`)",
    )


def test_an_offer_that_would_not_have_served_is_not_counted():
    assert decided([a_job(gpus=2)], three_sellers()).left_out == ()
    bought = decided([a_job()], three_sellers())
    assert bought.left_out == ("1 offer is left out: 1 of community hosts (`community`)",)
    assert "left out" not in bought.reason


def test_an_offer_where_no_agent_would_come_up_is_not_bought():
    market = three_sellers()
    why = "of runpod, which passes on no environment variables"
    first, *others = market.offers
    offers = (first.model_copy(update={"unusable": why}), *others)
    market = market.model_copy(update={"offers": offers})
    decision = decided([a_job()], market, community=True)
    assert row_of(decision) == "o1"
    assert decision.left_out == (f"1 offer is left out: 1 {why}",)


def two_regions() -> MarketView:
    market = exchange(("1.00", 8), ("2.00", 8))
    book = book_of(market)
    asks = tuple(
        Level(price=ask.price, gpus=ask.gpus, place=place)
        for ask, place in zip(book.asks, ("isku_1", "isku_2"), strict=True)
    )
    return with_book(market, asks=asks, regions={"isku_1": "iceland", "isku_2": "us-west"})


def test_node_time_is_bought_where_the_policy_says():
    jobs = [a_job(gpus=8)]
    (plan,) = decided(jobs, two_regions()).plans
    assert (plan.place, plan.limit >= micro_of("1.00")) == ("isku_1", True)
    decision = decided(jobs, two_regions(), regions={"exclude": ["iceland"]})
    (plan,) = decision.plans
    assert (plan.place, plan.limit >= micro_of("2.00")) == ("isku_2", True)
    assert decision.left_out == ("left out: asks in iceland (`regions`)",)


@pytest.mark.parametrize(
    "policy", [{"sellers": {"exclude": "exchange"}}, {"countries": {"include": "US"}}]
)
def test_a_market_of_books_sells_itself_and_names_no_country(policy: dict[str, Any]):
    decision = decided([a_job(gpus=8)], two_regions(), **policy)
    assert decision.plans == ()
    assert decision.left_out == ("left out: the books of exchange",)


def test_names_are_parted_by_commas_or_listed():
    policy = BuyingPolicy.model_validate(
        {"sellers": {"include": "a, b"}, "regions": {"exclude": ["x"]}}
    )
    assert policy.sellers == Among(include=("a", "b"))
    assert BuyingPolicy.model_validate(policy.model_dump()) == policy
    with pytest.raises(ValueError, match="include"):
        Among.model_validate({"include": "a,,b"})


@pytest.mark.parametrize(
    ("named", "refused"),
    [("8xH100", {"p"}), ("8xH100-80GB", {"p"}), ("8xH200", set()), ("h100-sxm", set())],
)
@pytest.mark.parametrize("place", ["p", None])
def test_a_row_is_left_out_for_the_type_that_was_refused_there(
    named: str, refused: set[str], place: str | None
):
    asks = (Level(price=1, gpus=8, place="p"),)
    book = book_of(exchange(("1.00", 1))).model_copy(update={"asks": asks})
    row = RefusedOffer(provider=book.provider, instance_type=named, place=place, at=NOW, said="no")
    assert set(with_refused(book, [row]).refused) == refused
