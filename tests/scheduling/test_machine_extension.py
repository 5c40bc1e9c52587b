"""Whether a machine that is billed as it runs goes on beyond its committed time."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.block_end import BlockDecision, BlockOption, BlockOptionKind, BlockScene
from longshore.models.job import Tier
from longshore.models.money import micro_of
from longshore.scheduling.buying.block_end import decide_block, kept
from tests.scheduling.test_block_end import a_block, a_job_there, a_scene, by_use, kinds
from tests.support.buying import NOW, a_release, cloud, decided

MINUTE = timedelta(minutes=1)
ENDS = NOW + 20 * MINUTE
PRICE = micro_of("2.00")


def overrun(**changes: Any) -> BlockScene:
    """Return a machine that ends in 20 minutes, and a job there that needs an hour from now."""
    fields: dict[str, Any] = {
        "block": by_use(ends_at=ENDS, idle_since=None), "jobs": (a_job_there("n1", 1),),
        "rest": None, "elsewhere": PRICE,
    }  # fmt: skip
    return a_scene(a_release("n1", busy_hours=1), **{**fields, **changes})


def going_on(decision: BlockDecision) -> BlockOption:
    (option,) = [each for each in decision.options if each.kind is BlockOptionKind.GO_ON]
    return option


def test_a_machine_goes_on_until_its_work_ends_in_quarters_of_an_hour():
    decision = decide_block(overrun())
    assert decision.kind is BlockOptionKind.GO_ON
    assert decision.until == ENDS + 45 * MINUTE  # 40 minutes of work, 5 of margin
    option = going_on(decision)
    assert option.terms == {
        "price": -(PRICE * 8 * 40 // 60),
        "the same elsewhere": PRICE * 8 * 40 // 60,
        "done again": PRICE * 8,
        # An hour is done again, and a machine starts in five minutes: at $30.00 a GPU-hour.
        "waiting meanwhile": micro_of("30.00") * 8 * 65 // 60,
    }
    assert option.gain == sum(option.terms.values())
    assert "go on for 45m after it" in decision.reason


def test_the_last_of_the_jobs_says_for_how_long():
    jobs = (a_job_there("n1", 0.1), a_job_there("n1", 2, id="other", gpus=4))
    assert decide_block(overrun(jobs=jobs)).until == ENDS + 105 * MINUTE


def test_it_is_told_whose_jobs_it_goes_on_for():
    jobs = (a_job_there("n1", 1), a_job_there("n1", 0.5, id="other", gpus=4))
    decision = decide_block(overrun(jobs=jobs))
    assert decision.uses == {"on-n1": 8 * 40 * 60, "other": 4 * 10 * 60}


def test_a_job_that_takes_long_to_leave_ends_there_unasked():
    jobs = (a_job_there("n1", 1, lead=31 * MINUTE),)  # asked half an hour before its machine ends
    assert decide_block(overrun(jobs=jobs)).until == ENDS + 75 * MINUTE


def test_no_machine_goes_on_for_longer_than_the_longest_window():
    policy = {"longest_window": "2h"}
    scene = overrun(jobs=(a_job_there("n1", 100),), policy=policy)
    decision = decide_block(scene)
    assert decision.until == ENDS + 120 * MINUTE
    assert going_on(decision).terms["price"] == -PRICE * 8 * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"enabled": False}},
        {"jobs": ()},
        {"jobs": (a_job_there("n1", 0.2),)},
        {"block": by_use(ends_at=NOW + 31 * MINUTE, idle_since=None)},
        {"block": by_use(starts_at=NOW - MINUTE, ends_at=ENDS, idle_since=None)},
        {"block": by_use(ends_at=NOW, idle_since=None)},
        {"block": a_block(ends_at=ENDS)},
    ],
)
def test_it_is_no_option_before_its_time_or_without_need(changes: dict[str, Any]):
    decision = decide_block(overrun(**changes))
    assert "go-on" not in kinds(decision)
    assert decision.until is None


@pytest.mark.parametrize("limit", [5, 15, 60])
def test_a_machine_of_the_warm_target_goes_on_before_another_would_be_bought_for_it(limit: int):
    policy = {"fast_warm_gpus": 8, "startup_limit": limit * MINUTE}
    lasts = 2 * limit * MINUTE + 5 * MINUTE  # as bought: late start-up, target, margin
    left = limit * MINUTE + 6 * MINUTE  # a minute later the node would not hold the target
    warm = a_release("n1", expires_at=NOW + left)
    fields: dict[str, Any] = {"enabled": True, **policy}
    assert not decided([], cloud(("2.00", 8)), releases=[warm], **fields).plans
    late = a_release("n1", expires_at=NOW + left - 2 * MINUTE)
    assert decided([], cloud(("2.00", 8)), releases=[late], **fields).plans

    block = by_use(starts_at=NOW + left - lasts, ends_at=NOW + left)
    decision = decide_block(a_scene(a_release("n1"), block=block, policy=policy))
    assert decision.kind is BlockOptionKind.GO_ON
    assert "the warm target wants it" in decision.reason


@pytest.mark.parametrize(
    ("below", "kind"), [("$1.90", "keep"), ("$2.00", "go-on"), (None, "go-on")]
)
def test_nothing_is_kept_warm_that_no_job_may_start_on_and_what_runs_goes_on(
    below: str | None, kind: str
):
    """Of the pool's `start_below`: nothing is bought above it for the warm target."""
    price = None if below is None else round(float(below[1:]) * 1_000_000)
    block = by_use(ends_at=ENDS, idle_since=None)
    warm = a_scene(a_release("n1"), block=block, policy={"fast_warm_gpus": 8})
    decision = decide_block(warm.model_copy(update={"start_below": price}))
    assert decision.kind.value == kind
    assert ("over the cap of $1.90" in going_on(decision).lost) is (kind == "keep")
    runs = overrun().model_copy(update={"start_below": price})
    assert decide_block(runs).kind is BlockOptionKind.GO_ON


def test_a_machine_over_the_price_cap_ends_and_says_so():
    decision = decide_block(overrun(policy={"max_price": {"FAST": "$1.90"}}))
    assert (decision.kind, decision.until) == (BlockOptionKind.KEEP, None)
    assert "over the cap of $1.90" in going_on(decision).lost
    assert "over the cap of $1.90" in decision.reason


@pytest.mark.parametrize(
    ("policy", "offer", "why"),
    [
        ({"instance_types": ["8xB200"]}, {}, "`instance_types`"),
        ({"sellers": {"exclude": ["dear"]}}, {}, "`sellers`"),
        ({"countries": {"include": ["DE"]}}, {}, "`countries`"),
        ({}, {"variable": True}, "`spot`"),
        ({"instance_types": ["8xH100"], "sellers": {"include": ["dear"]}}, {}, ""),
    ],
)
def test_no_machine_goes_on_that_the_policy_of_now_would_not_order(
    policy: dict[str, Any], offer: dict[str, Any], why: str
):
    fields = {"seller": "dear", "country": "US", **offer}
    (bought,) = cloud(("2.00", 8), **fields).offers
    block = by_use(ends_at=ENDS, idle_since=None, offer=bought)
    decision = decide_block(overrun(block=block, policy=policy))
    assert decision.kind is (BlockOptionKind.KEEP if why else BlockOptionKind.GO_ON)
    assert why in going_on(decision).lost
    warm = {"fast_warm_gpus": 8, **policy}
    idle = decide_block(a_scene(a_release("n1"), block=block, policy=warm))
    assert why in going_on(idle).lost
    by_hand = block.model_copy(update={"decided": False})
    assert decide_block(overrun(block=by_hand, policy=policy)).kind is BlockOptionKind.GO_ON


@pytest.mark.parametrize("policy", [{"enabled": False}, {"max_price": {"FAST": "$1.90"}}])
def test_what_was_bought_by_hand_goes_on_only_where_its_pool_buys_at_that_price(
    policy: dict[str, Any],
):
    by_hand = by_use(ends_at=ENDS, idle_since=None, decided=False)
    assert decide_block(overrun(block=by_hand, policy=policy)).kind is BlockOptionKind.KEEP


def test_flexible_work_that_loses_nothing_moves_to_what_costs_less():
    job = a_job_there("n1", 1, tier=Tier.FLEX, lost=timedelta(0))
    block = by_use(ends_at=ENDS, idle_since=None, tier=Tier.FLEX)
    cheaper = overrun(block=block, jobs=(job,), elsewhere=micro_of("1.00"))
    decision = decide_block(cheaper)
    assert decision.kind is BlockOptionKind.KEEP
    assert "less" in going_on(decision).lost
    dearer = overrun(block=block, jobs=(a_job_there("n1", 1, tier=Tier.FLEX),))
    assert decide_block(dearer).kind is BlockOptionKind.GO_ON


def test_what_nobody_else_can_serve_goes_on():
    decision = decide_block(overrun(elsewhere=None))
    assert decision.kind is BlockOptionKind.GO_ON
    assert going_on(decision).terms["the same elsewhere"] == micro_of("30.00") * 8 * 24


def test_what_the_database_refuses_is_kept_with_its_reason():
    decision = kept(decide_block(overrun()), BlockOptionKind.GO_ON, "a cap")
    assert (decision.kind, decision.until) == (BlockOptionKind.KEEP, None)
    assert going_on(decision).lost == "a cap"
    assert decision.reason.startswith("leave it as it is; not “go on")
