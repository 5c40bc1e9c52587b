"""One cycle: the decisions for a whole queue, made in order on one state.

A job that finds no room starts where others of the plan can change their places for it
(`scheduling.placement.rearranging`). Jobs that cannot start now get a reservation where they can
start first, and jobs behind them fill what is left, as long as they delay no reservation
(conservative backfill). So a wide job is not starved by narrow ones, and a job that nothing can
ever hold blocks nobody.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from longshore.models.domains import DomainLeft
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, Decision, PackingPolicy, RunningJob
from longshore.scheduling.order import noted, queue_order
from longshore.scheduling.packer import may_not_start
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.filters import LabelNames, labels_named
from longshore.scheduling.placement.mix import Mix, mix_of
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.placement.state import order_on_node, view_nodes
from longshore.scheduling.planner import Planner
from longshore.scheduling.thresholds import held_back
from longshore.scheduling.topology import domains_with_rest


def plan(
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Iterable[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    recent: Iterable[RecentJobs] = (),
    *,
    compiled: bool | None = None,
    as_a_set: bool = True,
    later: int = 0,
) -> CyclePlan:
    """Return a decision for every job of `queue`, in queue order.

    Each job sees the nodes as the jobs before it in this plan have left them. `running` says when
    what is held now will probably come back; capacity in use that it does not explain never does.
    `recent` are the jobs placed lately: with the queue they say what to keep room for, where the
    policy's rule looks at that. The same arguments give the same plan, whatever the order of
    `queue`, `running` and `recent`. So does a `compiled` pass (`scheduling.bulk`), which is taken
    where that is sooner, or as this says. Not `as_a_set` nobody changes its place for another.
    So many jobs behind those for which starts are kept are told when they may start `later`;
    nothing else depends on that.
    """
    running = sorted(running, key=_running_order)
    ordered = queue_order(queue, policy, now, nodes, running)
    ordered, low = _may_start(ordered, policy, now, nodes, running)
    mix = mix_of(ordered, recent, len(running), policy)
    columns = _columns_of(nodes, running, policy, now, _labels(ordered, mix, policy))
    planner = Planner(columns, policy, mix, as_a_set=as_a_set, later=later)
    return _with(planner.plan_all(ordered, compiled), low)


def plan_cached(
    queue: Iterable[JobRequest],
    kept: NodeCache,
    policy: PackingPolicy,
    now: datetime,
    recent: Iterable[RecentJobs] = (),
    *,
    mix: Mix | None = None,
    wanted: Collection[str] | None = None,
    compiled: bool | None = None,
    later: int = 0,
    later_until: str | None = None,
) -> CyclePlan:
    """Return what `plan` returns for the same nodes and what runs there; `kept` stays as it is.

    A `mix` is taken in place of that of `queue` and `recent`, which may be a part of all then.
    Where only jobs that are `wanted` are to be told why they wait, the others may have no
    decision: not where they start or a start is kept for them. Nobody behind the job
    `later_until` is told a later start.
    """
    if policy.weights.separation:  # looks at ends, which move on while a job is overdue
        nodes = kept.nodes_with_data
        return plan(
            queue, nodes, kept.running, policy, now, recent, compiled=compiled, later=later
        )  # fmt: skip
    nodes = kept.nodes_with_data if policy.score else kept.nodes
    ordered = queue_order(queue, policy, now, nodes, kept.running)
    ordered, low = _may_start(ordered, policy, now, nodes, kept.running)
    mix = mix or mix_kept(ordered, kept, policy, recent)
    need_of = kept.needs.under(policy)
    labels = _labels(ordered, mix, policy)
    if wanted is not None and compiled is not True:
        planner = Planner(
            kept.columns(now, labels), policy, mix, need_of, later=later, later_until=later_until
        )
        few = planner.plan_few(ordered, wanted)
        if few is not None:
            return _with(few, low)
    planner = Planner(
        kept.columns(now, labels), policy, mix, need_of, later=later, later_until=later_until
    )
    return _with(planner.plan_all(ordered, compiled, wanted), low)


def _may_start(
    ordered: list[JobRequest],
    policy: PackingPolicy,
    now: datetime,
    nodes: Iterable[Node],
    running: Iterable[RunningJob],
) -> tuple[list[JobRequest], Sequence[Decision]]:
    """Return the jobs of a queue that may start, in its order, and what the others are told, whose
    score is too low: no start is kept for them either."""
    why = held_back(ordered, policy, now, nodes, running)
    if not why:
        return ordered, ()
    low = [job for job in ordered if job.id in why]
    told = [may_not_start(job, why[job.id]) for job in low]
    return [job for job in ordered if job.id not in why], noted(told, low, policy, now)


def _with(made: CyclePlan, low: Sequence[Decision]) -> CyclePlan:
    """Return a plan with what those are told behind the others that may not start."""
    return made.model_copy(update={"decisions": (*made.decisions, *low)}) if low else made


def mix_kept(
    queue: Collection[JobRequest],
    kept: NodeCache,
    policy: PackingPolicy,
    recent: Iterable[RecentJobs],
) -> Mix:
    """Return what `plan_kept` expects to be asked for, by its queue and what was placed lately."""
    need_of = kept.needs.under(policy, len(queue))
    return mix_of(queue, recent, kept.running_count, policy, need_of)


class Foresight(NamedTuple):
    """What a cycle would do with one job."""

    decision: Decision
    """With every candidate and every rejection."""
    before: CyclePlan
    """What it decides for the jobs before it in the queue."""
    domains: tuple[DomainLeft, ...]
    """What each domain has free, with the jobs before it placed, and what it leaves of that."""


def foresee(
    job: JobRequest,
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Iterable[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    recent: Iterable[RecentJobs] = (),
    *,
    is_new: bool = False,
    later: int = 0,
) -> Foresight:
    """Return what `plan` would decide for `job`, were it in the queue too, in full.

    Jobs behind it are left out: in a plan they may give it another place, and never none. One that
    runs now is not asked for its score, a new one is. It is told when it may start `later`, as in
    `plan`.
    """
    queue, running = list(queue), list(running)
    cycle, ahead, decided = _until(job, queue, nodes, running, policy, now, recent, later)
    reservations = tuple(cycle.kept.reservations)
    free = domains_with_rest(cycle.columns.views)
    low = held_back([*queue, job], policy, now, nodes, running) if is_new else {}
    why = low.get(job.id)
    made = may_not_start(job, why) if why else cycle.decide(job, explain=True)
    decisions = noted(cycle.as_moved(decided), ahead, policy, now)
    before = CyclePlan(decisions=decisions, reservations=reservations)
    left = {domain.key: domain.free for domain in domains_with_rest(cycle.columns.views)}
    if later and not why:
        made = cycle.with_later_start([*decided, made], [*ahead, job])
    (decision,) = noted([made], [job], policy, now)
    domains = tuple(
        DomainLeft(
            domain=domain.key.name,
            nodes=domain.nodes,
            gpus=domain.gpus,
            free=domain.free,
            left=left[domain.key],
        )
        for domain in free
    )
    return Foresight(decision, before, domains)


def planned_until(
    job: JobRequest,
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Iterable[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    recent: Iterable[RecentJobs] = (),
) -> Planner:
    """Return a plan in which the jobs before `job` in the queue have their places, or a start
    kept."""
    return _until(job, queue, nodes, running, policy, now, recent)[0]


def _until(
    job: JobRequest,
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Iterable[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    recent: Iterable[RecentJobs],
    later: int = 0,
) -> tuple[Planner, Sequence[JobRequest], list[Decision]]:
    running = sorted(running, key=_running_order)
    ordered = queue_order([*queue, job], policy, now, nodes, running)
    mix = mix_of(ordered, recent, len(running), policy)
    columns = _columns_of(nodes, running, policy, now, _labels(ordered, mix, policy))
    cycle = Planner(columns, policy, mix, later=later)
    low = held_back(ordered, policy, now, nodes, running)
    ahead = [one for one in ordered[: ordered.index(job)] if one.id not in low]
    return cycle, ahead, [cycle.decide(one) for one in ahead]


def _columns_of(
    nodes: Sequence[Node],
    running: Sequence[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    labels: LabelNames,
) -> Columns:
    by_end = bool(policy.weights.separation)
    return Columns(view_nodes(nodes, running, now), now, by_end=by_end, labels=labels)


def _labels(queue: Iterable[JobRequest], mix: Mix, policy: PackingPolicy) -> tuple[str, ...]:
    """Return the labels that a plan asks nodes for."""
    return labels_named(chain(queue, (kind.need for kind in mix.kinds), policy.paid_on))


def _running_order(job: RunningJob) -> tuple[str, datetime, str]:
    return job.node_id, *order_on_node(job)
