"""What a GPU-hour costs at the markets now, of what a pool may buy."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.buying import BuyingPolicy, MarketView
from longshore.models.job import Tier
from longshore.models.market import NoQuote
from longshore.models.text import listed
from longshore.scheduling.buying.prices import away, block_sources, pod_sources, window_from


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
        window = source.quote.window
        if window is None:
            grain = source.market.capabilities.grain
            window = window_from(grain, now, policy.shortest_window)
        plan = source.plan(1, window, Tier.FAST, policy, now)
        if not isinstance(plan, NoQuote):
            last = plan.limit if plan.marginal is None else plan.marginal
            asks.append(Ask(last, plan.provider, plan.instance_type))
    if asks:
        return min(asks)
    if not markets:
        return "no market is configured"
    silent = [each.detail for each in away(markets) if each.detail]
    why = f" ({listed(silent, 2, between='; ')})" if silent else ""
    return f"no market asks a price for what the pool may buy{why}"
