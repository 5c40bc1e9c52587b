"""Preemption: running jobs of lower classes stop for one that waits, where that costs less
than to wait, or to buy.

What stopping costs is in `scheduling.preemption.costs`; which jobs, `scheduling.preemption.search`
finds; whether the job then fits, the packer says.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy
from longshore.models.preemption import (
    BuyQuote,
    PreemptionPlan,
    PreemptionPolicy,
    PreemptionUnderWay,
    RunningWork,
)
from longshore.scheduling.placement.mix import Mix, mix_of
from longshore.scheduling.preemption.cutting import plan_due
from longshore.scheduling.preemption.scene import Scene
from longshore.scheduling.preemption.stoppable import Stoppable
from longshore.scheduling.preemption.yielding import Yielding
from longshore.scheduling.thresholds import held_back


def plan_preemption(
    job: JobRequest,
    nodes: Sequence[Node],
    running: Sequence[RunningWork],
    policy: PreemptionPolicy,
    packing: PackingPolicy,
    now: datetime,
    buy_quote: BuyQuote | None = None,
    recent: Iterable[RecentJobs] = (),
) -> PreemptionPlan:
    """Return which running jobs are to stop so that `job` starts; none where that is not right.

    `nodes` are as they are now, with what `running` holds. Only lower classes lose GPUs, gangs
    whole, and only where that costs less than every other way. The order of `nodes` and `running`
    does not matter. For a malleable job they stop for its smallest size alone.
    """
    job = job.smallest
    works = _in_order(running)
    yielding = _yielding(works, [job], nodes, policy, packing, now)
    stoppable = Stoppable(works, policy, now, yielding, packing.funding)
    mix = mix_of([job], recent, len(works), packing)
    scene = Scene(nodes, works, policy, packing, now, mix, [job], stoppable, yielding)
    return scene.plan(job, buy_quote, policy.max_under_way)


def plan_preemptions(
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Sequence[RunningWork],
    policy: PreemptionPolicy,
    packing: PackingPolicy,
    now: datetime,
    under_way: Sequence[PreemptionUnderWay] = (),
    quotes: Mapping[str, BuyQuote] | None = None,
    recent: Iterable[RecentJobs] = (),
    *,
    stops_only: bool = False,
    mix: Mix | None = None,
    due: Mapping[str, str] = MappingProxyType({}),
) -> tuple[PreemptionPlan, ...]:
    """Return a plan for every job of a queue that waits, in queue order.

    Each job sees the nodes as the jobs before it will leave them: what they take, what they have
    stopped, and the start that is kept for those that wait on. So no job is stopped for two, and
    none is stopped for a job that could not start beside those before it. `under_way` are the jobs
    for which others are being stopped already: they get no second plan, and their GPUs are taken.
    A job that fits goes where the next cycle places it, by the pool's rule and what was placed
    lately (`recent`): elsewhere it might be in the way of one that then has others stopped. Nobody
    is stopped for a job that the next cycle starts since others of it change their places: that
    job, and those behind it, get their plans after that cycle. With `stops_only` only the plans
    that stop somebody are made: sooner, above all where there is none. A `mix` is taken in place
    of that of `queue` and `recent`: the queue may be a part of all then.

    `due` are jobs whose start is due, each with the seed of its lottery
    (`scheduling.preemption.due`).
    """
    queue, recent = tuple(job.smallest for job in queue), tuple(recent)
    works = _in_order(running)
    shares = [share for work in works for share in work.shares]
    low = held_back(queue, packing, now, nodes, shares)
    queue = tuple(job for job in queue if job.id not in low)  # nothing helps these to start
    yielding = _yielding(works, queue, nodes, policy, packing, now)
    stoppable = Stoppable(works, policy, now, yielding, packing.funding, due)
    if stops_only and not (policy.enabled and any(map(stoppable.whom, queue))):
        return ()
    mix = mix or mix_of(queue, recent, len(works), packing)
    scene = Scene(
        nodes, works, policy, packing, now, mix, queue, stoppable, yielding, stops_only=stops_only
    )
    scene.begin(under_way)
    stopping = sum(len(one.victims) for one in under_way)

    def when_due(at: Scene, job: JobRequest, room: int) -> PreemptionPlan | None:
        return plan_due(at, job, room, due[job.id]) if job.id in due else None

    return scene.plan_all(queue, quotes or {}, stopping, recent, when_due if due else None)


def _in_order(running: Iterable[RunningWork]) -> tuple[RunningWork, ...]:
    return tuple(sorted(running, key=lambda work: work.id))


def _yielding(
    works: Sequence[RunningWork],
    queue: Iterable[JobRequest],
    nodes: Iterable[Node],
    policy: PreemptionPolicy,
    packing: PackingPolicy,
    now: datetime,
) -> Yielding | None:
    return Yielding(works, queue, nodes, policy, packing, now) if packing.by_rank else None
