"""Which spare takes the place of which node of a gang: the same ranks, the same world size."""

from collections.abc import Iterable, Sequence

from longshore.models.failover import Failover, HeldNode, Swap
from longshore.models.gang import GangPlan, NodeShare, PlannedGroup
from longshore.models.placement import Decision, Member
from longshore.models.text import count
from longshore.models.topology import Gang


def plan_failover(
    held: Sequence[HeldNode], groups: Sequence[frozenset[str]], gang: Gang
) -> Failover:
    """Return a spare for each node of the gang that is unfit, or none at all.

    `held` are ranks and spares, `groups` the nodes of each group. A spare has to have as many GPUs
    as the rank; it is in the domain of the node that it follows, or the groups there move whole to
    its own. The largest rank chooses first, and takes a spare that is not lent where there is one,
    and of these that with the fewest GPUs that suffice.
    """
    unfit = [node for node in held if not node.spare and node.unfit]
    if not unfit:
        return Failover(reason="none of its nodes has to be left")
    spares = [node for node in held if node.spare and not node.unfit]
    swaps: list[Swap] = []
    for node in sorted(unfit, key=lambda node: (-len(node.gpu_indices), node.rank)):
        chosen = _spare_for(node, spares, groups, gang)
        if chosen is None:
            return Failover(reason=_why_none(node, spares))
        spares.remove(chosen)
        gpus = chosen.gpu_indices[: len(node.gpu_indices)]
        promoted = chosen.model_copy(
            update={"rank": node.rank, "gpu_indices": gpus, "spare": False}
        )
        swaps.append(Swap(rank=node.rank, left=node.node_id, node=promoted))
    swaps.sort(key=lambda swap: swap.rank)
    return Failover(swaps=tuple(swaps), spares=tuple(spares), reason=_words(swaps, unfit))


def decision_after(decision: Decision, failover: Failover) -> Decision:
    """Return the decision of the attempt that goes on: the same groups, the spares in place."""
    swaps = {swap.left: swap for swap in failover.swaps}
    left = {name: list(swap.node.gpu_indices) for name, swap in swaps.items()}

    def follow(member: Member) -> Member:
        if member.node_id not in swaps:
            return member
        node, gpus = swaps[member.node_id].node, left[member.node_id]
        taken = tuple(gpus[: len(member.gpu_indices)])
        del gpus[: len(taken)]  # the rest is for the node's other groups
        return member.model_copy(
            update={"node_id": node.node_id, "epoch": node.epoch, "gpu_indices": taken}
        )

    members = tuple(follow(member) for member in decision.members)
    staying = {node.node_id for node in failover.spares}
    spares = tuple(spare for spare in decision.spares if spare.node_id in staying)
    return decision.model_copy(
        update={
            "node_id": members[0].node_id,
            "gpu_indices": members[0].gpu_indices,
            "members": members,
            "spares": spares,
            "gang": decision.gang and _plan_after(decision.gang, members, spares, failover),
            "reason": failover.reason,
        }
    )


def _plan_after(
    plan: GangPlan, members: Sequence[Member], spares: Sequence[Member], failover: Failover
) -> GangPlan:
    domains = {swap.node.node_id: swap.node.domain for swap in failover.swaps}
    groups: list[PlannedGroup] = []
    for group in plan.groups:
        nodes = _shares(members, group.number)
        # All nodes of a group are in one domain: a spare from another has taken it there whole.
        moved = (domains[share.node_id] for share in nodes if share.node_id in domains)
        update = {
            "nodes": nodes, "spares": _shares(spares, group.number),
            "domain": next(moved, group.domain),
        }  # fmt: skip
        groups.append(group.model_copy(update=update))
    return plan.model_copy(update={"groups": tuple(groups)})


def _shares(members: Iterable[Member], group: int) -> tuple[NodeShare, ...]:
    return tuple(
        NodeShare(node_id=member.node_id, gpu_indices=member.gpu_indices)
        for member in members
        if member.group == group
    )


def _spare_for(
    node: HeldNode, spares: Sequence[HeldNode], groups: Sequence[frozenset[str]], gang: Gang
) -> HeldNode | None:
    alone = all(len(group) == 1 for group in groups if node.node_id in group)
    fitting = [
        spare
        for spare in spares
        if len(spare.gpu_indices) >= len(node.gpu_indices)
        and (spare.domain == node.domain or (alone and gang.allow_cross_group_spread))
    ]
    return min(
        fitting,
        key=lambda spare: (
            spare.domain != node.domain,
            spare.lent,
            len(spare.gpu_indices),
            spare.rank,
        ),
        default=None,
    )


def _words(swaps: Sequence[Swap], unfit: Sequence[HeldNode]) -> str:
    """Return ``c takes the place of b (rank 1): node b was lost``."""
    why = {node.rank: node.unfit for node in unfit}
    return "; ".join(
        f"{swap.node.node_id} takes the place of {swap.left} (rank {swap.rank}): {why[swap.rank]}"
        for swap in swaps
    )


def _why_none(node: HeldNode, spares: Sequence[HeldNode]) -> str:
    what = f"rank {node.rank} on {node.node_id}, {count(len(node.gpu_indices), 'GPU')}"
    if not spares:
        return f"no spare is left for {what}"
    offered = ", ".join(f"{s.node_id} has {len(s.gpu_indices)} in {s.domain}" for s in spares)
    return f"no spare can stand in for {what} of {node.domain}: {offered}"
