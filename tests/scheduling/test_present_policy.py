"""An order of a purchase that was decided before is held to the policy of now."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.block_end import BlockOptionKind
from longshore.models.buying import BuyingPolicy
from longshore.models.job import Tier
from longshore.models.market import Offer
from longshore.models.money import micro_of
from longshore.models.purchase import PurchaseOption
from longshore.scheduling.buying.block_end import decide_block
from longshore.scheduling.buying.present_policy import why_not_ordered, within_price
from tests.scheduling.test_block_end import a_block, a_job_there, a_release, a_scene, quote
from tests.support.buying import NOW, cloud

TIME = PurchaseOption(
    provider="sfcompute", instance_type="8xH100", gpus_per_node=8, length=timedelta(hours=1),
    limit=micro_of("2.00"), cap=micro_of("2.20"),
)  # fmt: skip


def why_not(policy: dict[str, Any], offer: Offer | None = None) -> str:
    known = BuyingPolicy.model_validate({"enabled": True, **policy})
    return why_not_ordered(TIME, offer, TIME.limit, Tier.FAST, known)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({}, ""),
        ({"enabled": False}, "`enabled`"),
        ({"max_price": {"FAST": micro_of("1.99")}}, "`max_price.FAST` is $1.99 now"),
        ({"max_price": {"FLEX": micro_of("1.99")}}, ""),
        ({"instance_types": ["8xH200"]}, "`instance_types`"),
        ({"instance_types": ["8xH100"], "sellers": {"include": ["sfcompute"]}}, ""),
        ({"sellers": {"exclude": ["sfcompute"]}}, "`sellers`"),
        ({"countries": {"include": ["US"]}}, "`countries`"),
    ],
)
def test_node_time_is_ordered_only_as_the_policy_of_now_lets_it(policy: dict[str, Any], why: str):
    said = why_not(policy)
    assert why in said
    assert bool(said) == bool(why)


def test_an_offer_is_ordered_only_as_the_policy_of_now_lets_it():
    (offer,) = cloud(("2.00", 4)).offers
    assert why_not({"instance_types": ["8xH100"]}, offer) == "", "a part of such a machine"
    assert "`instance_types`" in why_not({"instance_types": ["2xH100"]}, offer)
    assert "`sellers`" in why_not({"sellers": {"exclude": [offer.seller or "cloud"]}}, offer)
    spot = offer.model_copy(update={"spot": True})
    assert "`spot`" in why_not({}, spot)
    assert why_not({"spot": True}, spot) == ""


def test_a_limit_rises_no_higher_than_the_price_limit_of_now():
    policy = BuyingPolicy(enabled=True, max_price={Tier.FAST: micro_of("2.10")})
    assert within_price(TIME, Tier.FAST, policy).most == micro_of("2.10")
    assert within_price(TIME, Tier.FLEX, policy).most == micro_of("2.20")


@pytest.mark.parametrize(
    ("policy", "kind"), [({}, "renew"), ({"sellers": {"exclude": ["exchange"]}}, "keep")]
)
def test_time_after_a_block_is_bought_only_of_sellers_of_now(policy: dict[str, Any], kind: str):
    scene = a_scene(
        a_release("n1", busy_hours=3), block=a_block(ends_at=NOW + timedelta(minutes=20)),
        jobs=(a_job_there("n1", 3),), policy={"resell": False, **policy}, elsewhere=micro_of("9"),
        following=quote(asks=(("2.00", 16),)),
    )  # fmt: skip
    decision = decide_block(scene)
    assert decision.kind == BlockOptionKind(kind)
    assert kind == "renew" or "`sellers`" in decision.reason
