"""What travels between an array's workflow, its slots, their activities and the client."""

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from longshore.models.base import Input, Instant, Reason, Wire
from longshore.models.elements import Batch, BatchReport, ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import JobInput
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass


class ArrayInput(JobInput):
    """Input of `ArrayWorkflow`; the array's id is the workflow id without `job-`."""

    instead: ClassVar[str] = 'give an input: {"spec": {...}}, with a job file with array as spec'
    retry: tuple[ElementState, ...] = ()
    """Run those again that ended so, of an array that has ended."""
    poked: bool = False
    submitted_at: Instant | None = None
    """Of a run that continues another; null of the first."""
    max_looks_per_run: int = Field(default=400, ge=1)

    def _not_for_this_workflow(self) -> str:
        array = self.spec.array
        if array is None:
            return "spec.array: is missing: JobWorkflow runs a single job"
        if array.table is not None:
            return (
                f"spec.array.table: {array.table} is a file of whoever submits: `longshore "
                "submit` reads it; here give its columns and rows"
            )
        return ""


def job_input(spec: JobSpec, *, key: str | None = None, held: bool = False) -> JobInput:
    """Return what the workflow of a job or an array is started with (`workflow_of`)."""
    kind = JobInput if spec.array is None else ArrayInput
    return kind(spec=spec, key=key, held=held)


class OpenArray(Wire):
    """Put an array on record, or open again what a retry runs."""

    array_id: str
    job: JobInput
    retry: tuple[ElementState, ...] = ()
    submitted_at: Instant


class OpenedArray(Wire):
    refusal: str = ""
    """Why it is not begun."""
    other: bool = False
    """What is on record under its id is another's."""


class AdvanceArray(Wire):
    """Look at the slots and elements of an array, and do what follows."""

    array_id: str
    held: bool = False
    begins_at: Instant | None = None
    """Its `begin`, as long as that is to come."""
    cancelled: Reason | None = None
    path_behind: float = 0.0
    """Of its slots, as in `JobInput`."""
    check: bool = False
    """Ask Temporal too about slots that have not come into a queue."""


class ArrayProgress(Wire):
    """Where an array is after a look."""

    state: JobState
    """RUNNING until it has ended."""
    counts: dict[ElementState, int] = Field(default_factory=dict[ElementState, int])
    claimed: int = 0
    """Of those that are RUNNING, the ones that do not run: their slots run others."""
    slots: int = 0
    """Slots that have not ended."""
    placed: int = 0
    """Of these, those that have had elements."""
    reason: Reason = ""
    failure: FailureClass | None = None
    again: bool = False
    """There is more to do at once."""
    wake_at: datetime | None = None
    started: bool = False
    """An element has been started."""
    ended_at: Instant | None = None


class ClaimRequest(Wire):
    """Record what became of a slot's last batch, and claim the next."""

    array_id: str
    key: PlacementKey
    """The slot's job, and its attempt."""
    batch: int
    """Number of the batch to claim; the one before it is what `report` is about."""
    report: BatchReport | None = None
    """None before the first batch."""
    stopped_as: FailureClass | None = None
    """The class of what ended the batch before its end; None for success, a hold or a move."""
    message: Reason = ""
    """What ended it."""
    cancelled: bool = False
    """The slot was cancelled."""
    want: bool = True
    """False where the slot takes no more."""


class ClaimReply(Wire):
    batch: Batch | None = None
    """None where nothing is to be had: the slot ends."""
    reason: Reason = ""


class ElementsRequest(Input):
    """Of an update `cancel_elements`: which, as 3-9,12, and why."""

    instead: ClassVar[str] = 'give an input: {"indices": "3-9,12", "reason": "WHY"}'
    indices: str
    reason: Reason = ""


class CancelElements(Wire):
    array_id: str
    indices: str
    reason: Reason = ""


class ElementsReply(Wire):
    """What became of a request to cancel elements."""

    refusal: str = ""
    waiting: int = 0
    """That waited: they are cancelled."""
    running: int = 0
    """In the hands of slots: they are stopped, or left out."""
    ended: int = 0
    """Had ended before."""


class StopElements(Wire):
    """Signal to a slot, and input of the activity `stop_elements`: some of a batch are
    cancelled."""

    key: PlacementKey
    """The slot's job and attempt; on the node, of the batch."""
    batch: int
    indices: tuple[int, ...]
    reason: Reason = ""
