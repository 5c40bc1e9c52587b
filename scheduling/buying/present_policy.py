"""What the policy of now says to an order, or to longer time of a machine, decided before.

A purchase orders again, and by other options, long after its decision. Whoever switches buying off
meanwhile, or lowers a price, is heard with the next order.
"""

from longshore.models.block_end import BlockFacts
from longshore.models.buying import BuyingPolicy
from longshore.models.job import Tier
from longshore.models.market import Offer
from longshore.models.purchase import PurchaseOption
from longshore.models.text import dollars, format_dollars
from longshore.scheduling.buying.exclusions import takes_books_of, why_excluded
from longshore.scheduling.buying.fleet import shape_of_offer
from longshore.scheduling.buying.prices import is_allowed, is_part_allowed

_NOTHING = "its pool buys nothing now (`enabled`)"


def why_not_ordered(
    option: PurchaseOption, offer: Offer | None, limit: int, tier: Tier, policy: BuyingPolicy
) -> str:
    """Return why no order is made of an option at a limit, in micro-dollars per GPU-hour, by the
    policy of now; empty where it may be. Regions of books are told by their quotes alone."""
    if not policy.enabled:
        return _NOTHING
    most = policy.most(tier)
    if most is not None and limit > most:
        said = f"`max_price.{tier}` is {format_dollars(most)} now"
        return f"{said}, and the order might pay {format_dollars(limit)} a GPU-hour"
    return _why_not_taken(option.provider, option.instance_type, offer, policy)


def why_not_longer(block: BlockFacts, policy: BuyingPolicy) -> str:
    """Return why no money is committed for longer time of a machine that is billed as it runs, by
    the policy of now; empty where it may be.

    Its limit is what it may cost. Whoever bought it by hand chose where, and what: as for an
    order, the policy is asked for that only where the pool decided. What jobs start below
    (`BuyingPolicy.below`) is for what no job has started on: kept for the warm target.
    """
    if not policy.enabled:
        return _NOTHING
    cap = policy.most(block.tier)
    if cap is not None and block.price > cap:
        return f"it may cost {dollars(block.price)} a GPU-hour, over the cap of {dollars(cap)}"
    if not block.decided:
        return ""
    return _why_not_taken(block.provider, block.instance_type, block.offer, policy)


def _why_not_taken(
    provider: str, instance_type: str, offer: Offer | None, policy: BuyingPolicy
) -> str:
    """Return why the policy takes no such machine from whom sells it; empty where it does."""
    if offer is None:
        return why_no_time(provider, instance_type, policy)
    if why := why_excluded(offer, policy):
        return f"its offer is {why}"
    if (offer.spot or offer.variable) and not policy.spot:
        return "its offer may be taken away, or its price change (`spot`)"
    shape = shape_of_offer(offer)
    allowed = shape is None or is_part_allowed(shape, policy)
    return "" if allowed else _no_type(offer.instance_type)


def why_not_quoted(option: PurchaseOption, policy: BuyingPolicy) -> str:
    """Return why the price of an option is not asked again, by the policy of now; empty where it
    is. Of an option with an offer another one may be taken than it had: each is looked at."""
    if not policy.enabled:
        return _NOTHING
    if option.offer is not None:
        return ""
    return why_no_time(option.provider, option.instance_type, policy)


def why_no_time(provider: str, instance_type: str, policy: BuyingPolicy) -> str:
    """Return why the policy lets no time of a type be bought at a market; empty where it does."""
    if not takes_books_of(provider, policy):
        return f"its pool buys nothing from {provider} now (`sellers`, `countries`)"
    return "" if is_allowed(instance_type, policy) else _no_type(instance_type)


def _no_type(instance_type: str) -> str:
    return f"its pool buys no {instance_type} now (`instance_types`)"


def within_price(option: PurchaseOption, tier: Tier, policy: BuyingPolicy) -> PurchaseOption:
    """Return an option whose limit rises no higher than the policy of now lets it."""
    most = policy.most(tier)
    if most is None or option.most <= most:
        return option
    return option.model_copy(update={"cap": most})
