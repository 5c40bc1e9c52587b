"""A market with offers is asked again: by any of its offers, as the policy of now lets it."""

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from longshore.activities.buying.requotes import requoted
from longshore.activities.providers.base import Provider
from longshore.models.buying import BuyingPolicy, RefusedOffer
from longshore.models.job import Tier
from longshore.models.market import Offer
from longshore.models.money import micro_of
from longshore.models.purchase import PurchaseOption, Requote
from longshore.scheduling.buying.present_policy import why_not_quoted
from tests.support.buying import CLOUD, NOW, cloud

OLD, OTHER = cloud(("2.00", 8), ("2.10", 8)).offers
OTHER = OTHER.model_copy(update={"seller": "other", "image": "cuda"})


def option(offer: Offer) -> PurchaseOption:
    return PurchaseOption(
        provider="cloud", instance_type="8xH100-80GB", gpus_per_node=8, length=timedelta(hours=1),
        limit=offer.price, cap=micro_of("2.20"), offer=offer, reprices=1,
    )  # fmt: skip


async def quoted(
    *listed: Offer,
    policy: dict[str, Any] | None = None,
    refused: Sequence[RefusedOffer] = (),
    tier: Tier | None = Tier.FAST,
    old: Offer = OLD,
) -> Requote:
    async def offers(_: object) -> Sequence[Offer]:
        return listed

    market = SimpleNamespace(name="cloud", no_buying="", capabilities=CLOUD, offers=offers)
    known = BuyingPolicy.model_validate({"enabled": True, **(policy or {})})
    if tier and (why := why_not_quoted(option(old), known)):
        return Requote(reason=why)
    return await requoted(
        cast("Provider", market), option(old), 1, None, NOW, known, refused, tier
    )


@pytest.mark.parametrize(
    ("old", "policy"),
    [
        ({"seller": "gone"}, {"sellers": {"exclude": ["gone"]}}),
        ({"spot": True}, {"spot": False}),
        ({"country": "DE"}, {"countries": {"exclude": ["DE"]}}),
    ],
)
async def test_another_offer_is_taken_where_the_policy_of_now_refuses_the_old_one(
    old: dict[str, Any], policy: dict[str, Any]
):
    before = OLD.model_copy(update=old)
    quote = await quoted(before, OTHER, policy=policy, old=before)
    assert quote.offer == OTHER
    assert quote.limit == OTHER.price
    none = await quoted(before, policy=policy, old=before)
    assert (none.limit, none.offer) == (None, None)


async def test_an_offer_that_its_order_would_be_refused_is_passed_over():
    variable = OLD.model_copy(update={"variable": True})
    assert (await quoted(variable, OTHER)).offer == OTHER
    assert (await quoted(variable, OTHER, policy={"spot": True})).offer == variable
    assert (await quoted(variable, OTHER, tier=None)).offer == variable, "as by hand"
    too_dear = {"max_price": {"FAST": micro_of("2.05")}}
    assert (await quoted(OTHER, policy=too_dear)).offer is None
    assert "`enabled`" in (await quoted(OTHER, policy={"enabled": False})).reason


async def test_an_offer_that_its_seller_refused_of_late_is_passed_over():
    said = RefusedOffer(provider="cloud", seller="other", image="cuda", at=NOW, said="no")
    assert (await quoted(OTHER, refused=[said])).offer is None
    assert (await quoted(OTHER, OLD, refused=[said])).offer == OLD
