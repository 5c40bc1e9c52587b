"""All that is known of one job: what `longshore job --json` prints and a page shows."""

from typing import Self

from longshore.models.array_view import ArrayView
from longshore.models.base import Wire
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.checkpointing import CheckpointDecision
from longshore.models.data import StagedData
from longshore.models.funding_use import Payers
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState, JobStatus
from longshore.models.node_messages import Progress
from longshore.models.spending import PurchaseUnderWay
from longshore.models.views import AttemptView, JobView


class JobReport(Wire):
    """One job in full."""

    job: JobView
    status: JobStatus | None = None
    """What its workflow says; null where that does not answer."""
    progress: Progress | None = None
    """What its process said last of itself."""
    spec: JobSpec | None = None
    """What was submitted; null where what is stored of it cannot be read, which `missing` says."""
    attempts: tuple[AttemptView, ...] = ()
    """The last attempts, oldest first, at most 50."""
    checkpoint: CheckpointInfo | None = None
    """Its newest whole checkpoint in the checkpoint store."""
    saving: CheckpointDecision | None = None
    """What was decided last about a save while it runs."""
    purchases: tuple[PurchaseUnderWay, ...] = ()
    """While it waits: purchases under way that it is to start on."""
    not_bought: str = ""
    """While it waits: why its pool, which may buy, buys nothing for it; empty where it buys."""
    not_ready: tuple[str, ...] = ()
    """While it waits and nodes of its pool take no jobs: which, and why."""
    data: tuple[StagedData, ...] = ()
    """Of what nodes fetch for it: how much is where it runs, or is expected to start."""
    array: ArrayView | None = None
    """Of an array: its elements and slots."""
    stderr_tail: tuple[str, ...] = ()
    """Of a job that failed: the last lines that it wrote to stderr, at most 10."""
    payers: Payers | None = None
    """Who pays for it, and who has; null where no tenant has a budget."""
    missing: tuple[str, ...] = ()
    """What could not be asked, and why: a sentence for each."""

    @property
    def state(self) -> JobState:
        """Its state as its workflow says, or else its record."""
        return self.status.state if self.status else self.job.state

    def without_live(self, why: str) -> Self:
        """Return the report with why its workflow could not be asked."""
        said = f"the last stored state, as the workflow cannot be asked: {why}"
        return self.model_copy(update={"missing": (*self.missing, said)})
