"""What travels between control workers, the workflow of a node and its agent."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from longshore.models.base import Answer, Input, Instant, Name, Reason, StartInput, Wire, known_or
from longshore.models.bounds import Most, Range
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.data import HeldReport
from longshore.models.departures import Leaving
from longshore.models.elements import Batch, BatchReport
from longshore.models.messages import TravellingSpec, node_workflow_id
from longshore.models.node import Inventory, Liveness, NodeIdentity, NodeState
from longshore.models.output import JobOutput, output_of
from longshore.models.placement import Placement, PlacementKey
from longshore.models.protocol import COUNTS_HEARTBEATS
from longshore.models.retry import FailureClass
from longshore.models.serving import EngineReport
from longshore.models.units import Duration
from longshore.models.visible import shown


class NodeInput(StartInput):
    """Input of `NodeWorkflow`; the rest is what it carries over when it continues as new."""

    instead: ClassVar[str] = (
        'give an input: {"node_id": "NAME"}, or run `longshore agent` on the node, which starts it'
    )
    node_id: Name
    registered: "Registered | None" = None
    identity: NodeIdentity | None = None
    drain_reason: Reason | None = None
    expires_at: Instant | None = None
    drain: Leaving | None = None
    notice: Leaving | None = None
    counts_heartbeats: bool = False
    watches: int = 0
    max_watches_per_run: int = Field(default=200, ge=1)

    def own_id(self, found: str) -> str:
        return node_workflow_id(self.node_id)


class Registration(Input):
    """What an agent sends to be admitted. The join token itself never travels: `proof` shows
    that the agent knows it (see `models.proof`)."""

    instead: ClassVar[str] = (
        "run `longshore agent` of the control worker's version: what it sends can be read"
    )
    # Of a node with 16 GPUs, its links and 20 labels these are 41 kB, of 1,024 simulated GPUs 330.
    most_bytes: ClassVar[int | None] = 500_000
    identity: NodeIdentity
    inventory: Inventory
    issued_at: Instant
    claim: str = ""
    """All of this but `proof`, as the agent signed it; one of the version before signs its
    identity alone."""
    proof: str = ""
    cut_off: bool = False
    """The same agent was registered before, and ended its processes for want of a server."""
    counts_heartbeats: bool = False
    """What protocol 1 brought. Sent for control workers of the version before, which know no
    number; agents of that version say it in place of one."""
    protocol: Annotated[int, Range(0, 1_000_000)] = 0
    """The agent's `models.protocol.PROTOCOL`; 0 where it sends none."""
    engines: Annotated[tuple[PlacementKey, ...], Most(10_000, on_arrival=True)] = ()
    """Engines that run on from an earlier registration: those go on whose attempt holds its leases
    still."""

    @property
    def speaks(self) -> int:
        """The protocol that the agent speaks, also of one that sends no number."""
        return max(self.protocol, COUNTS_HEARTBEATS if self.counts_heartbeats else 0)


class Registered(Wire):
    node_id: Name
    epoch: int
    """Number of this registration; an agent with an older one is fenced off."""
    liveness: Liveness
    drain_reason: Reason | None = None
    """Why the node was drained before, and still is."""
    expires_at: Instant | None = None
    """When its bought time ends; of a node that was not bought, what its agent says."""
    gpus: str = Field(default="", exclude_if=lambda gpus: not gpus)
    """In words. The workflow carries them for its card; no agent is sent them."""
    adopted: tuple[PlacementKey, ...] = Field(default=(), exclude_if=lambda adopted: not adopted)
    """Of the engines that its agent named, those that go on; it ends the others before it starts
    anything. The workflow carries none."""


class NodeEnd(Wire):
    """Declare one registration of a node over: LOST or GONE."""

    node_id: Name
    epoch: int
    state: NodeState
    reason: Reason


class DrainRequest(Wire):
    node_id: Name
    epoch: int
    draining: bool
    reason: Reason = ""
    clearing: bool = False
    """The jobs that run there are to leave."""


class WatchRequest(Wire):
    """Input of the activity `watch_agent`, which runs as long as the agent lives."""

    node_id: Name
    epoch: int
    liveness: Liveness


class Heartbeat(Wire):
    """What an agent says with each heartbeat of a watch."""

    number: int
    sent_at: Instant
    """By the agent's clock."""


class WatchReport(Answer):
    """Why `watch_agent` returned: the agent leaves in order."""

    reason: Reason

    @classmethod
    def unreadable(cls, why: str) -> Self:
        """Return that the agent has left: it watches no more."""
        return cls(reason=f"why its agent left cannot be read: {why}")


class Holdings(Wire):
    """Record what a node holds, as the agent of this registration said it."""

    node_id: Name
    epoch: int
    report: HeldReport


class NodeStatus(Wire):
    node_id: str
    state: str
    epoch: int
    draining: bool = False
    clearing: bool = False
    """The jobs that run there are to leave."""
    expires_at: Instant | None = None
    reason: Reason = ""
    since: Instant | None = None
    note: str = Field(default="", exclude_if=lambda note: not note)
    """Of a bought machine that is closed: when it ends so. The client adds it."""


# --- processes ----------------------------------------------------------------------------


class RunProcessRequest(Wire):
    """Input of the activity `run_process`; may be delivered more than once."""

    placement: Placement
    spec: TravellingSpec
    job_name: str
    gpus_before: int | None = None
    """Of a malleable job, the GPUs of its attempt before; None for the first."""

    batch: Batch | None = None
    """Elements of an array to run one after another, in place of one process. With it this is
    the input of the activity `run_elements`."""

    @property
    def key(self) -> PlacementKey:
        """Under which the node remembers it: each batch of a slot has a record of its own."""
        return run_key(self.placement, self.batch)


def run_key(placement: Placement, batch: Batch | None) -> PlacementKey:
    """Return the key of a process, or of a batch of elements of a slot.

    A rank that joined its attempt may be on a node that the attempt has left before: the node
    knows it by its number.
    """
    if batch is None and placement.joined:
        job_id = joined_id(placement.job_id, placement.rank)
        return PlacementKey(job_id=job_id, attempt=placement.attempt)
    if batch is None:
        return placement.key
    return PlacementKey(job_id=f"{placement.job_id}.b{batch.number}", attempt=placement.attempt)


def joined_id(job_id: str, rank: int) -> str:
    """Return under which id a node remembers a rank that joined, and its output is stored.

    No job of ours has it: its name would have a capital letter. `JOB.r2` is a retry of its DAG.
    """
    return f"{job_id}.R{rank}"


class PrepareRequest(Wire):
    """Input of the activity `prepare_job`: have on a node what a job needs, while it waits for its
    turn there. May be delivered more than once; cancelled once the job is placed elsewhere."""

    job_id: str
    job_name: str
    node_id: Name
    spec: TravellingSpec
    expected_start: Instant | None = None
    """When the cycle expects the job to start there."""
    deficit: float = 0.0
    """By how much its tenant has had less than its share; who lacks more goes first."""


class Prepare(Wire):
    """Signal `prepare` to a job that waits: where the cycle expects it to start. What it needs is
    to be brought there; it replaces what was said before."""

    attempt: int
    node_ids: tuple[Name, ...]
    """One, or all of a gang whose agents can do it."""
    expected_start: Instant | None = None
    deficit: float = 0.0
    """By how much its tenant has had less than its share, as a part of that."""


class Prepared(Answer):
    """What came of `prepare_job`, and its heartbeats meanwhile: for `why`, not for decisions."""

    job_id: str
    node_id: Name
    bytes: int = 0
    """Of data that is there."""
    total: int = 0
    missing: tuple[Reason, ...] = ()
    """What could not be had, a sentence each. The job starts all the same and is told."""

    @classmethod
    def unreadable(cls, why: str) -> Self:
        """Return that nobody knows what is there."""
        return cls(job_id="", node_id="unknown", missing=(f"what it says cannot be read: {why}",))


class StopProcessRequest(Wire):
    """Input of the activity `stop_process`: signal, grace, then SIGKILL to the whole group."""

    key: PlacementKey
    signal: str = "SIGTERM"
    grace: Duration
    reason: Reason


class Progress(Wire):
    """What a running job says of itself (docs/progress.md); the heartbeat's details."""

    fraction: float | None = Field(default=None, ge=0, le=1)
    message: Reason = ""
    started_at: Instant | None = None
    at: Instant | None = None
    log_error: Reason = ""
    """Why logs are not reaching the log store, where they are not."""
    checkpoint: CheckpointInfo | None = None
    """What this process saved last, or went on from."""
    checkpoint_error: Reason = ""
    """Why checkpoints are not reaching their store, or what was wrong with a stored one."""
    batch: BatchReport | None = None
    """Of a slot of an array: which elements of its batch have ended by now."""
    engine: EngineReport | None = None
    """Of a job that serves a model: what its engine says of itself."""
    data_missing: Reason = ""
    """What of the data that nodes fetch for it could not be had, and why."""


class ProcessReport(Answer):
    """How a process ended."""

    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    """Its own, or 128 + signal; none where it never started or nobody saw its end."""
    failure: Annotated[FailureClass | None, known_or(FailureClass, FailureClass.NODE)] = None
    """None for success. A class that only a newer agent knows counts as the fault of the node:
    what happened there this version cannot say; the message names the class."""
    message: Reason = ""
    started_at: Instant | None = None
    ended_at: Instant | None = None
    stopped_for: Reason | None = None
    """The reason of the stop that ended it, where one did."""
    node_id: str = ""
    """Of a gang, the node whose process this is."""
    last_progress: Progress | None = None
    log_error: Reason = ""
    checkpoint: CheckpointInfo | None = None
    """What it saved last, or went on from."""
    checkpoint_error: Reason = ""
    output: JobOutput | None = None
    """What it wrote for the jobs behind it, of a process that succeeded; of a gang, rank 0's."""
    batch: BatchReport | None = None
    """Of a slot of an array: how the elements of its batch ended."""

    @classmethod
    def unreadable(cls, why: str) -> Self:
        """Return that the process ended as by a fault of its node: it is tried again elsewhere."""
        return cls(
            failure=FailureClass.NODE, message=f"how it ended cannot be read of its node: {why}"
        )

    @field_validator("output")
    @classmethod
    def _output_is_what_it_says(cls, output: JobOutput | None) -> JobOutput | None:
        """Return an output that the jobs behind it can read, or why they cannot: their DAG would
        fail at it again and again."""
        if output is None or not output.content:
            return output
        return output_of(output.content.encode(errors="replace"))

    @model_validator(mode="before")
    @classmethod
    def _name_an_unknown_class(cls, data: Any) -> Any:
        match data:
            case {"failure": str(failure)} if failure not in set(FailureClass):
                why = f"failed as {shown(failure)}, a class that this version does not know"
                said = data.get("message")
                return {**data, "message": f"{why}: {said}" if said else why}
            case _:
                return data
