"""What becomes of a block: kept, gone on with, followed by another, sold in part, or terminated.

`scheduling.buying.block_end.decide_block` compares these in dollars. Prices are micro-dollars per
GPU-hour, amounts micro-dollars. All of it is frozen and can be stored: the same values give the
same decision.
"""

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen, Instant, Name, Wire
from longshore.models.buying import (
    BookQuote,
    BuyingPolicy,
    CapacityUnderWay,
    RefusedOffer,
    Release,
    UnmetJob,
)
from longshore.models.job import Tier
from longshore.models.job_request import RecentJobs
from longshore.models.market import Offer, Window
from longshore.models.placement import PackingPolicy
from longshore.models.units import Duration


class BlockFacts(Frozen):
    """A block as the capacity database has it."""

    id: str
    provider: str
    instance_type: str
    tier: Tier
    gpus_per_node: int = Field(ge=1)
    starts_at: Instant
    ends_at: Instant
    price: int
    """What was paid, on average; of a machine that is billed as it runs its order's limit."""
    by_use: bool = False
    """A machine that is billed as it runs, and may be terminated at any time."""
    resellable: bool = False
    renewable: bool = False
    """The same machines go on where the time after it is bought."""
    renewed: bool = False
    """The time after it is bought, or is being bought."""
    idle_since: Instant | None = None
    """Since when nothing has run there; None while something does, or before it is up."""
    tried_at: Instant | None = None
    """When a sale or a renewal of it was tried last."""
    coming: str | None = None
    """Its purchase, where its machine is on its way and no job waits that it was bought for."""
    decided: bool = True
    """Its pool decided to buy it: the policy says what becomes of it also when that buys no more,
    and whether it would be bought now."""
    expects: int = 1
    """Its machines that are there or are to come."""
    offer: Offer | None = None
    """What its machine was bought by, where that was an offer and it can be read."""
    given_up: bool = False
    """A window that is terminated: its rest is of no use to its pool any more."""


class BlockMachine(Frozen):
    """A machine of the block with an agent: a node of its name."""

    name: str
    takes_work: bool = True
    """Its node is ready, and nothing of its time is on sale."""
    lost: bool = False
    """Its node has fallen silent."""
    gone: bool = False
    """Its agent has left, as where it was stopped."""
    closed_since: Instant | None = None
    """Since when its node takes no work, where that was said and does not end by itself: it is
    cordoned or drained, or its agent has left."""


class BlockJob(Frozen):
    """A job on a node of the block."""

    id: str
    node_id: str
    gpus: int = Field(ge=0)
    tier: Tier
    expected_end: Instant
    lost: Duration
    """What it has worked since it began or wrote its last checkpoint: to be done again where it
    is moved."""
    whole: Duration | None = None
    """How long it runs, where it is queued and would run there if the node lasted."""
    lead: Duration = timedelta(0)
    """How long before the end of the node it is asked to leave."""

    def ends_unasked(self, margin: timedelta) -> Instant:
        """Return until when its node has to last, so that it ends there and the margin is kept."""
        return self.expected_end + max(margin, self.lead)


class BlockOptionKind(StrEnum):
    KEEP = "keep"
    RENEW = "renew"
    GO_ON = "go-on"
    SELL = "sell"
    LET_GO = "let-go"


class BlockOption(Frozen):
    """One thing to do with a block. `gain` is against leaving it as it is, in micro-dollars."""

    kind: BlockOptionKind
    title: str
    gain: int = 0
    terms: dict[str, int] = Field(default_factory=dict[str, int])
    """What the gain is the sum of."""
    chosen: bool = False
    lost: str = ""
    """Why it was not chosen."""


class NodeSale(Frozen):
    """The rest of one node's time, to be sold whole or not at all."""

    machine: str
    window: Window
    limit: int
    """No less than this for a GPU-hour."""
    proceeds: int
    """By the bid that would take it, before the fee."""
    fee: int


class Renewal(Frozen):
    """The time after a block, to be bought for some of its nodes."""

    nodes: int = Field(ge=1)
    window: Window
    place: str | None = None
    limit: int
    cap: int
    cost: int
    """At the prices seen."""
    uses: dict[str, int] = Field(default_factory=dict[str, int])
    """GPU-seconds of each job that it is bought for: whose they are pay for it."""


class SaleTerms(Frozen):
    """What a market keeps of a sale."""

    fee_bps: int = Field(default=0, ge=0, le=10_000)
    fee_flat: int = Field(default=0, ge=0)
    """Micro-dollars for a node-hour."""

    def fee(self, proceeds: int, node_time: timedelta) -> int:
        """Return the fee of a sale, in micro-dollars, rounded down as a whole."""
        hour = timedelta(hours=1) // timedelta(microseconds=1)
        flat = self.fee_flat * (node_time // timedelta(microseconds=1)) // hour
        return flat + proceeds * self.fee_bps // 10_000


class BlockScene(Frozen):
    """All that a decision about a block is made from."""

    block: BlockFacts
    machines: tuple[BlockMachine, ...] = ()
    jobs: tuple[BlockJob, ...] = ()
    pool: tuple[Release, ...] = ()
    """Every node of its pool, and what runs there."""
    billed: dict[str, int] = Field(default_factory=dict[str, int])
    """What an hour of each of these nodes costs that are billed as they run."""
    unstarted: tuple[str, ...] = ()
    """Machines of its paid time that its market does not start, and nobody waits for any more; of
    one that is given up, a machine for each node of which nothing is sold and that does not go on.
    """
    queue: tuple[UnmetJob, ...] = ()
    under_way: tuple[CapacityUnderWay, ...] = ()
    """What the pool has bought and is no node yet."""
    demand: float = 0.0
    """GPUs of its tier that were wanted of late, on average."""
    rest: BookQuote | None = None
    """The book of its type for the time that is left of it."""
    place: str | None = None
    """Where the block is, in that book."""
    terms: SaleTerms = SaleTerms()
    following: BookQuote | None = None
    """The book of its type for the time after it."""
    elsewhere: int | None = None
    """The lowest price of like machines at any market now."""
    refused: tuple[RefusedOffer, ...] = ()
    """What markets took no order of lately: the time after it is not bought there."""
    closed: str = ""
    """Why its market is asked for nothing now; empty where it is."""
    policy: BuyingPolicy
    start_below: int | None = None
    """Below which price of a GPU-hour the jobs of its pool start: those that run go on."""
    packing: PackingPolicy
    recent: tuple[RecentJobs, ...] = ()
    """Placed lately, as a cycle knows them."""
    now: Instant

    @property
    def may_leave(self) -> bool:
        """Whether the policy says when machines end and what is sold: that only saves money."""
        return self.policy.enabled or self.block.decided


class BlockDecision(Frozen):
    """What to do with a block now, and what else was looked at."""

    block_id: str
    at: Instant
    kind: BlockOptionKind
    reason: str
    """The answer in one sentence."""
    options: tuple[BlockOption, ...] = ()
    sales: tuple[NodeSale, ...] = ()
    renewal: Renewal | None = None
    until: Instant | None = None
    """Until when a machine that is billed as it runs goes on."""
    uses: dict[str, int] | None = Field(default=None, exclude=True)
    """GPU-seconds of each job for which it does: whose they are pay for it. It is not stored, but
    told (`GoOnRequest`): workers of before cannot read a decision with it."""


class GoOnRequest(Wire):
    """Let the machine of a block that is billed as it runs go on."""

    block_id: str
    until: Instant
    uses: dict[str, int] | None = None
    """GPU-seconds of each job there in its longer time; None where an older worker decided."""


class SaleIntent(Wire):
    """The sale of one node's time, before anything is stored."""

    block_id: str
    number: int = Field(ge=1)
    """Of the block's sales, from 1."""
    machine: Name
    window: Window
    limit: int = Field(ge=0)
    fee_bps: int = 0
    fee_flat: int = 0

    @property
    def key(self) -> str:
        return f"{self.block_id}.s{self.number}"


class SaleSeen(Wire):
    """A sale as the database has it after the last look. Amounts are micro-dollars."""

    key: str
    machine: str = ""
    over: bool = False
    """The market can take nothing more of it."""
    sold: bool = False
    proceeds: int = 0
    fee: int = 0
    refused: str = ""
    """Why it was not stored, or not taken by the market."""
