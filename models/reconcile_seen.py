"""What `reconcile` sees of database, workflows and agents: rows of one moment, and answers."""

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen, Instant
from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.node import ENGINE_FENCE, NodeState
from longshore.models.node_messages import NodeStatus


class WorkflowState(StrEnum):
    RUNNING = "running"
    CLOSED = "closed"
    MISSING = "missing"
    """Temporal knows no such workflow."""


class WorkflowSeen(Frozen):
    """One workflow, as Temporal lists or describes it."""

    id: str
    state: WorkflowState
    run_id: str = ""
    started_at: Instant | None = None
    closed_at: Instant | None = None
    job_state: JobState | None = None
    """Search attribute of a running job."""
    node_id: str | None = None
    """Search attribute of a running job: where it ran last."""
    result: JobResult | None = None
    """How a job's closed workflow ended."""
    trouble: str = ""
    """What an activity that is being retried failed with last."""
    tries: int = 0
    """How often that has failed."""


class PlacementSeen(Frozen):
    attempt: int
    node_id: str
    epoch: int
    placed_at: Instant
    ended_at: Instant | None = None
    end_reason: str | None = None

    @property
    def live(self) -> bool:
        return self.ended_at is None


class JobSeen(Frozen):
    """A job that is open, or that has ended and left something behind."""

    id: str
    submitted_at: Instant
    ended_at: Instant | None = None
    queued_attempt: int | None = None
    queued_at: Instant | None = None
    placement: PlacementSeen | None = None
    """The newest."""
    is_array: bool = False
    """An array, which is in no queue itself: its slots are."""
    array_ended_at: Instant | None = None
    """Of a slot: when its array has ended."""

    @property
    def attempt(self) -> int:
        return max(self.queued_attempt or 1, self.placement.attempt if self.placement else 1)

    @property
    def held_since(self) -> Instant:
        """When the database heard of it last."""
        times = [self.submitted_at]
        if self.queued_at:
            times.append(self.queued_at)
        if self.placement:
            times.append(self.placement.ended_at or self.placement.placed_at)
        return max(times)


class PoolSeen(Frozen):
    name: str
    interval: timedelta
    waiting: int
    """Jobs that are not held."""
    waiting_since: Instant | None = None
    last_cycle_at: Instant | None = None


class NodeSeen(Frozen):
    id: str
    state: NodeState
    epoch: int
    registered_at: Instant
    state_since: Instant
    engines: int = 0
    """Of a node that was lost lately: engines of services that it had."""

    @property
    def alive(self) -> bool:
        return self.state in (NodeState.READY, NodeState.DRAINING)


class BlockSeen(Frozen):
    """A block that has not ended."""

    id: str
    purchase_id: str | None
    created_at: Instant


class PurchaseSeen(Frozen):
    """A purchase that has not been settled."""

    id: str
    created_at: Instant


class DagSeen(Frozen):
    """A DAG that has not ended."""

    id: str
    submitted_at: Instant
    keeps_others: bool = False
    """Jobs of it that are not submitted have mutexes, or wait for them."""


class ServiceSeen(Frozen):
    """A service that is not over."""

    name: str
    updated_at: Instant


class LedgerSeen(Frozen):
    """A count that is not the sum of its live rows."""

    subject: str
    what: str
    counted: int
    held: int


class Observed(Frozen):
    """Everything that one look saw. The rows are of one moment, and older than the rest."""

    at: Instant
    """When the rows were read, by the database's clock."""
    node_lost_after: timedelta
    engine_fence: timedelta = ENGINE_FENCE
    jobs: tuple[JobSeen, ...] = ()
    pools: tuple[PoolSeen, ...] = ()
    nodes: tuple[NodeSeen, ...] = ()
    blocks: tuple[BlockSeen, ...] = ()
    purchases: tuple[PurchaseSeen, ...] = ()
    dags: tuple[DagSeen, ...] = ()
    services: tuple[ServiceSeen, ...] = ()
    ledgers: tuple[LedgerSeen, ...] = ()
    funding: tuple[LedgerSeen, ...] = ()
    """Kept sums of charges, and attempts charged beyond their end, in thousandths of a GPU."""
    workflows: dict[str, WorkflowSeen] = Field(default_factory=dict[str, WorkflowSeen])
    """By id: all that run, and those that were expected to."""
    ended_jobs: frozenset[str] = frozenset()
    """Of the jobs whose workflow runs and that are not open: those that were recorded once."""
    job_status: dict[str, JobStatus | str] = Field(default_factory=dict[str, JobStatus | str])
    """What the workflow of a doubtful job says, by job id; text where it does not answer."""
    node_status: dict[str, NodeStatus] = Field(default_factory=dict[str, NodeStatus])
    """What the workflow of each node says, by node id, where it answers."""
    silent: frozenset[str] = frozenset()
    """Nodes whose agent asks for no work."""
