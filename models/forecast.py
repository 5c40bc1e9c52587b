"""What a submit says of a job before it is in a queue."""

from enum import StrEnum

from pydantic import Field

from longshore.models.base import Instant, Reason, Wire
from longshore.models.deadline import DeadlineCost, DeadlineJudgment
from longshore.models.start_range import StartRange
from longshore.models.units import Duration


class ForecastKind(StrEnum):
    """What would become of the job now."""

    STARTS = "starts"
    """A node has room for it."""
    PREEMPTS = "preempts"
    """Jobs that run are stopped for it."""
    BUYS = "buys"
    """Its pool would buy machines for it."""
    WAITS = "waits"
    """For room, for a price, for a quota of its tenant, or for a budget that pays."""
    REFUSED = "refused"
    """Its pool never takes it, for a quota or a sponsor."""


class NodePrice(Wire):
    """What a node that was bought costs."""

    micro_per_gpu_hour: int
    by_use: bool = False
    """Billed as it runs; else its time is paid for."""
    paid_until: Instant | None = None
    gpus: int = 0
    """All that the node has: a job that holds it alone pays for them."""


class Forecast(Wire):
    """What would become of a job if it were submitted now, and what that would cost."""

    kind: ForecastKind
    says: Reason
    """The answer in one sentence."""
    expected_micro_usd: int | None = None
    """What is committed for it, at the prices seen; 0 where its GPUs are there and paid for, null
    where nobody knows."""
    most_micro_usd: int | None = None
    """The most that this may come to."""
    ready_at: Instant | None = None
    """When its GPUs are expected; null where nobody knows."""
    start_range: StartRange | None = Field(default=None, exclude_if=lambda one: one is None)
    """Between when and when that probably is, of a job that waits for what runs."""
    start_kept: bool = Field(default=True, exclude_if=lambda kept: kept)
    """Whether a place would be kept for it from `ready_at` on: else each newcomer that goes first
    moves that."""
    begins_at: Instant | None = None
    """Its `begin`, where that is to come: then the amounts are not known."""
    deadline: DeadlineJudgment | None = None
    """How it would stand to its deadline; null for one without."""
    meeting: DeadlineCost | None = None
    """Where that is not met by waiting: what it costs to meet it."""
    buys_later: bool = False
    """True where its pool may buy for it later, at prices that nobody knows yet."""
    not_known: Reason = ""
    """Why it is not known what would be bought, as where no market answers."""
    simulated: bool = False
    """True where nodes that it would start on, or those of its pool where it would wait, have
    simulated GPUs, or the prices are those of a simulated market."""
    simulated_market: bool = False
    """True where the prices are those of a simulated market."""
    assumed_duration: Duration | None = None
    """For how long it is taken to run where machines would be bought, and it does not say."""

    @property
    def told(self) -> str:
        """The answer, and that its prices are simulated where they are."""
        return f"{self.says}{' (at a simulated market)' if self.simulated_market else ''}"
