"""One cycle: the decisions for a whole queue, made in order on one state.

A job that finds no room starts where others of the plan can change their places for it
(`scheduling.placement.rearranging`). Jobs that cannot start now get a reservation where they can
start first, and jobs behind them fill what is left, as long as they delay no reservation
(conservative backfill). So a wide job is not starved by narrow ones, and a job that nothing can
ever hold blocks nobody.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

from models.domains import DomainLeft
from models.job import Tier
from models.node import Node
from models.placement import (
    CyclePlan,
    Decision,
    JobRequest,
    PackingPolicy,
    RecentJobs,
    Reservation,
    RunningJob,
)
from models.topology import Gang
from scheduling import bulk
from scheduling.bulk.collector import paused
from scheduling.gangs.decision import place_gang
from scheduling.gangs.nodes import GangNodes
from scheduling.gangs.offers import need_of_share
from scheduling.gangs.start import first_gang_start
from scheduling.order import noted, queue_order
from scheduling.packer import (
    ALTERNATIVES,
    behind_reservations,
    candidates_of,
    moved_to,
    no_start_known,
    placing,
    rejections_of,
    started_among,
    waiting,
    waits_as,
)
from scheduling.placement import rearranging
from scheduling.placement.columns import Columns
from scheduling.placement.filters import LabelNames, labels_named
from scheduling.placement.gpus import Chosen, mask_of
from scheduling.placement.kept import KeptNodes
from scheduling.placement.mix import Mix, mix_of
from scheduling.placement.rearranging import Rearranging, Taken, hold_of
from scheduling.placement.reservations import NoStart, first_start, open_from
from scheduling.placement.scan import Scan, Scanner
from scheduling.placement.state import Hold, Need, order_on_node, view_nodes
from scheduling.told import ToldToWait
from scheduling.topology import domains_with_rest
from scheduling.words import format_gpus, format_part


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
) -> CyclePlan:
    """Return a decision for every job of `queue`, in queue order.

    Each job sees the nodes as the jobs before it in this plan have left them. `running` says when
    what is held now will probably come back; capacity in use that it does not explain never does.
    `recent` are the jobs placed lately: with the queue they say what to keep room for, where the
    policy's rule looks at that. The same arguments give the same plan, whatever the order of
    `queue`, `running` and `recent`. So does a `compiled` pass (`scheduling.bulk`), which is taken
    where that is sooner, or as this says. Not `as_a_set` nobody changes its place for another.
    """
    ordered = queue_order(queue, policy, now)
    running = sorted(running, key=_running_order)
    mix = mix_of(ordered, recent, len(running), policy)
    columns = _columns_of(nodes, running, policy, now, _labels(ordered, mix))
    return _planned(_Cycle(columns, policy, mix, as_a_set=as_a_set), ordered, compiled)


def plan_kept(
    queue: Iterable[JobRequest],
    kept: KeptNodes,
    policy: PackingPolicy,
    now: datetime,
    recent: Iterable[RecentJobs] = (),
    *,
    mix: Mix | None = None,
    compiled: bool | None = None,
) -> CyclePlan:
    """Return what `plan` returns for the same nodes and what runs there; `kept` stays as it is.

    A `mix` is taken in place of that of `queue` and `recent`, which may be a part of all then.
    """
    if policy.weights.separation:  # looks at ends, which move on while a job is overdue
        nodes = kept.nodes_with_data
        return plan(queue, nodes, kept.running, policy, now, recent, compiled=compiled)
    ordered = queue_order(queue, policy, now)
    mix = mix or mix_kept(ordered, kept, policy, recent)
    need_of = kept.needs.under(policy)
    columns = kept.columns(now, _labels(ordered, mix))
    return _planned(_Cycle(columns, policy, mix, need_of), ordered, compiled)


def mix_kept(
    queue: Collection[JobRequest],
    kept: KeptNodes,
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
) -> Foresight:
    """Return what `plan` would decide for `job`, were it in the queue too, in full.

    Jobs behind it are left out: in a plan they may give it another place, and never none.
    """
    ordered = queue_order([*queue, job], policy, now)
    running = sorted(running, key=_running_order)
    mix = mix_of(ordered, recent, len(running), policy)
    columns = _columns_of(nodes, running, policy, now, _labels(ordered, mix))
    cycle = _Cycle(columns, policy, mix)
    ahead = ordered[: ordered.index(job)]
    decided = [cycle.decide(one) for one in ahead]
    reservations = tuple(cycle.reservations)
    free = domains_with_rest(cycle.columns.views)
    (decision,) = noted([cycle.decide(job, explain=True)], [job], policy, now)
    decisions = noted(cycle.as_moved(decided), ahead, policy, now)
    before = CyclePlan(decisions=decisions, reservations=reservations)
    left = {domain.key: domain.free for domain in domains_with_rest(cycle.columns.views)}
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


class _Cycle:
    """The state of one plan while it is made."""

    def __init__(
        self,
        columns: Columns,
        policy: PackingPolicy,
        mix: Mix,
        need_of: Callable[[JobRequest], Need] | None = None,
        *,
        as_a_set: bool = True,
    ) -> None:
        """`need_of` is what says `Need.of` of a job, where that is known."""
        self.policy = policy
        self._need_of = need_of or partial(Need.of, policy=policy)
        self.now = columns.now
        self.columns = columns
        self.reservations: list[Reservation] = []
        self._scanner = Scanner(self.columns, policy, mix)
        self._rearranging = Rearranging(
            self.columns,
            policy,
            partial(self._scanner.scan, look=False),
            tries=rearranging.TRIES if as_a_set else 0,
        )
        self.moved: dict[str, Taken] = {}
        """Where jobs are now that were placed elsewhere, or found no room, at first."""
        self._reserved_by_tier: Counter[Tier] = Counter()
        self._no_start = NoStart()
        self._holders: dict[Need, int] = {}
        """Nodes that could hold jobs with these needs, which wait; whatever their time."""
        self._told = ToldToWait(columns)

    @cached_property
    def _gang_nodes(self) -> GangNodes:
        return GangNodes.of(self.columns.views, self.columns.labels)

    def decide_all(
        self, jobs: Sequence[JobRequest], compiled: bool | None = None
    ) -> tuple[Decision, ...]:
        """Decide for the jobs, in order: compiled where that is sooner or asked for."""
        if compiled is None:
            compiled = bulk.is_worth(len(jobs))
        if not compiled or not bulk.is_for(self.columns, self.policy):
            return self.as_moved([self.decide(job) for job in jobs])
        with paused():
            return self.as_moved(self._decide_compiled(jobs))

    def as_moved(self, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """Return the decisions with the places that jobs have now."""
        return tuple(
            moved_to(decision, taken.chosen, self.columns.views[taken.position].node.id, taken.job)
            if (taken := self.moved.get(decision.job_id)) and taken.chosen
            else decision
            for decision in decisions
        )

    def _decide_compiled(self, jobs: Sequence[JobRequest]) -> tuple[Decision, ...]:
        run = bulk.run_of(
            jobs, self.columns, self.policy, self._scanner.keeper, self.now, self._need_of
        )
        while (at := run.forward()) < len(jobs):
            job, need = jobs[at], run.needs[at]
            run.hand_over(self._take)
            decision = self.decide(job)
            holders, no_start = None, False
            if need is not None and decision.node_id is None:
                holders = self._holders[need.but_for_time()]
                no_start = need in self._no_start
            run.take_back(decision, holders, no_start, self._is_full)
            if decision.job_id in self.moved:
                run.ask_for_starts_again()
        return run.decisions()

    def decide(self, job: JobRequest, *, explain: bool = False) -> Decision:
        """Decide for the next job; with `explain` name every candidate and rejection."""
        if job.gang is None:
            return self._decide_one(job, explain)
        return self._decide_gang(job, job.gang, explain)

    def _decide_one(self, job: JobRequest, explain: bool) -> Decision:
        need = self._need_of(job)
        if not explain and (told := self._told.of_one(need)):
            return waits_as(job, told)
        scan = self._scanner.scan(need)
        best = scan.best(1 + ALTERNATIVES)
        if not best:
            # Before a place is made or a start kept: neither is a reason against the job.
            refused = {"rejections": rejections_of(scan)} if explain else None
            decision = self._start_among_others(job, scan) or self._defer_one(job, scan)
            return decision.model_copy(update=refused) if refused else decision
        decision = placing(job, scan, best)
        if explain:
            everything = {"candidates": candidates_of(scan), "rejections": rejections_of(scan)}
            decision = decision.model_copy(update=everything)
        self._take(job, need, best[0], scan.chosen(best[0]))
        return decision

    def _take(self, job: JobRequest, need: Need, position: int, chosen: Chosen) -> None:
        node = self.columns.views[position].node
        hold = hold_of(job, need, node, chosen, self.now)
        self._rearranging.take(Taken(job, need, position, hold, chosen))

    def _start_among_others(self, job: JobRequest, scan: Scan) -> Decision | None:
        """Start a job that finds no room where others of this plan make it, if a start would be
        kept for it."""
        if not len(scan.holders) or self._is_full(job.tier) or scan.need in self._no_start:
            return None
        rejected = scan.rejected
        moved = self._rearranging.start(job, scan.need)
        if moved is None:
            return None
        self.moved |= moved
        self._no_start.clear()  # some nodes have less to wait for now
        taken = moved[job.id]
        assert taken.chosen is not None
        node_id = self.columns.views[taken.position].node.id
        return started_among(job, taken.chosen, node_id, rejected, len(moved) - 1)

    def _decide_gang(self, job: JobRequest, gang: Gang, explain: bool) -> Decision:
        need = Need.of(job, self.policy)
        if not explain and (told := self._told.of_gang(need, gang)):
            return waits_as(job, told)
        decision = place_gang(job, self._gang_nodes, self.policy, self.now, explain=explain)
        if not decision.members:
            decision = self._defer_gang(job, decision)
            if decision.estimated_start is None:
                self._told.note_gang(need, gang, decision)
            return decision
        for node_id, gpu_indices in decision.held:
            position = self._gang_nodes.positions[node_id]
            node = self.columns.views[position].node
            hold = _hold_of_share(job, need, node, gpu_indices, self.now)
            self._rearranging.take(Taken(job, need, position, hold, None))
        return decision

    def _defer_gang(self, job: JobRequest, decision: Decision) -> Decision:
        if self._is_full(job.tier):
            return decision
        found = first_gang_start(job, self._gang_nodes, self.policy, self.now)
        if found is None:
            return decision
        start, shares = found
        need = Need.of(job, self.policy)
        self._reserved_by_tier[job.tier] += 1
        for node_id, gpu_indices in shares:
            position = self._gang_nodes.positions[node_id]
            node = self.columns.views[position].node
            hold = _hold_of_share(job, need, node, gpu_indices, start)
            self.columns.reserve(position, hold)
            self.reservations.append(
                Reservation(
                    job_id=job.id, node_id=node_id, gpu_indices=gpu_indices, start=start,
                    end=hold.end,
                )
            )  # fmt: skip
        until = f"it waits for {len(shares)} nodes until about {start:%Y-%m-%d %H:%M:%S} UTC"
        return decision.model_copy(
            update={"reason": f"{decision.reason}; {until}", "estimated_start": start}
        )

    def _defer_one(self, job: JobRequest, scan: Scan) -> Decision:
        may_start = bool(len(scan.holders)) and not self._is_full(job.tier)
        decision = self._defer(job, scan)
        if decision.estimated_start is None:
            self._told.note_one(scan.need, decision, may_start=may_start)
        return decision

    def _defer(self, job: JobRequest, scan: Scan) -> Decision:
        self._holders[scan.need.but_for_time()] = len(scan.holders)
        if not len(scan.holders):
            return waiting(job, scan)
        if self._is_full(job.tier):
            return waiting(job, scan, behind_reservations(job, self.policy))
        found = self._first_start(scan)
        if found is None:
            return waiting(job, scan, no_start_known(scan.rejected, len(scan.holders)))
        position, start = found
        reservation = self._reserve(job, scan.need, position, start)
        what = format_gpus(reservation.gpu_indices)
        if not job.whole:
            what = format_part(job, reservation.gpu_indices[0], reservation.slices)
        outlook = (
            f"it waits for {what} of {reservation.node_id} "
            f"until about {start:%Y-%m-%d %H:%M:%S} UTC"
        )
        return waiting(job, scan, outlook, start)

    def _first_start(self, scan: Scan) -> tuple[int, datetime] | None:
        """Return the node where the job can start first, and when; ties keep the order."""
        if scan.need in self._no_start:
            return None
        first = first_start(scan.holders, self.columns, scan.need, not_now=True)
        if first is None:
            self._no_start.add(scan.need)
        return first

    def _is_full(self, tier: Tier) -> bool:
        """Whether no more starts are kept for jobs of a tier."""
        return self._reserved_by_tier[tier] >= self.policy.max_reservations

    def _reserve(self, job: JobRequest, need: Need, position: int, start: datetime) -> Reservation:
        view = self.columns.views[position]
        chosen = open_from(view, need, start, self.policy.gpu_choice)
        assert chosen is not None  # that is how `start` was found
        hold = hold_of(job, need, view.node, chosen, start)
        self.columns.reserve(position, hold)
        self._reserved_by_tier[job.tier] += 1
        reservation = Reservation(
            job_id=job.id,
            node_id=view.node.id,
            gpu_indices=chosen.indices,
            slices=chosen.slices,
            start=start,
            end=hold.end,
        )
        self.reservations.append(reservation)
        return reservation


def _columns_of(
    nodes: Sequence[Node],
    running: Sequence[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    labels: LabelNames,
) -> Columns:
    by_end = bool(policy.weights.separation)
    return Columns(view_nodes(nodes, running, now), now, by_end=by_end, labels=labels)


def _labels(queue: Iterable[JobRequest], mix: Mix) -> tuple[str, ...]:
    """Return the labels that a plan asks nodes for."""
    return labels_named(chain(queue, (kind.need for kind in mix.kinds)))


def _planned(cycle: _Cycle, ordered: Sequence[JobRequest], compiled: bool | None) -> CyclePlan:
    decisions = cycle.decide_all(ordered, compiled)
    return CyclePlan.trusted(
        decisions=noted(decisions, ordered, cycle.policy, cycle.now),
        reservations=tuple(cycle.reservations),
        rearranged=bool(cycle.moved),
    )


def _hold_of_share(
    job: JobRequest, whole: Need, node: Node, gpu_indices: Sequence[int], start: datetime
) -> Hold:
    """Return what a gang has of one node."""
    need = need_of_share(whole, len(gpu_indices))
    host = need.host(node.gpu_power)
    return Hold(job.id, mask_of(gpu_indices), host, start, whole.end_from(start))


def _running_order(job: RunningJob) -> tuple[str, datetime, str]:
    return job.node_id, *order_on_node(job)
