"""What is said of a pool that may buy: whether it does, and what would let it."""

from datetime import timedelta

import pytest

from longshore.models.buying import (
    BuyDecision,
    BuyingPolicy,
    CapacityUnderWay,
    NodeShape,
)
from longshore.models.funding import PoolFunding
from longshore.models.job import Tier
from longshore.models.limit import HeldBy, Limit
from longshore.models.money import micro_of
from longshore.models.placement import PackingPolicy
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.spending import BuyingRecord
from longshore.models.topology import Gang
from longshore.scheduling.buying.buying_status import NO_BUYING, Failed, buying_status, for_job
from longshore.scheduling.buying.fleet import holding
from longshore.scheduling.buying.options import windows_to_ask
from tests.support.buying import NOW, a_job, caps_left, cloud, decided, exchange, limits_of

MINUTE = timedelta(minutes=1)
POOL = PoolSpec(name="p", buying=BuyingPolicy(enabled=True))


def decided_before(held_by: str, reason: str = "wait: so it is", needs: str = "") -> BuyingRecord:
    limits = Limit.at(held_by, needs) if held_by else ()
    return BuyingRecord(at=NOW, reason=reason, limits=limits)


def test_a_pool_that_may_not_buy_has_nothing_to_say() -> None:
    assert buying_status(PoolSpec(name="p"), "again", decided_before("caps.per_day")) == NO_BUYING


def test_a_job_that_nobody_pays_for_is_told_so_and_what_says_what_would() -> None:
    why = "no budget pays for 1 GPU: NO_ENVELOPE"
    funding = PoolFunding({}, {"a": why}, frozenset())
    packing = POOL.packing.model_copy(update={"funding": funding})
    pool = POOL.model_copy(update={"packing": packing})
    for last in (None, decided_before("", "nothing is lacking"), decided_before("caps.per_day")):
        standing = buying_status(pool, "", last, NOW, job_id="a")
        assert not standing.buys
        assert standing.says == f"nothing is bought for it: {why}"
        assert "`longshore fund a`" in standing.helps
        assert buying_status(pool, "", last, NOW, job_id="b") == buying_status(POOL, "", last, NOW)


def test_what_kept_it_from_buying_for_one_job_is_told_to_that_job() -> None:
    packing = PoolPacking().model_copy(
        update={"funding": PoolFunding({}, {"a": "nobody pays"}, frozenset())}
    )
    decision = decided([a_job("a")], cloud(("2.40", 1)), packing=packing)
    assert decision.plans == ()
    assert decision.in_vain == {"a": "nobody pays"}


def test_a_pool_buys_unless_something_is_known_to_keep_it() -> None:
    for last in (
        None,
        decided_before("", "nothing is lacking"),
        decided_before(HeldBy.STOPPED),
    ):  # resumed
        standing = buying_status(POOL, "", last, NOW)
        assert standing.buys
        assert standing.says == "buys what is missing"


def test_the_switch_goes_before_all() -> None:
    standing = buying_status(POOL, "again", decided_before("caps.per_day"), NOW)
    assert not standing.buys
    assert standing.says == "buying is stopped: again"
    assert "`longshore market resume`" in standing.helps


@pytest.mark.parametrize(
    ("held_by", "needs", "value"),
    [
        ("caps.per_day", "$1,012.40", "'caps.per_day=$1,012.40'"),
        ("caps.per_tier_day.FAST", "$2.00", "'caps.per_tier_day.FAST=$2.00'"),
        ("max_price.FAST", "$0.81", "'max_price.FAST=$0.81'"),
        ("startup_limit", "20m", "startup_limit=20m"),
    ],
)
def test_the_setting_that_keeps_it_is_named_with_its_command(
    held_by: str, needs: str, value: str
) -> None:
    standing = buying_status(POOL, "", decided_before(held_by, needs=needs), NOW - MINUTE)
    assert standing.says == "it buys nothing now: so it is"
    assert standing.helps == f"raise `{held_by}`: `longshore pool set p --buying {value}`"


def test_where_no_value_is_known_to_do_no_command_is_given() -> None:
    standing = buying_status(POOL, "", decided_before("caps.per_day"), NOW - MINUTE)
    assert standing.helps == "raise `caps.per_day`"


def test_what_was_decided_without_the_job_counts_only_where_no_market_is() -> None:
    for since in (None, NOW + MINUTE):
        assert buying_status(POOL, "", decided_before("max_price.FAST"), since).buys
        nowhere = buying_status(POOL, "", decided_before(HeldBy.NO_MARKET), since)
        assert nowhere.says == "no market is configured to buy at"
        assert "docs/settings.md" in nowhere.helps


@pytest.mark.parametrize("held_by", ["caps.per_day", HeldBy.REFUSED])
def test_a_cap_that_kept_it_from_buying_for_others_today_is_told(held_by: str) -> None:
    standing = buying_status(POOL, "", decided_before(held_by), NOW + MINUTE)
    assert standing.buys
    kept = f"at {NOW:%H:%M} UTC it bought nothing for others: so it is"
    assert standing.says == f"buys what is missing; {kept}"
    tomorrow = buying_status(POOL, "", decided_before(held_by), NOW + timedelta(days=1))
    assert tomorrow.says == "buys what is missing"


@pytest.mark.parametrize(
    ("held_by", "tiers"),
    [
        ("flex_price", {Tier.FLEX}),
        ("max_price.FAST", {Tier.FAST}),
        ("max_price.FLEX", {Tier.FLEX}),
        ("startup_limit", set[Tier]()),
    ],
)
def test_a_price_that_kept_it_from_buying_is_told_to_jobs_of_its_tier(
    held_by: str, tiers: set[Tier]
) -> None:
    kept = f"buys what is missing; at {NOW:%H:%M} UTC it bought nothing for others: so it is"
    for tier in (None, *Tier):
        standing = buying_status(POOL, "", decided_before(held_by), NOW + MINUTE, tier=tier)
        assert standing.buys
        assert (standing.says == kept) is (tier in tiers), tier


def test_a_cap_that_the_database_keeps_is_shown_by_its_command() -> None:
    refused = decided_before(
        HeldBy.REFUSED, "wait: with it $2 would be committed; it was to buy 1 x H100"
    )
    standing = buying_status(POOL, "", refused, NOW)
    assert standing.says.endswith("now: with it $2 would be committed; it was to buy 1 x H100")
    assert "`longshore market caps`" in standing.helps


def test_all_that_keeps_it_is_advised_together() -> None:
    caps = Limit(name="flex_price", needs="$8"), Limit(name="caps.per_day", needs="$14")
    last = BuyingRecord(
        at=NOW, reason="wait: so it is",
        limits=(*caps, Limit(name=HeldBy.REFUSED, needs="pool=p $1,012.40"),
                Limit(name=HeldBy.BUDGET, needs="money.per_day of the budget of red to $530")),
    )  # fmt: skip
    assert buying_status(POOL, "", last, NOW).helps == (
        "raise `flex_price` and `caps.per_day`: `longshore pool set p "
        "--buying 'flex_price=$8' --buying 'caps.per_day=$14'`; and "
        "raise the cap: `longshore market caps pool=p '$1,012.40'`; and "
        "raise money.per_day of the budget of red to $530 in its budget file: "
        "`longshore budget apply FILE`"
    )


def test_the_money_of_a_budget_is_raised_in_its_file() -> None:
    needs = "money.per_day of the budget of red to $530.00"
    held = decided_before(HeldBy.BUDGET, "wait: it is over the money", needs)
    standing = buying_status(POOL, "", held, NOW)
    assert not standing.buys
    assert standing.helps == f"raise {needs} in its budget file: `longshore budget apply FILE`"
    refused = decided_before(HeldBy.BUDGET, "wait: with it $2 would be committed")
    assert "`longshore budget apply FILE`" in buying_status(POOL, "", refused, NOW).helps


def test_a_cooldown_passes_by_itself_or_is_made_shorter() -> None:
    last = decided_before(HeldBy.COOLDOWN, "wait: within the cooldown", "40s")
    standing = buying_status(POOL, "", last, NOW)
    assert standing.says == "it buys nothing now: within the cooldown"
    assert (standing.chosen, standing.in_cooldown) == (True, True)
    assert standing.helps == (
        "wait until then, or make the cooldown shorter: `longshore pool set p --buying "
        "cooldown=40s`; what is bought, and what else keeps it, is decided then"
    )


@pytest.mark.parametrize(
    ("held_by", "needs", "helps"),
    [
        ("", "", "see what is for sale: `longshore buy --dry-run --pool p`"),
        (HeldBy.MARKET_AWAY, "", "see what the markets say: `longshore doctor`, "
                                 "`longshore buy --dry-run --pool p`"),
        ("flex_price", "$2.41", "raise `flex_price`: `longshore pool set p --buying "
                                "'flex_price=$2.41'`; or give the job the tier FAST"),
    ],
)  # fmt: skip
def test_a_pool_that_decided_to_wait_does_not_say_that_it_buys(
    held_by: str, needs: str, helps: str
) -> None:
    standing = buying_status(POOL, "", decided_before(held_by, needs=needs), NOW)
    assert standing[:3] == ("it buys nothing now: so it is", helps, held_by != HeldBy.MARKET_AWAY)
    assert not standing.buys


def test_a_purchase_that_came_to_nothing_is_told() -> None:
    failed = Failed(NOW, "the balance of the wallet is too low")
    says = "its last purchase, 12:00 UTC, came to nothing: the balance of the wallet is too low"
    standing = buying_status(POOL, "", decided_before("", "buy 1 x H100"), NOW, failed)
    assert standing[:3] == (says, "see what was tried: `longshore purchases --all`", False)
    waits = buying_status(POOL, "", decided_before("caps.per_day"), NOW, failed)
    assert waits.says == f"it buys nothing now: so it is; {says}"
    assert "caps.per_day" in waits.helps


def record_of(decision: BuyDecision) -> BuyingRecord:
    """What a pool keeps of a decision (`activities.buying.decisions`)."""
    return BuyingRecord.model_validate(
        decision.model_dump(include=set(BuyingRecord.model_fields) - {"options", "serves"})
        | {"options": [{"title": o.title, "job_id": o.job_id, "total": o.total}
                       for o in decision.options]}
    )  # fmt: skip


def test_a_job_is_told_what_keeps_the_pool_from_buying_for_it() -> None:
    jobs = [a_job("wide", gpus=400), a_job("dear")]
    decision = decided(jobs, cloud(("2.40", 8)), caps=caps_left(purchase=micro_of("0.10")))
    assert [*limits_of(decision)] == ["caps.per_purchase"]
    assert decision.held_for == ("dear",)
    record = record_of(decision)
    told = {
        name: buying_status(POOL, "", record, NOW - MINUTE, tier=Tier.FAST, job_id=name)
        for name in ("wide", "dear", "met")
    }
    none = "no machine of 400 GPUs is for sale"
    assert told["wide"].says.startswith(f"it buys nothing now: {none}")
    assert told["wide"].helps == "see what is for sale: `longshore buy --dry-run --pool p`"
    assert "caps.per_purchase" in told["dear"].helps
    assert none not in told["dear"].says
    assert none in buying_status(POOL, "", record, NOW - MINUTE).says  # of the pool
    assert told["met"][:3] == ("buys what is missing", "", False)
    assert for_job(record, "wide").reason == f"wait: {decision.in_vain['wide']}"
    assert {each.job_id for each in for_job(record, "dear").options} == {""}
    assert none not in for_job(record, "dear").reason


def test_a_job_behind_another_is_not_told_that_what_helps_the_other_helps_it() -> None:
    jobs = [a_job("wide", gpus=8, hours=9), a_job("small")]
    low = caps_left(purchase=micro_of("0.10"))
    market = cloud(("2.40", 1), ("20.00", 8))
    for policy in ({}, {"startup_limit": "1s"}):
        decision = decided(jobs, market, caps=low, policy=policy)
        assert not decision.plans
        assert decision.held_for == ("small",)
        record = record_of(decision)
        small, wide = (
            buying_status(POOL, "", record, NOW - MINUTE, tier=Tier.FAST, job_id=name)
            for name in ("small", "wide")
        )
        assert "caps.per_purchase" in small.helps
        assert "after them" not in small.helps
        assert not wide.buys
        assert wide.says.startswith("it buys nothing now, and decides first about other jobs: ")
        assert wide.helps.endswith("what it buys for this job is decided after them")


def test_a_job_of_the_other_tier_is_not_told_that_it_is_bought_for() -> None:
    jobs = [a_job("fast"), a_job("flex", tier=Tier.FLEX)]
    dear = {"max_price": {"FAST": "$0.20", "FLEX": "$0.20"}}
    decision = decided(jobs, cloud(("2.40", 8)), policy=dear)
    assert not decision.plans
    flex = buying_status(
        POOL, "", record_of(decision), NOW - MINUTE, tier=Tier.FLEX, job_id="flex"
    )
    assert not flex.buys
    assert "decides first about other jobs: over the price limit" in flex.says
    assert "max_price.FAST" in flex.helps


def test_a_job_for_which_nothing_is_for_sale_is_told_so_beside_what_is_bought() -> None:
    decision = decided([a_job("wide", gpus=400), a_job("b")], cloud(("2.40", 8)))
    assert decision.plans
    standing = buying_status(POOL, "", record_of(decision), NOW - MINUTE, job_id="wide")
    assert standing.says.startswith("it buys nothing now: no machine of 400 GPUs is for sale")


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"gpu_type": "B300"}, "no machine with B300 GPUs is for sale"),
        ({"ram": 900_000}, "no machine that is for sale could hold it"),
    ],
)
def test_what_is_bought_for_another_job_is_not_told_as_bought_for_one_that_nothing_holds(
    asks: dict[str, object], why: str
) -> None:
    vain = a_job("vain")
    vain = vain.model_copy(update={"request": vain.request.model_copy(update=asks)})
    decision = decided([vain, a_job("b")], cloud(("2.40", 8)))
    assert decision.plans
    told = {
        name: buying_status(POOL, "", record_of(decision), NOW - MINUTE, job_id=name)
        for name in ("vain", "b")
    }
    assert told["vain"].says == f"it buys nothing now: {why}"
    assert told["b"].says == "buys what is missing"
    assert for_job(record_of(decision), "vain").reason == f"wait: {why}"
    away = cloud(("2.40", 8)).model_copy(update={"away": "no answer"})
    assert not decided([vain], away).in_vain  # it may have one


@pytest.mark.parametrize("asks", [{"ram": 900_000}, {"cpus": 100_000}, {"gpus": 400}])
def test_a_job_that_nothing_holds_does_not_keep_others_behind_it_from_being_bought_for(
    asks: dict[str, object],
) -> None:
    first = a_job("a")
    first = first.model_copy(update={"request": first.request.model_copy(update=asks)})
    decision = decided([first, a_job("b")], cloud(("2.40", 8)))
    assert [plan.serves for plan in decision.plans] == [("b",)]


@pytest.mark.parametrize("count", [63, 64, 70])
def test_however_many_nothing_holds_those_behind_them_are_bought_for(count: int) -> None:
    in_vain = [a_job(f"a{number:02}") for number in range(count)]
    in_vain = [
        job.model_copy(update={"request": job.request.model_copy(update={"ram": 900_000})})
        for job in in_vain
    ]
    decision = decided([*in_vain, a_job("b")], cloud(("2.40", 8)))
    assert [plan.serves for plan in decision.plans] == [("b",)]


def test_a_job_too_long_for_every_window_keeps_no_market_from_being_asked() -> None:
    long, short = (
        a_job(name).request.model_copy(update={"expected_duration": lasts})
        for name, lasts in (("long", timedelta(days=3)), ("short", timedelta(hours=1)))
    )
    asked = windows_to_ask([long, short], BuyingPolicy(), timedelta(hours=1), NOW)
    assert asked == windows_to_ask([short], BuyingPolicy(), timedelta(hours=1), NOW)
    (longest,) = windows_to_ask([long], BuyingPolicy(), timedelta(hours=1), NOW)
    assert longest.hours == 24  # what is for sale is told all the same
    decision = decided([a_job("long", hours=72), a_job("short")], exchange(("2.40", 8)))
    assert [plan.serves for plan in decision.plans] == [("short",)]
    alone = decided([a_job("long", hours=72)], exchange(("2.40", 8)))
    assert alone.reason == (
        "wait: over the longest window: long needs 3d15m, with its start-up and margin, and "
        "longest_window is 1d"
    )
    assert limits_of(alone) == {"longest_window": "3d15m"}
    whole = a_job("long", gpus=8, hours=72)
    assert decided([whole], exchange(("2.40", 8)), longest_window="3d15m", caps=caps_left()).plans


@pytest.mark.parametrize(
    ("held_by", "tier"),
    [("max_price.FAST", Tier.FLEX), ("caps.per_tier_day.FAST", Tier.FLEX),
     ("flex_price", Tier.FAST)],
)  # fmt: skip
def test_what_holds_for_the_other_tier_is_not_told(held_by: str, tier: Tier) -> None:
    last = decided_before(held_by)
    assert buying_status(POOL, "", last, NOW - MINUTE, tier=tier).buys
    other = next(each for each in Tier if each is not tier)
    assert held_by in buying_status(POOL, "", last, NOW - MINUTE, tier=other).helps


def test_machines_on_their_way_are_for_jobs_that_they_could_hold() -> None:
    shape = NodeShape(gpu_type="H100", gpus=2, vram=80, cpus=16, ram=128)
    two = CapacityUnderWay(id="p-2", instance_type="2xH100", nodes=2, expected_at=NOW, shape=shape)
    one, wide = a_job("one").request, a_job("wide", gpus=400).request
    assert holding(one, [two], (), PackingPolicy(), NOW) == [two]
    assert holding(wide, [two], (), PackingPolicy(), NOW) == []
    unknown = two.model_copy(update={"shape": None, "instance_type": "large"})
    assert holding(wide, [two, unknown], (), PackingPolicy(), NOW) == [unknown]
    gang = wide.model_copy(update={"gpus": 4, "gang": Gang(unlabelled_nodes=True)})
    assert holding(gang, [two], (), PackingPolicy(), NOW) == [two]
