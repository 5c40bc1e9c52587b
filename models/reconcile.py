"""What `reconcile` finds between database, workflows and agents, and what mends it.

It runs in three steps: observe (`activities.observation`), decide (`scheduling.reconcile`), act
(`activities.mends`).
"""

from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from longshore.models.base import Instant, StartInput, Wire
from longshore.models.job_status import JobResult
from longshore.models.messages import LeaseEnd
from longshore.models.node_messages import StopProcessRequest

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
    STEP_FAILS = "step-fails"
    """A step of the workflow of a block or purchase has failed many times, and is tried on."""
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
    """Signal to a job again which nodes of its newest attempt were lost."""

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
    """What has lost its workflow within the margin, and lost nodes whose engines may run on: no
    findings, it is left alone."""
    not_judged: tuple[NotJudged, ...] = ()
    """The first few hundred of these, one by one."""
    again_at: Instant | None = None
    """After this all of these can be judged; None where there are none."""

    @property
    def settled(self) -> bool:
        """True where nothing is left for a person to look at: what is too recent is not."""
        return self.left_out == 0 and all(finding.mended for finding in self.findings)
