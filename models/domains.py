"""The domains of a pool as people look at them, and what a job would leave of each."""

from typing import Self

from pydantic import Field

from longshore.models.base import Frozen, Instant
from longshore.models.gang import GangPacking
from longshore.models.job_request import JobRequest
from longshore.models.node import NodeState
from longshore.models.placement import Decision, PackingRule
from longshore.models.preemption import PreemptionPlan
from longshore.models.topology import LinkClass


class DomainNode(Frozen):
    """One node of a domain."""

    node_id: str
    state: NodeState
    simulated: bool = False
    flavor: str
    """Its label `gpu.flavor`, or else its type of GPU; in lower case."""
    rack: str = ""
    gpus: int
    """All of its GPUs."""
    used: int
    """Those that jobs hold, whole or in part."""
    free: int
    """Those that no job uses; none while the node takes no work."""
    slowest_link: LinkClass | None = None
    """The slowest link between its GPUs; null where one is not known."""
    conformance: str | None = None
    """Fingerprint of driver, firmware and kernel parameters; null where it has not said."""
    missing_labels: tuple[str, ...] = ()
    """Labels of the fabric that it does not name."""
    storage_bandwidth: float | None = None
    """GB/s; not limited when null."""
    storage_used: float = 0.0
    power: float | None = None
    """Watts that its jobs may draw together; not limited when null."""
    power_used: float = 0.0


class DomainView(Frozen):
    """One island of fast fabric."""

    domain: str
    """``region/cluster/fabric.domain``."""
    gpus: int
    used: int
    free: int
    """Sums over its nodes."""
    nodes: tuple[DomainNode, ...]
    """By id."""

    @classmethod
    def of(cls, domain: str, nodes: tuple[DomainNode, ...]) -> Self:
        """Return the domain of these nodes, which are in order."""
        return cls(
            domain=domain,
            gpus=sum(node.gpus for node in nodes),
            used=sum(node.used for node in nodes),
            free=sum(node.free for node in nodes),
            nodes=nodes,
        )


class PoolTopology(Frozen):
    """The domains of one pool."""

    pool: str
    domains: tuple[DomainView, ...] = ()
    """In the order of region, cluster, domain."""
    unlabelled: tuple[DomainNode, ...] = ()
    """Nodes that belong to no domain, by id."""


class DomainLeft(Frozen):
    """What one domain has free before and after a placement."""

    domain: str
    """Empty for the nodes of no domain together."""
    nodes: int = Field(ge=0)
    gpus: int = Field(ge=0)
    """All GPUs of its nodes but those in MIG mode."""
    free: int = Field(ge=0)
    """Those that no job uses, on nodes that take work."""
    left: int = Field(ge=0)
    """Those of them that stay free."""


class Foreseen(Frozen):
    """What a cycle would do with a job now. Nothing was done."""

    pool: str
    at: Instant
    request: JobRequest
    decision: Decision
    """With every candidate and every rejection."""
    domains: tuple[DomainLeft, ...] = ()
    """In the order of their names; the nodes of no domain last."""
    running: int = Field(ge=0)
    """Jobs that run in the pool."""
    ahead: int = Field(ge=0)
    """Jobs of the queue that are decided before it."""
    placed_ahead: int = Field(ge=0)
    """Those of them that would be placed: its nodes are shown with them."""
    kept_ahead: int = Field(ge=0)
    """Those of them that wait and have a start kept for them, which it may not delay."""
    simulated: bool = False
    """Whether it would run on a simulated node, or a node that refused it is simulated."""
    begins_at: Instant | None = None
    """The `begin` of the job, where that is to come: it is decided as if it began now."""
    stops: PreemptionPlan | None = None
    """Where it would wait: who would be stopped for it, at which price, or why nobody."""
    rule: PackingRule | None = None
    """The pool's, by which it is decided."""
    by_rule: dict[PackingRule, Decision] = Field(default_factory=dict[PackingRule, Decision])
    """What a cycle of the pool would do with it by each rule that was asked for."""
    by_gang_packing: dict[GangPacking, Decision] = Field(
        default_factory=dict[GangPacking, Decision]
    )
    """For a gang, where rules were asked for: by each rule of gangs."""
