"""What a cycle decides for a job, with its terms and the alternatives that it rejected."""

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen, Instant, Name, Wire
from longshore.models.funding import PaidFor
from longshore.models.gang import GangPlan
from longshore.models.mig import SLICES
from longshore.models.packing import GPUChoice as GPUChoice
from longshore.models.packing import PackingPolicy as PackingPolicy
from longshore.models.packing import PackingRule as PackingRule
from longshore.models.packing import ScoreWeights as ScoreWeights
from longshore.models.resources import HostAmounts
from longshore.models.start_range import StartRange
from longshore.models.topology import LinkClass
from longshore.models.units import GB, Duration, GBPerSecond


class PlacementKind(StrEnum):
    EXISTING_NODE = "EXISTING_NODE"
    REQUEST_MORE_CAPACITY = "REQUEST_MORE_CAPACITY"
    """A FAST job that nothing can hold now: buy."""
    QUEUE_FOR_FLEX = "QUEUE_FOR_FLEX"
    """A FLEX job that nothing can hold now: wait for the price."""
    SET_ASIDE = "SET_ASIDE"
    """A job that cannot be planned: the others are, without it."""


class RejectionCode(StrEnum):
    """The constraint that ruled a node out; the first that failed, in this order."""

    STATE = "node-not-ready"
    TIER = "tier-mismatch"
    GPU_TYPE = "gpu-type-mismatch"
    FLAVOR = "flavor-mismatch"
    """For a gang: neither the node's type of GPU nor its label `gpu.flavor` is the job's."""
    CONTAINER_RUNTIME = "no-container-runtime"
    FETCHING = "agent-too-old"
    """The node has to fetch data, to build an environment of conda, or to run an engine, and its
    agent cannot."""
    CONSTRAINT = "label-mismatch"
    """A label of the node is not what the job's `constraints` ask for."""
    QUOTA = "over-quota"
    """A quota of its tenant is used up, and lets the job start on nodes alone on which the tenant
    has others."""
    LABELS = "no-fabric-labels"
    """For a gang: the node does not name its region, cluster and fabric domain."""
    CONFORMANCE = "conformance-unknown"
    """For a job that asks for its driver, firmware and kernel parameters: it has not said."""
    NOT_ALLOWED = "conformance-not-allowed"
    """The node's fingerprint is not among those that the job allows."""
    CHANGED = "conformance-changed"
    """For a sensitive job: the node's fingerprint is another than the one that was accepted."""
    EXPIRY = "expires-too-soon"
    CPU = "not-enough-cpu"
    RAM = "not-enough-ram"
    STORAGE = "not-enough-storage-bandwidth"
    POWER = "not-enough-power"
    """Beside the jobs there it would draw more than the node's power budget."""
    GPU_COUNT = "not-enough-gpus"
    """The node has fewer GPUs than the job wants, busy or not."""
    VRAM = "not-enough-vram"
    """Too few GPUs of the node have the memory, even when free of jobs."""
    MIG_PROFILE = "no-mig-profile"
    """For a MIG profile: no GPU of the node in MIG mode can have it."""
    MIG_BUSY = "mig-slices-busy"
    """For a MIG profile: every position of it is taken."""
    SHARES_BUSY = "shares-busy"
    """For a part of a GPU: too few GPUs have so many thousandths and so much memory left."""
    NOT_ALONE = "not-alone"
    """For a sensitive job: others are on the node, or some of its GPUs are in MIG mode."""
    GPUS_BUSY = "gpus-busy"
    """It would fit, were other jobs not there."""
    RESERVED = "reserved"
    """It fits now, but would delay a job that was deferred before it."""
    DOMAIN = "domain-too-small"
    """For a gang: the node would do, but the domains cannot hold the groups."""


class Rejection(Frozen):
    node_id: str
    code: RejectionCode
    reason: str
    """In words, with the numbers: wanted and had."""
    permanent: bool
    """True where the node could not hold the job even when empty."""


class ScoreTerm(Frozen):
    """One reason for the value of a node, in words."""

    name: str
    """Such as "room for 8 GPUs"."""
    value: float
    """What it adds to the total."""


class ScoreTerms(Frozen):
    """The value of one node, the higher the better, and what it is made of.

    By `seed-score` the total is the sum of weight x term over the four named terms, and of `parts`
    where there are any. By another rule it is the sum of `parts`; expiry and provider are among
    them.
    """

    rule: PackingRule = PackingRule.SEED_SCORE
    utilization: float
    fragmentation: float
    expiry: float
    provider: float
    parts: tuple[ScoreTerm, ...] = ()
    """What data and the ends of jobs add; of another rule than `seed-score` all parts. Without
    those below a thousandth, and in a cycle only of the node chosen."""
    total: float


class Candidate(Frozen):
    node_id: str
    gpu_indices: tuple[int, ...]
    slices: int = 0
    """For a MIG profile: the set of slices on its GPU."""
    link: LinkClass | None = None
    """Of several GPUs: the slowest link between them; null where one is not known."""
    terms: ScoreTerms


class RunningJob(Frozen):
    """What one job holds of one node, and when that will probably end."""

    job_id: str
    node_id: str
    gpu_indices: tuple[int, ...]
    vram_per_gpu: GB = 0.0
    milli: int = Field(default=1000, ge=0, le=1000)
    """Below 1000 it has a part of one GPU; 0 with slices."""
    slices: int = Field(default=0, ge=0, lt=256)
    """Of a MIG instance, its set of slices."""
    cpus: float = Field(default=0.0, ge=0)
    ram: GB = 0.0
    storage: GBPerSecond = 0.0
    power: float = Field(default=0.0, ge=0)
    """Watts. With all of its GPUs there."""
    expected_end: Instant
    ends: tuple[Instant, ...] = Field(default=(), exclude=True)
    """Where its duration is learnt: when it may end, ascending, each as likely as any other. Of
    these count those that are still to come (`scheduling.durations.end_at`)."""
    since: Instant | None = Field(default=None, exclude=True)
    """Where its user does not state how long it takes: since when it has run, as if it had never
    paused (`scheduling.durations.run_end`)."""
    latest: Instant | None = Field(default=None, exclude=True)
    """When its time limit ends it."""
    spare: bool = False
    """It stands by for its gang; nothing runs there."""
    waited: Duration = Field(default=timedelta(0), exclude=True)
    """For how long the job was in the queue until it was placed, over all attempts."""

    @property
    def gpus(self) -> float:
        """What it holds, a part of a GPU as that part."""
        if self.slices:
            return self.slices.bit_count() / SLICES
        return len(self.gpu_indices) * self.milli / 1000

    @property
    def host(self) -> HostAmounts:
        """What it holds beside its GPUs."""
        return HostAmounts(self.cpus, self.ram, self.storage, self.power)


class Member(Wire):
    """One share of a placement: GPUs of one node for one group of the job.

    A node that serves two groups has two members.
    """

    node_id: str
    epoch: int
    gpu_indices: tuple[int, ...]
    """Ascending."""
    group: int = 0
    """Number of the group, from 0."""


class Decision(Frozen):
    """The packer's answer for one job."""

    job_id: str
    kind: PlacementKind
    node_id: str | None = None
    gpu_indices: tuple[int, ...] = ()
    slices: int = 0
    """For a MIG profile: the set of slices on its GPU."""
    terms: ScoreTerms | None = None
    provider_hint: str | None = None
    """Where to buy from, by size: sfcompute for 8 and more GPUs, prime below (seed)."""
    candidates: tuple[Candidate, ...] = ()
    """Nodes that could take it, best first: all of them, or in a cycle the best four."""
    rejections: tuple[Rejection, ...] = ()
    """Every node that could not, and why, in the order of the input; none in a cycle."""
    rejected: dict[RejectionCode, int] = Field(default_factory=dict[RejectionCode, int])
    """How many nodes each constraint ruled out, in the order of the checks."""
    reason: str = ""
    """The answer in one sentence."""
    counted_as: int | None = None
    """The class that its wait had lifted it to; None where it counted as its own."""
    estimated_start: Instant | None = None
    """When running jobs will have made room, where that can be known."""
    start_range: StartRange | None = Field(default=None, exclude_if=lambda one: one is None)
    """Between when and when that probably is, where it is learnt how long those run."""
    start_kept: bool = Field(default=True, exclude_if=lambda kept: kept)
    """Whether a place is kept for it from that start on: no job behind it delays that."""
    start_told: Instant | None = Field(default=None, exclude_if=lambda start: start is None)
    """The start that was news last, where the estimate has moved since by too little to be."""
    members: tuple[Member, ...] = ()
    """For a gang: its shares, in the order of ranks. Node and GPUs above are the first's."""
    spares: tuple[Member, ...] = ()
    """For a gang: what stands by for it, on nodes of no member."""
    borrowed_from: str | None = Field(default=None, exclude_if=lambda lender: lender is None)
    """The gang on whose spare it is, which that gang lends."""
    gang: GangPlan | None = None
    """For a gang: its groups and what is left of each domain, or why it does not fit."""

    @property
    def held(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """All that a placement holds: the nodes by rank, then those of its spares."""
        return (*self.by_node, *_by_node(self.spares))

    @property
    def gpus(self) -> int:
        """How many GPUs it gives its job, without those of spares."""
        return sum(len(indices) for _, indices in self.by_node)

    @property
    def by_node(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The nodes of a placement by rank, each once, with all of its GPUs."""
        if not self.members:
            return ((self.node_id, self.gpu_indices),) if self.node_id is not None else ()
        return _by_node(self.members)


def _by_node(members: tuple[Member, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    nodes: dict[str, list[int]] = {}
    for member in members:
        nodes.setdefault(member.node_id, []).extend(member.gpu_indices)
    return tuple((node_id, tuple(sorted(gpus))) for node_id, gpus in nodes.items())


class Reservation(Frozen):
    """GPUs that a cycle keeps for a deferred job, from the time when they will be free."""

    job_id: str
    node_id: str
    gpu_indices: tuple[int, ...]
    slices: int = 0
    """For a MIG profile: the set of slices on its GPU."""
    start: Instant
    end: Instant


class CyclePlan(Frozen):
    """What one cycle decides for a queue, or for a part of it."""

    decisions: tuple[Decision, ...]
    """One for each job that was planned, in queue order."""
    reservations: tuple[Reservation, ...] = ()
    """What is kept for deferred jobs, in queue order."""
    rearranged: bool = False
    """Whether jobs have another place than at first, so that others find room."""

    @property
    def placements(self) -> tuple[Decision, ...]:
        """The decisions that place their job on a node now, in queue order."""
        return tuple(d for d in self.decisions if d.kind is PlacementKind.EXISTING_NODE)


class PlacementKey(Wire):
    """Names one placement: idempotency keys and fencing are made of it."""

    job_id: str
    attempt: int


class Rank(Wire):
    """One node of a gang's placement."""

    rank: int
    """From 0; the process of rank 0 is where the others meet."""
    node_id: Name
    epoch: int
    gpu_indices: tuple[int, ...]
    address: str = ""
    """Where the other nodes reach it."""
    expires_at: Instant | None = None
    joined: bool = False
    """It came to an attempt that ran already. Its number follows all that the attempt has had."""


class Placement(Wire):
    """A committed placement, as it is signalled to its job; of a gang, with the node of rank 0."""

    job_id: str
    attempt: int
    rank: int = 0
    node_id: Name
    epoch: int
    gpu_indices: tuple[int, ...]
    slices: int = 0
    """Of a MIG instance, its set of slices on that GPU."""
    cycle_id: str
    placed_at: Instant
    node_expires_at: Instant | None = None
    simulated: bool = False
    reason: str = ""
    joined: bool = False
    """This rank came to an attempt that ran already."""
    ranks: tuple[Rank, ...] = ()
    """All nodes of a gang, by rank; none where there is no other node. To a rank that joined,
    those that are there then: their numbers may have holes."""
    spares: tuple[Rank, ...] = ()
    """Nodes that stand by for a gang; nothing runs there. Their numbers follow the ranks'."""

    @property
    def key(self) -> PlacementKey:
        return PlacementKey(job_id=self.job_id, attempt=self.attempt)

    @property
    def place(self) -> int:
        """Where this rank is in `ranks`, from 0."""
        return next((at for at, each in enumerate(self.ranks) if each.rank == self.rank), 0)

    @property
    def by_rank(self) -> tuple["Placement", ...]:
        """This placement as each of its nodes sees it."""
        if not self.ranks:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "rank": rank.rank, "node_id": rank.node_id, "epoch": rank.epoch,
                    "gpu_indices": rank.gpu_indices, "node_expires_at": rank.expires_at,
                    "joined": rank.joined,
                }
            )
            for rank in self.ranks
        )  # fmt: skip


class Placed(Placement):
    """Signal to a job: a cycle has given it GPUs."""

    paid: PaidFor | None = Field(default=None, exclude_if=lambda paid: paid is None)
    """Who pays for them, where its tenant has a budget. Agents need not know."""
