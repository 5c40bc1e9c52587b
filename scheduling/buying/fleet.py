"""What a pool has, what is coming and what might be bought, as nodes that the packer understands.

A machine that is not there yet is a node of which all is held until it comes. So the packer says
for every job when it starts: now, when something ends, when a machine comes up, or never by what
is known (`scheduling.buying.outlook`).
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from longshore.models.buying import CapacityUnderWay, NodeShape, PurchasePlan, Release
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.market import InstanceType, Offer
from longshore.models.node import GPU, Node, NodeState
from longshore.models.placement import PackingPolicy, RunningJob
from longshore.models.topology import labels_of_bought
from longshore.scheduling.buying.outlook import ForecastCluster, Outlook, look_ahead
from longshore.scheduling.buying.unverifiable_constraints import suits_market, why_unverifiable
from longshore.scheduling.packer import could_ever_place

_COMING = "(coming)"
_REPORTED = "(what its agent reports)"
"""The fingerprint of a machine that is not there yet: some, and none that a job can have named."""
_CPUS_PER_GPU, _RAM_PER_GPU = 8.0, 64.0
"""Where a market does not say: the node of 8 GPUs, 64 cores and 512 GB."""
VRAM = {
    "A100": 80.0, "A10": 24.0, "B200": 180.0, "B300": 288.0, "H100": 80.0, "H200": 141.0,
    "L4": 24.0, "L40S": 48.0, "RTX4090": 24.0, "RTX5090": 32.0, "V100": 32.0,
}  # fmt: skip
"""GB, where neither type nor market says it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes, what is held of them, and how they are packed."""

    packing: PackingPolicy
    nodes: tuple[Node, ...] = ()
    running: tuple[RunningJob, ...] = ()
    recent: tuple[RecentJobs, ...] = ()
    """Placed lately, as a cycle knows them."""

    def with_bought(self, bought: PurchasePlan, name: str, expires_at: datetime | None) -> "Fleet":
        """Return the fleet with the nodes of a purchase, named by `names_of`."""
        domain = name if bought.fast_fabric else None
        return self.with_coming(
            names_of(bought, name), bought.shape, bought.tier, bought.provider,
            bought.ready_at, expires_at, bought.place, domain,
        )  # fmt: skip

    def with_coming(
        self,
        names: Sequence[str],
        shape: NodeShape,
        tier: Tier,
        provider: str,
        ready_at: datetime,
        expires_at: datetime | None,
        place: str | None = None,
        domain: str | None = None,
    ) -> "Fleet":
        """Return the fleet with nodes that come; in one fabric domain only where it is named.

        What driver they have their agents report: it will be known, and is not yet.
        """
        gpus = tuple(GPU(index=index, vram=shape.vram) for index in range(shape.gpus))
        nodes = tuple(
            Node(
                id=name, provider=provider, tier=tier, gpu_type=shape.gpu_type, gpus=gpus,
                cpus=shape.cpus, ram=shape.ram, expires_at=expires_at,
                labels=labels_of_bought(provider, place, domain or name),
                container_runtime=shape.container_runtime, conformance=_REPORTED,
            )
            for name in names
        )  # fmt: skip
        held = tuple(
            RunningJob(
                job_id=_COMING, node_id=name, gpu_indices=tuple(range(shape.gpus)),
                cpus=shape.cpus, ram=shape.ram, expected_end=ready_at,
            )
            for name in names
        )  # fmt: skip
        return replace(self, nodes=self.nodes + nodes, running=self.running + held)

    @property
    def coming(self) -> frozenset[str]:
        """The nodes that are not there yet."""
        return frozenset(self.comes_at)

    @property
    def comes_at(self) -> dict[str, datetime]:
        """When each of these nodes comes."""
        return {job.node_id: job.expected_end for job in self.running if job.job_id == _COMING}

    def of_tier(self, tier: Tier) -> "Fleet":
        """Return what can take work of a tier, and what is held there."""
        nodes = tuple(node for node in self.nodes if node.tier is tier)
        names = {node.id for node in nodes}
        running = tuple(job for job in self.running if job.node_id in names)
        return replace(self, nodes=nodes, running=running)

    def of_type(self, gpu_type: str | None) -> "Fleet":
        """Return the nodes with GPUs of a type, and what is held there; all of them for None."""
        if gpu_type is None:
            return self
        nodes = tuple(n for n in self.nodes if n.gpu_type.casefold() == gpu_type.casefold())
        names = {node.id for node in nodes}
        running = tuple(job for job in self.running if job.node_id in names)
        return replace(self, nodes=nodes, running=running)

    def gpus_of(self, tier: Tier) -> int:
        """Return the GPUs of nodes that take work of a tier, now or when they have come."""
        return sum(
            len(node.gpus)
            for node in self.nodes
            if node.tier is tier and node.state is NodeState.READY
        )

    def used_of(self, tier: Tier) -> int:
        """Return the GPUs of a tier that jobs hold now."""
        nodes = {node.id for node in self.nodes if node.tier is tier}
        return sum(
            len(job.gpu_indices)
            for job in self.running
            if job.node_id in nodes and job.job_id != _COMING
        )

    def outlook(self, jobs: Iterable[JobRequest], now: datetime) -> Outlook:
        """Return when each job starts if nothing more is bought, by the pool's own packing."""
        cluster = ForecastCluster(
            self.nodes, self.running, self.comes_at, self.packing, self.recent
        )
        return look_ahead(jobs, cluster, now)


def fleet_of(
    releases: Iterable[Release],
    under_way: Iterable[CapacityUnderWay],
    packing: PackingPolicy,
    recent: tuple[RecentJobs, ...] = (),
) -> Fleet:
    """Return what there is and what was bought already."""
    known = list(releases)
    fleet = Fleet(
        packing,
        tuple(release.node for release in known),
        tuple(job for release in known for job in release.running),
        recent,
    )
    for coming in under_way:
        shape = coming.shape or shape_of(coming.instance_type)
        if shape is None:
            continue
        fleet = fleet.with_coming(
            names_under_way(coming), shape, coming.tier, coming.provider, coming.expected_at,
            coming.until, coming.place, coming.domain,
        )  # fmt: skip
    return fleet


def holding(
    job: JobRequest,
    under_way: Sequence[CapacityUnderWay],
    nodes: Sequence[Node],
    packing: PackingPolicy,
    now: datetime,
) -> list[CapacityUnderWay]:
    """Return what comes that could hold the job when it is there and empty, or of which nobody
    knows what it has: of a gang all, where it could with the nodes that are there."""
    if job.gang is not None:
        there = (*nodes, *fleet_of((), under_way, packing).nodes)
        return list(under_way) if could_ever_place(job, there, now) else []
    machines = [(each, fleet_of((), [each], packing).nodes) for each in under_way]
    return [each for each, its in machines if not its or could_ever_place(job, its, now)]


def nodes_of(bought: PurchasePlan, expires_at: datetime | None) -> Hashable:
    """Return all that `Fleet.with_bought` makes of a purchase, but for the name."""
    return (
        bought.nodes, bought.shape, bought.tier, bought.provider, bought.ready_at, expires_at,
        bought.place, bought.fast_fabric,
    )  # fmt: skip


def names_under_way(coming: CapacityUnderWay) -> list[str]:
    return [f"{coming.id}-{number}" for number in range(coming.nodes)]


def names_of(bought: PurchasePlan, name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(bought.nodes)]


def shape_of(
    instance_type: str, *, cpus: float | None = None, ram: float | None = None
) -> NodeShape | None:
    """Return what a machine of a type has; None for a type that cannot be read."""
    try:
        kind = InstanceType.parse(instance_type)
    except ValueError:  # a market's own name for something
        return None
    vram = kind.vram if kind.vram is not None else VRAM.get(kind.gpu_type, 0.0)
    return NodeShape(
        gpus=kind.gpus,
        gpu_type=kind.gpu_type,
        vram=vram,
        cpus=cpus if cpus is not None else kind.gpus * _CPUS_PER_GPU,
        ram=ram if ram is not None else kind.gpus * _RAM_PER_GPU,
    )


def shape_of_offer(offer: Offer) -> NodeShape | None:
    """Return what the machine of an offer has; None where its type cannot be read."""
    return shape_of(offer.instance_type, cpus=offer.cpus, ram=offer.ram)


def holds(shape: NodeShape, job: JobRequest, market: str = "") -> bool:
    """Return whether machines of a shape could hold a job: one alone, or several for a gang.

    Of any market where none is named.
    """
    if why_unverifiable(job) or not suits_market(job, market):
        return False
    if not job.takes(shape.gpu_type) or job.vram_per_gpu > shape.vram:
        return False
    if job.gang is not None:
        return True
    return job.gpus <= shape.gpus and job.cpus <= shape.cpus and job.ram <= shape.ram


def is_there(node: Node) -> bool:
    """Return whether a node of a fleet is one of the pool already."""
    return node.conformance != _REPORTED
