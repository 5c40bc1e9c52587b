"""What a cycle decides for a job, with its terms and the alternatives that it rejected."""

from datetime import timedelta
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant, Name, Wire
from longshore.models.constraints import Constraints
from longshore.models.durations import Learnt
from longshore.models.elastic import Malleable
from longshore.models.funding import PaidFor
from longshore.models.gang import GangPlan
from longshore.models.gpu_hour_price import GPUHourPrice
from longshore.models.job import ASSUMED_DURATION, JobSpec, Tier
from longshore.models.mig import SLICES, MigProfile
from longshore.models.packing import GPUChoice as GPUChoice
from longshore.models.packing import PackingPolicy as PackingPolicy
from longshore.models.packing import PackingRule as PackingRule
from longshore.models.packing import ScoreWeights as ScoreWeights
from longshore.models.resources import GPURequest, HostAmounts
from longshore.models.start_range import StartRange
from longshore.models.topology import Conformance, Gang, LinkClass
from longshore.models.units import GB, LONGEST, MOST, Duration, GBPerSecond, Watts


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


IMAGE_SIZE = 10.0
"""GB, a guess beside data that has sizes: nobody says how large an image is."""


FILLS = (
    "nobody asked its engine when that left for another job: it comes back where there is room, "
    "and nobody is stopped and nothing is bought for it"
)


_MOST_GPUS = 1_000_000
"""More than any version takes. Who plans may list them one by one: a row that somebody wrote into
by hand would take the memory of the control worker, and with it all pools."""


class JobRequest(Frozen):
    """What the packer needs to know of a job."""

    id: str
    tier: Tier = Tier.FAST
    priority: int = Field(default=5, ge=0, le=10)
    gpus: int = Field(ge=1, le=_MOST_GPUS)
    gpu_type: str | None = None
    vram_per_gpu: GB = 0.0
    milli: int = Field(default=1000, ge=1, le=1000)
    """Thousandths of its GPU; below 1000 it shares that with others."""
    mig: MigProfile | None = None
    """Wants one instance of this profile."""
    cpus: float = Field(default=0.0, ge=0, le=MOST)
    ram: GB = 0.0
    storage_bandwidth: GBPerSecond = 0.0
    power_per_gpu: Watts | None = None
    """What a GPU of the node may draw when left out."""
    expected_duration: Duration = ASSUMED_DURATION
    """What it is planned with."""
    duration_known: bool = Field(default=True, exclude=True)
    """Whether its user has said so. The queue has it, as it has `attained`."""
    learnt: Learnt | None = Field(default=None, exclude=True)
    """What those of its tenant, name and shape before it took, where its user has not said it. The
    queue has it, too; `expected_duration` follows from it (`scheduling.durations`)."""
    max_duration: Duration | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """Of a malleable job: no size makes it run longer. That of any other is in
    `expected_duration`."""
    grace: Duration = timedelta(seconds=10)
    """What it gets to save or clean up when it has to leave its node."""
    saves: bool = False
    """It has checkpoints: what it did before it leaves is not lost."""
    can_stop: bool = Field(default=False, exclude=True)
    """It can be preempted and lose next to nothing: it saves on its own, or when it is asked to
    while it runs, where others can read it. The queue has it, too."""
    needs_container: bool = False
    needs_conda: bool = False
    """Its environment is an environment.yml."""
    serves: bool = Field(default=False, exclude_if=lambda serves: not serves)
    """Its process is an engine."""
    fills: bool = Field(default=False, exclude_if=lambda fills: not fills)
    """It takes what is free and no more: `FILLS` says why."""
    submitted_at: Instant | None = None
    waits_since: Instant | None = Field(default=None, exclude=True)
    """Since when it would have waited, had it waited all its time in the queue at one stretch;
    since its submission when left out. The queue has it: it is not stored with the rest."""
    attained: Duration = Field(default=timedelta(0), exclude=True)
    """For how long earlier attempts held its GPUs, as far as the next one goes on from that. The
    queue has it, too."""
    start_below: GPUHourPrice | None = Field(default=None, exclude_if=lambda price: price is None)
    """Nothing is bought for it above this price."""
    tenant: str | None = Field(default=None, exclude=True)
    """Whose it is, where that is known. The queue has it, too."""
    path_behind: float = Field(default=0.0, ge=0, le=1)
    """Of a job of a DAG: the longest path of jobs that come after it, as a part of the DAG's."""
    attempt: int = 1
    gang: Gang | None = None
    """Set for a job that may span nodes; `gpus`, `cpus` and the like stay those of the whole
    job."""
    malleable: Malleable | None = None
    """Set for a job that runs on fewer GPUs too; `gpus`, `cpus`, `expected_duration` and the like
    are those of its desired size, and `at_size` has those of another."""
    conformance: Conformance | None = None
    """Rules nodes out by their fingerprint."""
    sensitive: bool = Field(default=False, exclude_if=lambda sensitive: not sensitive)
    """It holds its nodes alone."""
    constraints: Constraints = ()
    """Rules nodes out by their labels."""
    data: dict[str, GB] = Field(default_factory=dict[str, float])
    """What it reads, by name, with the size where that is known: what nodes fetch by its source
    (`fetched_name`). Its container image too, and a checkpoint that it goes on from."""

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        self.gpu.check(self.gang)
        return self

    def __hash__(self) -> int:
        """Return the hash of all fields; a dict has none, so that of its entries in any order."""
        entries = {**self.__dict__, "data": frozenset(self.data.items())}
        return hash(tuple(entries[name] for name in type(self).model_fields))

    @property
    def gpu(self) -> GPURequest:
        return GPURequest(self.gpus, self.vram_per_gpu, self.milli, self.mig, alone=self.sensitive)

    @property
    def fetches(self) -> bool:
        """Whether the node has to bring what agents of before protocol 10 cannot."""
        return self.needs_conda or any(name.startswith(_FETCHED) for name in self.data)

    @property
    def gpus_held(self) -> int:
        """The GPUs that it holds when it runs: its own, and the spares of a gang."""
        return self.gpus + (self.gang.spares_of(self.gpus) if self.gang else 0)

    def share_of(self, gpus: int, gpu_power: float = 0.0) -> HostAmounts:
        """Return what it takes of a node that has so many of its GPUs, each of which may draw
        `gpu_power` watts."""
        power = self.gpu._replace(gpus=gpus).power(self.power_per_gpu, gpu_power)
        cpus, ram, storage = self.cpus, self.ram, self.storage_bandwidth
        if gpus != self.gpus:
            cpus, ram, storage = (whole * gpus / self.gpus for whole in (cpus, ram, storage))
        return HostAmounts(cpus, ram, storage, power)

    def at_size(self, gpus: int) -> "JobRequest":
        """Return a malleable job as one that wants exactly so many GPUs; any other as it is.

        Cores, RAM and storage bandwidth go with the GPUs, the duration with its speed on them.
        """
        if self.malleable is None:
            return self
        host = self.share_of(gpus)
        faster = self.malleable.speed(gpus) / self.malleable.speed(self.gpus)
        return self.model_copy(
            update={
                "gpus": gpus, "cpus": host.cpus, "ram": host.ram,
                "storage_bandwidth": host.storage, "malleable": None,
                "expected_duration": min(
                    self.expected_duration / faster, self.max_duration or LONGEST
                ),
                "max_duration": None,
            }
        )  # fmt: skip

    @property
    def smallest(self) -> "JobRequest":
        """A malleable job as one that wants its fewest GPUs; any other as it is."""
        return self if self.malleable is None else self.at_size(self.malleable.min)

    def may_grow(self, gpus: int) -> bool:
        """Return whether so many GPUs are fewer than a malleable job is to have, or may be when it
        has gone on without a lost node."""
        sizes = self.malleable
        return sizes is not None and (gpus < sizes.target or sizes.in_place)

    @classmethod
    def of(
        cls,
        job_id: str,
        spec: JobSpec,
        submitted_at: Instant,
        attempt: int,
        path_behind: float = 0.0,
    ) -> "JobRequest":
        asked = cls._as_said(job_id, spec, submitted_at, attempt, path_behind)
        if spec.malleable is None:
            return asked
        at_target = asked.at_size(spec.malleable.target)
        return at_target.model_copy(
            update={"malleable": spec.malleable, "max_duration": spec.max_duration}
        )

    @classmethod
    def _as_said(
        cls, job_id: str, spec: JobSpec, submitted_at: Instant, attempt: int, path_behind: float
    ) -> "JobRequest":
        return cls(
            id=job_id, tier=spec.tier, priority=spec.priority, gpus=spec.gpus,
            gpu_type=spec.gpu_type, vram_per_gpu=spec.vram_per_gpu, milli=spec.milli,
            mig=spec.mig, cpus=spec.cpus, ram=spec.ram,
            storage_bandwidth=spec.storage_bandwidth, power_per_gpu=spec.power_per_gpu,
            expected_duration=spec.likely_duration,
            duration_known=spec.expected_duration is not None, can_stop=spec.can_stop,
            needs_container=spec.image is not None,
            needs_conda=spec.environment is not None and spec.environment.conda is not None,
            serves=spec.engine is not None or (spec.gpus > 1 and not spec.gpu.whole),
            # A job that begins later has not waited before.
            submitted_at=spec.begins_at(submitted_at) or submitted_at,
            tenant=spec.tenant, start_below=spec.start_below, path_behind=path_behind,
            attempt=attempt, gang=spec.gang, grace=spec.grace, conformance=spec.conformance,
            constraints=spec.constraints, malleable=spec.malleable, sensitive=spec.sensitive,
            data={**_data_of(spec), **_image_of(spec)}, saves=spec.checkpoint is not None,
        )  # fmt: skip


class RecentJobs(Frozen):
    """Jobs of one shape that a pool has placed lately: what to expect of the next ones."""

    request: JobRequest
    """The shape; what else it says is of one of them."""
    count: int = Field(default=1, ge=1)
    ended: int = Field(default=0, ge=0)
    """How many of them have ended."""


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


_FETCHED = "data "


def fetched_name(source: str, tenant: str) -> str:
    """Return the name, among `JobRequest.data`, of a data set that nodes fetch: whoever names the
    same source means the same, by whichever name. No data of a job has a space in its name."""
    return f"{_FETCHED}{source} of {tenant}"


def _data_of(spec: JobSpec) -> dict[str, float]:
    """Return what a job reads, with its GB; 0 where that is not known."""
    return {
        fetched_name(each.source, spec.tenant) if each.source else name: each.size
        for name, each in spec.data.items()
    }


def _image_of(spec: JobSpec) -> dict[str, float]:
    """Return the job's container image as data: no data of a job has a space in its name."""
    return {f"image {spec.image}": IMAGE_SIZE} if spec.image else {}


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
