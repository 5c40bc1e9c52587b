"""Growth of a running malleable job onto idle GPUs: what it is decided from, and what was decided.

Prices are micro-dollars per GPU-hour, costs micro-dollars. `scheduling.growth` decides.
"""

from pydantic import Field

from longshore.models.base import Frozen, Instant, Reason, Wire
from longshore.models.elastic import Malleable
from longshore.models.job_request import JobRequest
from longshore.models.money import Money
from longshore.models.preemption import RunningWork


class RankChange(Frozen):
    """A rank that left an attempt which went on, or joined it."""

    at: Instant
    gpus: int
    """Below zero where it joined."""


class SpeedUp(Frozen):
    """What the checkpoints of a job show of its speed on more GPUs."""

    serial_fraction: float = Field(ge=0, le=1)
    """As `Malleable.serial_fraction`, measured."""
    sizes: tuple[int, ...]
    """GPUs on which it was measured, the fewest first."""


class Elastic(Frozen):
    """A malleable job that runs on fewer GPUs than it is to have."""

    work: RunningWork
    asked: JobRequest
    """As its next attempt would stand in the queue, with all of its sizes."""
    done: float = Field(default=0.0, ge=0)
    """What earlier attempts saved: seconds that one GPU would have needed for it."""
    changed_at: tuple[Instant, ...] = ()
    """When it changed its size or was preempted lately, oldest first."""
    rank_changes: tuple[RankChange, ...] = ()
    """The ranks that have left or joined its attempt, oldest first."""
    measured: SpeedUp | None = None
    """Counts in place of the fraction that its job file says."""

    @property
    def id(self) -> str:
        return self.work.id

    @property
    def sizes(self) -> Malleable:
        assert self.asked.malleable is not None
        if self.measured is None:
            return self.asked.malleable
        fraction = {"serial_fraction": self.measured.serial_fraction}
        return self.asked.malleable.model_copy(update=fraction)

    @property
    def in_place(self) -> bool:
        """Whether it grows without a stop."""
        return self.sizes.in_place and self.asked.gang is not None

    @property
    def gpus(self) -> int:
        """Its size."""
        return sum(len(share.gpu_indices) for share in self.work.shares if not share.spare)

    @property
    def gpus_by_node(self) -> dict[str, int]:
        """How many GPUs it has of each of its nodes."""
        return {share.node_id: len(share.gpu_indices) for share in self.work.shares}

    @property
    def held(self) -> frozenset[tuple[str, int]]:
        """Its GPUs by node and index, with those of its spares."""
        shares = self.work.shares
        return frozenset((each.node_id, gpu) for each in shares for gpu in each.gpu_indices)


class IdleNode(Frozen):
    """What the idle GPUs of a node cost, and since when they are idle."""

    price: Money = 0
    """What each would bring otherwise, an hour: its price where it is billed as it runs, its
    resale where its time is paid, nothing where it was not bought."""
    ready_since: Instant
    """Since when the node is registered."""
    freed_at: dict[int, Instant] = Field(default_factory=dict[int, Instant])
    """By GPU: when a job gave it back last, where that was lately."""


class GrowthDecision(Frozen):
    """Whether a running job gets more GPUs now, which number, and why. Amounts are
    micro-dollars."""

    job_id: str
    attempt: int
    at: Instant
    gpus: int
    """What it has."""
    desired: int
    to: int | None = None
    """The size with which it starts again, where it grows; else the one that was looked at, if
    any."""
    grows: bool = False
    earns: int = 0
    """What the time is worth by which it ends sooner."""
    stop: int = 0
    """Work in no save, the save, and the start, on all of its GPUs."""
    added: int = 0
    """What its new GPUs would have brought otherwise."""
    again: Instant | None = None
    """When the answer may be another, where time alone is what it waits for."""
    settled: bool = False
    """The answer stays the same for this attempt."""
    reason: str
    """The answer in words."""

    @property
    def cost(self) -> int:
        return self.stop + self.added

    @property
    def outlook(self) -> str:
        """The answer of a look that did nothing about it."""
        return f"would be {self.reason}" if self.grows else self.reason


class Growing(Wire):
    """Signal `grow` to a job: this attempt goes from `gpus_before` to `gpus` GPUs, in place where
    the job changes its size so.

    For any other attempt, and for a size that is none of its own any more, it changes nothing.
    """

    attempt: int
    gpus_before: int
    gpus: int
    reason: Reason
