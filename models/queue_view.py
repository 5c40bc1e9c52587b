"""The queue of a pool as people see it."""

from pydantic import Field

from longshore.models.base import Frozen, Instant
from longshore.models.packing import QueueOrder
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
    terms: RankTerms | None = None
    """Where the pool goes by rank."""
    starts_at: Instant | None = None
    """By the last cycle: a start that is kept for it, as far as running jobs end when expected."""
    reason: str = ""
    """Why it waits, by the last cycle."""


class QueueView(Frozen):
    """A pool's queue."""

    pool: str
    order: QueueOrder
    jobs: tuple[QueuedJobView, ...] = Field(default=())
    """In order; those that are set aside last."""
    simulated: bool = False
    """Whether a node of the pool has simulated GPUs."""
