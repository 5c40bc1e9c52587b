"""The warm target: how many FAST GPUs there should be, as which jobs, and which machines count.

To buy for it, to let a machine go and to have one go on are decided apart. All three ask here,
so that none of them takes back what another has done.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from models.buying import BuyingPolicy, UnmetJob
from models.job import Tier
from models.node import Node, NodeState
from models.placement import JobRequest
from models.spending import WARM
from scheduling.buying.fleet import Fleet
from scheduling.lasting import EndRules, must_last

MOST_JOBS = 64
"""Of the warm target: each is a whole machine of 8 GPUs, or the rest."""


def warm_target(wanted: int, policy: BuyingPolicy, usual: float = 0.0) -> int:
    """Return how many FAST GPUs there should be when so many are queued and used.

    `usual` is what was wanted of late on average: it counts where a pool buys ahead.
    """
    if policy.fast_safety_factor > 1:
        wanted = max(wanted, int(usual))
    return max(int(wanted * policy.fast_safety_factor), policy.fast_warm_gpus)


def wants_warm(gpu_type: str | None, policy: BuyingPolicy) -> bool:
    """Return whether a GPU of a type counts for the warm target, or a job that may have any."""
    named = policy.fast_warm_type
    return named is None or gpu_type is None or gpu_type.casefold() == named.casefold()


def wanted_of(queued: Iterable[JobRequest], fleet: Fleet, policy: BuyingPolicy) -> int:
    """Return the FAST GPUs of the target's type that are queued and used."""
    waiting = sum(
        job.gpus for job in queued
        if job.tier is Tier.FAST and wants_warm(job.gpu_type, policy)
    )  # fmt: skip
    return waiting + fleet.of_type(policy.fast_warm_type).used_of(Tier.FAST)


def warm_jobs(
    queued: Sequence[JobRequest], fleet: Fleet, policy: BuyingPolicy, usual: float, now: datetime
) -> tuple[UnmetJob, ...]:
    """Return the warm target beyond the demand of now as jobs: idle nodes can hold them."""
    wanted = wanted_of(queued, fleet, policy)
    beyond = max(warm_target(wanted, policy, usual) - wanted, 0)
    sizes = [8] * (beyond // 8) + [beyond % 8] * (beyond % 8 > 0)
    return tuple(
        UnmetJob(request=_request(number, gpus, policy, now), start_by=now)
        for number, gpus in enumerate(sizes[:MOST_JOBS], 1)
    )


def counts_until(ends_at: datetime, policy: BuyingPolicy, rules: EndRules) -> datetime:
    """Return until when a machine of that end counts for the warm target: while a job of the
    target could begin there. `rules` are those of who places it."""
    return ends_at - must_last(_request(1, 1, policy, ends_at), rules)


def spare(
    fleet: Fleet, policy: BuyingPolicy, rules: EndRules, now: datetime, *, coming: bool = True
) -> int:
    """Return the free GPUs that count for the warm target: of READY nodes that last long enough,
    and of those that come where they do so from then on."""
    fleet = fleet.of_type(policy.fast_warm_type).of_tier(Tier.FAST)
    comes = fleet.comes_at
    used: dict[str, set[int]] = {}
    for job in fleet.running:
        if job.node_id not in comes:
            used.setdefault(job.node_id, set()).update(job.gpu_indices)
    return sum(
        len(node.gpus) - len(used.get(node.id, ()))
        for node in fleet.nodes
        if node.state is NodeState.READY
        if coming or node.id not in comes
        if counts(node, policy, rules, comes.get(node.id, now))
    )


def counts(node: Node, policy: BuyingPolicy, rules: EndRules, at: datetime) -> bool:
    """Return whether a node counts for the warm target at a moment."""
    if not wants_warm(node.gpu_type, policy):
        return False
    return node.expires_at is None or at <= counts_until(node.expires_at, policy, rules)


def _request(number: int, gpus: int, policy: BuyingPolicy, now: datetime) -> JobRequest:
    return JobRequest(
        id=f"{WARM} {number})", tier=Tier.FAST, priority=0, gpus=gpus,
        gpu_type=policy.fast_warm_type, submitted_at=now,
        # By then what is bought when it ends is there.
        expected_duration=policy.startup_limit,
    )  # fmt: skip
