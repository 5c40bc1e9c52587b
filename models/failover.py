"""Messages of a failover: a spare takes the place of a node of a gang."""

from longshore.models.base import Frozen, Reason, Wire
from longshore.models.messages import LeaseEnd
from longshore.models.placement import Placement, PlacementKey


class HeldNode(Frozen):
    """One node that an attempt of a gang holds GPUs of, as it is now."""

    rank: int
    """Of a spare, its number: those follow the ranks'."""
    node_id: str
    epoch: int
    gpu_indices: tuple[int, ...]
    domain: str
    spare: bool = False
    lent: bool = False
    """Another job runs on it, which is stopped before it takes a place."""
    unfit: str = ""
    """Why the job cannot go on there; empty where it can."""


class Swap(Frozen):
    """A spare in the place of a node of the gang, with the rank of that."""

    rank: int
    left: str
    """The node that the gang leaves."""
    node: HeldNode
    """The spare, with as many of its GPUs as the rank had."""


class Failover(Frozen):
    """What becomes of a gang that has lost nodes: swaps for all of them, or none and why."""

    swaps: tuple[Swap, ...] = ()
    spares: tuple[HeldNode, ...] = ()
    """Those that stand by from now on."""
    reason: str
    """In one sentence: what takes which place and why, or why nothing does."""


class SwapRequest(Wire):
    """Input of the activity `swap`: go on as the next attempt where spares can take the places of
    the nodes that are lost; else give up the leases."""

    key: PlacementKey
    """The attempt that is over."""
    end: LeaseEnd
    """How its leases end on nodes that are left, or all of them where nothing is swapped."""
    message: Reason = ""
    failed_on: str = ""
    """A node that is ready, and yet failed this job."""


class SwapReply(Wire):
    """The next attempt's placement, or none: then its leases have ended."""

    placement: Placement | None = None
    reason: str = ""
