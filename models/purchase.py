"""A purchase from its intent to its end: what its workflow is given, what travels, what it tells.

A purchase makes orders one after the other, each under a key of its own; an order that bought
something has a block of the same id, and a block has machines, which become nodes of their names.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from longshore.models.base import Instant, Name, StartInput, Wire
from longshore.models.bounds import Most
from longshore.models.job import Tier
from longshore.models.market import Offer, OrderState, Window
from longshore.models.money import MicroDollars
from longshore.models.text import format_dollars
from longshore.models.units import Duration

PURCHASE_WORKFLOW = "PurchaseWorkflow"


LONGEST_PURCHASE_ID = 40
PURCHASE_ID = re.compile(rf"[a-z0-9]([a-z0-9._-]{{0,{LONGEST_PURCHASE_ID - 2}}}[a-z0-9])?")
"""What an id of a purchase has to be: the names of its machines begin with it, and these are nodes
(`models.base.Name`)."""


MOST_NODES = 64
"""Of one purchase."""


def purchase_workflow_id(purchase_id: str) -> str:
    return f"purchase-{purchase_id}"


def order_key(purchase_id: str, number: int) -> str:
    """Return the key of an order of a purchase, by its number from 1."""
    return f"{purchase_id}.{number}"


def machine_name(block_id: str, number: int) -> str:
    """Return the name of a machine of a block, and of its node, by its number from 1."""
    return f"{block_id}.m{number}"


def machine_names(block_id: str, nodes: int) -> tuple[str, ...]:
    """Return the names of the machines of an order that is a machine, or a cluster of several."""
    if nodes == 1:
        return (block_id,)
    return tuple(machine_name(block_id, number) for number in range(1, nodes + 1))


def worst_cost(limit: int, gpus: int, length: timedelta) -> int:
    """Return the most that so many GPUs can cost for so long, in micro-dollars.

    `limit` is micro-dollars per GPU-hour.
    """
    hour_microseconds = timedelta(hours=1) // timedelta(microseconds=1)
    return -(-limit * gpus * (length // timedelta(microseconds=1)) // hour_microseconds)


class PurchaseState(StrEnum):
    INTENT = "INTENT"
    """Stored; nothing has been ordered."""
    ORDERED = "ORDERED"
    FILLED = "FILLED"
    """Something was bought; its machines have not been asked for yet."""
    STARTING = "STARTING"
    READY = "READY"
    """What was bought has agents."""
    COMPENSATING = "COMPENSATING"
    """What was bought is of no use and is being terminated."""
    ENDED = "ENDED"
    """Nothing of it is left at any market; its account is closed."""
    REFUSED = "REFUSED"
    """The database refused it: buying is stopped, or a cap would be passed."""

    @property
    def over(self) -> bool:
        return self in (PurchaseState.ENDED, PurchaseState.REFUSED)


_WORD = Most(200, on_arrival=True)


class PurchaseOption(Wire):
    """One way to get the capacity; the next is tried for what this one did not bring."""

    provider: Annotated[str, _WORD]
    instance_type: Annotated[str, _WORD]
    gpus_per_node: int = Field(ge=1)
    length: Duration
    """How long the time is bought for, or a machine runs that is billed as it runs."""
    start: Instant | None = None
    """At once when left out."""
    limit: MicroDollars
    """Micro-dollars per GPU-hour, of the first order."""
    cap: MicroDollars | None = None
    """No order of this option may have a higher limit; `limit` when left out."""
    reprices: int = Field(default=0, ge=0, le=10)
    """How often the market may be asked for a better limit when an order brought too little."""
    standing_for: Duration = timedelta(0)
    """How long an order may rest on the book; what is not filled at once is cancelled without."""
    partial: bool = True
    fast_fabric: bool = False
    """Whether nodes of one order of it share fast fabric, as it was when it was decided."""
    for_gang: bool = False
    """Ranks are to meet across its nodes: they are asked for with that fabric, and open ports."""
    offer: Offer | None = None
    """The row to take, at a market where an order is a machine."""
    place: Annotated[str, _WORD] | None = None
    """Where, at a market that fills an order in one place; where it is cheapest when left out."""
    instead: bool = False
    """Only where nothing was bought by those before it: what was bought, and then failed, is
    decided anew."""

    @model_validator(mode="after")
    def _cap_is_no_less(self) -> Self:
        if self.cap is not None and self.cap < self.limit:
            cap, limit = format_dollars(self.cap), format_dollars(self.limit)
            raise ValueError(f"cap must be at least the limit, got {cap} below {limit}")
        if self.length <= timedelta(0):
            raise ValueError("length must be more than nothing")
        return self

    @property
    def most(self) -> int:
        """The highest limit, micro-dollars per GPU-hour."""
        return self.limit if self.cap is None else self.cap


class PurchaseRequest(StartInput):
    """Input of `PurchaseWorkflow`; the purchase's id is the workflow id without `purchase-`."""

    instead: ClassVar[str] = "purchases start by themselves, as the policy of their pool allows"
    pool: Name = "default"
    tenant: Annotated[str, _WORD] = "default"
    split: Annotated[dict[Name, int], Most(1000, on_arrival=True)] = Field(
        default_factory=dict[str, int]
    )
    """By what weights several tenants pay for it; whole by `tenant` where nothing is said."""
    tier: Tier = Tier.FAST
    nodes: int = Field(default=1, ge=1, le=MOST_NODES)
    options: Annotated[tuple[PurchaseOption, ...], Most(100, on_arrival=True)] = Field(
        min_length=1
    )
    ready_within: Duration = timedelta(minutes=20)
    """A machine whose agent has not registered by then, after its time began, is terminated."""
    machine_tries: int = Field(default=2, ge=1, le=5)
    """Machines that are started in turn for one node of bought time."""
    drain_before: Duration = timedelta(minutes=5)
    """Nodes take no new job for this long before their end, or for longer where the jobs need
    more time to stop."""
    decision: dict[str, Any] | None = None
    """Why it is bought: every option with its price."""
    renews: Annotated[str, _WORD] | None = None
    """The block whose machines are to go on in the time that is bought."""
    settles: bool = False
    """A run before it was ended from outside: nothing more is ordered, and what was is brought to
    its end."""

    def own_id(self, found: str) -> str:
        return purchase_workflow_id(found.removeprefix(purchase_workflow_id("")))

    @property
    def planned(self) -> int:
        """The most that it can cost, whichever option serves it, in micro-dollars."""
        return max(worst_cost(o.most, o.gpus_per_node * self.nodes, o.length)
                   for o in self.options)  # fmt: skip


class Opened(Wire):
    """What became of an intent."""

    state: PurchaseState
    reason: str = ""


class PurchaseRef(Wire):
    purchase_id: str


class OpenOrder(Wire):
    """An order that may have reached its market, and of which more may come."""

    key: str
    option: int = Field(ge=0)
    is_machine: bool = False


class LeftOrders(Wire):
    """What a purchase had ordered when its workflow was ended from outside."""

    state: PurchaseState
    open: tuple[OpenOrder, ...] = ()
    blocks: int = 0
    """That have not ended."""
    nodes: tuple[str, ...] = ()
    """That are ready."""


class OrderIntent(Wire):
    """An order that is about to be made."""

    purchase_id: str
    number: int = Field(ge=1)
    """Of the purchase's orders, from 1."""
    option: int = Field(ge=0)
    """Into the options."""
    nodes: int = Field(ge=1)
    limit: MicroDollars
    offer: Offer | None = None

    @property
    def key(self) -> str:
        return order_key(self.purchase_id, self.number)


class Intended(Wire):
    """Whether the order may be made."""

    key: str
    refused: str = ""
    """Why the database refused it."""
    is_machine: bool = False
    """At this market an order is a machine."""


class OrderRef(Wire):
    key: str


class OrderSeen(Wire):
    """What is known of an order, as the database has it after the last look."""

    key: str
    state: OrderState | None = None
    """None until the market knows it."""
    nodes: int = 0
    """That were bought."""
    window: Window | None = None
    """For which they are held."""
    spent: int = 0
    """Micro-dollars."""
    refused: str = ""
    """Why the market did not take it. It is over then."""
    late: bool = False
    """It was refused after its time had begun: the same order for the time from now on may do."""
    forbidden: bool = False
    """The market does not let our key order, or the account there has too little money: no other
    order does better there now."""

    @property
    def over(self) -> bool:
        return bool(self.refused) or (self.state is not None and self.state.final)


class RequoteRequest(Wire):
    purchase_id: str
    option: int
    nodes: int


class Requote(Wire):
    """What to pay now; no limit where nothing is to be had within the cap."""

    limit: MicroDollars | None = None
    offer: Offer | None = None
    reason: str = ""


class MachineStart(Wire):
    """Start one machine on the bought time of a block."""

    block_id: str
    number: int = Field(ge=1)

    @property
    def name(self) -> str:
        return machine_name(self.block_id, self.number)


class AgentsRequest(Wire):
    """Wait for the agents of a block's machines."""

    block_id: str
    within: Duration


class AgentsReport(Wire):
    """The machines of a block by what became of them; names."""

    ready: tuple[str, ...] = ()
    failed: dict[str, str] = Field(default_factory=dict[str, str])
    """With the reason. They have been stopped."""
    block_ends: str = ""
    """Why the block is at its end, where it is: nothing more is to come up there."""
    again: Duration | None = None
    """After which pause further machines may be started on its paid time; None where not."""


class StateChange(Wire):
    """A purchase enters a state."""

    purchase_id: str
    state: PurchaseState
    reason: str = ""


class PurchaseStatus(Wire):
    """Answer of the query `status`, and the result of the workflow."""

    purchase_id: str
    state: PurchaseState
    reason: str = ""
    orders: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """That are ready."""
    spent: int = 0
    """Micro-dollars, as of the last look at each order."""


class Refusal(Wire):
    """Why something was not done; empty where it was."""

    reason: str = ""
    again: Duration | None = None
    """After which pause it is to be tried again; None where it is not."""


BUYING_WORKFLOW = "BuyingWorkflow"


def buying_workflow_id(pool: str) -> str:
    return f"buying-{pool}"


class BuyingInput(StartInput):
    """Input of `BuyingWorkflow`."""

    instead: ClassVar[str] = (
        'give an input: {"pool": "NAME"}; a cycle of a pool that may buy starts it'
    )
    pool: Name
    at_least: Duration = timedelta(seconds=15)
    """A decision takes this long at least: so often the markets are asked while jobs wait."""

    def own_id(self, found: str) -> str:
        return buying_workflow_id(self.pool)


class BuyingRequest(Wire):
    pool: Name
    decision_id: str
    """A repeat finds the purchases that were stored under it."""


class Bought(Wire):
    """What was decided, and the purchases that are to be begun."""

    reason: str
    considered: tuple[str, ...] = ()
    """The best options of each tier, a line for each."""
    purchases: dict[str, PurchaseRequest] = Field(default_factory=dict[str, PurchaseRequest])
    """By id. Their intents are stored."""
    takes_up: tuple[str, ...] = ()
    """Blocks that were terminated, and whose paid time is used again."""
