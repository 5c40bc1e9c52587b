"""The decisions of one plan: each job sees the nodes as the jobs before it have left them."""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import cached_property, partial

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan, Decision, PackingPolicy, PlacementKind
from longshore.models.text import count
from longshore.models.topology import Gang
from longshore.scheduling import bulk, elastic
from longshore.scheduling.bulk.collector import paused
from longshore.scheduling.funding.where_paid import paid_first
from longshore.scheduling.gangs.decision import place_gang
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import hold_of_share
from longshore.scheduling.gangs.rooms import most_now
from longshore.scheduling.kept_starts import GANG_LOOKS, LATER_LOOKS, KeptStarts, through
from longshore.scheduling.order import noted
from longshore.scheduling.packer import (
    ALTERNATIVES,
    behind_reservations,
    candidates_of,
    may_start_later,
    moved_to,
    placing,
    rejections_of,
    started_among,
    waiting,
    waits_as,
)
from longshore.scheduling.placement import rearranging
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.holders import Holders
from longshore.scheduling.placement.mix import Mix
from longshore.scheduling.placement.rearranging import Rearranging
from longshore.scheduling.placement.scan import Scan, Scanner
from longshore.scheduling.placement.state import Need
from longshore.scheduling.placement.taken import Taken, hold_of
from longshore.scheduling.wait_answers import WaitAnswers
from longshore.scheduling.words import format_place, format_start


class Planner:
    """The state of one plan while it is made."""

    def __init__(
        self,
        columns: Columns,
        policy: PackingPolicy,
        mix: Mix,
        need_of: Callable[[JobRequest], Need] | None = None,
        *,
        as_a_set: bool = True,
        later: int = 0,
        later_until: str | None = None,
    ) -> None:
        """`need_of` is what says `Need.of` of a job, where that is known. For so many jobs for
        which no start is kept the plan says when they may start `later`, none behind this one."""
        self.policy = policy
        self._need_of = need_of or partial(Need.of, policy=policy)
        self.now = columns.now
        self.columns = columns
        self._scanner = Scanner(self.columns, policy, mix)
        self._rearranging = Rearranging(
            self.columns, policy, partial(self._scanner.scan, reweigh=False),
            tries=rearranging.TRIES if as_a_set else 0,
        )  # fmt: skip
        self.moved: dict[str, Taken] = {}
        """Where jobs are now that were placed elsewhere, or found no room, at first."""
        self.kept = KeptStarts(self.columns, policy, self._rearranging.placed_at)
        self._holders: dict[Need, Holders] = {}
        """Nodes that could hold jobs with these needs, which wait; whatever their time."""
        self._told = WaitAnswers(columns)
        self._later, self._later_until = later, later_until

    @cached_property
    def _gang_nodes(self) -> GangNodes:
        return GangNodes.of(self.columns.views, self.columns.labels)

    def plan_few(self, jobs: Sequence[JobRequest], wanted: Collection[str]) -> CyclePlan | None:
        """Return a plan of the jobs, in order, without those that find no room since one like them
        found none, as far as they are not `wanted`.

        None where so many start that all are decided sooner by a compiled pass.
        """
        decided: list[JobRequest] = []
        decisions: list[Decision] = []
        starts = 0
        for job in jobs:
            if job.id not in wanted and self._has_no_room(job):
                continue
            decision = self.decide(job)
            decided.append(job)
            decisions.append(decision)
            starts += decision.kind is PlacementKind.EXISTING_NODE
            if starts == bulk.FEWEST and bulk.is_worth(len(jobs)):
                return None
        return self._plan(self.as_moved(decisions), decided, jobs)

    def plan_all(
        self,
        jobs: Sequence[JobRequest],
        compiled: bool | None = None,
        wanted: Collection[str] | None = None,
    ) -> CyclePlan:
        """Return a plan of the jobs, in order: compiled where that is sooner or asked for. Of
        those that wait a compiled pass tells the `wanted` alone."""
        if compiled is None:
            compiled = bulk.is_worth(len(jobs))
        if not compiled or not bulk.is_for(self.columns, self.policy):
            return self._plan(self.as_moved([self.decide(job) for job in jobs]), jobs, jobs)
        with paused():
            decisions = self.as_moved(self._decide_compiled(jobs, wanted))
        decided = jobs
        if len(decisions) < len(jobs):
            by_id = {job.id: job for job in jobs}
            decided = [by_id[decision.job_id] for decision in decisions]
        return self._plan(decisions, decided, jobs)

    def _plan(
        self,
        decisions: Sequence[Decision],
        jobs: Sequence[JobRequest],
        queue: Sequence[JobRequest],
    ) -> CyclePlan:
        """Return the plan of these decisions for `jobs`, some or all of a queue."""
        if later := self._later_starts(decisions, queue):
            told = {decision.job_id: decision for decision in decisions} | later
            jobs = [job for job in queue if job.id in told]
            decisions = [told[job.id] for job in jobs]
        return CyclePlan.trusted(
            decisions=noted(decisions, jobs, self.policy, self.now),
            reservations=tuple(self.kept.reservations),
            rearranged=bool(self.moved),
        )

    def _has_no_room(self, job: JobRequest) -> bool:
        """Return whether a job finds neither room nor a start, since one like it found none."""
        if job.malleable is not None:
            return bool(self._told.of_malleable(job, self.policy))
        if job.gang is None:
            return self._told.has_no_room(self._need_of(job))
        return self._told_gang(job, job.gang) is not None

    def _told_gang(self, job: JobRequest, gang: Gang) -> Decision | None:
        may_start = not self.kept.is_full(job.tier)
        return self._told.of_gang(self._need_of(job), gang, may_start=may_start)

    def as_moved(self, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """Return the decisions with the places that jobs have now."""
        return tuple(
            moved_to(decision, taken.chosen, self.columns.views[taken.position].node.id, taken.job)
            if (taken := self.moved.get(decision.job_id)) and taken.chosen
            else decision
            for decision in decisions
        )

    def _decide_compiled(
        self, jobs: Sequence[JobRequest], wanted: Collection[str] | None
    ) -> tuple[Decision, ...]:
        run = bulk.run_of(
            jobs, self.columns, self.policy, self._scanner.keeper, self.now, self._need_of, wanted
        )
        while (at := run.forward()) < len(jobs):
            job, need = jobs[at], run.needs[at]
            run.hand_over(self._take)
            decision = self.decide(job)
            holders, no_start = None, False
            if need is not None and decision.node_id is None:
                holders = self._holders[need.but_for_time()]
                no_start = need in self.kept.no_start
            run.take_back(decision, holders, no_start, self.kept.is_full)
            if decision.job_id in self.moved:
                run.ask_for_starts_again()
        if self._later:
            run.hand_over(self._take)
        return run.decisions()

    def decide(self, job: JobRequest, *, explain: bool = False) -> Decision:
        """Decide for the next job; with `explain` name every candidate and rejection. One that
        may start unfunded starts where somebody pays, if it can, before anywhere else."""
        if job.malleable is not None:
            return self._decide_malleable(job, explain)
        paid = paid_first(job, self.policy.funding)
        if paid is not None and not self._has_no_room(job):
            started = self._start_as(paid, explain)
            if started is not None:
                return started
        if job.gang is None:
            return self._decide_one(job, explain)
        return self._decide_gang(job, job.gang, explain)

    def _decide_malleable(self, job: JobRequest, explain: bool) -> Decision:
        if not explain and (told := self._told.of_malleable(job, self.policy)):
            return waits_as(job, told)
        decision = elastic.start(
            job, partial(self._start_now, explain=explain), partial(self.decide, explain=explain),
            self.policy.most_paid_for(job.id), partial(self._most_now, job),
        )  # fmt: skip
        if decision.kind is not PlacementKind.EXISTING_NODE and decision.estimated_start is None:
            self._told.note_malleable(job, self.policy, decision)
        return decision

    def _most_now(self, job: JobRequest) -> int:
        """Return a number of GPUs above which no size of a malleable job starts now."""
        if job.gang is None:
            return self.columns.most_free
        return most_now(job, job.gang, self._gang_nodes, self.policy, self.now)

    def _start_now(self, job: JobRequest, *, explain: bool) -> Decision | None:
        """Start a malleable job of this size where it finds room as it is; None, and nothing
        changes, where it does not. Nobody changes its place for it."""
        paid = paid_first(job, self.policy.funding)
        started = None if paid is None else self._start_as(paid, explain)
        return started or self._start_as(job, explain)

    def _start_as(self, job: JobRequest, explain: bool) -> Decision | None:
        if job.gang is None:
            scan = self._scanner.scan(Need.of(job, self.policy))
            best = scan.best(1 + ALTERNATIVES)
            return self._place_one(job, scan, best, explain) if best else None
        decision = place_gang(job, self._gang_nodes, self.policy, self.now, explain=explain)
        return self._take_gang(job, decision) if decision.members else None

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
        return self._place_one(job, scan, best, explain)

    def _place_one(
        self, job: JobRequest, scan: Scan, best: Sequence[int], explain: bool
    ) -> Decision:
        decision = placing(job, scan, best)
        if explain:
            everything = {"candidates": candidates_of(scan), "rejections": rejections_of(scan)}
            decision = decision.model_copy(update=everything)
        self._take(job, scan.need, best[0], scan.chosen(best[0]))
        return decision

    def _take(self, job: JobRequest, need: Need, position: int, chosen: Chosen) -> None:
        node = self.columns.views[position].node
        hold = hold_of(job, need, node, chosen, self.now)
        self._rearranging.take(Taken(job, need, position, hold, chosen))

    def _start_among_others(self, job: JobRequest, scan: Scan) -> Decision | None:
        """Start a job that finds no room where others of this plan make it, if a start would be
        kept for it."""
        if not len(scan.holders) or self.kept.is_full(job.tier) or scan.need in self.kept.no_start:
            return None
        rejected = scan.rejected
        moved = self._rearranging.start(job, scan.need)
        if moved is None:
            return None
        self.moved |= moved
        self.kept.no_start.clear()  # some nodes have less to wait for now
        self._told.jobs_moved()
        taken = moved[job.id]
        assert taken.chosen is not None
        node_id = self.columns.views[taken.position].node.id
        return started_among(job, taken.chosen, node_id, rejected, len(moved) - 1)

    def _decide_gang(self, job: JobRequest, gang: Gang, explain: bool) -> Decision:
        if not explain and (told := self._told_gang(job, gang)):
            return waits_as(job, told)
        decision = place_gang(job, self._gang_nodes, self.policy, self.now, explain=explain)
        if not decision.members:
            decision = self._defer_gang(job, decision)
            if decision.estimated_start is None:
                self._told.note_gang(self._need_of(job), gang, decision)
            return decision
        return self._take_gang(job, decision)

    def gang_nodes_among(self, names: Collection[str]) -> GangNodes:
        """Return the nodes of these ids as a gang finds them, beside what is placed and kept so
        far."""
        return self._gang_nodes.among(names)

    def _take_gang(self, job: JobRequest, decision: Decision) -> Decision:
        need = Need.of(job, self.policy)
        for node_id, gpu_indices in decision.held:
            position = self._gang_nodes.positions[node_id]
            node = self.columns.views[position].node
            hold = hold_of_share(job, need, node, gpu_indices, self.now)
            self._rearranging.take(Taken(job, need, position, hold, None))
        return decision

    def _defer_gang(self, job: JobRequest, decision: Decision) -> Decision:
        if self.kept.is_full(job.tier):
            return decision
        found = self.kept.first_of_gang(job, self._gang_nodes)
        if found is None:
            return decision
        start, shares = found
        need = Need.of(job, self.policy)
        between = self.kept.keep_gang(job, need, shares, self._gang_nodes.positions, start)
        until = f"it waits for {count(len(shares), 'node')} {format_start(start)}"
        if self.kept.beyond:
            until = may_start_later(start)
        return decision.model_copy(
            update={
                "reason": f"{decision.reason}; {until}",
                "estimated_start": start,
                "start_range": between,
            }
        )

    def _defer_one(self, job: JobRequest, scan: Scan) -> Decision:
        may_start = bool(len(scan.holders)) and not self.kept.is_full(job.tier)
        decision = self._defer(job, scan)
        if decision.estimated_start is None:
            self._told.note_one(scan.need, decision, may_start=may_start)
        return decision

    def _defer(self, job: JobRequest, scan: Scan) -> Decision:
        holders = Holders.of(self.columns, scan.holders)
        self._holders[scan.need.but_for_time()] = holders
        if not holders.nodes:
            return waiting(job, scan)
        if self.kept.is_full(job.tier):
            return waiting(job, scan, behind_reservations(job, self.policy))
        found = self.kept.first(scan)
        if found is None:
            return waiting(job, scan, holders.why_no_start(scan.need))
        position, start = found
        reservation, between = self.kept.keep(job, scan.need, position, start)
        what = format_place(job, reservation.gpu_indices, reservation.slices)
        outlook = f"it waits for {what} of {reservation.node_id} {format_start(start)}"
        if self.kept.beyond:
            outlook = may_start_later(start)
        return waiting(job, scan, outlook, start, between)

    def _later_starts(
        self, decisions: Iterable[Decision], queue: Sequence[JobRequest]
    ) -> dict[str, Decision]:
        """Return what the first are told of those that wait and have no start kept, since as many
        are as may be: when each may start, if all before it do.

        The plan is made by then. What is kept here for one is there for those behind it alone.
        """
        full = [tier for tier in Tier if self.kept.is_full(tier)]
        if not self._later or not full:
            return {}
        answered = {
            decision.job_id for decision in decisions
            if decision.kind is PlacementKind.EXISTING_NODE or decision.estimated_start is not None
        }  # fmt: skip
        found: dict[str, Decision] = {}
        in_vain: set[Hashable] = set()
        looks = LATER_LOOKS
        self.kept.beyond = True
        for job in through(queue, self._later_until):
            if job.tier not in full or job.id in answered or self._never_starts(job):
                continue
            key = (Need.of(job, self.policy), job.gang, job.malleable)
            if key in in_vain:
                continue
            looks -= len(self.columns.views) * (GANG_LOOKS if job.gang else 1)
            if len(found) == self._later or looks < self.kept.asked_in_vain:
                break
            if (told := self._wait_later(job)).estimated_start is not None:
                found[job.id] = told.model_copy(update={"start_kept": False})
            else:
                in_vain.add(key)
        return found

    def with_later_start(
        self, decisions: Sequence[Decision], jobs: Sequence[JobRequest]
    ) -> Decision:
        """Return the last of the decisions for these jobs, with when its job may start where no
        start is kept for it. Nothing may be decided after that."""
        last = decisions[-1]
        later = self._later_starts(decisions, jobs).get(last.job_id)
        return last if later is None else later.model_copy(update={"rejections": last.rejections})

    def _never_starts(self, job: JobRequest) -> bool:
        """Return whether it is known of a job that no end of another makes room for it."""
        if job.gang or job.malleable:
            return False
        need = self._need_of(job)
        holders = self._holders.get(need.but_for_time())
        return need in self.kept.no_start or (holders is not None and not holders.nodes)

    def _wait_later(self, job: JobRequest) -> Decision:
        if job.malleable is not None:
            paid_for = self.policy.most_paid_for(job.id)
            return elastic.start(job, lambda _: None, self._wait_later, paid_for, lambda: 0)
        if job.gang is None:
            return self._defer(job, self._scanner.scan(self._need_of(job)))
        alone = place_gang(job, self._gang_nodes, self.policy, self.now, explain=False)
        return alone if alone.members else self._defer_gang(job, alone)
