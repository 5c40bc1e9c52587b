"""The queue of a pool as people see it."""

from pydantic import Field

from longshore.models.base import Frozen, Instant
from longshore.models.deadline import DeadlineJudgment
from longshore.models.durations import ExpectedFrom
from longshore.models.packing import QueueOrder
from longshore.models.score import TenantPart, TermWeights
from longshore.models.start_range import StartRange
from longshore.models.units import Duration


class RankTerms(Frozen):
    """What the rank of a job is made of: price x sqrt(GPUs) x growth / (left + 600 s / GPUs)."""

    price: float
    """Micro-dollars of an hour's waiting, for each GPU."""
    gpus: float
    growth: float
    """By what it has waited in all."""
    left: Duration
    """For how long it will probably hold its GPUs: about as long as it has."""
    rank: float
    """As the queue has it: with what the score makes of it, where the pool has one."""


class ScoreOfJob(Frozen):
    """The nine terms of a job's score, f1 to f9, and what they sum to with the pool's weights."""

    priority: float
    waiting: float
    """ln(1 + hours since it was submitted). In `total` it counts for a week at most."""
    fair_share: float
    topology: float
    data: float
    backlog: float
    energy: float | None
    """None where nobody knows the price."""
    checkpoint: float
    conformance: float
    total: float
    """What `start_above` and `buy_above` of the pool ask about; not the order of the queue."""


class QueuedJobView(Frozen):
    """A job that waits."""

    place: int | None
    """In the order of the queue, from 1, those that are held counted; None of one that is set
    aside."""
    job_id: str
    name: str
    tenant: str
    priority: int
    counted_as: int
    """The class that its wait lifts it to."""
    gpus: int | None
    """None of one that cannot be read."""
    waited: Duration
    """In the queue, over all attempts and without holds."""
    attained: Duration
    """For how long earlier attempts held its GPUs, as far as it goes on from that."""
    first: bool = False
    """It comes before its class, because it has waited for so long."""
    expected: ExpectedFrom = ExpectedFrom.UNKNOWN
    """Where the time comes from that it is expected to run."""
    expected_duration: Duration | None = None
    """What it is planned with, where anybody knows: of a later attempt what is left of it, where
    that is learnt."""
    learnt: str = ""
    """How that is learnt, in words."""
    terms: RankTerms | None = None
    """Where the pool goes by rank."""
    score: ScoreOfJob | None = Field(default=None, exclude_if=lambda score: score is None)
    """Where the pool has a score."""
    starts_at: Instant | None = None
    """By the last cycle: a start that is kept for it, as far as running jobs end when expected."""
    start_range: StartRange | None = Field(default=None, exclude_if=lambda one: one is None)
    """Between when and when that probably is, where it is learnt how long those run."""
    deadline: DeadlineJudgment | None = None
    """How it stands to its deadline; null for one without."""
    reason: str = ""
    """Why it waits, by the last cycle."""


class QueueView(Frozen):
    """A pool's queue."""

    pool: str
    order: QueueOrder
    weights: TermWeights | None = Field(default=None, exclude_if=lambda weights: weights is None)
    """Of the score, where the pool has one."""
    jobs: tuple[QueuedJobView, ...] = Field(default=())
    """In order; those that are set aside last."""
    tenants: tuple[TenantPart, ...] = Field(default=(), exclude_if=lambda tenants: not tenants)
    """What those who wait are to have, where the score asks for their shares."""
    simulated: bool = False
    """Whether a node of the pool has simulated GPUs."""


class StartErrors(Frozen):
    """How far starts that were told in advance were off, of those told about as long before."""

    within: Duration | None
    """They were told to be so soon at most, and later than those of the row before; None for all
    that were told to be later still."""
    jobs: int
    waiting: int
    """Of these wait still, though they were told to have started: they count as off by now."""
    median: Duration
    """Half of them were off by at most so much, to either side."""
    p90: Duration
    earlier: int
    """Jobs that started more than a minute before they were told to."""
    later: int
    with_range: int = 0
    """Jobs that were told between when and when, and of which it is known whether it held:"""
    in_range: int = 0
    """they started in it, or"""
    before_range: int = 0
    """more than a minute sooner; the rest later."""


class StartErrorsView(Frozen):
    """Estimates of a pool beside what came of them."""

    pool: str
    since: Instant
    rows: tuple[StartErrors, ...] = ()
    """The soonest first; without those of which there was none."""
    simulated: bool = False


class QueueMoment(Frozen):
    """How much of a pool waited and ran at one moment."""

    at: Instant
    """The end of a bucket; of the last one, which goes on, when it was read."""
    waiting: int | None
    """Jobs that the last cycle until then left waiting, without those that were held; None where
    no cycle of so long ago is on record."""
    running: int
    """Jobs that held GPUs; of an array its slots."""
    stops: int
    """Jobs that were told in this bucket to make room for another."""


class QueueHistory(Frozen):
    """How many jobs of a pool waited and ran over the last time."""

    pool: str
    since: Instant
    """When the first bucket begins."""
    every: Duration
    """How long a bucket is."""
    moments: tuple[QueueMoment, ...] = ()
    """The oldest first."""
    simulated: bool = False
    """Whether a node of the pool has simulated GPUs."""
