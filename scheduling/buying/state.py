"""What a decision about a purchase is made from, beside the policy and the time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from longshore.models.buying import CapacityUnderWay, MarketView, Release, Unmet
from longshore.models.caps_left import CapsLeft
from longshore.models.placement import PackingPolicy


@dataclass(frozen=True, kw_only=True)
class BuyingState:
    """What was observed of one pool and of its markets."""

    unmet: Unmet
    packing: PackingPolicy
    """The pool's: what is bought is what it then places these jobs on."""
    under_way: Sequence[CapacityUnderWay] = ()
    releases: Sequence[Release] = ()
    markets: Sequence[MarketView] = ()
    caps_left: CapsLeft = field(default_factory=CapsLeft)
