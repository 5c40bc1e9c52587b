"""The packer's answer for a job that spans nodes: all of its shares, or why it waits."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from longshore.models.gang import GangPlan
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.placement import (
    Decision,
    Member,
    PackingPolicy,
    PlacementKind,
    Rejection,
    RejectionCode,
)
from longshore.models.text import count, listed
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import Offers, need_of_share
from longshore.scheduling.gangs.plan import plan_gang, why_never
from longshore.scheduling.placement.feasibility import explain as explain_rejection
from longshore.scheduling.placement.scoring import provider_for
from longshore.scheduling.placement.state import Need, NodeView, emptied
from longshore.scheduling.words import format_rejected

_MOST_NAMED = 4
"""Domains that a reason names."""


def place_gang(
    job: JobRequest,
    nodes: GangNodes,
    policy: PackingPolicy,
    now: datetime,
    *,
    explain: bool = True,
) -> Decision:
    """Return where the whole gang goes now, given nodes as they are, beside reservations.

    With `explain` the decision lists every node that offered nothing, with its reason. Raises
    ValueError for a job without a gang.
    """
    plan, offers = plan_gang(job, nodes, policy, now)
    never = None if plan.fits else why_never(job, nodes, policy)
    if never is not None:
        # What runs there does not matter then: the reasons are those of empty nodes.
        offers = never.offers
        shortage = ("refusal", "limiting_domain", "missing")
        plan = plan.model_copy(update={name: getattr(never.plan, name) for name in shortage})
    failures = offers.refused
    if not plan.fits:
        failures = failures + [(offer.position, RejectionCode.DOMAIN) for offer in offers.made]
    counts = Counter(code for _, code in failures)
    rejected = {code: counts[code] for code in RejectionCode if counts[code]}
    decision = (
        _placing(job, plan, nodes, rejected)
        if plan.fits
        else _waiting(job, plan, offers, rejected, never.text if never else "")
    )
    if not explain:
        return decision
    need = need_of_share(Need.of(job, policy), 1)
    rejections = tuple(
        _rejection(nodes.views[position], need, code, now)
        if never is None
        else _rejection(emptied(nodes.views[position]), need, code, now).model_copy(
            update={"permanent": True}
        )
        for position, code in sorted(failures)
    )
    return decision.model_copy(update={"rejections": rejections})


def _placing(
    job: JobRequest,
    plan: GangPlan,
    nodes: GangNodes,
    rejected: dict[RejectionCode, int],
) -> Decision:
    def epoch(node_id: str) -> int:
        return nodes.views[nodes.positions[node_id]].node.epoch

    members = tuple(
        Member(
            node_id=share.node_id,
            epoch=epoch(share.node_id),
            gpu_indices=share.gpu_indices,
            group=group.number,
        )
        for group in plan.groups
        for share in group.nodes
    )
    spares = tuple(
        Member(
            node_id=share.node_id,
            epoch=epoch(share.node_id),
            gpu_indices=share.gpu_indices,
            group=group.number,
        )
        for group in plan.groups
        for share in group.spares
    )
    return Decision(
        job_id=job.id,
        kind=PlacementKind.EXISTING_NODE,
        node_id=members[0].node_id,
        gpu_indices=members[0].gpu_indices,
        rejected=rejected,
        reason=_where(plan, members),
        members=members,
        spares=spares,
        gang=plan,
    )


def _waiting(
    job: JobRequest,
    plan: GangPlan,
    offers: Offers,
    rejected: dict[RejectionCode, int],
    never: str,
) -> Decision:
    summary = format_rejected(rejected)
    if not offers.made and not offers.refused:
        reason = f"no node can take it now; {summary}"
    else:
        why = never or f"no nodes can take it together now: {plan.refusal}"
        reason = f"{why} ({summary})"
    fast = job.tier is Tier.FAST
    return Decision(
        job_id=job.id,
        kind=PlacementKind.REQUEST_MORE_CAPACITY if fast else PlacementKind.QUEUE_FOR_FLEX,
        provider_hint=provider_for(job.gpus),
        rejected=rejected,
        reason=reason,
        gang=plan,
    )


def _where(plan: GangPlan, members: Sequence[Member]) -> str:
    """Return ``32 GPUs in 4 groups on 4 nodes of eu/c1/a and eu/c1/b, 2 of 4 spares found``."""
    groups = f" in {count(len(plan.groups), 'group')}" if len(plan.groups) > 1 else ""
    nodes = count(len({member.node_id for member in members}), "node")
    names = list(dict.fromkeys(group.domain for group in plan.groups))
    domains = listed(names, _MOST_NAMED, "domain")
    spares = f", {plan.spares_found} of {count(plan.spares_wanted, 'spare')} found"
    return (
        f"{count(plan.gpus, 'GPU')}{groups} on {nodes} of {domains}"
        f"{spares if plan.spares_wanted else ''}"
    )


def _rejection(view: NodeView, need: Need, code: RejectionCode, now: datetime) -> Rejection:
    if code not in (RejectionCode.GPU_TYPE, RejectionCode.FLAVOR):
        # It suits by the one or the other name; the node's type alone does not say so.
        need = need._replace(gpu_types=())
    return explain_rejection(view, need, code, now)
