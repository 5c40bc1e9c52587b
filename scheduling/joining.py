"""Where further ranks of a gang go that runs: those that it has stay where they are. Pure.

The packer that places gangs places what is added, as one of the same job, behind those that are
before the job in the queue.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from longshore.models.node import Node
from longshore.models.placement import (
    Decision,
    JobRequest,
    PackingPolicy,
    PlacementKind,
    RecentJobs,
    RunningJob,
)
from longshore.models.text import count
from longshore.models.topology import Gang, SameConformance
from longshore.scheduling.cycle import planned_until
from longshore.scheduling.topology import domain_of, flavor_of


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
    assert job.gang is not None
    has, fewest = sum(held.values()), min(held.values())
    plan = planned_until(job, queue, nodes, running, policy, now, recent)
    among = [names for names in _nodes_for(job.gang, nodes, held) if names]
    why = "it has no larger size" if not sizes else "no other node is like those that it has"
    for size in sizes:
        added = _added(job, size, size - has)
        for names in among:
            decision = plan.place_among(added, names)
            if decision.kind is not PlacementKind.EXISTING_NODE:
                why = decision.reason
                continue
            least = min(len(gpus) for _, gpus in decision.by_node)
            if least >= fewest:
                return decision
            why = f"a node would give {count(least, 'GPU')}, and each has {fewest} or more"
    return Decision(job_id=job.id, kind=PlacementKind.QUEUE_FOR_FLEX, reason=why)


def larger(job: JobRequest, gpus: int) -> tuple[int, ...]:
    """Return the sizes up to its desired one that a job with so many GPUs may grow to, the largest
    first."""
    sizes = job.malleable.up_to_target if job.malleable else ()
    return tuple(size for size in sizes if size > gpus)


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
