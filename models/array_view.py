"""Arrays and their elements as people see them."""

from longshore.models.base import Instant, Wire
from longshore.models.elements import ElementState, Span
from longshore.models.retry import FailureClass


class ErrorGroup(Wire):
    """Elements that failed alike: the same exit code, and the same last line but for numbers."""

    failure: FailureClass | None = None
    exit_code: int | None = None
    message: str
    """Of the first of them."""
    elements: int
    indices: str
    """In short, such as 3-5,9."""


class SlotsAside(Wire):
    """Slots that no cycle could plan: none of them is tried again before some minutes are over."""

    slots: int
    first: str
    """The job id of one of them."""
    reason: str
    """Of that one."""


class ArrayView(Wire):
    """What `job` shows of an array beside what it shows of each job."""

    elements: int
    first: int
    last: int
    counts: dict[ElementState, int]
    """RUNNING are those in the hands of slots."""
    claimed: int = 0
    """Of those that are RUNNING, the ones that do not run: their slots run others."""
    attempts: int
    """Attempts of elements so far, over all."""
    limit: int
    """Slots that it may have at a time."""
    slots: int
    """Slots that have not ended."""
    placed: int
    """Of these, those that have GPUs."""
    waiting_slot: str | None = None
    """A slot that waits for GPUs, to ask `why` about."""
    aside: SlotsAside | None = None
    """Those of the slots without GPUs that are set aside."""
    generation: int = 1
    """1, and one more for each retry."""
    errors: tuple[ErrorGroup, ...] = ()
    """Elements that have failed, the largest groups first, at most 20."""


class ElementView(Wire):
    """One attempt of one element."""

    index: int
    attempt: int
    newest: bool = True
    """False where another attempt came after it."""
    state: ElementState
    failure: FailureClass | None = None
    exit_code: int | None = None
    message: str = ""
    variables: dict[str, str] | None = None
    job_id: str | None = None
    """The slot that has or had it."""
    node_id: str | None = None
    batch: int | None = None
    alone: bool = False
    """It is the only one of its batch."""
    job_attempt: int | None = None
    started_at: Instant | None = None
    ended_at: Instant | None = None
    stdout: Span | None = None
    """Where its output is in that of its batch; null before the batch has ended."""
    stderr: Span | None = None
