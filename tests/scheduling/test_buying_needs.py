"""What a setting that keeps a pool from buying would have to be: with that value it buys."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.buying import (
    BuyDecision,
    BuyingPolicy,
    Caps,
    CapsLeft,
    MarketView,
    Unmet,
    UnmetJob,
)
from longshore.models.document import Override, load_document
from longshore.models.job import Tier
from longshore.models.money import MICRO
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.scheduling.buying.plan import decide
from tests.support.buying import NOW, a_job, cloud, exchange

BOOK = exchange(("2.00", 8), ("2.40", 8))
FAST, FLEX = a_job(gpus=8, hours=4), a_job(gpus=8, hours=4, tier=Tier.FLEX)
MINUTE = timedelta(minutes=1)


def a_pool(**policy: Any) -> PoolSpec:
    buying = {"enabled": True, "fast_delay_price": "$10.00", **policy}
    return PoolSpec(name="p", buying=BuyingPolicy.model_validate(buying))


def decided(
    pool: PoolSpec, job: UnmetJob, market: MarketView = BOOK, *, used: int = 0, **unmet: Any
) -> BuyDecision:
    """Decide where so much of the caps of a day is committed, in micro-dollars."""
    caps, tiers = pool.buying.caps, pool.buying.caps.per_tier_day
    left = CapsLeft.of(caps).model_copy(
        update={
            "day": None if caps.per_day is None else caps.per_day - used,
            "tiers": {tier: cap - used for tier, cap in tiers.items()},
            "tenant": None if caps.per_tenant_day is None else caps.per_tenant_day - used,
        }
    )
    unmet_jobs = Unmet(jobs=(job,), **unmet)
    return decide(unmet_jobs, (), (), (market,), pool.buying, left, NOW, PoolPacking())


@pytest.mark.parametrize(
    ("policy", "setting", "job", "state"),
    [
        ({"caps": {"per_purchase": "$1"}}, "caps.per_purchase", FAST, {}),
        ({"caps": {"per_day": "$50"}}, "caps.per_day", FAST, {"used": 10 * MICRO}),
        ({"caps": {"per_day": "$5"}}, "caps.per_day", FAST, {"used": 10 * MICRO}),
        (
            {"caps": {"per_tier_day": {"FAST": "$9"}}}, "caps.per_tier_day.FAST", FAST,
            {"used": 8 * MICRO},
        ),
        ({"caps": {"per_tenant_day": "$9"}}, "caps.per_tenant_day", FAST, {"used": 8 * MICRO}),
        ({"max_price": {"FAST": "$0.10"}}, "max_price.FAST", FAST, {}),
        ({"usual_startup": "20m30s"}, "startup_limit", FAST, {}),
        ({"cooldown": "10m"}, "cooldown", FAST, {"last_bought_at": NOW - MINUTE}),
        ({"flex_price": "$1.00"}, "flex_price", FLEX, {}),
        ({"flex_price": "$1.00", "flex_rise": 0.5}, "flex_price", FLEX, {}),
    ],
)  # fmt: skip
def test_with_the_value_that_it_needs_it_buys(
    policy: dict[str, Any], setting: str, job: UnmetJob, state: dict[str, Any]
):
    pool = a_pool(**policy)
    held = decided(pool, job, **state)
    assert (held.plans, held.held_by) == ((), setting)
    assert held.needs
    set_so = Override(f"buying.{setting}", held.needs, "--buying")
    changed = load_document(pool.model_dump_json(), "pool p", PoolSpec, [set_so])
    assert changed != pool
    assert decided(changed, job, **state).plans


def test_the_value_is_no_more_than_is_needed():
    held = decided(a_pool(caps={"per_day": "$50"}), FAST, used=10 * MICRO)
    bought = decided(a_pool(), FAST)
    assert held.needs == f"${10 + bought.max_total / MICRO:.2f}"
    cents = round(float(decided(a_pool(flex_price="$1.00"), FLEX).needs.removeprefix("$")) * 100)
    less = a_pool(flex_price=f"${(cents - 2) / 100:.2f}")
    assert decided(less, FLEX).plans == ()


def test_no_value_is_named_where_the_limit_is_no_setting_of_the_pool():
    left = CapsLeft(day=1, own=Caps(), general={"caps.per_day": "day"})
    pool = a_pool()
    held = decide(Unmet(jobs=(FAST,)), (), (), (BOOK,), pool.buying, left, NOW, PoolPacking())
    assert (held.held_by, held.needs) == ("refused", "")
    empty = decided(pool, a_job(gpu_type="B999"), cloud(("1.00", 1)))
    assert (empty.held_by, empty.needs) == ("", "")
