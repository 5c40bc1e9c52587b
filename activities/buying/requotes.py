"""New quotes after an order was filled in part: the market is asked again."""

from collections.abc import Sequence
from datetime import datetime

from longshore.activities.providers.base import Provider
from longshore.models.buying import BuyingPolicy, RefusedOffer
from longshore.models.job import Tier
from longshore.models.market import InstanceType, NoQuote, Window
from longshore.models.price import PriceNeed
from longshore.models.purchase import PurchaseOption, Requote
from longshore.models.text import format_dollars
from longshore.scheduling.buying.exclusions import (
    in_allowed_places,
    why_excluded,
    with_refusal,
    with_refused,
)
from longshore.scheduling.buying.present_policy import why_not_ordered
from longshore.scheduling.prices.price import in_place, price


async def requoted(
    market: Provider,
    option: PurchaseOption,
    nodes: int,
    window: Window | None,
    now: datetime,
    policy: BuyingPolicy,
    refused: Sequence[RefusedOffer] = (),
    tier: Tier | None = None,
) -> Requote:
    """Return a limit within the option's cap, or an offer; neither where nothing is to be had, or
    where the market `refused` its row, or all such offers, of late. `tier` is that of a purchase
    which its pool decided: its policy of now has to let the offer be ordered.

    Raises the errors of the market.
    """
    if market.no_buying:
        return Requote(reason=market.no_buying)
    if market.capabilities.offer_list:
        return await _offer(market, option, policy, refused, tier)
    wanted = InstanceType.parse(option.instance_type)
    book = await market.book(wanted, window)
    if isinstance(book, NoQuote):
        return Requote(reason=book.detail or book.reason.value)
    book = with_refused(book, refused)
    if why := book.refused.get(option.place or ""):
        return Requote(reason=f"{market.name}: {why}")
    book = in_place(in_allowed_places(book, policy), option.place)
    need = PriceNeed(gpus=nodes * option.gpus_per_node, window=window)
    answer = price(book, need, now, levels=1)
    if isinstance(answer, NoQuote):
        return Requote(reason=answer.detail or answer.reason.value)
    best = answer.asks[0].level.price
    if best > option.most:
        lowest = f"the lowest ask is {format_dollars(best)} a GPU-hour"
        return Requote(reason=f"{lowest}, above the cap of {format_dollars(option.most)}")
    asked = answer.limit if answer.marginal is None else max(answer.limit, answer.marginal)
    return Requote(limit=min(asked, option.most))


async def _offer(
    market: Provider,
    option: PurchaseOption,
    policy: BuyingPolicy,
    refused: Sequence[RefusedOffer],
    tier: Tier | None,
) -> Requote:
    spot = option.offer is not None and option.offer.spot
    nodes = option.offer.nodes if option.offer is not None else 1
    wanted = InstanceType.parse(option.instance_type)
    for listed in await market.offers(wanted if nodes == 1 else None):
        offer = with_refusal(listed, refused)
        if why_excluded(offer, policy):
            continue
        if tier and why_not_ordered(option, offer, offer.price, tier, policy):
            continue  # nor would the order be let through
        of_kind = offer.nodes == nodes and wanted.takes(InstanceType.parse(offer.instance_type))
        of_size = of_kind and not offer.prepaid
        if offer.price <= option.most and offer.spot in (False, spot) and of_size:
            return Requote(limit=offer.price, offer=offer)
    cap = f"{format_dollars(option.most)} a GPU-hour"
    return Requote(reason=f"no offer of {option.instance_type} within the cap of {cap}")
