"""What `reconcile` sees of database, workflows and agents, and what it finds between them.

It runs in three steps: observe (`activities.observation`), decide (`scheduling.reconcile`), act
(`activities.reconcile`).
"""

from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from longshore.models.base import Frozen, Instant, StartInput, Wire
from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.messages import LeaseEnd
from longshore.models.node import ENGINE_FENCE, NodeState
from longshore.models.node_messages import NodeStatus, StopProcessRequest

RECONCILE_WORKFLOW = "ReconcileWorkflow"
RECONCILE_SCHEDULE = "longshore-reconcile"


class FindingKind(StrEnum):
    """In what way database, workflows and agents disagree."""

    END_NOT_RECORDED = "end-not-recorded"
    """A job's workflow has ended, and the database holds the job for open."""
    WORKFLOW_MISSING = "workflow-missing"
    """A job is open, a node alive, a block not over or a purchase not settled, and Temporal knows
    no workflow of it."""
    JOB_NOT_RECORDED = "job-not-recorded"
    """A job's workflow runs, and the database has no open record of the job."""
    LEFT_AFTER_END = "left-after-end"
    """A job has ended, and still stands in the queue or holds GPUs."""
    SLOT_LEFT = "slot-left"
    """A slot of an array runs or waits, and its array has ended."""
    PLACEMENT_NOT_HEARD = "placement-not-heard"
    """A job holds GPUs, and its workflow waits for a placement."""
    PLACEMENT_OUTDATED = "placement-outdated"
    """A job holds GPUs for an attempt that is over for its workflow."""
    JOB_NOWHERE = "job-nowhere"
    """A job's workflow waits or runs, and the database has it neither queued nor placed."""
    POOL_ASLEEP = "pool-asleep"
    """Jobs wait in a pool, and no cycle runs."""
    NODE_NOT_WATCHED = "node-not-watched"
    """A node counts as alive, and no workflow watches it."""
    NODE_DIFFERS = "node-differs"
    """A node's workflow and its row name another epoch or state."""
    BLOCK_NOT_FOLLOWED = "block-not-followed"
    """A block of bought time has not ended, and no workflow follows it."""
    PURCHASE_NOT_FOLLOWED = "purchase-not-followed"
    """A purchase may order on, and no workflow does."""
    DAG_NOT_FOLLOWED = "dag-not-followed"
    """A DAG has not ended, and no workflow follows it."""
    SERVICE_NOT_FOLLOWED = "service-not-followed"
    """A service is not over, and no workflow follows it."""
    LEDGER_DIFFERS = "ledger-differs"
    """What a node or GPU counts as used is not the sum of what is held there."""
    FUNDING_DIFFERS = "funding-differs"
    """What an envelope or a cap counts as used is not the sum of its open charges, or a charge is
    open for a placement that has ended."""
    ENGINES_UNSEEN = "engines-unseen"
    """A node was lost, and engines that it had may run until their fence falls; never more than
    something to wait for."""
    AGENT_SILENT = "agent-silent"
    """A node counts as alive, and its agent asks for no work."""
    MARKET_UNKNOWN = "market-unknown"
    """A market lists an order or a machine, and nobody here knows it."""
    MARKET_MISSING = "market-missing"
    """A machine is to be running, and its market does not list it."""
    MARKET_BILL = "market-bill"
    """A market has billed another amount for what is over than the ledger has."""


# --- what would mend it -------------------------------------------------------------------


class EndJob(Wire):
    """Record how a job ended, and take from it what it still holds."""

    result: JobResult
    attempt: int
    """Its newest attempt."""


class EndAttempt(Wire):
    """Take an attempt out of the queue, and end its leases."""

    job_id: str
    attempt: int
    reason: LeaseEnd
    message: str


class CancelJob(Wire):
    """Ask for the end of a job: it has its grace, and gives up what it holds."""

    job_id: str
    reason: str


class TellPlaced(Wire):
    """Signal a placement to its job again: a job ignores what it knows."""

    job_id: str
    attempt: int


class TellLost(Wire):
    """Signal to a job again that the node of its newest attempt was lost."""

    job_id: str
    attempt: int


class PokePool(Wire):
    """Wake a pool's workflow, and start it where there is none."""

    pool: str


class LoseNode(Wire):
    """Declare a registration lost: its leases end, its jobs hear of it."""

    node_id: str
    epoch: int
    reason: str


class FollowBlock(Wire):
    """Start the workflow of a block again: what it has to know is in the database."""

    block_id: str


class SettlePurchase(Wire):
    """Start the workflow of a purchase again, which orders nothing more."""

    purchase_id: str


class GiveUpMutexes(Wire):
    """Let others have the mutexes for which jobs of a DAG wait, or that jobs have which were never
    submitted."""

    dag_id: str


class FollowService(Wire):
    """Start the workflow of a service again: what it has to know is in the database."""

    name: str


class BookBill(Wire):
    """Bring what an order is booked with, whose account is closed, to what its market billed."""

    key: str
    micro: int
    """Micro-dollars in all."""


class Mend(Wire):
    """One of these; a union with a name for each kind reads well in a history."""

    end_job: EndJob | None = None
    end_attempt: EndAttempt | None = None
    cancel_job: CancelJob | None = None
    tell_placed: TellPlaced | None = None
    tell_lost: TellLost | None = None
    poke_pool: PokePool | None = None
    lose_node: LoseNode | None = None
    follow_block: FollowBlock | None = None
    book_bill: BookBill | None = None
    settle_purchase: SettlePurchase | None = None
    give_up_mutexes: GiveUpMutexes | None = None
    follow_service: FollowService | None = None


class Stop(Wire):
    """What has to end on a node before the database may say that its GPUs are free."""

    node_id: str
    request: StopProcessRequest
    others: tuple[str, ...] = ()
    """Further nodes, where the attempt is of a gang."""


class Finding(Wire):
    """One disagreement, and what became of it."""

    kind: FindingKind
    subject: str
    """What it is about: ``job train-abc``, ``pool default``, ``node local-1``."""
    problem: str
    """What is wrong, in words."""
    mend: Mend | None = None
    """What would mend it; none where a person must look."""
    stop: Stop | None = None
    """What the mend has to stop first."""
    mended: bool = False
    done: str = ""
    """What was done, or why nothing was."""


class ReconcileRequest(StartInput):
    """Input of `ReconcileWorkflow`."""

    instead: ClassVar[str] = "give an input: {}, or run `longshore reconcile`, which starts it"
    dry_run: bool = False
    """Find, and mend nothing."""
    even_most: bool = False
    """Mend also where most jobs, nodes or blocks have no workflow at all: as a rule the wrong
    namespace was asked."""
    margin: timedelta = timedelta(minutes=1)
    """Younger than this, a disagreement is taken for a step that is under way."""
    missing_margin: timedelta = timedelta(minutes=15)
    """The same for a workflow that Temporal does not know at all."""
    second_look: timedelta = timedelta(seconds=2)
    """What is still so after this counts."""
    node_answers_within: timedelta = timedelta(seconds=20)
    """A node that does not take the order to stop a process within this keeps its leases."""


class NotJudged(Wire):
    """What a step under way may explain yet: no finding."""

    subject: str
    problem: str
    after: Instant
    """What is still so after this is a finding."""


class ReconcileReport(Wire):
    """Output of `ReconcileWorkflow`."""

    findings: tuple[Finding, ...] = ()
    left_out: int = 0
    """Findings beyond the first few hundred: run it again."""
    jobs: int = 0
    """Open jobs that were compared; nodes and pools in the same way."""
    nodes: int = 0
    pools: int = 0
    dry_run: bool = False
    too_recent: int = 0
    """What has lost its workflow within the margin: no findings, it is left alone."""
    not_judged: tuple[NotJudged, ...] = ()
    """The first few hundred of these, one by one."""
    again_at: Instant | None = None
    """After this all of these can be judged; None where there are none."""

    @property
    def settled(self) -> bool:
        """True where nothing is left for a person to look at: what is too recent is not."""
        return self.left_out == 0 and all(finding.mended for finding in self.findings)


# --- what is compared ---------------------------------------------------------------------


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
