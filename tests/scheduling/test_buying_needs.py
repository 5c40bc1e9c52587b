"""What a setting that keeps a pool from buying would have to be: with that value it buys."""

import re
from datetime import timedelta
from typing import Any

import pytest

from longshore.models.buying import (
    BuyDecision,
    BuyingPolicy,
    MarketView,
    Unmet,
    UnmetJob,
)
from longshore.models.caps_left import BudgetLeft, CapLeft, CapOf, CapsLeft
from longshore.models.document import Override, load_document
from longshore.models.job import Tier
from longshore.models.money import MICRO
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.text import at_most
from longshore.scheduling.buying.plan import decide
from longshore.scheduling.buying.state import BuyingState
from tests.support.buying import NOW, a_job, cloud, exchange, limits_of

BOOK = exchange(("2.00", 8), ("2.40", 8))
FAST, FLEX = a_job(gpus=8, hours=4), a_job(gpus=8, hours=4, tier=Tier.FLEX)
MINUTE = timedelta(minutes=1)


def a_pool(**policy: Any) -> PoolSpec:
    buying = {"enabled": True, "fast_delay_price": "$10.00", **policy}
    return PoolSpec(name="p", buying=BuyingPolicy.model_validate(buying))


def decided_with(
    pool: PoolSpec, left: CapsLeft, unmet: Unmet | None = None, market: MarketView = BOOK
) -> BuyDecision:
    """Decide with so much left of the caps; for the FAST job, where nothing else is said."""
    unmet = unmet or Unmet(jobs=(FAST,))
    state = BuyingState(unmet=unmet, packing=PoolPacking(), markets=(market,), caps_left=left)
    return decide(state, pool.buying, NOW)


def decided(
    pool: PoolSpec, job: UnmetJob, market: MarketView = BOOK, *, used: int = 0, **unmet: Any
) -> BuyDecision:
    """Decide where so much of the caps of a day is committed, in micro-dollars."""
    left = CapsLeft.of(pool.buying.caps, [job.tenant])
    caps = (cap if cap.of is CapOf.PURCHASE else cap.less(used) for cap in left.caps)
    left = left.model_copy(update={"caps": tuple(caps)})
    unmet_jobs = Unmet(jobs=(job,), **unmet)
    return decided_with(pool, left, unmet_jobs, market)


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
    assert (held.plans, [*limits_of(held)]) == ((), [setting])
    changed = with_what_it_needs(pool, held)
    assert changed != pool
    assert decided(changed, job, **state).plans


def with_what_it_needs(pool: PoolSpec, held: BuyDecision) -> PoolSpec:
    assert all(limits_of(held).values())
    set_so = [Override(f"buying.{name}", to, "--buying") for name, to in limits_of(held).items()]
    return load_document(pool.model_dump_json(), "pool p", PoolSpec, set_so)


@pytest.mark.parametrize(
    ("policy", "market", "settings"),
    [
        (
            {"caps": {"per_purchase": "$3", "per_day": "$7"}}, BOOK,
            ["caps.per_purchase", "caps.per_day"],
        ),
        (
            {"caps": {
                "per_purchase": "$3", "per_day": "$7", "per_tenant_day": "$2",
                "per_tier_day": {"FAST": "$4"},
            }}, BOOK,
            ["caps.per_purchase", "caps.per_day", "caps.per_tier_day.FAST",
             "caps.per_tenant_day"],
        ),
        (
            {"max_price": {"FAST": "$0.10"}, "caps": {"per_day": "$7"}}, BOOK,
            ["max_price.FAST", "caps.per_day"],
        ),
        (
            {"max_price": {"FAST": "$0.10"}, "startup_limit": "10s",
             "caps": {"per_purchase": "$1"}}, cloud(("2.00", 8)),
            ["max_price.FAST", "startup_limit", "caps.per_purchase"],
        ),
        # The cheapest ask is not enough: what is named is the price that all GPUs are there for.
        (
            {"max_price": {"FAST": "$0.10"}}, exchange(("2.00", 4), ("2.40", 8)),
            ["max_price.FAST"],
        ),
    ],
)  # fmt: skip
def test_all_that_keeps_from_buying_is_named_together(
    policy: dict[str, Any], market: MarketView, settings: list[str]
):
    pool = a_pool(**policy)
    held = decided(pool, FAST, market)
    assert (held.plans, [*limits_of(held)]) == ((), settings)
    assert decided(with_what_it_needs(pool, held), FAST, market).plans
    # None of them is named in vain.
    for left_as_it_is in settings:
        less = [limit for limit in held.limits if limit.name != left_as_it_is]
        partly = with_what_it_needs(pool, held.model_copy(update={"limits": tuple(less)}))
        assert decided(partly, FAST, market).plans == ()


def test_a_price_limit_is_not_to_be_raised_where_it_would_wait_even_then():
    pool = a_pool(max_price={"FAST": "$0.10"}, caps={"per_day": "$7"})
    held = decided(pool, FAST, cloud(("900.00", 8)))
    assert (held.plans, held.limits) == ((), ())
    assert re.search(
        r"max_price.FAST is \$0.10; with max_price.FAST=\$900.00 it would wait too: "
        r"that costs least: \$[\d,.]+ in all, against \$[\d,.]+$", held.reason,
    ), held.reason  # fmt: skip


def test_a_cap_is_not_to_be_raised_for_what_costs_more_than_to_wait():
    pool = a_pool(caps={"per_day": "$7"}, max_price={"FAST": "$1,000"})
    held = decided(pool, FAST, cloud(("900.00", 8)))
    assert (held.plans, held.limits) == ((), ())
    assert held.reason.startswith("wait: that costs least: ")


def test_a_price_and_a_cap_that_keep_a_flex_job_are_named_together():
    pool = a_pool(flex_price="$1.00", caps={"per_day": "$7"})
    held = decided(pool, FLEX)
    assert [*limits_of(held)] == ["flex_price", "caps.per_day"]
    assert decided(with_what_it_needs(pool, held), FLEX).plans


def test_a_cap_of_each_tenant_has_to_do_for_all_of_them():
    pool = a_pool(caps={"per_tenant_day": "$2"})
    jobs = tuple(a_job(name, gpus=4, hours=4).model_copy(update={"tenant": name})
                 for name in ("red", "blue"))  # fmt: skip
    left = CapsLeft.of(pool.buying.caps, ["red", "blue"])

    def bought(pool: PoolSpec, left: CapsLeft) -> BuyDecision:
        unmet = Unmet(jobs=jobs)
        return decided_with(pool, left, unmet)

    held = bought(pool, left)
    assert [*limits_of(held)] == ["caps.per_tenant_day"]
    changed = with_what_it_needs(pool, held)
    assert bought(changed, CapsLeft.of(changed.buying.caps, ["red", "blue"])).plans


def test_the_value_is_no_more_than_is_needed():
    held = decided(a_pool(caps={"per_day": "$50"}), FAST, used=10 * MICRO)
    bought = decided(a_pool(), FAST)
    assert limits_of(held)["caps.per_day"] == f"${10 + bought.max_total / MICRO:.2f}"
    needs = limits_of(decided(a_pool(flex_price="$1.00"), FLEX))["flex_price"]
    cents = round(float(needs.removeprefix("$")) * 100)
    less = a_pool(flex_price=f"${(cents - 2) / 100:.2f}")
    assert decided(less, FLEX).plans == ()


def test_a_price_is_that_of_a_whole_node_however_many_asks_are_smaller():
    book = exchange(*((f"{price}.00", 2) for price in range(1, 7)), ("9.00", 8))
    held = decided(a_pool(max_price={"FAST": "$0.10"}), FAST, book)
    assert limits_of(held) == {"max_price.FAST": "$9.00"}
    assert "8xH100-80GB costs $9.00 a GPU-hour" in held.reason


def test_a_cap_of_the_installation_is_named_beside_the_pools_own():
    pool = a_pool(caps={"per_day": "$7"})
    own = CapsLeft.of(pool.buying.caps).caps
    both = CapsLeft(caps=(CapLeft(of=CapOf.DAY, most=9, left=4, scope="day"), *own))
    held = decided_with(pool, both)
    most = decided(a_pool(), FAST).max_total
    assert limits_of(held) == {
        "refused": f"day {at_most(most + 5)}", "caps.per_day": at_most(most),
    }  # fmt: skip
    assert "$0.00 is left (`longshore market caps day`); and it is over" in held.reason


def test_caps_of_several_scopes_and_the_money_of_several_budgets_are_all_named():
    caps = (
        CapLeft(of=CapOf.DAY, most=9, left=4, scope="day"),
        CapLeft(of=CapOf.DAY, most=9, left=5, scope="pool=p"),
        CapLeft(of=CapOf.TENANT, name="default", most=9, left=6, scope="tenant=default"),
    )
    budgets = {
        "low": BudgetLeft(day=1, per_day=1),
        "top": BudgetLeft(day=1, per_day=1, month=2, per_month=2),
    }
    above = {"default": ("low", "top")}
    left = CapsLeft(caps=caps, budgets=budgets, above=above)
    pool = a_pool()
    held = decided_with(pool, left)
    assert [(each.name, each.needs.rpartition(" ")[0]) for each in held.limits] == [
        ("refused", "day"), ("refused", "pool=p"), ("refused", "tenant=default"),
        ("budget", "money.per_day of the budget of low to"),
        ("budget", "money.per_day of the budget of top to"),
        ("budget", "money.per_month of the budget of top to"),
    ]  # fmt: skip


def test_no_value_is_named_where_nothing_of_the_kind_is_for_sale():
    assert decided(a_pool(), a_job(gpu_type="B999"), cloud(("1.00", 1))).limits == ()
