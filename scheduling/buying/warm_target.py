"""The warm target: how many FAST GPUs there should be, as which jobs, and what lacks of it.

To buy for it, to let a machine go and to have one go on are decided apart. All three ask here,
so that none of them takes back what another has done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from longshore.models.buying import BuyingPolicy, BuyingRule, UnmetJob
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.market import InstanceType
from longshore.models.node import Node, NodeState
from longshore.models.spending import WARM
from longshore.scheduling.buying.fleet import Fleet
from longshore.scheduling.buying.incoming_capacity import MOST_JOBS
from longshore.scheduling.buying.repeat_guard import why_not_repeated
from longshore.scheduling.buying.unverifiable_constraints import why_unverifiable
from longshore.scheduling.node_lifetime import EndRules, must_last
from longshore.scheduling.order import queue_order

_WHOLE = 8
"""GPUs of a whole machine, where the pool may buy such."""
_NEVER = timedelta(days=3650)


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


def bought_for(
    queue: Iterable[UnmetJob], tier: Tier, fleet: Fleet, policy: BuyingPolicy, now: datetime
) -> list[UnmetJob]:
    """Return the jobs of a tier for which machines may be bought, in the order of the queue."""
    by_id = {
        job.request.id: job
        for job in queue
        if job.request.tier is tier
        if not (why_unverifiable(job.request) or why_not_repeated(job, policy, now))
    }
    requests = [job.request for job in by_id.values()]
    requests = queue_order(requests, fleet.packing, now, fleet.nodes, fleet.running)
    return [by_id[request.id] for request in requests]


def with_warm(
    queue: Sequence[UnmetJob], fleet: Fleet, policy: BuyingPolicy, usual: float, now: datetime
) -> tuple[UnmetJob, ...]:
    """Return the first FAST jobs of a queue, and behind them the whole target beyond the demand of
    now as jobs: whole machines and the rest. `queue` and `fleet` are those of FAST."""
    wanted = _wanted(queue, fleet, policy)
    beyond = max(warm_target(wanted, policy, usual) - wanted, 0)
    whole = _gpus_of_whole(policy)
    sizes = [whole] * (beyond // whole) + [beyond % whole] * (beyond % whole > 0)
    warm = (
        UnmetJob(request=_request(number, gpus, policy, now), start_by=now)
        for number, gpus in enumerate(sizes, 1)
    )
    return (*queue[:MOST_JOBS], *warm)


def without_the_last(
    jobs: Sequence[UnmetJob], fleet: Fleet, policy: BuyingPolicy, now: datetime
) -> tuple[UnmetJob, ...]:
    """Return the same without what lacks of the target beyond `MOST_JOBS` of its jobs: that is
    bought for when the first of it is under way."""
    if sum(map(_is_warm, jobs)) <= MOST_JOBS:
        return tuple(jobs)
    lacking = [job for job in lacking_of(jobs, fleet, policy, now) if _is_warm(job)]
    last = {job.request.id for job in lacking[MOST_JOBS:]}
    return tuple(job for job in jobs if job.request.id not in last)


def lacking_of(
    jobs: Sequence[UnmetJob], fleet: Fleet, policy: BuyingPolicy, now: datetime
) -> list[UnmetJob]:
    """Return the jobs that nothing holds in time; those of the warm target may be among them.

    In time is what comes up within the start-up limit, and what is released before a machine that
    is bought now would be there. For the others it is a matter of cost. GPUs that jobs use count
    for the target already: what they release does not hold a job of it.
    """
    queue = [job for job in jobs if not _is_warm(job)]
    outlook = fleet.outlook((job.request for job in queue), now)
    on_coming = outlook.jobs_on(fleet.coming)
    released = now + policy.usual_startup
    up = now + max(policy.startup_limit, policy.usual_startup)
    missing: set[str] = set()
    beside: list[JobRequest] = []
    for job in queue:
        start, comes = outlook.starts[job.request.id], job.request.id in on_coming
        if start is None or start > (up if comes else released):
            missing.add(job.request.id)
        if comes or (start is not None and start <= now):
            beside.append(job.request)
    warm = [job.request for job in jobs if _is_warm(job)]
    if warm:
        uses = _without_releases(fleet, now).outlook([*beside, *warm], now).uses
        # At once, all of them beside each other: not one behind another.
        there = {name: at for name, at in fleet.comes_at.items() if at <= up}
        missing |= {job.id for job in warm} - {
            use.job_id
            for name, of_node in uses.items()
            for use in of_node
            if use.start <= there.get(name, now)
        }
    return [job for job in jobs if job.request.id in missing]


def short_of_warm(
    queue: Sequence[UnmetJob], fleet: Fleet, policy: BuyingPolicy, usual: float, now: datetime
) -> int:
    """Return how many GPUs of the warm target lack, beside what is coming.

    Least cost asks which of its jobs nothing holds: free GPUs here and there do not make a whole
    machine. The seeds' rule counts GPUs. `queue` and `fleet` are those of FAST.
    """
    if policy.rule is BuyingRule.SEED:
        wanted = _wanted(queue[:MOST_JOBS], fleet, policy)
        there = fleet.of_type(policy.fast_warm_type).used_of(Tier.FAST)
        return max(warm_target(wanted, policy, usual) - there - _spare(fleet, policy, now), 0)
    jobs = with_warm(queue, fleet, policy, usual, now)
    if not any(map(_is_warm, jobs)):
        return 0
    return sum(job.request.gpus for job in lacking_of(jobs, fleet, policy, now) if _is_warm(job))


def counts_until(ends_at: datetime, policy: BuyingPolicy, rules: EndRules) -> datetime:
    """Return until when a machine of that end counts for the warm target: while a job of the
    target could begin there. `rules` are those of who places it."""
    return ends_at - must_last(_request(1, 1, policy, ends_at), rules)


def counts(node: Node, policy: BuyingPolicy, rules: EndRules, at: datetime) -> bool:
    """Return whether a node counts for the warm target at a moment."""
    if not wants_warm(node.gpu_type, policy):
        return False
    return node.expires_at is None or at <= counts_until(node.expires_at, policy, rules)


def _wanted(queue: Iterable[UnmetJob], fleet: Fleet, policy: BuyingPolicy) -> int:
    """Return the FAST GPUs of the target's type that are queued and used."""
    waiting = sum(
        job.request.gpus
        for job in queue
        if any(wants_warm(each, policy) for each in job.request.types or (None,))
    )
    return waiting + fleet.of_type(policy.fast_warm_type).used_of(Tier.FAST)


def _spare(fleet: Fleet, policy: BuyingPolicy, now: datetime) -> int:
    """Return the free GPUs that count for the warm target: of READY nodes that last long enough,
    and of those that come where they do so from then on."""
    comes = fleet.comes_at
    used: dict[str, set[int]] = {}
    for job in fleet.running:
        if job.node_id not in comes:
            used.setdefault(job.node_id, set()).update(job.gpu_indices)
    return sum(
        len(node.gpus) - len(used.get(node.id, ()))
        for node in fleet.nodes
        if node.state is NodeState.READY
        if counts(node, policy, fleet.packing, comes.get(node.id, now))
    )


def _without_releases(fleet: Fleet, now: datetime) -> Fleet:
    """Return a fleet whose jobs hold what they hold for good; what comes does come."""
    comes = fleet.comes_at
    held = tuple(
        job if job.node_id in comes else job.model_copy(update={"expected_end": now + _NEVER})
        for job in fleet.running
    )
    return replace(fleet, running=held)


def _gpus_of_whole(policy: BuyingPolicy) -> int:
    """Return the GPUs of the largest machine that may be bought for the target, 8 at most."""
    kinds = (InstanceType.parse(named) for named in policy.instance_types)
    sizes = (kind.gpus for kind in kinds if wants_warm(kind.gpu_type, policy))
    return min(max(sizes, default=_WHOLE), _WHOLE)


def _is_warm(job: UnmetJob) -> bool:
    return job.request.id.startswith(WARM)


def _request(number: int, gpus: int, policy: BuyingPolicy, now: datetime) -> JobRequest:
    return JobRequest(
        id=f"{WARM} {number})", tier=Tier.FAST, priority=0, gpus=gpus,
        gpu_type=policy.fast_warm_type, submitted_at=now,
        # By then what is bought when it ends is there.
        expected_duration=policy.startup_limit,
    )  # fmt: skip
