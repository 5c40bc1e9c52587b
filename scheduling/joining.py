"""Where further ranks of a gang go that runs: those that it has stay where they are. Pure.

The packer that places gangs places what is added, as one of the same job, behind those that are
before the job in the queue.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node, NodeState
from longshore.models.placement import Decision, PackingPolicy, PlacementKind, RunningJob
from longshore.models.text import count
from longshore.models.topology import Gang, SameConformance
from longshore.scheduling.cycle import planned_until
from longshore.scheduling.gangs.decision import place_gang
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.topology import domain_of, flavor_of


@dataclass(frozen=True)
class Joining:
    """Where further ranks of a running gang may go. No answer takes anything."""

    job: JobRequest
    """As its next attempt would stand in the queue."""
    held: Mapping[str, int]
    """Its GPUs by node."""
    policy: PackingPolicy
    now: datetime
    among: tuple[GangNodes, ...]
    """The nodes that may give room, with what jobs before it in the queue get or have kept: first
    those of the domains that it has."""

    @classmethod
    def of(
        cls,
        job: JobRequest,
        held: Mapping[str, int],
        queue: Sequence[JobRequest],
        nodes: Sequence[Node],
        running: Sequence[RunningJob],
        policy: PackingPolicy,
        now: datetime,
        recent: Sequence[RecentJobs] = (),
    ) -> "Joining":
        assert job.gang is not None
        plan = planned_until(job, queue, nodes, running, policy, now, recent)
        among = [names for names in _nodes_for(job.gang, nodes, held) if names]
        return cls(job, held, policy, now, tuple(map(plan.gang_nodes_among, among)))

    @property
    def free(self) -> dict[str, int]:
        """The sets of GPUs that are free, of the nodes on which that is enough for a rank."""
        return {
            view.node.id: view.free
            for nodes in self.among
            for view in nodes.views
            if view.node.state is NodeState.READY and view.free.bit_count() >= self._fewest
        }

    def only(self, gpus: Mapping[str, int]) -> "Joining":
        """Return the same with these sets of GPUs of these nodes, as if others had the rest; of
        the nodes on which that is enough for a rank."""
        enough = {name: kept for name, kept in gpus.items() if kept.bit_count() >= self._fewest}
        among = [nodes.among(enough) for nodes in self.among]
        return replace(self, among=tuple(_only(nodes, enough) for nodes in among if nodes.views))

    def at(self, size: int) -> Decision:
        """Return where the GPUs go that the job has more with this size; or why nowhere."""
        added = _added(self.job, size, size - sum(self.held.values()))
        why = "no other node is like those that it has"
        for nodes in self.among:
            decision = place_gang(added, nodes, self.policy, self.now, explain=False)
            if decision.kind is not PlacementKind.EXISTING_NODE:
                why = decision.reason
                continue
            least = min(len(gpus) for _, gpus in decision.by_node)
            if least >= self._fewest:
                return decision
            fewest = self._fewest
            why = f"a node would give {count(least, 'GPU')}, and each has {fewest} or more"
        return self._nowhere(why)

    def largest(self, sizes: Sequence[int]) -> Decision:
        """Return the answer for the first of `sizes`, the largest first, that finds room; or why
        none does."""
        decision = self._nowhere("it has no larger size")
        most = sum(self.held.values()) + sum(free.bit_count() for free in self.free.values())
        for size in [size for size in sizes if size <= most] or sizes[-1:]:
            decision = self.at(size)
            if decision.kind is PlacementKind.EXISTING_NODE:
                break
        return decision

    @property
    def _fewest(self) -> int:
        return min(self.held.values())

    def _nowhere(self, why: str) -> Decision:
        return Decision(job_id=self.job.id, kind=PlacementKind.QUEUE_FOR_FLEX, reason=why)


def plan_joining(
    job: JobRequest,
    held: Mapping[str, int],
    sizes: Sequence[int],
    queue: Sequence[JobRequest],
    nodes: Sequence[Node],
    running: Sequence[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    recent: Sequence[RecentJobs] = (),
) -> Decision:
    """Return where the GPUs go that a running gang has more with the first of `sizes` that finds
    room; or why none does.

    `job` is as its next attempt would stand in the queue; `held` are its GPUs by node. A node has
    one rank of it, so nothing is added where it has one. Whoever joins has as many GPUs as the
    least of those that are there: what a process was told at its start of the largest number of
    nodes holds (`scheduling.ranks.most_nodes`). Its nodes are alike as a gang's are, and in the
    domains that it has where these have room.
    """
    joining = Joining.of(job, held, queue, nodes, running, policy, now, recent)
    return joining.largest(sizes)


def larger(job: JobRequest, gpus: int, paid_for: int | None = None) -> tuple[int, ...]:
    """Return the sizes up to its desired one that a job with so many GPUs may grow to, the largest
    first; those alone that are `paid_for`, where not all are."""
    sizes = job.malleable.up_to_target if job.malleable else ()
    return tuple(size for size in sizes if size > gpus and (paid_for or size) >= size)


def _added(job: JobRequest, size: int, more: int) -> JobRequest:
    """Return what a job of this size has more, as a job that wants just that for as long."""
    whole = job.at_size(size)
    host = whole.share_of(more)
    return whole.model_copy(
        update={
            "gpus": more, "cpus": host.cpus, "ram": host.ram, "storage_bandwidth": host.storage,
        }
    )  # fmt: skip


def _nodes_for(
    gang: Gang, nodes: Sequence[Node], held: Collection[str]
) -> Iterator[frozenset[str]]:
    """Yield the nodes on which ranks may join: first those of the domains that it has."""
    here = [node for node in nodes if node.id in held]
    flavors = {flavor_of(node) for node in here}
    prints = {node.conformance for node in here}
    domains = {domain_of(node, unlabelled=True) for node in here}
    alike = [
        node
        for node in nodes
        if node.id not in held
        and flavor_of(node) in flavors
        and (gang.same_conformance is not SameConformance.REQUIRE or node.conformance in prints)
    ]
    yield frozenset(n.id for n in alike if domain_of(n, unlabelled=True) in domains)
    if gang.allow_cross_group_spread:
        yield frozenset(node.id for node in alike)


def _only(nodes: GangNodes, gpus: Mapping[str, int]) -> GangNodes:
    views = [
        replace(view, free=view.free & kept, stuck=view.stuck | view.free & ~kept)
        for view in nodes.views
        for kept in (gpus[view.node.id],)
    ]
    return nodes.showing(views)
