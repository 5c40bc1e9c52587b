"""What becomes of a DAG: its states, its jobs and its list, as people see them."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from longshore.models.base import Instant, Reason, Wire
from longshore.models.dag import Join, OnFailure
from longshore.models.dag_edges import Edge
from longshore.models.elements import ElementState
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass
from longshore.models.units import Duration

NOT_FOLLOWED = "no further job is submitted, and those that were go on"
"""Of a DAG that has not ended, and that no workflow follows."""


def mend_of_unfollowed(dag_id: str) -> str:
    """Return what to do with a DAG that no workflow follows."""
    return (
        f"`longshore dag retry {dag_id}` goes on with it; `longshore dag cancel {dag_id}` after "
        "that ends it"
    )


class DagState(StrEnum):
    """Where a DAG is in its life."""

    RUNNING = "RUNNING"
    """A job runs, waits, or is about to."""
    SUCCEEDED = "SUCCEEDED"
    """All jobs have ended, and each failure was caught."""
    FAILED = "FAILED"
    """All jobs have ended, and a failure was not caught."""
    CANCELLED = "CANCELLED"
    """Somebody cancelled it."""

    @property
    def ended(self) -> bool:
        return self is not DagState.RUNNING


class StepState(StrEnum):
    """Where a job of a DAG is, as its edges see it."""

    WAITING = "WAITING"
    """For the jobs that it comes after."""
    SUBMITTED = "SUBMITTED"
    """It was submitted, and has not ended."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    """After its first process had been started."""
    WITHDRAWN = "WITHDRAWN"
    """Cancelled before its first process was started."""
    SKIPPED = "SKIPPED"
    """Its conditions can hold no more."""

    @property
    def ended(self) -> bool:
        return self not in (StepState.WAITING, StepState.SUBMITTED)

    @property
    def ran(self) -> bool:
        """Whether a process of it was started, and it has ended."""
        return self in (StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED)


class HeldMutex(Wire):
    """A mutex that a job has."""

    name: str
    waiting: int
    """Jobs that wait for it and for nothing else but mutexes."""


class StepAttempt(Wire):
    """One attempt of a job of a DAG: from when to when it had GPUs."""

    attempt: int
    started_at: Instant
    ended_at: Instant | None = None
    """Null while it has them."""
    end_reason: str | None = None
    """Why it gave them up, such as finished, failed, preempted or node-lost."""


class DagJobView(Wire):
    """One job of a DAG, as people see it."""

    name: str
    after: dict[str, Edge]
    join: Join
    mutex: tuple[str, ...] = ()
    """Names that it asks for: one job at a time has each."""
    inputs: tuple[str, ...] = ()
    """Jobs whose outputs it gets."""
    output_bytes: int | None = None
    """Size of what it put out; null for nothing."""
    job_id: str | None = None
    """The job's id; null before it was submitted."""
    generation: int = 1
    """That of the DAG in which it was submitted last, or will be: 1 before its first retry."""
    step: StepState
    state: JobState | None = None
    """The job's own state; null before it was submitted."""
    failure: FailureClass | None = None
    exit_code: int | None = None
    reason: str = ""
    """What it waits for, why it was skipped, or how it ended."""
    gpus: int
    gpu_type: str | None = None
    array: str | None = None
    """Of an array: its indices, such as 0-7%2."""
    elements: dict[ElementState, int] | None = None
    """Of an array that was submitted: how many of its elements are in each state."""
    attempts: tuple[StepAttempt, ...] = ()
    """The last 50 of the job, oldest first; none of an array, whose slots have theirs."""
    simulated: bool = False
    """It runs, or ran last, on simulated GPUs."""
    submitted_at: Instant | None = None
    """When its conditions held."""
    started_at: Instant | None = None
    """When it was placed first."""
    ended_at: Instant | None = None
    gpu_time: Duration = timedelta(0)
    """GPUs times time that it has held, over its attempts."""
    booked_micro_usd: int = 0
    """Micro-dollars booked for it so far, on machines that were bought."""

    def took(self, now: datetime) -> timedelta | None:
        """Return how long it ran, or has run; of one in a queue how long it has waited. None of
        one that was never submitted, or has ended without having run."""
        start = self.started_at or (None if self.step.ended else self.submitted_at)
        return None if start is None else max((self.ended_at or now) - start, timedelta(0))


class DagSummary(Wire):
    """A DAG in a list."""

    id: str
    name: str
    tenant: str
    state: DagState
    held: bool = False
    """Starts no further job until it is released."""
    reason: Reason = ""
    submitted_at: Instant
    ended_at: Instant | None = None
    jobs: int
    simulated: bool = False
    """A job of it runs, or ran, on simulated GPUs."""
    counts: dict[StepState, int]
    """How many of its jobs are in each state."""
    submitted: dict[JobState, int] = Field(default_factory=dict[JobState, int])
    """Of those that are SUBMITTED: how many are in each state of a job. What is left of them is
    not on record yet."""
    followed: bool = True
    """False where it has not ended, and no workflow follows it: no further job is submitted."""


class DagView(DagSummary):
    """A DAG in full."""

    on_failure: OnFailure
    generation: int = 1
    """1, and one more for each retry."""
    steps: tuple[DagJobView, ...]
    """Its jobs, upstream first."""

    @property
    def gpu_time(self) -> timedelta:
        return sum((step.gpu_time for step in self.steps), timedelta(0))

    @property
    def booked_micro_usd(self) -> int:
        return sum(step.booked_micro_usd for step in self.steps)


class DagRetry(Wire):
    """What a retry of a DAG runs again."""

    dag_id: str
    jobs: tuple[str, ...]
    """Upstream first; none where it only goes on."""
    new: tuple[str, ...] = ()
    """Those that only the other file has."""
    changed: tuple[str, ...] = ()
    """Those that are another in the other file."""


class DagSubmission(Wire):
    """The answer to a submit."""

    dag_id: str
    created: bool
    """False where the same name and key had been submitted before."""
    warnings: tuple[str, ...] = ()
