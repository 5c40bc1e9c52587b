"""The score of a queue: nine named terms, and how much a pool gives for each.

The terms, their ranges and the named profiles are those of the seed on the knapsack algorithm.
What a job has of each is in `scheduling.score`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from longshore.models.base import Frozen, Name
from longshore.models.bounds import Most, is_taken
from longshore.models.units import Duration
from longshore.models.visible import brief

_EXACT = 1e-6
"""So close to one the weights have to sum."""
_MOST_TENANTS = 1000
LEAST_SHARES, MOST_SHARES = 1e-6, 1_000_000
"""Of a tenant beside its siblings: what is reckoned from them is no infinity, and no zero."""


def _finite(weight: float) -> float:
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(f"is {weight:g}: give a finite number from 0 to 1")
    return weight


TermWeight = Annotated[
    float, AfterValidator(_finite), Field(json_schema_extra={"minimum": 0, "maximum": 1})
]
Part = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class TermWeights(Frozen):
    """What a pool gives for each of the nine terms. They sum to one."""

    priority: TermWeight = 0.0
    """The class of the job."""
    waiting: TermWeight = 0.0
    """How long it has waited."""
    fair_share: TermWeight = 0.0
    """By how much its tenant has had less than its share of late."""
    topology: TermWeight = 0.0
    """How close together its GPUs can be."""
    data: TermWeight = 0.0
    """The part of its data that a node of the pool holds."""
    backlog: TermWeight = 0.0
    """How much waits in the pool for what runs: the same for all of its jobs."""
    energy: TermWeight = 0.0
    """How cheap energy is now: the same for all jobs."""
    checkpoint: TermWeight = 0.0
    """How cheaply it can be stopped."""
    conformance: TermWeight = 0.0
    """How many of the nodes that it needs have one fingerprint."""

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = sum(weight for _, weight in self.named())
        if abs(total - 1) > _EXACT:
            raise ValueError(
                f"the nine weights sum to {total:.6g}: they have to sum to 1, one that is left "
                "out counting as 0"
            )
        return self

    def named(self) -> Iterator[tuple[str, float]]:
        """Yield each weight with its name, in the order of the seed."""
        for name in TERMS:
            yield name, getattr(self, name)

    @property
    def order(self) -> bool:
        """Whether they put jobs of one class into another order than waiting does."""
        return any(getattr(self, name) for name in DIFFERING)


TERMS = tuple(TermWeights.model_fields)
"""f1 to f9 of the seed."""
DIFFERING = ("fair_share", "topology", "data", "checkpoint", "conformance")
"""The terms, beside waiting, in which jobs of one class may differ."""


class ScoreProfile(StrEnum):
    """A named set of weights."""

    HPC_BATCH = "hpc-batch"
    ML_TRAINING = "ml-training"
    SERVICE = "service"
    SENSITIVE = "sensitive"
    INTERACTIVE = "interactive"
    BALANCED = "balanced"

    @property
    def weights(self) -> TermWeights:
        return _PROFILES[self]

    @property
    def stops(self) -> bool:
        """Whether running jobs of a pool yield to others of their class unless it says
        otherwise."""
        return self in _STOPS


def _weights(*values: float) -> TermWeights:
    return TermWeights(**dict(zip(TERMS, values, strict=True)))


_PROFILES = {
    ScoreProfile.HPC_BATCH: _weights(0.15, 0.20, 0.20, 0.15, 0.10, 0.05, 0.00, 0.05, 0.10),
    ScoreProfile.ML_TRAINING: _weights(0.10, 0.10, 0.10, 0.25, 0.15, 0.05, 0.05, 0.10, 0.10),
    ScoreProfile.SERVICE: _weights(0.15, 0.05, 0.10, 0.05, 0.10, 0.05, 0.10, 0.10, 0.30),
    ScoreProfile.SENSITIVE: _weights(0.90, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.10),
    ScoreProfile.INTERACTIVE: _weights(0.10, 0.30, 0.10, 0.00, 0.05, 0.15, 0.00, 0.00, 0.30),
    ScoreProfile.BALANCED: _weights(0.20, 0.20, 0.20, 0.15, 0.10, 0.05, 0.00, 0.00, 0.10),
}
_STOPS = (ScoreProfile.ML_TRAINING, ScoreProfile.INTERACTIVE, ScoreProfile.BALANCED)


def _shares(shares: dict[str, float], info: ValidationInfo) -> dict[str, float]:
    for tenant, share in shares.items():
        if not is_taken(info) and not LEAST_SHARES <= share <= MOST_SHARES:
            raise ValueError(
                f"{brief(tenant)} has {share:g}: give a number from {LEAST_SHARES:f} to "
                f"{MOST_SHARES:,}, such as 2 for twice the share of a tenant that is not named"
            )
    return shares


@dataclass(frozen=True)
class InTree:
    """Where a tenant is in the tree, as far as the score asks."""

    parent: str | None = None
    shares: float = 1.0
    """Beside its siblings."""


class TenantPart(Frozen):
    """What a tenant is to have of a pool beside others with work, and what it had of late."""

    tenant: str
    target: float
    """As a part of the pool."""
    actual: float
    """What it had itself, of all GPU time that tenants had."""
    whence: str
    """By whose shares, from the tenant up."""


Share = Annotated[
    float, Field(json_schema_extra={"minimum": LEAST_SHARES, "maximum": MOST_SHARES})
]
Shares = Annotated[dict[Name, Share], AfterValidator(_shares), Most(_MOST_TENANTS)]


class ScorePolicy(Frozen):
    """How a pool scores the jobs of its queue: by a profile, or by weights of its own."""

    profile: ScoreProfile | None = Field(default=None, exclude_if=lambda one: one is None)
    """The name of a set of weights."""
    weights: TermWeights | None = Field(default=None, exclude_if=lambda one: one is None)
    """Own weights, in place of a profile."""
    shares: Shares = Field(default_factory=dict)
    """What tenants are to have beside their siblings, in place of the shares that the tree of
    tenants says."""
    half_life: Duration = timedelta(days=7)
    """GPU time that a tenant had so long ago counts half for its share."""
    burst: Part = 0.0
    """In a pool that is used little a tenant may have so much more than its share: all of it in an
    empty one, nothing where four fifths of the GPUs are in use."""
    start_above: Part | None = None
    """A job whose score is below does not start."""
    buy_above: Part | None = None
    """Nothing is bought for a job whose score is below."""

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, given: Any) -> Any:
        if isinstance(given, dict):
            both = [name for name in ("profile", "weights") if given.get(name) is not None]  # pyright: ignore[reportUnknownMemberType]
            if len(both) != 1:
                raise ValueError(
                    "give a `profile` or `weights`, one of the two: profiles are "
                    f"{', '.join(ScoreProfile)}"
                )
        return given  # pyright: ignore[reportUnknownVariableType]

    @model_validator(mode="after")
    def _time_passes(self) -> Self:
        if self.half_life <= timedelta(0):
            raise ValueError("half_life: must be longer than 0, such as 7d")
        return self

    @property
    def used(self) -> TermWeights:
        """The weights that count."""
        if self.weights is not None:
            return self.weights
        assert self.profile is not None
        return self.profile.weights

    @property
    def by_share(self) -> bool:
        """Whether it matters what tenants have had."""
        return self.used.fair_share > 0

    @property
    def holds_back(self) -> bool:
        """Whether a job may wait for its score alone."""
        return self.start_above is not None
