"""Taking GPUs from running jobs: what a pool allows, what runs there, and what was decided.

`scheduling.preemption.plan` turns the middle of this page into its end. Prices are micro-dollars
per GPU-hour, costs micro-dollars. All of it is frozen and can be stored: the same
values give the same plan.
"""

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen, Instant, Name
from longshore.models.bounds import Word
from longshore.models.counts import Count
from longshore.models.elastic import Malleable
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.money import Money
from longshore.models.placement import RunningJob
from longshore.models.units import GB, Duration


class PreemptionLevels(StrEnum):
    """From which priority classes a job may take GPUs."""

    STRICT = "strict"
    """From every lower class."""
    BANDS = "bands"
    """From every lower band only; the bands are 0, 1 to 3, 4 to 6, 7 to 9, and 10."""


class Overcommit(StrEnum):
    """What a job does that a budget pays for, and whose start is due, while others that are paid
    for have all of its GPUs: more is paid for than there is."""

    WAIT = "wait"
    """It waits for one of them to end."""
    LOTTERY = "lottery"
    """Jobs are drawn to be stopped for it."""


class Cut(StrEnum):
    """How far it goes to make room for a job whose start is due: what is named first is taken
    first."""

    SPARES = "spares"
    SHRINK = "shrink"
    """Malleable jobs, to no less than their fewest GPUs."""
    LOTTERY = "lottery"


# Left out where they are the defaults: control workers of before know none of these.
_MAX_WAIT = timedelta(seconds=60)
_YIELDS_AFTER = timedelta(minutes=10)
_RESTART = timedelta(seconds=90)


class PreemptionPolicy(Frozen):
    """When a pool takes GPUs from running jobs for one of a higher priority class."""

    enabled: bool = True
    """Lower classes lose GPUs where that costs less than to wait; of the same class where the
    pool's order says so."""
    levels: PreemptionLevels = PreemptionLevels.STRICT
    near_end: Duration = timedelta(minutes=5)
    """A job whose expected end is nearer than this keeps its GPUs."""
    protected_class: Count = Field(default=7, ge=0, le=11)
    """A job of this class or above that cannot save keeps its GPUs."""
    max_victims: Count = Field(default=8, ge=1, le=1000)
    """The most jobs that are stopped for one job."""
    max_under_way: Count = Field(default=32, ge=1, le=10_000)
    """The most jobs of the pool that are being stopped at one time."""
    max_per_hour: Count = Field(default=3, ge=1, le=1000)
    """A job that was preempted so often within an hour keeps its GPUs."""
    cooldown: Duration = timedelta(minutes=10)
    """So long after a preemption the same job keeps its GPUs."""
    min_run: Duration = timedelta(minutes=5)
    """A job that was preempted before runs at least so long before it may be again."""
    yields_after: Duration = Field(
        default=_YIELDS_AFTER, exclude_if=lambda time: time == _YIELDS_AFTER
    )
    """With the order `attained-service`: a job runs for so long at least, and for ten times what
    its save and restart take, before it may be stopped for one of its own class."""
    restart: Duration = Field(default=_RESTART, exclude_if=lambda time: time == _RESTART)
    """With that order: what it takes until a job that was stopped has gone on from its save, once
    it has GPUs again."""
    max_wait: Duration = Field(default=_MAX_WAIT, exclude_if=lambda time: time == _MAX_WAIT)
    """A model that no engine serves, and whose engine has waited for so long and for four of its
    load times, has an engine of its own class stopped that is in use."""

    delay_price: dict[Tier, Money] = Field(
        default_factory=lambda: {Tier.FAST: 30_000_000, Tier.FLEX: 2_000_000}
    )
    """What it costs that a job of class 5 waits: for each of its GPUs, an hour. Nothing for a
    tier that is not named."""
    class_factor: float = Field(default=4.0, ge=1, le=10)
    """Each class above or below 5 raises or lowers that price by this factor."""
    save_risk: float = Field(default=0.1, ge=0, le=1)
    """The share of saves that come to nothing when a job is stopped."""
    overcommit: Overcommit = Field(
        default=Overcommit.WAIT, exclude_if=lambda what: what is Overcommit.WAIT
    )
    """Whether jobs that budgets pay for are drawn to be stopped for one whose start is due."""
    owned_gpu_price: Money = 2_000_000
    """What a GPU-hour is worth on a node that was not bought."""

    def price_of_waiting(self, job: JobRequest) -> float:
        """Return micro-dollars for each GPU and hour that the job waits."""
        return self.delay_price.get(job.tier, 0) * self.class_factor ** (job.priority - 5)


class WorkCheckpoint(Frozen):
    """What is known of a running job's saves."""

    saved_at: Instant | None = None
    """When it last saved; None where it never has."""
    write: Duration | None = None
    """How long its last save took."""
    size: GB = 0.0
    """Of its last save."""
    grace: Duration = timedelta(seconds=30)
    """How long it has for a save when it is stopped."""
    saves_while_running: bool = False
    """Whether it can be asked to save and go on."""
    without_step: bool = False
    """Its last save is in the checkpoint store and named no step: saves of its ranks belong
    together by their number."""

    @property
    def takes(self) -> timedelta:
        """How long a save will probably take."""
        return self.grace if self.write is None else self.write


class RunningEngine(Frozen):
    """What is known of the engine that a job runs."""

    model: str
    runtime: str
    ready_at: Instant | None = None
    """None while it loads."""
    idle_since: Instant | None = None
    """None while it is in use."""
    uses: int = 0
    """How often it was asked after a pause, since it was ready."""
    load_time: Duration = timedelta(0)
    """From its start to its first token."""
    pinned: bool = False
    prewarmed: bool = Field(default=False, exclude_if=lambda prewarmed: not prewarmed)
    """Loaded for nobody, and nobody has asked it so far."""


class RunningWork(Frozen):
    """A job that runs, on one node or on several, with what it would cost to stop it."""

    request: JobRequest
    tenant: Name = "default"
    shares: tuple[RunningJob, ...] = Field(min_length=1)
    """What it holds of each of its nodes."""
    started_at: Instant
    begun: bool = Field(default=True, exclude_if=lambda begun: begun)
    """Whether its process is known to have begun: until then its image, data and checkpoint may be
    on the way."""
    begun_at: Instant | None = Field(default=None, exclude_if=lambda at: at is None)
    """By when it had; None: when it was placed."""
    expected_end: Instant
    checkpoint: WorkCheckpoint | None = None
    """None where it cannot save."""
    no_store: str = ""
    """Why a save would go nowhere now; empty where the store is there."""
    preemptible: bool = True
    preempted_at: tuple[Instant, ...] = ()
    """When it was preempted before, oldest first."""
    counted_as: int | None = None
    """The class that its wait had lifted it to when it was placed; None where it counted as its
    own."""
    waited: Duration = timedelta(0)
    """In the queue until it was placed, over all attempts."""
    price: Money = 0
    """Micro-dollars per GPU-hour of its nodes, the mean over its GPUs."""
    malleable: Malleable | None = None
    """The sizes with which it can go on."""
    engine: RunningEngine | None = Field(default=None, exclude_if=lambda engine: engine is None)
    """Of a job that serves a model."""

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def gpus(self) -> float:
        """The GPUs that it holds; a part of one counts as that part."""
        return sum(share.gpus for share in self.shares)

    def without(self, gpus: int) -> int | None:
        """Return the size with which it goes on when it gives up so many GPUs; None where that
        would be below its smallest, and for a job of one size."""
        held = sum(len(share.gpu_indices) for share in self.shares if not share.spare)
        return None if self.malleable is None else self.malleable.without(held, gpus)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(share.node_id for share in self.shares))

    @property
    def runs_on(self) -> tuple[str, ...]:
        """Those of its nodes that do not only stand by."""
        running = (share.node_id for share in self.shares if not share.spare)
        return tuple(dict.fromkeys(running))

    @property
    def unsaved_since(self) -> Instant:
        """From when on its work is in no checkpoint."""
        saved_at = self.checkpoint.saved_at if self.checkpoint else None
        return max(self.started_at, saved_at) if saved_at else self.started_at


class PreemptionUnderWay(Frozen):
    """A job for which others are being stopped."""

    job_id: str
    victims: tuple[str, ...] = ()
    """Those that still run."""
    shares: tuple[RunningJob, ...] = ()
    """The GPUs that it will get; none once it has its placement."""


class BuyQuote(Frozen):
    """What it would cost to buy what the job needs instead."""

    cost: Money
    """Micro-dollars in all."""
    ready_at: Instant
    title: Word = "buy"


class SeenPrice(Frozen):
    """The lowest ask of a market that was seen of late."""

    instance_type: str
    market: str = ""
    """Where, as far as that is known."""
    ask: Money
    """Micro-dollars per GPU-hour."""
    gpus: int = Field(ge=0)
    """On offer in all."""


class Victim(Frozen):
    """A job that is to be stopped, and what that costs. Amounts are micro-dollars."""

    job_id: str
    priority: int
    nodes: tuple[str, ...]
    gpus: float
    recompute: int
    """Work since its last save that has to be done again, by its chance."""
    write: int
    """GPUs that are paid while it saves."""
    requeue: int
    """It waits for GPUs again."""
    total: int
    save: Duration = timedelta(0)
    """How long it will take to save."""
    gpus_left: int | None = None
    """Of a malleable job that keeps a part of its GPUs: the size with which it goes on."""
    spares_on: tuple[str, ...] = Field(default=(), exclude_if=lambda nodes: not nodes)
    """Of one that goes on as it is: the nodes on which it gives up what stands by for it."""
    reason: str = ""
    """The terms in words."""


class RejectedVictim(Frozen):
    """A running job that keeps its GPUs, and why."""

    job_id: str
    reason: str
    until: Instant | None = None
    """Until then, where it is left alone because it was preempted lately."""


class Spared(Frozen):
    """A running job that is left alone for a time, because it was preempted lately."""

    job_id: str
    until: Instant


class GainedGPUs(Frozen):
    """What the job gets of one node."""

    node_id: str
    gpu_indices: tuple[int, ...]
    slices: int = 0
    """For a MIG profile: the set of slices on its GPU."""


class TakenSpare(Frozen):
    """What stood by for a gang on a node, and was given up for a job whose start was due."""

    job_id: str
    """Of the gang."""
    node_id: str
    gpu_indices: tuple[int, ...]
    at: Instant


class WayKind(StrEnum):
    PREEMPT = "preempt"
    WAIT = "wait"
    BUY = "buy"


class Way(Frozen):
    """One way for the job to start. Amounts are micro-dollars."""

    kind: WayKind
    title: str
    start: Instant | None
    """When the job would start; None where that is not known."""
    cost: int = 0
    """What is lost, or paid."""
    delay: int = 0
    """What it costs that the job waits until then."""
    chosen: bool = False
    lost: str = ""
    """Why it was not chosen."""

    @property
    def total(self) -> int:
        """What the ways are compared by."""
        return self.cost + self.delay


class LotteryEntry(Frozen):
    """Whose jobs take part in a lottery."""

    tenant: str
    jobs: tuple[str, ...]


class Lottery(Frozen):
    """Which jobs were drawn, and all that it takes to draw them again
    (`scheduling.preemption.due.draws`)."""

    seed: str
    """Sixteen hexadecimal digits."""
    entries: tuple[LotteryEntry, ...]
    """By tenant."""
    drawn: tuple[str, ...]
    """In order, until there was room."""


class PreemptionPlan(Frozen):
    """Whether to stop running jobs for one job, which, and what else was looked at."""

    job_id: str
    at: Instant
    victims: tuple[Victim, ...] = ()
    """None where nobody is to be stopped; older work is kept at equal cost."""
    gains: tuple[GainedGPUs, ...] = ()
    """What the job gets once they have left."""
    cost: int = 0
    """What the victims lose, in micro-dollars."""
    value: int = 0
    """What it is worth that the job need not wait."""
    start: Instant | None = None
    """When the victims will have saved and left."""
    ways: tuple[Way, ...] = ()
    """Every way that was compared, the cheapest first."""
    rejected: tuple[RejectedVictim, ...] = ()
    """Running jobs that may not be stopped, by id; at most 50."""
    rejected_count: int = 0
    spared: tuple[Spared, ...] = ()
    """Where no set of jobs makes room: those that may be stopped later, the first few of them."""
    cut: Cut | None = Field(default=None, exclude_if=lambda cut: cut is None)
    """How far it goes for a job whose start is due; None where that did not matter."""
    lottery: Lottery | None = Field(default=None, exclude_if=lambda lottery: lottery is None)
    reason: str
    """The answer in one sentence."""

    @property
    def preempts(self) -> bool:
        return bool(self.victims)
