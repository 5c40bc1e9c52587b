"""What becomes of a job: its states, its attempts and how it ended."""

from enum import StrEnum

from longshore.models.base import Instant, Reason, Wire
from longshore.models.retry import FailureClass


class JobState(StrEnum):
    """Where a job is in its life."""

    SUBMITTED = "SUBMITTED"
    """Started, not yet in a queue."""
    QUEUED = "QUEUED"
    """Waits for a placement."""
    HELD = "HELD"
    """Kept out of placement: until somebody releases it, or until its `begin`."""
    RUNNING = "RUNNING"
    """Placed; its process is being started, or runs."""
    STOPPING = "STOPPING"
    """Asked to stop; its process has not ended yet."""
    RETRYING = "RETRYING"
    """Between attempts, waiting out a backoff."""
    SUCCEEDED = "SUCCEEDED"
    """Its process ended with exit code 0."""
    FAILED = "FAILED"
    """An attempt failed and no retry was left, or no attempt could begin."""
    CANCELLED = "CANCELLED"
    """Somebody cancelled it."""

    @property
    def ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class AttemptRecord(Wire):
    """One placement of a job, from start to stop."""

    attempt: int
    node_id: str
    """Of a gang, the node of rank 0."""
    gpu_indices: tuple[int, ...]
    placed_at: Instant
    other_nodes: tuple[str, ...] = ()
    """Of a gang, its other nodes by rank; those that joined it while it ran follow."""
    other_gpus: tuple[tuple[int, ...], ...] = ()
    """What it had of each of these; none in a record of an older version."""
    left: tuple[str, ...] = ()
    """Of its other nodes, those that left it while it went on."""
    spares: tuple[str, ...] = ()
    """Nodes that stood by for it."""
    spares_said: str = ""
    """What took which place when it ended, or why nothing did."""
    ended_at: Instant | None = None
    failure: FailureClass | None = None
    failed_on: str = ""
    """Of a gang, the node where it failed first."""
    moved: bool = False
    """It left its node for the node's sake, or because somebody asked for it: no failure."""
    resized: bool = False
    """It was stopped for another size."""
    exit_code: int | None = None
    message: Reason = ""
    log_error: Reason = ""
    """Why the log store lacks a part of what it wrote."""

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Its nodes by rank, each with its GPUs, without those that left it."""
        gpus = self.other_gpus or ((),) * len(self.other_nodes)
        others = zip(self.other_nodes, gpus, strict=True)
        stay = (place for place in others if place[0] not in self.left)
        return ((self.node_id, self.gpu_indices), *stay)

    @property
    def gpus(self) -> int:
        """How many GPUs it had in the end, without those that stood by."""
        return sum(len(indices) for _, indices in self.places)


def not_stored(log_error: str) -> str:
    """Return what follows how an attempt ended where the log store lacks some of its output."""
    return f"; its output is not all stored: {log_error}" if log_error else ""


class JobResult(Wire):
    """How a job ended."""

    job_id: str
    state: JobState
    exit_code: int | None = None
    """The process's own, where it ended by itself; 128 + signal where a signal ended it."""
    failure: FailureClass | None = None
    message: Reason = ""
    attempts: int = 0
    ended_at: Instant | None = None


class JobStatus(Wire):
    """What the `status` query of a job's workflow returns."""

    job_id: str
    name: str
    tenant: str
    pool: str
    state: JobState
    attempt: int = 0
    """The attempt that is queued or running; 0 before the first."""
    reason: str = ""
    """Why it is in this state, in words."""
    submitted_at: Instant
    since: Instant
    """When it came into this state."""
    attempts: tuple[AttemptRecord, ...] = ()
    """The last attempts, oldest first, at most 20."""
    preemptions: int = 0
    """Attempts that ended because another job got the GPUs."""
    moves: int = 0
    """Attempts that ended because the job left its node."""
    resizes: int = 0
    """How often it was given another size: stopped for that, or in place."""
    not_brought: tuple[Reason, ...] = ()
    """While it waits: what it needs and could not be brought to where it is expected to start. It
    is tried once more at the start."""
    next_attempt: Instant | None = None
    """Between attempts: when the next comes into the queue."""
    result: JobResult | None = None
