"""What travels between workflows, activities and agents: one model in, one model out."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeInt,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from longshore.models.base import Input, Instant, Name, Reason, StartInput, Wire
from longshore.models.elements import Slot
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_status import AttemptRecord, JobResult
from longshore.models.legacy_documents import MOST_MISTAKES
from longshore.models.output import JobOutput
from longshore.models.placement import PlacementKey
from longshore.models.problems import bounded, describe_all
from longshore.models.retry import FailureClass
from longshore.models.units import Duration

CONTROL_TASK_QUEUE = "longshore"
"""Where control workers take workflows and database activities."""


def node_task_queue(node_id: str) -> str:
    """Where the agent of one node takes its activities; never versioned."""
    return f"node-{node_id}"


JOB_WORKFLOW = "JobWorkflow"
ARRAY_WORKFLOW = "ArrayWorkflow"
POOL_WORKFLOW = "PoolWorkflow"
NODE_WORKFLOW = "NodeWorkflow"
PING_WORKFLOW = "PingWorkflow"
WATCH_ACTIVITY = "watch_agent"
PREPARE_ACTIVITY = "prepare_job"


TIME_ENDED = "the time of its node ended"
"""Reason of the stop of a process that still ran when its node's end had come."""


def workflow_of(spec: JobSpec) -> str:
    """Return the type of the workflow that runs a job, or an array."""
    return JOB_WORKFLOW if spec.array is None else ARRAY_WORKFLOW


def job_workflow_id(job_id: str) -> str:
    return f"job-{job_id}"


def pool_workflow_id(pool: str) -> str:
    return f"pool-{pool}"


def node_workflow_id(node_id: str) -> str:
    return f"node-{node_id}"


# --- jobs ---------------------------------------------------------------------------------


class LeaseEnd(StrEnum):
    """Why a lease ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"
    PREEMPTED = "preempted"
    MOVED = "moved"
    """The job left this node, for a reason that lies with the node."""
    NODE_LOST = "node-lost"
    RESIZED = "resized"
    """The job goes on with another number of GPUs."""
    SWAPPED = "swapped"
    """Another node of the gang was left, and a spare took its place: the job goes on with this
    one as its next attempt."""
    KEPT = "kept"
    """The gang that lent the GPU holds it no more: the job goes on, with a lease of its own."""
    WITHDRAWN = "withdrawn"
    """Committed, but its job had moved on before it could start."""

    @classmethod
    def before_retry(cls, failure: FailureClass) -> "LeaseEnd":
        """Return how the leases of an attempt end that is tried again."""
        if failure in (FailureClass.NODE, FailureClass.NETWORK):
            return cls.NODE_LOST
        return cls.PREEMPTED if failure is FailureClass.PREEMPTED else cls.FAILED


_MOST_ATTEMPTS = 1_000_000_000


class JobHistory(Wire):
    """What a job's workflow carries over when it continues as new."""

    submitted_at: Instant
    attempt: int = Field(ge=1, le=_MOST_ATTEMPTS)
    retries: dict[FailureClass, NonNegativeInt] = Field(
        default_factory=dict[FailureClass, NonNegativeInt]
    )
    attempts: tuple[AttemptRecord, ...] = ()
    hold_reason: Reason = ""
    gave_way: dict[LeaseEnd, NonNegativeInt] = Field(
        default_factory=dict[LeaseEnd, NonNegativeInt]
    )
    """How often it was preempted, moved or held while it ran."""
    resizes: int = Field(default=0, ge=0)
    """How often it was given another size: stopped for that, or in place."""


def _as_far_as_known(spec: object) -> object:
    """Return a spec without what a newer version says and this one does not understand."""
    return spec if isinstance(spec, JobSpec) else JobSpec.as_known(spec)


TravellingSpec = Annotated[JobSpec, BeforeValidator(_as_far_as_known)]
"""A spec that was taken already, on its way to who may have another version."""


_MOST_KEY = 2_000
"""Bytes of a key: an index of the database takes no more than 2,704 with tenant and name."""
Key = Annotated[str, Field(json_schema_extra={"maxLength": _MOST_KEY})]
"""Looked at by `JobInput.refused`: a version that bounded it less may have taken it."""


class JobInput(StartInput):
    """Input of `JobWorkflow`; the job's id is the workflow id without `job-`."""

    instead: ClassVar[str] = 'give an input: {"spec": {...}}, with a job file as spec'
    spec: JobSpec
    key: Key | None = None
    """Idempotency key of the submission."""
    held: bool = False
    """Wait for a release before the first placement."""
    history: JobHistory | None = None
    max_attempts_per_run: int = Field(default=100, ge=1)
    needs_output: bool = False
    """A job behind it in its DAG gets its output: without one it fails."""
    path_behind: float = Field(default=0.0, ge=0, le=1)
    """The longest path of its DAG that comes after it, as a part of the DAG's longest."""
    slot: Slot | None = None
    """Of a slot of an array: it runs elements, one after another."""
    _refused: tuple[str, ...] = PrivateAttr(default=())

    @property
    def refused(self) -> tuple[str, ...]:
        """What is wrong with it, a line each, where a job may yet run with it: a version that
        refused less has taken it, and here it is as far as it is understood."""
        return self._refused

    def own_id(self, found: str) -> str:
        return job_workflow_id(found.removeprefix(job_workflow_id("")))

    def _not_for_this_workflow(self) -> str:
        if self.spec.array is None:
            return ""
        return f"spec.array: {ARRAY_WORKFLOW} runs arrays: start that, with the same input and id"

    @model_validator(mode="wrap")
    @classmethod
    def _say_what_is_wrong(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise SpecError, with a line per mistake, for what no version has ever run.

        Unknown names are mistakes, as in the spec; what a newer version continues as new may have
        more of them: it has a history.
        """
        try:
            found = handler(data)
        except ValidationError as error:
            problems = describe_all(error, data, "input")
            if error.error_count() > MOST_MISTAKES:  # to read it again would take too long
                raise SpecError("input", problems) from None
            try:
                given = cast("dict[str, Any]", data)
                found = handler({**given, "spec": JobSpec.as_known(given["spec"])})
            except (ValidationError, TypeError, KeyError):
                raise SpecError("input", problems) from None
            found._refused = problems
        if found.history is None:
            found._refused = bounded(found._refused, found._unknown)
        if len((found.key or "").encode()) > _MOST_KEY:
            found._refused += (f"key: must have at most {_MOST_KEY} bytes as UTF-8",)
        if "\0" in (found.key or ""):
            found._refused += ("key: must not hold a NUL character",)
        if why := found._not_for_this_workflow():
            found._refused += (why,)
        return found


class EnqueueRequest(Wire):
    job_id: str
    attempt: int
    """The attempt that this entry is for."""
    spec: TravellingSpec
    key: str | None = None
    submitted_at: Instant
    held: bool = False
    begin_only: bool = False
    """It is held for its `begin` alone: nobody holds it."""
    path_behind: float = 0.0
    """As in `JobInput`."""
    reset: bool = False
    """By a run that was reset: the one before it may have put the job on record."""


class EnqueueReply(Wire):
    queued: bool
    refusal: str = ""
    """Why it is not queued, and never will be."""
    max_duration: Duration | None = None
    """The time limit that it has by its pool, where it named none."""
    other: bool = False
    """The row of its id is that of another job, which may have ended: nothing of it is this one's
    to end, and its state is not this one's."""


class HoldRequest(Wire):
    key: PlacementKey
    held: bool
    begin_only: bool = False
    """It is held for its `begin` alone: nobody holds it."""


class ReleaseRequest(Wire):
    """End the leases of one attempt and take it out of the queue."""

    key: PlacementKey
    reason: LeaseEnd
    message: Reason = ""
    then: EnqueueRequest | None = None
    """The next attempt, to be queued in the same moment: nobody behind it in the queue gets the
    GPUs that are given up."""


class FinishRequest(Wire):
    """End the leases of the last attempt, and record how the job ended."""

    key: PlacementKey
    reason: LeaseEnd
    result: JobResult
    unanswered: EnqueueRequest | None = None
    """What the job was cancelled over: nobody knows whether it came into the queue, or will."""
    output: JobOutput | None = None
    """Of a job that succeeded."""


class Waiting(Wire):
    """Signal to a job: the last cycle could not place this attempt."""

    attempt: int
    reason: Reason


class NodeEpoch(Wire):
    """One registration of a node."""

    node_id: str
    epoch: int


class NodeLost(Wire):
    """Signal to a job: this registration of a node is over, and so is what ran there."""

    node_id: str
    epoch: int
    reason: Reason
    cut_off: bool = False
    """The node lives, and was cut off from the server."""
    anew: bool = False
    """The node lives: its agent started anew, and may know how what ran there has ended."""
    also: tuple[NodeEpoch, ...] = Field(default=(), exclude_if=lambda others: not others)
    """Further registrations of the attempt that are over, where all are told in one."""


class CommandReason(Input):
    """Of a signal such as `hold`, or an update such as `cordon`: who asked and why."""

    instead: ClassVar[str] = 'give an input: {"reason": "WHY"}, or {}'
    reason: Reason = ""


class InterruptRequest(Wire):
    """Signal `preempt` or `move` to a job: this attempt gives up its GPUs, and is queued again.

    For any other attempt it changes nothing.
    """

    attempt: int
    reason: Reason
    for_job: str | None = None
    """Of a preemption, the job that gets the GPUs."""
    gpus_left: int | None = None
    """Of a preemption of a malleable job, the size with which it goes on; None where it is to wait
    for GPUs again."""


# --- pools --------------------------------------------------------------------------------


class PoolInput(StartInput):
    """Input of `PoolWorkflow`, and all that it carries over when it continues as new."""

    instead: ClassVar[str] = (
        'give an input: {"pool": "NAME"}, or submit a job to the pool, which starts it'
    )
    pool: Name
    cycles: int = 0
    """Cycles run since the pool began; part of each cycle's id."""
    generation: int = 0
    """Times that it continued as new."""
    poked: bool = False
    max_cycles_per_run: int = Field(default=500, ge=1)

    def own_id(self, found: str) -> str:
        return pool_workflow_id(self.pool)


class CycleRequest(Wire):
    pool: Name
    cycle_id: str
    number: int = 1
    """Of the pool's cycles, from 1."""


class CycleReply(Wire):
    queued: int
    """Jobs that the cycle looked at."""
    placed: int
    waiting: int
    set_aside: int = 0
    """Jobs of the queue that were set aside lately, at which the cycle did not look."""
    withdrawn: int = 0
    """Placements whose job had gone before it could hear of them."""
    next_wake: timedelta
    """Run the next cycle after this even if nobody pokes."""
    may_buy: bool = False
    """The pool may buy what is lacking."""
    keeps_warm: bool = False
    """It is to have capacity that nobody waits for yet."""
    gpus: int | None = None
    """Of its nodes that take jobs, when the cycle began; None of a cycle that is told again."""
    free_gpus: int | None = None
    """Of these, those that no job had a part of once its placements were made."""


class PoolStatus(Wire):
    pool: str
    cycles: int
    generation: int
    last: CycleReply | None = None
    trouble: str = ""
    """Why the last cycle failed; empty where it did not."""
