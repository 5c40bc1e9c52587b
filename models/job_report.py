"""All that is known of one job: what `longshore job --json` prints and a page shows."""

from typing import Self

from models.base import Instant, Wire
from models.checkpoint import CheckpointInfo
from models.checkpointing import CheckpointDecision
from models.job import JobSpec, JobStatus
from models.messages import Progress
from models.spending import PurchaseUnderWay
from models.views import JobView


class AttemptShare(Wire):
    """What one attempt had of one node."""

    node_id: str
    rank: int = 0
    gpu_indices: tuple[int, ...]
    slices: int = 0
    """Of a MIG instance, its set of slices."""
    spare: bool = False
    """It stood by for its gang: nothing ran there."""
    simulated: bool = False
    """Whether the node's GPUs are simulated."""


class AttemptView(Wire):
    """One attempt as the capacity database has it: what it held, and why that ended."""

    attempt: int
    placed_at: Instant
    ended_at: Instant | None = None
    """When it gave up the last of its GPUs; null while it holds any."""
    end_reason: str | None = None
    """Why it gave them up, such as SUCCEEDED or PREEMPTED."""
    end_message: str = ""
    reason: str = ""
    """Why it was placed there."""
    shares: tuple[AttemptShare, ...]
    """By rank; spares follow."""


class JobReport(Wire):
    """One job in full."""

    job: JobView
    status: JobStatus | None = None
    """What its workflow says; null where that does not answer."""
    progress: Progress | None = None
    """What its process said last of itself."""
    spec: JobSpec
    """What was submitted."""
    attempts: tuple[AttemptView, ...] = ()
    """The last attempts, oldest first, at most 50."""
    checkpoint: CheckpointInfo | None = None
    """Its newest whole checkpoint in the checkpoint store."""
    saving: CheckpointDecision | None = None
    """What was decided last about a save while it runs."""
    purchases: tuple[PurchaseUnderWay, ...] = ()
    """While it waits: purchases under way that it is to start on."""
    missing: tuple[str, ...] = ()
    """What could not be asked, and why: a sentence for each."""

    def without_live(self, why: str) -> Self:
        """Return the report with why its workflow could not be asked."""
        said = f"what the database says, for lack of more: {why}"
        return self.model_copy(update={"missing": (*self.missing, said)})
