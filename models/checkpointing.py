"""When a running job is asked to save: what a pool allows, what threatens a job, what was decided.

`scheduling.checkpointing` decides. Costs are micro-dollars.
"""

from datetime import timedelta
from typing import Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant, Name, Wire
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.money import Money
from longshore.models.units import Duration

CHECKPOINT_WATCH_WORKFLOW = "CheckpointWatchWorkflow"
CHECKPOINT_WATCH_SCHEDULE = "longshore-checkpoint-watch"


class CheckpointPolicy(Frozen):
    """When a pool asks running jobs to save."""

    enabled: bool = True
    look_every: Duration = timedelta(minutes=1)
    """How often each job is looked at."""
    min_interval: Duration = timedelta(minutes=5)
    """A job is not asked again so soon after a save."""
    max_interval: Duration = timedelta(hours=6)
    """After so long without a save it is asked in any case."""
    margin: Duration = timedelta(seconds=60)
    """A save is done this long before a node goes."""
    failures_per_hour: float = Field(default=0.001, ge=0, le=1000)
    """How often a healthy node is lost, in an hour."""
    storage_price: Money = 100
    """What a GB of a save costs until the next takes its place: $0.02 a GB and month for four
    hours."""

    @model_validator(mode="after")
    def _intervals_in_order(self) -> Self:
        if self.min_interval > self.max_interval:
            raise ValueError("min_interval must not be longer than max_interval")
        return self


class Risks(Frozen):
    """What threatens a running job's work."""

    failures_per_hour: float = Field(default=0.0, ge=0)
    """Of all its nodes together: how often one of them is lost, in an hour."""
    ends_at: Instant | None = None
    """When the first of its nodes' time ends."""
    taken_at: Instant | None = None
    """When a market takes a machine back, where it has said so (spot)."""
    waiting_gpus: float = Field(default=0.0, ge=0)
    """GPUs that waiting jobs of higher classes want, and could have on its nodes."""
    exposed_gpus: float = Field(default=0.0, ge=0)
    """GPUs of all running jobs that those may take them from, with its own."""
    save_risk: float = Field(default=0.1, ge=0, le=1)
    """The share of saves that come to nothing when a job is stopped."""


class CheckpointTerm(Frozen):
    """One risk, with the chance that the unsaved work is lost to it."""

    name: str
    chance: float
    value: int
    """Micro-dollars: the chance times what the unsaved work cost."""


class CheckpointDecision(Frozen):
    """Whether a running job is to save now. Amounts are micro-dollars."""

    job_id: str
    at: Instant
    save: bool
    unsaved: Duration = timedelta(0)
    """Since its last save."""
    lost_gpu_seconds: float = 0.0
    """GPU-seconds that are in no save."""
    terms: tuple[CheckpointTerm, ...] = ()
    value: int = 0
    """What it is worth to have saved."""
    write: int = 0
    """GPUs that are paid while it saves."""
    storage: int = 0
    reason: str
    """The answer in one sentence."""

    @property
    def cost(self) -> int:
        return self.write + self.storage


class NodeSave(Wire):
    """A save that one node is asked for; of a gang, each of its nodes."""

    node_id: Name
    request: SaveRequest


class CheckpointLook(Wire):
    """What one look at all running jobs that can save came to."""

    looked: int = 0
    """Jobs."""
    saves: tuple[NodeSave, ...] = ()
    away: dict[str, str] = Field(default_factory=dict[str, str])
    """By pool: why the checkpoint store cannot be read."""


class UnstoredSaves(Wire):
    """What jobs saved elsewhere than in the checkpoint store: of each job the moment of one of its
    nodes."""

    saves: tuple[CheckpointInfo, ...]


class CheckpointWatchReport(Wire):
    """Result of `CheckpointWatchWorkflow`."""

    looked: int
    asked: tuple[str, ...] = ()
    """Jobs that were asked to save."""
    failed: dict[str, str] = Field(default_factory=dict[str, str])
    """By job: why it did not."""
    away: dict[str, str] = Field(default_factory=dict[str, str])
