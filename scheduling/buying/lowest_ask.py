"""What a GPU-hour costs at the markets now, of what a pool may buy."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.buying import BuyingPolicy, MarketView
from longshore.models.job import Tier
from longshore.models.market import NoQuote
from longshore.models.text import listed
from longshore.scheduling.buying.prices import (
    BlockSource,
    away,
    block_sources,
    pod_sources,
    window_from,
)


class Ask(NamedTuple):
    """The lowest ask."""

    price: int
    """Micro-dollars for a GPU-hour."""
    provider: str
    instance_type: str


def lowest_ask(markets: Sequence[MarketView], policy: BuyingPolicy, now: datetime) -> Ask | str:
    """Return the lowest price at which the pool could have a node now, or why there is none.

    Of a book that of the last GPU of one node. Without the policy's own caps: what is too dear to
    be bought has a price all the same.
    """
    policy = policy.model_copy(update={"max_price": dict.fromkeys(Tier)})
    asks = [
        Ask(source.offer.price, source.offer.provider, source.offer.instance_type)
        for source in pod_sources(markets, Tier.FAST, policy)
    ]
    for source in block_sources(markets, policy):
        last = price_of_nodes(source, 1, Tier.FAST, policy, now)
        if last is not None:
            asks.append(Ask(last, source.market.provider, source.quote.instance_type))
    if asks:
        return min(asks)
    if not markets:
        return "no market is configured"
    silent = [each.detail for each in away(markets) if each.detail]
    why = f" ({listed(silent, 2, between='; ')})" if silent else ""
    return f"no market asks a price for what the pool may buy{why}"


def price_of_nodes(
    source: BlockSource, nodes: int, tier: Tier, policy: BuyingPolicy, now: datetime
) -> int | None:
    """Return what the last GPU of so many nodes of a book costs, in micro-dollars for an hour, in
    the window that was asked for, or the shortest of the policy; None where there is no price.

    The first ask may be for fewer GPUs than a node has.
    """
    window = source.quote.window
    if window is None:
        window = window_from(source.market.capabilities.grain, now, policy.shortest_window)
    plan = source.plan(nodes, window, tier, policy, now)
    if isinstance(plan, NoQuote):
        return None
    return plan.limit if plan.marginal is None else plan.marginal
