"""What people are shown of jobs, nodes and pools, read from the capacity database."""

from datetime import datetime, timedelta

from pydantic import Field

from longshore.models.base import Instant, Wire
from longshore.models.data import HeldData
from longshore.models.deadline import DeadlineJudgment
from longshore.models.elastic import Malleable
from longshore.models.elements import ElementState
from longshore.models.gpu_hour_price import GPUHourPrice
from longshore.models.job import Tier
from longshore.models.job_status import JobResult, JobState
from longshore.models.node import HostFirmware, NodeState
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PriceView
from longshore.models.retry import FailureClass
from longshore.models.start_range import StartRange
from longshore.models.units import GB, Duration

UNREADABLE = "cannot be read"
"""What is said of a job whose row somebody, or a newer version, has written into."""
SPEC_UNREADABLE = f"its stored spec {UNREADABLE}"
"""How the reason of such a job begins in a list, where a field of the list is wrong by it."""


class JobView(Wire):
    id: str
    name: str
    tenant: str
    pool: str
    tier: Tier
    priority: int
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    """As they were submitted."""
    counted_as: int | None = None
    """The class that its wait has lifted it to, or had when it was placed; null where it counts as
    its own."""
    waited: Duration = timedelta(0)
    """In the queue in all, over its attempts and without holds; of a job that is queued now,
    before `queued_at`."""
    gpus: int
    """Of a malleable job those of its last attempt; of one that waits, its desired size."""
    malleable: Malleable | None = None
    """The sizes that it can have."""
    gpu_type: str | None = None
    milli: int = 1000
    """Thousandths of its GPU that it wants."""
    vram_per_gpu: GB = 0.0
    """Of the memory of each of its GPUs, in GB; 0 for all that comes with what it has of it."""
    runs_engine: bool = False
    """Whether it is a replica of a service."""
    mig: str | None = None
    """The MIG profile that it wants an instance of."""
    state: JobState
    attempt: int = 0
    node_id: str | None = None
    gpu_indices: tuple[int, ...] = ()
    """Of that node."""
    slices: int = 0
    """Of a MIG instance, its set of slices."""
    nodes: tuple[str, ...] = ()
    """All nodes of the attempt, by rank: of a gang there are several."""
    node_gpus: tuple[tuple[int, ...], ...] = ()
    """The GPUs on each of them."""
    spares: tuple[str, ...] = ()
    """Nodes that stand by for it now."""
    lent_to: tuple[str, ...] = Field(default=(), exclude_if=lambda jobs: not jobs)
    """Jobs that run on these meanwhile."""
    simulated: bool = False
    """True where it runs, or ran last, on simulated GPUs."""
    submitted_at: Instant
    begins_at: Instant | None = None
    """Its `begin`: it is not started before. Null where that was none, or past at the submit."""
    begin_only: bool = False
    """True of one that is HELD until its `begin` and that nobody holds: `release` changes
    nothing."""
    start_below: GPUHourPrice | None = None
    """It starts only while the price of its pool is below this; of one that waits for that, the
    lower of its own and its pool's."""
    waits_for_price: bool = False
    """True of one that waits for that alone: no cycle plans it."""
    queued_at: Instant | None = None
    """Since when it is in the queue that it waits in; null for one that does not."""
    started_at: Instant | None = None
    """When it was placed last."""
    first_started_at: Instant | None = None
    ended_at: Instant | None = None
    failure: FailureClass | None = None
    exit_code: int | None = None
    reason: str = ""
    """Why it waits, or how it ended."""
    elements: dict[ElementState, int] | None = None
    """Of an array that has not ended: how many of its elements are in each state."""
    claimed: int = 0
    """Of the elements that are RUNNING, those that do not run: their slots run others."""
    slots_aside: int = 0
    """Of an array that has not ended: slots that are set aside, since no cycle could plan them."""
    max_duration: Duration | None = None
    """How long an attempt may run; null for no limit."""
    ends_by: Instant | None = None
    """Of one that runs and has a time limit: about when that has passed, counted from its
    placement; then it gets its grace."""
    estimated_start: Instant | None = None
    """Of one that waits: when running jobs end in time, or what was bought for it is there; null
    where nobody knows."""
    start_range: StartRange | None = None
    """Between when and when that probably is: eight in ten are; null where one moment is told."""
    deadline: DeadlineJudgment | None = None
    """How it stands to its deadline; null for one without."""
    learnt: str = ""
    """Of one that waits or runs: for how long, where that is learnt from jobs before it."""

    @property
    def unreadable(self) -> bool:
        """Whether its stored spec cannot be read, so that tier, class or GPUs are not known."""
        return self.reason.startswith(SPEC_UNREADABLE)

    @property
    def waits_from(self) -> datetime:
        """From when on its wait counts: its submit, or its `begin`."""
        return self.begins_at or self.submitted_at

    @property
    def waits_since(self) -> datetime:
        """From when on it is in its queue this time; of one that has never run, `waits_from`."""
        return self.queued_at if self.queued_at and self.first_started_at else self.waits_from

    def waited_by(self, now: datetime) -> timedelta:
        """Return what it has waited in its queue in all. While it is held, and while it waits for
        a price, that stands still."""
        waits = self.state is JobState.QUEUED and not self.waits_for_price
        return self.waited + (now - self.queued_at if waits and self.queued_at else timedelta(0))

    @property
    def size(self) -> str:
        """Its number of GPUs: ``8``; of a malleable job that has another than its desired one
        ``8/16``."""
        target = self.malleable.target if self.malleable else self.gpus
        return str(self.gpus) if self.gpus == target else f"{self.gpus}/{target}"

    @property
    def as_it_ended(self) -> JobResult:
        """How it ended by its record, whatever its workflow says."""
        return JobResult(
            job_id=self.id, state=self.state, exit_code=self.exit_code, failure=self.failure,
            message=self.reason, attempts=self.attempt, ended_at=self.ended_at,
        )  # fmt: skip

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The nodes of the attempt by rank, each with its GPUs."""
        names = self.nodes or ((self.node_id,) if self.node_id else ())
        # Without the GPUs of the others those of the first are known at least.
        gpus = self.node_gpus or (self.gpu_indices, *((),) * len(names[1:]))
        return tuple(zip(names, gpus, strict=False))

    @property
    def stands_by(self) -> str:
        """What stands by for it: ``node-c``, ``node-c (lent to guest)``."""
        lent = f" (lent to {', '.join(self.lent_to)})" if self.lent_to else ""
        return f"{', '.join(self.spares)}{lent}"


class PartView(Wire):
    """What one job has of a GPU that is shared, or in MIG mode."""

    job_id: str
    job_name: str
    vram: float
    milli: int = 0
    """Thousandths; 0 for a MIG instance."""
    runs_engine: bool = False
    """Whether the job is a replica of a service: its thousandths follow from its memory."""
    mig: str | None = None
    """The profile of a MIG instance."""
    slices: int = 0
    """Its set of slices."""


class GPUView(Wire):
    index: int
    model: str
    vram: float
    vram_used: float
    job_id: str | None = None
    """The job that holds it whole."""
    job_name: str | None = None
    spare: bool = False
    """The job that holds it whole has it stand by: nothing of it runs there."""
    lent_to: str | None = Field(default=None, exclude_if=lambda job_id: job_id is None)
    """The job that runs on it, as a spare that its holder lends."""
    mig: bool = False
    """Whether it is in MIG mode."""
    milli_used: int = 0
    """Thousandths that jobs have which share it."""
    parts: tuple[PartView, ...] = ()
    """The jobs that have a part of it: largest first, then by id."""


class NodeView(Wire):
    id: str
    pool: str
    tier: Tier
    provider: str
    state: NodeState
    state_reason: str = ""
    drained: bool = False
    """Takes no new job, and nothing runs there any more."""
    clearing: bool = False
    """Besides taking no new job: those that run there are to leave."""
    epoch: int
    simulated: bool
    gpu_type: str
    gpus: tuple[GPUView, ...]
    cpus: float
    cpus_used: float
    ram: float
    ram_used: float
    storage_bandwidth: float | None = None
    """GB/s; not limited when null."""
    storage_used: float = 0.0
    power: float | None = None
    """Watts that its jobs may draw together; not limited when null."""
    power_used: float = 0.0
    expires_at: Instant | None = None
    registered_at: Instant
    hostname: str = ""
    container_runtime: str | None = None
    labels: dict[str, str]
    conformance: str | None = None
    """Fingerprint of driver, firmware and kernel parameters; null where it has not said."""
    changed: bool = False
    """Whether that is another than the one that was accepted: no sensitive job is placed there."""
    firmware: tuple[HostFirmware, ...] = ()
    """Which firmware of the host is in that fingerprint, and which could not be read; empty where
    there is no fingerprint, and where the agent does not say."""
    holds: tuple[HeldData, ...] = ()
    """What its agent says that it has: data sets, images, environments, the largest first. Only
    where this node is asked for by its id."""


class PoolView(Wire):
    spec: PoolSpec
    nodes: int
    gpus: int
    gpus_used: int
    queued: int
    """With those that are set aside."""
    held: int
    running: int
    set_aside: int = 0
    """Jobs of its queue that cannot be planned; `why` says for each what is wrong with it."""
    price: PriceView | None = None
    """What a GPU-hour costs there; null where it names no price."""
    simulated: bool = False
    """Whether a node of it has simulated GPUs."""
    last_cycle_at: Instant | None = None
    last_cycle_ms: float | None = None
    trouble: str = ""
    """Why its stored settings cannot be read; `spec` has the defaults then, and nothing is planned
    or bought by them."""


class AttemptShare(Wire):
    """What one attempt had of one node."""

    node_id: str
    rank: int = 0
    gpu_indices: tuple[int, ...]
    slices: int = 0
    """Of a MIG instance, its set of slices."""
    spare: bool = False
    """It stood by for its gang: nothing ran there."""
    simulated: bool = False
    """Whether the node's GPUs are simulated."""
    left_at: Instant | None = None
    """When it was given up, where the attempt went on without it; null else."""
    joined_at: Instant | None = None
    """When it came to the attempt, where that ran already; null else."""
    join_reason: str = ""
    """Why it joined, in words."""
    end_reason: str | None = None
    """Why the attempt went on without it: resized, node-lost, or of a spare preempted."""
    end_message: str = ""
    """The same in words."""


class AttemptView(Wire):
    """One attempt as the capacity database has it: what it held, and why that ended."""

    attempt: int
    placed_at: Instant
    ended_at: Instant | None = None
    """When it gave up the last of its GPUs; null while it holds any."""
    end_reason: str | None = None
    """Why it gave them up, such as finished, failed or node-lost."""
    end_message: str = ""
    reason: str = ""
    """Why it was placed there."""
    shares: tuple[AttemptShare, ...]
    """By rank; spares follow."""

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Its nodes by rank, each with its GPUs, without those that stood by or left it."""
        ran = (share for share in self.shares if not share.spare and share.left_at is None)
        return tuple((share.node_id, share.gpu_indices) for share in ran)

    @property
    def spares_gone(self) -> tuple[AttemptShare, ...]:
        """What stood by for it and was given up, while it went on."""
        return tuple(share for share in self.shares if share.spare and share.left_at is not None)

    @property
    def gpus(self) -> int:
        """How many GPUs it had in the end, without those that stood by."""
        return sum(len(gpus) for _, gpus in self.places)

    @property
    def gpus_first(self) -> int:
        """How many GPUs it began with."""
        first = (share for share in self.shares if not share.spare and share.joined_at is None)
        return sum(len(share.gpu_indices) for share in first)


class Submission(Wire):
    """The answer to a submit."""

    job_id: str
    created: bool
    """False where the same name and key had been submitted before."""
    warnings: tuple[str, ...] = ()
