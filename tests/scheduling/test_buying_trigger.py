"""A price wakes a pool when a job that waits could use what is sold at it."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.buying import BuyingPolicy, MarketView, UnmetJob
from longshore.models.job import Tier
from longshore.models.market import Window
from longshore.models.money import micro_of
from longshore.models.topology import Gang
from longshore.scheduling.buying.trigger import might_reach, reached
from tests.support.buying import NOW, a_job, away_exchange, cloud, exchange

HOUR = timedelta(hours=1)
POLICY = BuyingPolicy.model_validate({"enabled": True, "flex_price": "$2.00", "flex_rise": 0.5})


def flex(gpus: int = 8, hours: float = 1, **fields: Any) -> UnmetJob:
    return a_job("waits", gpus, hours, tier=Tier.FLEX, **fields)


def for_window(market: MarketView, hours: float) -> MarketView:
    """Return the market with a book for a window from now on."""
    window = Window(start=NOW, end=NOW + hours * HOUR)
    quote = market.quotes[0].model_copy(update={"window": window})
    return market.model_copy(update={"quotes": (quote,)})


def price_of(job: UnmetJob, *markets: MarketView, policy: BuyingPolicy = POLICY) -> int | None:
    found = reached((job,), markets, policy, NOW)
    return found.price if found else None


def test_the_price_counts_for_all_that_has_to_be_bought():
    # 16 GPUs cost $2.10 on average, though the first 8 cost less than is hoped for.
    market = exchange(("1.90", 8), ("2.30", 8))
    assert price_of(flex(8), market) == micro_of("1.90")
    assert price_of(flex(16, gang=Gang()), market) is None


@pytest.mark.parametrize(
    "fields", [{"gpu_type": "A100"}, {"vram_per_gpu": 141.0}], ids=["type", "memory"]
)
def test_a_price_for_what_the_job_cannot_use_is_none(fields: dict[str, Any]):
    job = flex(**fields)
    assert price_of(job, exchange(("1.00", 8))) is None
    assert price_of(job, cloud(("1.00", 8))) is None
    assert not might_reach("8xH100-80GB", micro_of("1.00"), (job,), POLICY, NOW)


def test_a_price_for_a_window_in_which_the_job_cannot_run_is_none():
    market = exchange(("1.00", 8))
    assert price_of(flex(hours=3), for_window(market, 2)) is None
    assert price_of(flex(hours=3), for_window(market, 4)) == micro_of("1.00")


def test_the_hope_rises_until_the_deadline():
    market = exchange(("2.40", 8))
    early = flex(submitted_at=NOW - HOUR)
    late = flex(submitted_at=NOW - 20 * HOUR)
    assert price_of(early, market) is None
    assert price_of(late, market) == micro_of("2.40")
    assert might_reach("8xH100-80GB", micro_of("2.40"), (late,), POLICY, NOW)
    assert not might_reach("8xH100-80GB", micro_of("2.40"), (early,), POLICY, NOW)


def test_what_the_policy_forbids_is_no_price():
    others = POLICY.model_copy(update={"instance_types": ("8xA100",)})
    assert price_of(flex(), exchange(("1.00", 8)), policy=others) is None
    assert not might_reach("8xH100-80GB", micro_of("1.00"), (flex(),), others, NOW)
    capped = POLICY.model_copy(update={"max_price": {Tier.FLEX: micro_of("0.90")}})
    assert price_of(flex(), exchange(("1.00", 8)), policy=capped) is None
    assert price_of(flex(), cloud(("1.00", 8), spot=True)) is None
    assert price_of(flex(), away_exchange()) is None


def test_an_offer_large_enough_is_a_price_and_the_first_job_that_has_one_is_named():
    dear, cheap = flex(gpu_type="A100"), a_job("small", 1, tier=Tier.FLEX)
    found = reached((dear, cheap), (cloud(("1.50", 1)),), POLICY, NOW)
    assert found is not None
    assert (found.job_id, found.price, found.hoped) == ("small", micro_of("1.50"), 2_000_000)
    assert price_of(flex(8), cloud(("1.50", 1))) is None
