"""What is said of a pool that may buy: whether it does, and what would let it."""

from datetime import timedelta

import pytest

from longshore.models.buying import BuyingPolicy
from longshore.models.job import Tier
from longshore.models.pool import PoolSpec
from longshore.models.spending import BuyingRecord, HeldBy
from longshore.scheduling.buying.buying_status import NO_BUYING, Failed, buying_status
from tests.support.buying import NOW

MINUTE = timedelta(minutes=1)
POOL = PoolSpec(name="p", buying=BuyingPolicy(enabled=True))


def decided(held_by: str, reason: str = "wait: so it is", needs: str = "") -> BuyingRecord:
    return BuyingRecord(at=NOW, reason=reason, held_by=held_by, needs=needs)


def test_a_pool_that_may_not_buy_has_nothing_to_say() -> None:
    assert buying_status(PoolSpec(name="p"), "again", decided("caps.per_day")) == NO_BUYING


def test_a_pool_buys_unless_something_is_known_to_keep_it() -> None:
    for last in (None, decided("", "nothing is lacking"), decided(HeldBy.STOPPED)):  # resumed
        standing = buying_status(POOL, "", last, NOW)
        assert standing.buys
        assert standing.says == "buys what is missing"


def test_the_switch_goes_before_all() -> None:
    standing = buying_status(POOL, "again", decided("caps.per_day"), NOW)
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
    standing = buying_status(POOL, "", decided(held_by, needs=needs), NOW - MINUTE)
    assert standing.says == "it buys nothing now: so it is"
    assert standing.helps == f"raise `{held_by}`: `longshore pool set p --buying {value}`"


def test_where_no_value_is_known_to_do_no_command_is_given() -> None:
    standing = buying_status(POOL, "", decided("caps.per_day"), NOW - MINUTE)
    assert standing.helps == "raise `caps.per_day`"


def test_what_was_decided_without_the_job_counts_only_where_no_market_is() -> None:
    for since in (None, NOW + MINUTE):
        assert buying_status(POOL, "", decided("max_price.FAST"), since).buys
        nowhere = buying_status(POOL, "", decided(HeldBy.NO_MARKET), since)
        assert nowhere.says == "no market is configured to buy at"
        assert "docs/settings.md" in nowhere.helps


@pytest.mark.parametrize("held_by", ["caps.per_day", HeldBy.REFUSED])
def test_a_cap_that_kept_it_from_buying_for_others_today_is_told(held_by: str) -> None:
    standing = buying_status(POOL, "", decided(held_by), NOW + MINUTE)
    assert standing.buys
    kept = f"at {NOW:%H:%M} UTC it bought nothing for others: so it is"
    assert standing.says == f"buys what is missing; {kept}"
    tomorrow = buying_status(POOL, "", decided(held_by), NOW + timedelta(days=1))
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
        standing = buying_status(POOL, "", decided(held_by), NOW + MINUTE, tier=tier)
        assert standing.buys
        assert (standing.says == kept) is (tier in tiers), tier


def test_a_cap_that_the_database_keeps_is_shown_by_its_command() -> None:
    refused = decided(
        HeldBy.REFUSED, "wait: with it $2 would be committed; it was to buy 1 x H100"
    )
    standing = buying_status(POOL, "", refused, NOW)
    assert standing.says.endswith("now: with it $2 would be committed; it was to buy 1 x H100")
    assert "`longshore market caps`" in standing.helps


def test_a_cooldown_passes_by_itself_or_is_made_shorter() -> None:
    last = decided(HeldBy.COOLDOWN, "wait: within the cooldown", "40s")
    standing = buying_status(POOL, "", last, NOW)
    assert standing.says == "it buys nothing now: within the cooldown"
    assert standing.helps == (
        "wait until then, or make the cooldown shorter: `longshore pool set p --buying "
        "cooldown=40s`"
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
    standing = buying_status(POOL, "", decided(held_by, needs=needs), NOW)
    assert standing == ("it buys nothing now: so it is", helps, held_by != HeldBy.MARKET_AWAY)
    assert not standing.buys


def test_a_purchase_that_came_to_nothing_is_told() -> None:
    failed = Failed(NOW, "the balance of the wallet is too low")
    says = "its last purchase, 12:00 UTC, came to nothing: the balance of the wallet is too low"
    standing = buying_status(POOL, "", decided("", "buy 1 x H100"), NOW, failed)
    assert standing == (says, "see what was tried: `longshore purchases --all`", False)
    waits = buying_status(POOL, "", decided("caps.per_day"), NOW, failed)
    assert waits.says == f"it buys nothing now: so it is; {says}"
    assert "caps.per_day" in waits.helps
