"""A job that asks for a region is bought for at that market."""

from datetime import timedelta

import pytest

from longshore.models.buying import BuyingRule, CapacityUnderWay
from longshore.scheduling.buying.fleet import holds, shape_of
from tests.support.buying import NOW, a_job, cloud, decided, exchange

BOOK = exchange(("2.00", 8), ("2.40", 8))
OFFERS = cloud(("2.40", 8))


@pytest.mark.parametrize(
    ("texts", "market"),
    [
        (["zone!=a", "!ib", "region", "cluster"], "exchange"),
        (["region=cloud"], "cloud"),
        (["region!=exchange"], "cloud"),
        (["region in (exchange, other)"], "exchange"),
        (["region=elsewhere"], ""),
    ],
)
def test_the_region_decides_where_is_bought(texts: list[str], market: str) -> None:
    job = a_job(gpus=8, hours=4, constraints=texts)
    # Dearer in the cloud, so that only the constraint sends it there.
    decision = decided([job], BOOK, cloud(("2.90", 8)))
    assert [each.provider for each in decision.plans] == [market] * bool(market)


@pytest.mark.parametrize(
    ("gpus", "region", "market"),
    [(2, "cloud", "cloud"), (2, "elsewhere", ""), (8, "exchange", "exchange"), (8, "cloud", "")],
)
def test_the_rule_of_sizes_buys_in_no_other_region(gpus: int, region: str, market: str) -> None:
    """It takes small machines from one kind of market, and whole nodes from the other."""
    job = a_job(gpus=gpus, constraints=[f"region={region}"])
    decision = decided([job], BOOK, cloud(("2.40", 2)), rule=BuyingRule.SEED)
    assert [each.provider for each in decision.plans] == [market] * bool(market)


def test_who_asks_for_another_market_than_the_first_is_bought_for_beside_it() -> None:
    jobs = [
        a_job("a", 8, 4), a_job("b", 8, 4, constraints=["region=cloud"]),
    ]  # fmt: skip
    decision = decided(jobs, BOOK, cloud(("2.90", 8)))
    assert {each.provider: each.serves for each in decision.plans} == {
        "exchange": ("a",), "cloud": ("b",),
    }  # fmt: skip


def test_what_is_bought_instead_is_in_the_region_too() -> None:
    """Where the first seller refuses, the next one is asked at once."""
    first = cloud(("2.40", 1))
    offers = tuple(each.model_copy(update={"provider": "other"}) for each in first.offers)
    other = first.model_copy(update={"provider": "other", "offers": offers})
    for texts, instead in (([], ["other"]), (["region=cloud"], []), (["region!=else"], ["other"])):
        (bought,) = decided([a_job(constraints=texts)], first, other).plans
        assert bought.provider == "cloud"
        assert [each.provider for each in bought.instead] == instead


def test_markets_are_asked_only_for_what_could_hold_the_job() -> None:
    shape = shape_of("8xH100-80GB")
    assert shape is not None
    job = a_job(constraints=["region=cloud"]).request
    assert holds(shape, job)
    assert holds(shape, job, "cloud")
    assert not holds(shape, job, "exchange")
    assert not holds(shape, a_job(constraints=["zone=a"]).request)


def test_what_comes_serves_by_the_labels_that_it_will_have() -> None:
    coming = CapacityUnderWay(
        id="p", provider="exchange", instance_type="8xH100-80GB", nodes=1,
        expected_at=NOW + timedelta(minutes=5),
    )  # fmt: skip
    there, elsewhere = (
        a_job(gpus=8, hours=4, constraints=[f"region={market}"])
        for market in ("exchange", "cloud")
    )
    assert decided([there], BOOK, OFFERS, under_way=[coming]).plans == ()
    (bought,) = decided([elsewhere], BOOK, OFFERS, under_way=[coming]).plans
    assert bought.provider == "cloud"
