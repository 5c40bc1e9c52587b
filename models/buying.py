"""What a pool lacks, what the markets show, and what was decided about it.

`scheduling.buying.plan.decide` turns the middle of this page into its end. Prices are
micro-dollars per GPU-hour, costs micro-dollars. All of it is frozen and can be stored: the same
values give the same decision.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore.models.base import Frozen, Instant, Name
from longshore.models.bounds import Range, Word
from longshore.models.buying_policy import Among as Among
from longshore.models.buying_policy import BuyingPolicy as BuyingPolicy
from longshore.models.buying_policy import BuyingRule as BuyingRule
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.limit import Limit
from longshore.models.market import (
    Capabilities,
    NoQuote,
    Offer,
    OrderBook,
    OrderRequest,
    Window,
)
from longshore.models.money import Money
from longshore.models.node import Node
from longshore.models.placement import RunningJob
from longshore.models.topology import MOST_GPUS
from longshore.models.units import GB, MOST_CPUS, Duration

_MINUTE = timedelta(minutes=1)


class PriceReached(Frozen):
    """A price that a waiting FLEX job hopes for is there: prices for a GPU-hour."""

    job_id: str
    provider: str
    instance_type: str
    price: int
    """Of what would have to be bought for it, on average."""
    hoped: int


class BoughtFor(Frozen):
    """A purchase that bought something, and was made for a job that still waits."""

    purchase_id: str
    by_use: bool = False
    """Whether it was a machine that is billed as it runs; else nodes for a window."""
    ready: bool = False
    """Whether all of its nodes came up, and none was lost."""
    shared: bool = False
    """Whether other jobs ran there."""
    came: bool = False
    """Whether a node of it has been there."""
    kept_back: bool = False
    """Whether nobody would have paid for the job, as for a quota, when it was seen last while its
    nodes were ready; that is over."""
    bought_at: Instant | None = None
    ended_at: Instant | None = None


class UnmetJob(Frozen):
    """A job that waits, with what the packer needs to know of it."""

    request: JobRequest
    tenant: Name = "default"
    start_by: Instant | None = None
    """The latest start of a FLEX job; submission plus the policy's `flex_deadline` without."""
    bought: tuple[BoughtFor, ...] = ()
    """Since it was queued, oldest first."""


class DemandSample(Frozen):
    """GPUs of one tier that were wanted, queued and running, from a moment on."""

    at: Instant
    tier: Tier = Tier.FAST
    queued: Annotated[int, Range(0, 10**9)] = Field(ge=0)
    used: Annotated[int, Range(0, 10**9)] = Field(default=0, ge=0)


class JobEnd(Frozen):
    """A job that ended lately: how long it was expected to run, and how long it ran."""

    expected: Duration
    ran: Duration


class Unmet(Frozen):
    """What the queue wants. Jobs that a node can hold now may be among them: they are met."""

    jobs: tuple[UnmetJob, ...] = ()
    demand: tuple[DemandSample, ...] = ()
    """Of late, oldest first: at least as far back as the policy's `smoothing`."""
    last_bought_at: Instant | None = None
    recent: tuple[RecentJobs, ...] = ()
    """Placed lately: with the queue they say what the packer keeps room for."""
    ended: tuple[JobEnd, ...] = ()
    """Ended lately: they say how much of their expected durations jobs are likely to use."""


class NodeShape(Frozen):
    """What a machine to be bought will have."""

    gpus: Annotated[int, Range(1, MOST_GPUS)] = Field(ge=1)
    gpu_type: Word
    vram: GB
    cpus: Annotated[float, Range(0, MOST_CPUS)]
    ram: GB
    container_runtime: Word | None = "any"
    """What runs images there; machines that are bought are set up with one."""


class UnderWayState(StrEnum):
    ORDERED = "ordered"
    FILLING = "filling"
    BOOTING = "booting"


class CapacityUnderWay(Frozen):
    """Machines that were bought and are no nodes yet. They count as capacity."""

    id: Word
    """Of the purchase."""
    state: UnderWayState = UnderWayState.ORDERED
    tier: Tier = Tier.FAST
    provider: Word = ""
    instance_type: Word
    nodes: Annotated[int, Range(1, 100_000)] = Field(ge=1)
    shape: NodeShape | None = None
    """What each has; what its instance type says without."""
    place: Word | None = None
    domain: Word | None = None
    """The block, where its nodes share fast fabric; without, each is a domain of its own."""
    expected_at: Instant
    """When it is there: not before now."""
    due: Instant | None = None
    """When it was to be there, where that is another time: it is late."""
    until: Instant | None = None
    """When its time ends; it runs until it is stopped when left out."""


class Release(Frozen):
    """A node of the pool, and when its jobs will probably give back what they hold."""

    node: Node
    running: tuple[RunningJob, ...] = ()


class BookQuote(Frozen):
    """What a market with an order book shows for a type of machine."""

    instance_type: str
    window: Window | None = None
    """Asked for this window; without, its asks name their own times."""
    answer: OrderBook | NoQuote
    """The book in full: what any number of nodes costs follows from it."""
    shape: NodeShape | None = None


class MarketView(Frozen):
    """One market as it was seen."""

    provider: str
    capabilities: Capabilities
    quotes: tuple[BookQuote, ...] = ()
    offers: tuple[Offer, ...] = ()
    observed_at: Instant
    away: str = ""
    """Why there is nothing to see; empty where the market answered."""
    closed: str = ""
    """Why nothing is bought there now; it was not asked then."""


class RefusedOffer(Frozen):
    """A seller that took no order with an image, or a market none of a row of its book, and would
    not take another."""

    provider: str
    seller: str = ""
    image: str = ""
    instance_type: str = ""
    """Of a row of a book."""
    place: str | None = None
    """Of that row; none where the order named none."""
    at: Instant
    """The last time."""
    said: str
    """By the market."""


class OptionKind(StrEnum):
    PODS = "pods"
    """Machines that are billed as they run."""
    BLOCK = "block"
    """Nodes for a window that is just long enough."""
    LONGER_BLOCK = "longer-block"
    """Nodes for a longer window, which serves more of the queue."""
    WAIT = "wait"
    """For releases, for capacity under way, for a better price or for a market."""
    NOTHING = "nothing"
    """Nothing is lacking."""
    AGAIN = "again"
    """To buy again for a job that what was bought for it does not hold."""
    UNPROMISED = "unpromised"
    """To buy for a job that demands what no market promises."""
    LOW_SCORE = "low-score"
    """To buy for a job whose score is below `buy_above` of its pool."""
    UNFUNDED = "unfunded"
    """To buy for a job for which no budget would pay."""
    FILLS = "fills"
    """To buy for a job that takes what is free alone."""

    @property
    def is_in_vain(self) -> bool:
        """Whether it is to buy for a job that nothing is bought for now, whatever is offered."""
        return self in (
            OptionKind.AGAIN, OptionKind.UNPROMISED, OptionKind.LOW_SCORE, OptionKind.UNFUNDED,
            OptionKind.FILLS,
        )  # fmt: skip


class PurchasePlan(Frozen):
    """One order that is to be placed."""

    provider: str
    tier: Tier
    instance_type: str
    place: str | None = None
    """Where, at a market that fills an order in one place."""
    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1)
    window: Window | None = None
    """None where machines run until they are stopped."""
    limit: Money
    """Micro-dollars per GPU-hour."""
    marginal: Money | None = None
    """The price of its last GPU, as it was seen: below it a limit would not bring all of it. None
    where an offer is taken whole."""
    max_total: Money
    """Micro-dollars: the most that it may cost. Where machines run until they are stopped, they
    have to be stopped by then."""
    expected_cost: Money
    """Micro-dollars, at the prices seen."""
    ready_at: Instant
    """When its nodes are expected."""
    shape: NodeShape
    fast_fabric: bool = False
    """Whether its nodes share fast fabric: a group of a gang may span them."""
    fabric: str = ""
    """What that is in the market's word, where it is bought for a gang and the market says it."""
    meets: bool = True
    """Whether ranks on its nodes can reach each other, and others them."""
    offer: Offer | None = None
    serves: tuple[str, ...] = ()
    """Jobs that are to run there."""
    instead: tuple["PurchasePlan", ...] = ()
    """What is tried in turn when its offer is refused, each for the same jobs."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def most(self) -> int:
        """The most that it may cost, whichever offer is taken, in micro-dollars."""
        return max(plan.max_total for plan in (self, *self.instead))

    def ends_at(self, now: datetime) -> datetime:
        """Return when its time is over if it is ordered now: the window's end, or by when a
        machine that is billed as it runs has to be stopped."""
        if self.window is not None:
            return self.window.end
        length = timedelta(hours=self.max_total / max(self.limit * self.gpus, 1))
        return now + length // _MINUTE * _MINUTE

    def order(
        self, key: str, *, account: str | None = None, startup_script: str | None = None
    ) -> OrderRequest:
        """Return the order; `key` has to be stored before it is sent."""
        return OrderRequest(
            key=key, instance_type=self.instance_type, nodes=self.nodes, window=self.window,
            limit=self.limit, partial=False, account=account, place=self.place,
            offer=self.offer, startup_script=startup_script,
        )  # fmt: skip


class Served(Frozen):
    """When a job starts under an option; never, by what is known, where there is no time."""

    job_id: str
    start: Instant | None


class Option(Frozen):
    """One way to serve the jobs of a tier, with all that it costs. Costs are micro-dollars."""

    kind: OptionKind
    tier: Tier
    round: int = 0
    """Options of one round were compared with each other; each round adds to what was chosen."""
    title: str
    plans: tuple[PurchasePlan, ...] = ()
    committed: int = 0
    """What it will probably cost in money."""
    max_total: int = 0
    """The most that it may cost."""
    delay: int = 0
    """What it costs that jobs wait, or are not served."""
    hoped: int = 0
    """The part of `delay` that goes by `flex_price`."""
    leftover: int = 0
    """What the time is worth that no job uses."""
    starts: tuple[Served, ...] = ()
    chosen: bool = False
    lost: str = ""
    """Why it was not chosen."""
    job_id: str = ""
    """The job that it is for, where nothing is bought for that now, whatever is offered."""
    limits: tuple[Limit, ...] = ()
    """What forbids it: all of them, where somebody can change them."""

    @property
    def total(self) -> int:
        """What the options are compared by."""
        return self.committed + self.delay - self.leftover


class Coming(Frozen):
    """What was bought and is no node yet, and a job that waits is to start on."""

    purchases: tuple[str, ...]
    """Their ids: of a gang there may be several."""
    start: Instant
    """When the job starts, by what is known."""


class BuyDecision(Frozen):
    """What to buy now, and every way that was looked at."""

    at: Instant
    rule: BuyingRule
    plans: tuple[PurchasePlan, ...] = ()
    options: tuple[Option, ...] = ()
    reason: str
    """The answer in one sentence."""
    left_out: tuple[str, ...] = ()
    """What would have served, and is left out for what it is: counted, in words."""
    limits: tuple[Limit, ...] = ()
    """What keeps from buying, where somebody can change it: with all of these changed it buys."""
    why: str = ""
    """The answer without what is said of single jobs; empty where nothing is."""
    in_vain: dict[str, str] = Field(default_factory=dict[str, str])
    """Why nothing is bought for a job now, whatever is offered, by its id."""
    held_for: tuple[str, ...] = ()
    """Jobs for which there would be bought first, were it not for `limits`."""
    lacking: tuple[str, ...] = ()
    """Jobs that nothing holds in time."""
    waits_for: tuple[NoQuote, ...] = ()
    """Markets that are away or have no price, and why."""
    coming: dict[str, Coming] = Field(default_factory=dict[str, Coming])
    """What was under way before, by the jobs that are to start there."""

    @property
    def max_total(self) -> int:
        return sum(plan.most for plan in self.plans)

    @property
    def expected_cost(self) -> int:
        return sum(plan.expected_cost for plan in self.plans)
