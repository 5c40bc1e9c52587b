"""What to pay when an order brought less than was wanted: the market is asked again."""

from datetime import datetime

from activities.providers.base import Provider
from models.market import InstanceType, NoQuote, Window
from models.money import format_dollars
from models.price import PriceNeed
from models.purchase import PurchaseOption, Requote
from scheduling.prices.price import in_place, price


async def requoted(
    market: Provider, option: PurchaseOption, nodes: int, window: Window | None, now: datetime
) -> Requote:
    """Return a limit within the option's cap, or an offer; neither where nothing is to be had.

    Raises the errors of the market.
    """
    if market.capabilities.offer_list:
        return await _offer(market, option)
    wanted = InstanceType.parse(option.instance_type)
    book = await market.book(wanted, window)
    if isinstance(book, NoQuote):
        return Requote(reason=book.detail or book.reason.value)
    book = in_place(book, option.place)
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


async def _offer(market: Provider, option: PurchaseOption) -> Requote:
    spot = option.offer is not None and option.offer.spot
    for offer in await market.offers(InstanceType.parse(option.instance_type)):
        if offer.price <= option.most and offer.spot in (False, spot) and not offer.prepaid:
            return Requote(limit=offer.price, offer=offer)
    cap = f"{format_dollars(option.most)} a GPU-hour"
    return Requote(reason=f"no offer of {option.instance_type} within the cap of {cap}")
