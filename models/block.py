"""A block from the order that bought it to its end: what its workflow is given, what travels."""

from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from longshore.models.base import Instant, StartInput, Wire
from longshore.models.block_end import BlockOptionKind, SaleIntent
from longshore.models.purchase import PurchaseRequest
from longshore.models.units import Duration

BLOCK_WORKFLOW = "BlockWorkflow"
ENDING = "the block ends at"
"""What the reason of a drain begins with where a block comes to its end."""
FOR_SALE = "its time is for sale"
"""The reason of the drain of a node whose time is offered."""


def mend_of_sale(node_id: str, block_id: str) -> str:
    """Return what to do where the time of a node is for sale: no command takes the offer back, and
    no placement is taken there before it is over."""
    return (
        f"wait some minutes: the time of {node_id} is for sale (`longshore block {block_id}`); "
        "without a buyer it takes jobs again by itself, and where it is sold, add a node"
    )


def closed_by_its_block(drain_reason: str, block_reason: str | None) -> bool:
    """Return whether what becomes of its block keeps a node from jobs, and no person does:
    `block_reason` is why that drains, if it does."""
    return drain_reason in (FOR_SALE, block_reason) or drain_reason.startswith(ENDING)


def block_workflow_id(block_id: str) -> str:
    return f"block-{block_id}"


class BlockState(StrEnum):
    STARTING = "STARTING"
    """Bought, or on order at a market where an order is a machine."""
    OPEN = "OPEN"
    """Some of its nodes are ready."""
    DRAINING = "DRAINING"
    ENDED = "ENDED"


class BlockInput(StartInput):
    """Input of `BlockWorkflow`; what it knows beyond this is in the capacity database."""

    instead: ClassVar[str] = (
        'give an input: {"block_id": "ID"} of a stored block; the purchase of a block starts it'
    )
    block_id: str
    let_go: str | None = None
    """Why it ends before its time."""
    takes_up: bool = False
    """It was terminated, and the rest of its time is used again."""
    draining: bool = False
    seen: "BlockLook | None" = None
    """Its drain and its end as the run before saw them: for where it cannot be looked at any more.
    """
    look_every: Duration = timedelta(minutes=5)

    def own_id(self, found: str) -> str:
        return block_workflow_id(self.block_id)


class BlockRef(Wire):
    block_id: str
    reason: str = ""
    machines: tuple[str, ...] = ()
    """Only these of its machines; all of them when left out."""


class BlockLook(Wire):
    """A look at a block at its market."""

    ends_at: Instant
    drain_at: Instant
    over: bool = False
    """No machine of it can run any more."""
    ends: str = ""
    """Why it is stopped at once, if so."""
    idle: str = ""
    """Why a machine that is billed as it runs is of no more use."""
    idle_at: Instant | None = None
    """When it will have been idle for too long, if nothing comes to run there."""
    look_at: Instant | None = None
    """When to look again at the latest, where that is sooner than usual."""
    decides: bool = False
    """Whether it may be sold or renewed: that is to be decided now."""
    goes_on: bool = False
    """Whether a machine that is billed as it runs may go on: also while it drains for its end."""
    sells: bool = False
    """Whether its rest may be put up for sale if it is terminated."""
    starts: tuple[int, ...] = ()
    """Numbers of the machines to start now, on paid time whose machines have ended."""
    awaits: Duration | None = None
    """How long the agents of machines that start are waited for; None where none starts."""
    silent: tuple[str, ...] = ()
    """Machines to stop now, so that others are started on their paid time: their agents have been
    silent for too long."""


class Cleared(Wire):
    """The jobs of a block were asked to leave it."""

    gone_by: Instant | None = None
    """When the last of them has gone, at the latest; None where nothing ran there."""


class EmptyRequest(Wire):
    """Wait until nothing runs on a block any more."""

    block_id: str
    until: Instant


class BlockVerdict(Wire):
    """What is done about a block now."""

    kind: BlockOptionKind
    reason: str
    considered: tuple[str, ...] = ()
    """Every option, a line for each."""
    sales: tuple[SaleIntent, ...] = ()
    purchase_id: str = ""
    renewal: PurchaseRequest | None = None
    """The purchase of the time after it. Its intent is stored."""
    until: Instant | None = None
    """Until when its machine is to go on."""
    uses: dict[str, int] | None = None
    """GPU-seconds of each job for which it does."""


class ExtendRequest(Wire):
    """Let machines of one block go on in the next."""

    block_id: str
    next_block: str


class BlockEnd(Wire):
    """How a block's account was closed; micro-dollars."""

    block_id: str
    cost: int
    used: int
    idle: int
    """Below zero where more was brought by sales than idle time had cost."""
    resold: int = 0
    """What sales of its time brought, before their fees."""
    reason: str = ""
