"""How a pool packs: by which rule, with which weights."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen
from longshore.models.bounds import Range
from longshore.models.counts import DIGITS, Count
from longshore.models.funding import PaidOn, PoolFunding
from longshore.models.gang import GangPacking
from longshore.models.job import Tier
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.money import Money
from longshore.models.score import InTree, ScorePolicy
from longshore.models.units import Duration

_NONE: Mapping[str, str] = MappingProxyType({})
_MOST_WEIGHT = 1e6
"""So far that no sum of terms is an infinity, nor forgets the smaller ones."""


class PackingRule(StrEnum):
    """By what a cycle ranks the nodes that could take a job. See docs/architecture.md."""

    SEED_SCORE = "seed-score"
    """GPU memory in use, gaps between the GPUs, expiry and provider, by the pool's weights."""
    BEST_FIT = "best-fit"
    """Least cores and GPUs left, half and half."""
    TIGHT = "tight"
    """Fewest GPUs free, then the fewest cores."""
    FGD = "fgd"
    """What is left serves the usual jobs best (fragmentation gradient descent)."""
    PACK_TO_EMPTY = "pack-to-empty"
    """Shared GPUs first, then nodes in use, then empty ones."""
    KEEP_ROOM = "keep-room"
    """What is left keeps most room for the jobs that come, where room is scarce."""

    @property
    def learns(self) -> bool:
        """Whether it looks at the jobs that are to be expected."""
        return self in (PackingRule.KEEP_ROOM, PackingRule.FGD)


class GPUChoice(StrEnum):
    """Which of a node's free GPUs a job gets."""

    CONTIGUOUS = "contiguous"
    """The run with the fewest gaps; then the one that leaves the longest runs; then the lowest."""
    FIRST_FREE = "first-free"
    """The first by index, as the seed's code does; kept for comparison."""


class QueueOrder(StrEnum):
    """By what the jobs of one class are in order. See docs/queue.md."""

    AGE = "age"
    """The oldest first."""
    ATTAINED_SERVICE = "attained-service"
    """By rank: who has run least so far comes first, and running jobs that save yield to those of
    twice their rank."""


Weight = Annotated[
    float, Field(allow_inf_nan=False), Range(-_MOST_WEIGHT, _MOST_WEIGHT, on_arrival=False)
]


class ScoreWeights(Frozen):
    """Weights of the placement score (seed document on bin packing)."""

    utilization: Weight = 1.0
    fragmentation: Weight = -0.5
    expiry: Weight = -0.3
    provider: Weight = 0.2
    locality: Weight = Field(default=0.2, ge=0)
    """For a node that holds all data that the job reads: in the scale of the rule, with
    `keep-room` in GPUs."""
    links: Weight = Field(default=0.1, ge=0)
    """For a node where the slowest link between the job's GPUs is as fast as NVSwitch; for slower
    ones their part of it, and nothing where links are not known. In the scale of the rule."""
    separation: Weight = Field(default=0.0, ge=0)
    """For a node where what runs ends just when the job will, so that whole nodes come free
    together: short jobs beside short ones, long beside long. In the scale of the rule; long queues
    take longer to decide with it."""
    critical_path: Weight = Field(default=0.0, ge=0, le=100_000)
    """Not of the score, but of the order of the queue, in hours: a job of a DAG goes before those
    of its class that have waited so much longer, times the part of the DAG's longest path that is
    behind it. Paths are reckoned by expected durations."""


class PackingPolicy(Frozen):
    """How a pool packs."""

    rule: PackingRule = PackingRule.SEED_SCORE
    """By what nodes are ranked for jobs on one node."""
    weights: ScoreWeights = ScoreWeights()
    safety_margin: Duration = timedelta(seconds=300)
    """A node must outlive the job's expected duration by this much."""
    gpu_choice: GPUChoice = GPUChoice.CONTIGUOUS
    max_reservations: Annotated[int, Field(ge=0, le=1000), DIGITS] | None = Field(
        default=None, exclude_if=lambda most: most is None
    )
    """Deferred jobs of each tier that a cycle keeps a start for; 0 lets any job overtake. None has
    8 where the order is by age, and 16 where it is by rank."""
    order: QueueOrder | None = Field(default=None, exclude_if=lambda order: order is None)
    """By what the jobs of one class are in order: `age` where nothing is said, or as the profile
    of the score is for."""
    score: ScorePolicy | None = Field(default=None, exclude_if=lambda score: score is None)
    """What else counts in the order of a class, and how much (docs/score.md); nothing when left
    out."""
    class_rises_every: Duration = timedelta(days=30)
    """A job that has waited so long counts as one of the next class in the order of the queue, and
    of the class after that when it has waited twice as long; 0 has nothing rise."""
    unstoppable_least: Duration = Field(default=timedelta(0), exclude_if=lambda least: not least)
    """A job that cannot be stopped counts in its rank as one that runs for so long at least,
    whatever it states: what it costs to say that one cannot save."""
    gang_packing: GangPacking = GangPacking.BEST_FIT
    """How domains and nodes are chosen for jobs that span nodes."""
    margins: Margins = Field(default=DEFAULT_MARGINS, exclude=True)
    """How early jobs are asked to leave a node that ends. A pool has those of the settings,
    whatever is written here: they are not stored with it."""
    owned_gpu_price: Money = Field(default=2_000_000, exclude=True)
    """A GPU-hour of a node that was not bought, where a reason names dollars. A pool takes it
    from its preemption policy."""
    delay_price: dict[Tier, Money] = Field(default_factory=dict[Tier, int], exclude=True)
    """What an hour of waiting costs for each GPU, by tier; every tier alike where none is named. A
    pool takes it from its preemption policy."""
    usage: dict[str, float] = Field(default_factory=dict[str, float], exclude=True)
    """GPU-seconds that each tenant has had of late, where the score asks for its share. Who plans
    reads them."""
    tree: dict[str, InTree] = Field(default_factory=dict[str, InTree], exclude=True)
    """The tenants that somebody has told something about, read with `usage`."""
    energy_price: float | None = Field(default=None, exclude=True)
    """What energy costs now, as a part of the most that it may cost; None where nobody knows. Who
    plans reads it."""
    copies: dict[str, Count] = Field(default_factory=dict[str, int], exclude=True)
    """Of jobs that wait and only fill what is free: how many copies of what each serves come
    before it, and more for one that is behind the others. Who plans reads them."""
    turns: tuple[str, ...] = Field(default=(), exclude=True)
    """Engines that wait and for which another was stopped; who has waited longest first. Who plans
    reads them."""
    funding: PoolFunding | None = Field(default=None, exclude=True)
    """Who pays for the pool's jobs; None where no tenant has a budget. Who plans reads it."""

    @model_validator(mode="after")
    def _order_agrees(self) -> Self:
        order = self.order
        if self.score is None:
            # As it was before there were scores: `age` is not written.
            order = None if order is QueueOrder.AGE else order
        elif order is None:
            profile = self.score.profile
            stops = profile is not None and profile.stops
            order = QueueOrder.ATTAINED_SERVICE if stops else QueueOrder.AGE
        # It is being made: from here on it is frozen.
        object.__setattr__(self, "order", order)
        if self.by_rank and self.score and not self.score.used.waiting:
            raise ValueError(
                "order: `attained-service` ranks jobs by their waiting, for which the score gives "
                "nothing: give waiting a weight, or the order `age`"
            )
        return self

    @property
    def in_order(self) -> QueueOrder:
        """By what the jobs of one class are in order."""
        return self.order or QueueOrder.AGE

    @property
    def starts_kept(self) -> int:
        """For how many deferred jobs of each tier a cycle keeps a start.

        By rank a wide job is seldom the first that waits: with 8 such jobs wait a tenth longer
        than with 16 (docs/decisions/0092-starts-kept-by-rank.md).
        """
        if self.max_reservations is not None:
            return self.max_reservations
        return 16 if self.by_rank else 8

    @property
    def by_rank(self) -> bool:
        """Whether the jobs of a class go by rank, and running ones yield to others of it."""
        return self.order is QueueOrder.ATTAINED_SERVICE

    @property
    def as_set(self) -> Self:
        """The policy without what is read anew for each plan."""
        now: dict[str, Any] = {
            "usage": {}, "tree": {}, "energy_price": None, "copies": {}, "turns": (),
            "funding": None,
        }  # fmt: skip
        if all(getattr(self, name) == value for name, value in now.items()):
            return self
        return self.model_copy(update=now)

    @property
    def unfunded(self) -> Mapping[str, str]:
        """Why nobody would pay for it, of jobs that wait."""
        return self.funding.unfunded if self.funding else _NONE

    @property
    def paid_on(self) -> Collection[PaidOn]:
        """On what nodes somebody pays for jobs, of those for which that is not so on all."""
        return self.funding.only_on.values() if self.funding else ()

    def is_paid_for(self, job_id: str) -> bool:
        """Return whether somebody pays for a job that runs, or would for one that waits: for no
        other is time bought."""
        return self.funding is None or self.funding.of(job_id).funded

    def most_paid_for(self, job_id: str) -> int | None:
        """Return the largest size of a malleable job that somebody pays for; None where who pays
        keeps it from none of its sizes."""
        return self.funding.sizes.get(job_id) if self.funding else None

    def factor(self, tenant: str | None) -> float:
        """Return by what the jobs of a tenant count in the order of a class."""
        return 1.0 if self.funding is None or tenant is None else self.funding.of_tenant(tenant)

    @property
    def by_terms(self) -> bool:
        """Whether more than waiting puts the jobs of a class into order."""
        return self.score is not None and self.score.used.order

    @property
    def reads_data(self) -> bool:
        """Whether it matters what nodes hold."""
        return bool(self.weights.locality or (self.score and self.score.used.data))

    @property
    def ranks_by_data(self) -> bool:
        """Whether jobs that run yield by what nodes hold of their data and of others'."""
        return self.by_rank and self.score is not None and bool(self.score.used.data)
