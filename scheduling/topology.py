"""The domains of a set of nodes: islands of fast fabric, with what is free in each."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from longshore.models.domains import DomainNode, DomainView, PoolTopology
from longshore.models.node import Node, NodeState
from longshore.models.topology import (
    CLUSTER_LABEL,
    DOMAIN_LABEL,
    FABRIC_LABELS,
    FLAVOR_LABEL,
    RACK_LABEL,
    REGION_LABEL,
)
from longshore.scheduling.placement.links import slowest_link
from longshore.scheduling.placement.state import NodeView


class DomainKey(NamedTuple):
    """What nodes of one domain have in common. Keys sort by region, cluster, domain."""

    region: str
    cluster: str
    domain: str

    @property
    def name(self) -> str:
        """``region/cluster/domain``; of a node that is a domain of its own, its id."""
        return "/".join(self) if self.region else self.domain


NO_DOMAIN = DomainKey("", "", "")
"""Stands for the nodes that belong to none, where they are counted together."""


class Domain(NamedTuple):
    key: DomainKey
    nodes: int
    gpus: int
    """All GPUs of its nodes."""
    free: int
    """Those that no job holds, on nodes that take work. The others are in use, or out of use."""


def domains_of(views: Sequence[NodeView], *, unlabelled: bool = False) -> tuple[Domain, ...]:
    """Return the domains in the order of their keys, whatever the order of the nodes.

    Nodes that do not name their fabric are left out, or with `unlabelled` each is a domain.
    """
    return sum_domains(views, [domain_of(view.node, unlabelled=unlabelled) for view in views])


def sum_domains(views: Sequence[NodeView], keys: Sequence[DomainKey | None]) -> tuple[Domain, ...]:
    """Return the same where the key of each node's domain is known; None leaves a node out."""
    found: dict[DomainKey, list[int]] = {}
    for view, key in zip(views, keys, strict=True):
        if key is None:
            continue
        sums = found.setdefault(key, [0, 0, 0])
        sums[0] += 1
        sums[1] += view.rooms.count
        if view.node.state is NodeState.READY:
            sums[2] += view.free.bit_count()
    return tuple(Domain(key, *found[key]) for key in sorted(found))


def domains_with_rest(views: Sequence[NodeView]) -> tuple[Domain, ...]:
    """Return the domains, and last the nodes that belong to none as one without a name."""
    rest = [view for view in views if domain_of(view.node) is None]
    if not rest:
        return domains_of(views)
    each = domains_of(rest, unlabelled=True)
    nodes, gpus, free = (sum(numbers) for numbers in zip(*(one[1:] for one in each), strict=True))
    return (*domains_of(views), Domain(NO_DOMAIN, nodes, gpus, free))


def topology_of(pool: str, nodes: Sequence[Node], simulated: Collection[str] = ()) -> PoolTopology:
    """Return the domains of a pool with their nodes, whatever the order of the nodes.

    `simulated` are the ids of nodes whose GPUs come from flags.
    """
    by_domain: dict[DomainKey, list[DomainNode]] = {}
    unlabelled: list[DomainNode] = []
    for node in sorted(nodes, key=lambda node: node.id):
        key = domain_of(node)
        of = unlabelled if key is None else by_domain.setdefault(key, [])
        of.append(_described(node, simulated=node.id in simulated))
    domains = tuple(DomainView.of(key.name, tuple(by_domain[key])) for key in sorted(by_domain))
    return PoolTopology(pool=pool, domains=domains, unlabelled=tuple(unlabelled))


def _described(node: Node, *, simulated: bool) -> DomainNode:
    used = [gpu for gpu in node.gpus if gpu.job_id or gpu.milli_used or gpu.slices_used]
    takes_work = node.state is NodeState.READY
    return DomainNode(
        node_id=node.id,
        state=node.state,
        simulated=simulated,
        flavor=flavor_of(node),
        rack=rack_of(node),
        gpus=len(node.gpus),
        used=len(used),
        free=len(node.gpus) - len(used) if takes_work else 0,
        slowest_link=slowest_link(node.topology, [gpu.index for gpu in node.gpus]),
        conformance=node.conformance,
        missing_labels=missing_labels(node),
        storage_bandwidth=node.storage_bandwidth,
        storage_used=node.storage_used,
        power=node.power,
        power_used=node.power_used,
    )


def domain_of(node: Node, *, unlabelled: bool = False) -> DomainKey | None:
    """Return the domain of a node; None where it does not name it.

    With `unlabelled` such a node is a domain of its own: its GPUs are close to each other at
    least, and nothing is known of what connects it to others.
    """
    return domain_of_labels(node.id, node.labels, unlabelled=unlabelled)


def domain_of_labels(
    node_id: str, labels: Mapping[str, str], *, unlabelled: bool = False
) -> DomainKey | None:
    """Return the same of a node of which only the labels are at hand."""
    region, cluster = labels.get(REGION_LABEL), labels.get(CLUSTER_LABEL)
    domain = labels.get(DOMAIN_LABEL)
    if region and cluster and domain:
        return DomainKey(region, cluster, domain)
    return DomainKey("", "", node_id) if unlabelled else None


def missing_labels(node: Node) -> tuple[str, ...]:
    """Return the labels of the fabric that a node lacks or leaves empty."""
    return tuple(name for name in FABRIC_LABELS if not node.labels.get(name))


def flavor_of(node: Node) -> str:
    """Return the flavor of a node's GPUs in lower case: its label, or else its type of GPU."""
    return (node.labels.get(FLAVOR_LABEL) or node.gpu_type).casefold()


def rack_of(node: Node) -> str:
    return node.labels.get(RACK_LABEL, "")
