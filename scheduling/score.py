"""The nine terms of a queue's score, f1 to f9 of the seed on the knapsack algorithm.

    S = sum of w_i x f_i

What the terms look at is the pool as it stands: all of its nodes, whatever runs there. So a job
has the same terms while it waits and while it runs, and two jobs cannot stop each other in turn.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple

from longshore.models.job_request import JobRequest, checkpoint_name
from longshore.models.node import Node
from longshore.models.packing import GPUChoice, PackingPolicy
from longshore.models.score import DIFFERING
from longshore.models.topology import NodeTopology
from longshore.scheduling.fair_tree import FairTree, with_tenant
from longshore.scheduling.placement.links import choose_linked
from longshore.scheduling.topology import DomainKey, domain_of

UNKNOWN = 0.5
"""Of a term of which nothing is known: neither for the job nor against it."""
REFERENCE = timedelta(hours=1)
"""Of waiting: the seed's."""
BETWEEN_NODES = 0.7
"""What the fabric counts for a job on several nodes; the rest is for the links within them."""
BUSY = 0.8
"""From this part of the GPUs on nobody has more than its share."""
AUTO_MINUTES, MANUAL_MINUTES = 5, 10
"""That a save is taken to need: of a job that saves by itself, and of one that has to be asked."""


def priority(counts_as: int) -> float:
    """Return f1: the class, of 10. The seed's 0 to 10 would drown all other terms."""
    return counts_as / 10


def waiting(waited: timedelta) -> float:
    """Return f2, which has no bound: a week is 5.13."""
    return math.log1p(max(waited / REFERENCE, 0.0))


def fair_share(target: float, actual: float, burst: float = 0.0, used: float = 1.0) -> float:
    """Return f3: by how much a tenant has had less than its target, as a part of that. Where less
    than four fifths of the GPUs are `used` the target is larger by `burst`."""
    spare = max(BUSY - used, 0.0) / BUSY
    target *= 1 + burst * spare
    return max(target - actual, 0.0) / target


def share_deficit(policy: PackingPolicy, tenant: str | None) -> float:
    """Return by how much a tenant has had less than its share of a pool, as a part of that; 0
    where the pool does not ask, or nobody knows."""
    if tenant is None or policy.score is None or not policy.score.by_share or not policy.usage:
        return 0.0
    usage = with_tenant(policy.usage, tenant)
    tree = FairTree(usage, policy.tree, policy.score.shares)
    return fair_share(*tree.compared(tenant))


def topology(groups: int, most: int, links: float, *, several_nodes: bool) -> float:
    """Return f4: of a job on one node how fast the `links` between its GPUs are, of the fastest
    that there are; of one on several most for how few `groups` of nodes of all it needs.

    The seed's text has the fabric count alone on one node, where it says that only links matter.
    """
    if not several_nodes:
        return links
    return BETWEEN_NODES * (1 - groups / max(most, 1)) + (1 - BETWEEN_NODES) * links


def data_ready(data: Mapping[str, float], held: Collection[str]) -> float:
    """Return f5: the part of a job's data, by size, that some node holds."""
    if not data:
        return UNKNOWN
    sizes = {name: size or 1.0 for name, size in data.items()}
    total = sum(sizes.values())
    there = sum(size for name, size in sizes.items() if name in held)
    return there / total if total else UNKNOWN


def backlog(waiting_gpus: float, running_gpus: float) -> float:
    """Return f6: GPUs that are waited for, as a part of those in use."""
    return min(1.0, waiting_gpus / running_gpus) if running_gpus > 0 else 0.0


def energy(price: float | None) -> float | None:
    """Return f7: how cheap energy is; None where nobody knows its price."""
    return None if price is None else 1 - min(max(price, 0.0), 1.0)


def checkpoint(*, by_itself: bool, when_asked: bool) -> float:
    """Return f8: how soon a job has saved."""
    if by_itself:
        return 1 / (1 + AUTO_MINUTES)
    return 1 / (1 + MANUAL_MINUTES) if when_asked else 0.0


def conformance(largest: int, asked: int) -> float:
    """Return f9: the nodes with one fingerprint, of those that are asked for. `largest` is 0 where
    no fingerprint is known."""
    return min(largest / asked, 1.0) if largest and asked else UNKNOWN


class Scores:
    """The terms of jobs in one pool at one moment, as far as jobs of a class differ in them."""

    def __init__(self, policy: PackingPolicy, nodes: Iterable[Node]) -> None:
        assert policy.score is not None
        self._score = policy.score
        used = policy.score.used
        self._weights = {name: weight for name in DIFFERING if (weight := getattr(used, name))}
        self._nodes = tuple(nodes)
        self._usage, self._in_tree = policy.usage, policy.tree
        self._tree = FairTree(policy.usage, policy.tree, policy.score.shares)
        self._held = frozenset(name for node in self._nodes for name in node.data)
        self._gpus_used = _part_used(self._nodes)
        self._share = cache(self._fair_share)
        self._of_kind = cache(self._kind)
        self._alike = cache(self._shape)
        self._sums: dict[Hashable, float] = {}
        """Of jobs without data, by all that tells them apart here."""

    def differing(self, job: JobRequest, *, can_stop: bool) -> dict[str, float]:
        """Return the terms in which jobs of a class differ, beside waiting."""
        gpus = job.smallest.gpus  # as which it may be stopped
        near, alike = self._alike(job.tier, job.gpu_type, gpus, job.gang is not None)
        return {
            "fair_share": self._share(job.tenant),
            "topology": near,
            "data": data_ready(_reads(job), self._held),
            "checkpoint": checkpoint(by_itself=can_stop, when_asked=job.saves),
            "conformance": alike,
        }

    def sum(self, job: JobRequest, *, can_stop: bool) -> float:
        """Return what those terms are worth together."""
        if job.data:
            return self._summed(job, can_stop=can_stop)
        # A long queue has few kinds of jobs.
        kind = (
            job.tenant, job.tier, job.gpu_type, job.smallest.gpus, job.gang is not None, can_stop,
            job.saves,
        )  # fmt: skip
        found = self._sums.get(kind)
        if found is None:
            found = self._sums[kind] = self._summed(job, can_stop=can_stop)
        return found

    def _summed(self, job: JobRequest, *, can_stop: bool) -> float:
        values = self.differing(job, can_stop=can_stop)
        return sum(weight * values[name] for name, weight in self._weights.items())

    def _fair_share(self, tenant: str | None) -> float:
        if tenant is None or not self._usage:
            return UNKNOWN
        target, actual = self.tree_for(tenant).compared(tenant)
        return fair_share(target, actual, self._score.burst, self._gpus_used)

    def tree_for(self, tenant: str) -> FairTree:
        """Return the tenants with work, with this one."""
        if tenant in self._usage:
            return self._tree
        return FairTree(with_tenant(self._usage, tenant), self._in_tree, self._score.shares)

    def _shape(
        self, tier: str, gpu_type: str | None, gpus: int, may_span: bool
    ) -> tuple[float, float]:
        """Return f4 and f9 of jobs that ask for so many GPUs of a kind."""
        kind = self._of_kind(tier, gpu_type and gpu_type.casefold())
        if not kind.sizes:
            return UNKNOWN, UNKNOWN
        asked = _fewest(kind.sizes, gpus) if may_span else 1
        near = topology(
            _fewest(kind.domains, gpus), len(kind.domains),
            _links(kind.topologies, min(gpus, kind.sizes[0])), several_nodes=asked > 1,
        )  # fmt: skip
        return near, conformance(kind.conforming, asked)

    def _kind(self, tier: str, gpu_type: str | None) -> "_Kind":
        nodes = [
            node for node in self._nodes
            if node.tier == tier and (gpu_type is None or node.gpu_type.casefold() == gpu_type)
        ]  # fmt: skip
        domains: Counter[DomainKey] = Counter()
        for node in nodes:
            key = domain_of(node, unlabelled=True)
            assert key is not None  # each node is one at least
            domains[key] += len(node.gpus)
        prints = Counter(node.conformance for node in nodes if node.conformance)
        return _Kind(
            sizes=sorted((len(node.gpus) for node in nodes), reverse=True),
            domains=sorted(domains.values(), reverse=True),
            conforming=max(prints.values(), default=0),
            topologies=tuple({node.topology for node in nodes if node.topology}),
        )


def _reads(job: JobRequest) -> Mapping[str, float]:
    """Return the data of a job without the checkpoint that it goes on from, which it has while it
    waits alone: who is stopped would rank above whom it is stopped for."""
    own = checkpoint_name(job.id)
    if own not in job.data:
        return job.data
    return {name: size for name, size in job.data.items() if name != own}


class _Kind(NamedTuple):
    """The nodes of one tier and type."""

    sizes: Sequence[int]
    """GPUs of each, the largest first."""
    domains: Sequence[int]
    """GPUs of each domain, the largest first."""
    conforming: int
    """The most nodes with one fingerprint."""
    topologies: tuple[NodeTopology, ...]


def _fewest(sizes: Sequence[int], gpus: int) -> int:
    """Return how many of these hold so many GPUs: all where they do not."""
    return next((n for n, have in enumerate(accumulate(sizes), 1) if have >= gpus), len(sizes))


def _links(topologies: Sequence[NodeTopology], gpus: int) -> float:
    """Return how fast the slowest link between so many GPUs of a node can be."""
    if gpus < 2:
        return 1.0
    known = [found for each in topologies if (found := _best_link(each, gpus)) is not None]
    return max(known, default=UNKNOWN)


@lru_cache(maxsize=1 << 10)
def _best_link(topology: NodeTopology, gpus: int) -> float | None:
    there = topology.gpus
    if len(there) < gpus:
        return None
    mask = sum(1 << index for index in there)
    return choose_linked(topology, mask, mask, gpus, GPUChoice.CONTIGUOUS).link or None


def _part_used(nodes: Sequence[Node]) -> float:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    return sum(not gpu.is_free for gpu in gpus) / len(gpus) if gpus else 1.0
