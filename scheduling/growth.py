"""Growth of running malleable jobs onto GPUs that are idle, where that earns more than it costs.

    earns = time by which it ends sooner x GPUs that it has x (price of waiting + of its GPUs)
    stop  = work in no save, by its chance + save + start, on all of its GPUs
    added = time to its end x what its new GPUs bring otherwise

Both prices, and what a stop costs, are those of preemption (`scheduling.preemption.costs`). A job
that grows in place saves at once before: it loses no work. The time follows from its expected
duration and what it has saved, by Amdahl's law.

In place it gets the size at which earns - stop - added is the most: each group of GPUs has to earn
what it costs. One that is stopped gets the largest size that fits, or none: which one the next
cycle decides.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from longshore.models.growth import Elastic, GrowthDecision, IdleNode
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node, NodeState
from longshore.models.placement import Decision, PackingPolicy, RunningJob
from longshore.models.preemption import PreemptionPolicy
from longshore.models.text import amount, count, in_seconds, listed
from longshore.scheduling.cycle import foresee
from longshore.scheduling.growth_times import backs_off_until, idle_since, left_of
from longshore.scheduling.joining import Joining, larger
from longshore.scheduling.order import queue_order
from longshore.scheduling.placement.filters import labels_named
from longshore.scheduling.placement.gpus import indices_of, mask_of
from longshore.scheduling.placement.state import without_job
from longshore.scheduling.preemption.costs import cost_of, save_time, victim_of
from longshore.scheduling.preemption.what_if import WhatIfCluster
from longshore.scheduling.ranks import COUNTS_SAVES

MOST_PLANNED = 8
"""Jobs for which one look plans a larger size."""
MOST_SIZES = 8
"""Sizes that one look weighs for a job that grows in place: each is a plan, of up to 8 jobs a
look. What they earn differs little from one to the next. So where they are more, those are weighed
that are evenly apart, the smallest and the largest among them."""
MOST_NODES = 64
"""Nodes beside those of its largest size on which a job may grow in place to a smaller one. Since
when their GPUs are idle is read from all placements that they have had."""
MOST_WAITING = 1000
"""Behind a longer queue nothing grows."""
TO_START = timedelta(seconds=5)
"""What it takes to give GPUs back, be placed and start, beside the save and its way back."""
_NOTHING = timedelta(0)


class Pool(NamedTuple):
    """A pool after a cycle: what is there, and who still waits."""

    nodes: Sequence[Node]
    running: Sequence[RunningJob]
    queue: Sequence[JobRequest]
    """Without jobs that are held."""
    recent: Sequence[RecentJobs]
    packing: PackingPolicy
    policy: PreemptionPolicy
    grow_after: timedelta
    now: datetime
    keeps_warm: bool = False
    """Capacity is idle there on purpose: what is taken of it would be bought again."""


class Foreseen(NamedTuple):
    """What one job would get, were it stopped now; or in place, on top of what it has."""

    job: Elastic
    decision: Decision
    joining: Joining | None = None
    """In place: where it may grow to a smaller size, on GPUs that nobody who waits could use."""
    refused: GrowthDecision | None = None
    """In place: why it does not grow to this size, where it may to a smaller one."""

    @property
    def size(self) -> int:
        return self.decision.gpus + (self.job.gpus if self.job.in_place else 0)

    @property
    def gains(self) -> frozenset[tuple[str, int]]:
        """The GPUs that it would have, by node and index, with those of its spares."""
        gains = frozenset((name, gpu) for name, gpus in self.decision.held for gpu in gpus)
        return gains | self.job.held if self.job.in_place else gains

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that it would have, with this size or a smaller one, and those that it has."""
        others = self.joining.free if self.joining else ()
        return frozenset([name for name, _ in self.gains]).union(self.job.work.nodes, others)

    @property
    def free_for_it(self) -> frozenset[str]:
        """The nodes that nobody who waits may be able to use: those that it would get, and where
        it is stopped for a moment those that it has."""
        nodes, own = frozenset(name for name, _ in self.gains), frozenset(self.job.work.nodes)
        return nodes - own if self.job.in_place else nodes | own


class Look:
    """One look at the malleable jobs of a pool that run on fewer GPUs than they are to have."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def answers(self, jobs: Sequence[Elastic]) -> Iterator[GrowthDecision | Foreseen]:
        """Yield for each job, in queue order, why it does not grow; or a larger size that nobody
        else could use, about which `decide` has the last word.

        After `MOST_PLANNED` jobs for which sizes were planned the rest have no answer.
        """
        by_id = {job.id: job for job in jobs}
        asked = [job.asked for job in jobs]
        planned = 0
        pool = self._pool
        for request in queue_order(asked, pool.packing, pool.now, pool.nodes, pool.running):
            job = by_id[request.id]
            if refused := self._cannot(job):
                yield refused
            elif planned == MOST_PLANNED:
                return
            else:
                planned += 1
                foreseen = self._foresee(job)
                yield self._if_free_for_it(foreseen)

    def decide(self, foreseen: Foreseen, idle: Mapping[str, IdleNode]) -> GrowthDecision:
        """Return whether a job grows to what was foreseen, or to a smaller size in place; `idle`
        has the nodes that it would have, and those that it has."""
        largest = foreseen.refused or self._if_it_pays(foreseen, idle)
        if foreseen.joining is None or (largest.grows and not largest.added):
            return largest  # a smaller size would earn less
        answers = [largest, *self._smaller(foreseen, foreseen.joining, idle)]
        if pays := [each for each in answers if each.grows]:
            return max(pays, key=lambda each: (each.earns - each.cost, each.to))
        again = min((each.again for each in answers if each.again), default=None)
        settled = all(each.settled for each in answers)
        return largest.model_copy(update={"again": again, "settled": settled})

    def room_for(
        self, foreseen: Foreseen, size: int, idle: Mapping[str, IdleNode]
    ) -> Foreseen | str:
        """Return where a job grows in place that has decided on a size, and has saved since; or
        why it does not any more. `idle` as for `decide`.

        GPUs that have been idle for `grow_after` come first: of those it was decided.
        Where they are gone it takes what nobody who waits could use, since the save is made.
        """
        job, joining = foreseen.job, foreseen.joining
        if joining is None or size not in self._larger(job):
            return f"{count(size, 'GPU')} are no size that it may grow to now"
        found = self._idle_for(self._pool.grow_after, joining, idle).at(size)
        if not found.gpus:
            found = joining.at(size)
        return foreseen._replace(decision=found) if found.gpus else found.reason

    def _smaller(
        self, foreseen: Foreseen, joining: Joining, idle: Mapping[str, IdleNode]
    ) -> Iterator[GrowthDecision]:
        """Yield the answers for the sizes for which enough GPUs are idle for long enough; and for
        the next one, which may say when that is."""
        job = foreseen.job
        sizes = self._larger(job)
        ready = self._idle_for(self._wait(job), joining, idle)
        most = job.gpus + ready.largest(sizes).gpus
        beyond = [size for size in sizes if size > most]
        plans = [ready.at(size) for size in _spread(sizes[len(beyond) :])]
        for plan in [*plans, *map(joining.at, beyond[-1:])]:
            if plan.gpus:
                yield self._if_it_pays(foreseen._replace(decision=plan), idle)

    def _idle_for(
        self, wait: timedelta, joining: Joining, idle: Mapping[str, IdleNode]
    ) -> Joining:
        """Return where a job may grow on GPUs that have been idle for so long."""
        long_idle = {
            name: mask_of(
                gpu
                for gpu in indices_of(free)
                if idle_since(idle[name], gpu) + wait <= self._pool.now
            )
            for name, free in joining.free.items()
        }
        return joining.only(long_idle)

    def _wait(self, job: Elastic) -> timedelta:
        """Return for how long GPUs have to be idle for a job."""
        return max(self._pool.grow_after, 2 * save_time(job.work) + TO_START)

    def _if_it_pays(self, foreseen: Foreseen, idle: Mapping[str, IdleNode]) -> GrowthDecision:
        """Return whether a job grows to just what was foreseen."""
        job, pool = foreseen.job, self._pool
        size, gains, wait = foreseen.size, foreseen.gains, self._wait(foreseen.job)
        new = gains - job.held
        since = max((idle_since(idle[name], gpu) for name, gpu in new), default=pool.now)
        if pool.now < since + wait:
            said = (
                f"{count(size - job.gpus, 'more GPU')} would be free, the last of them since "
                f"{in_seconds(pool.now - since)}; it grows when they were for {in_seconds(wait)}"
            )
            return self._kept(job, said, to=size, again=since + wait)
        hourly = sum(idle[name].price for name, _ in gains)
        hourly -= sum(idle[name].price for name, _ in job.held)
        return self._weighed(job, size, hourly)

    def _cannot(self, job: Elastic) -> GrowthDecision | None:
        """Return why a job does not grow, whatever is free; None where it might."""
        pool, work = self._pool, job.work
        if not pool.grow_after:
            return self._kept(job, "growth is off for this pool (`grow_after`)", settled=True)
        if pool.keeps_warm:
            return self._kept(job, "the pool keeps idle GPUs for jobs to come", settled=True)
        if work.checkpoint is None:
            said = "it has no checkpoint, and would start from the beginning"
            return self._kept(job, said, settled=True)
        if job.in_place and work.checkpoint.without_step:
            return self._kept(job, COUNTS_SAVES, settled=True)
        if work.no_store:
            return self._kept(job, f"it cannot save now: {work.no_store}")
        if len(pool.queue) > MOST_WAITING:
            return self._kept(job, f"{count(len(pool.queue), 'job')} wait")
        states = {node.id: node.state for node in pool.nodes}
        if any(states.get(name) is not NodeState.READY for name in work.nodes):
            return self._kept(job, "a node of it is not ready")
        left = left_of(job, pool.now)
        if left <= max(pool.policy.near_end, _NOTHING):
            said = f"it should end in {in_seconds(left)}, which is near"
            if left <= _NOTHING:
                said = "it is overdue, and nobody knows when it ends"
            return self._kept(job, said, settled=True)
        if (again := backs_off_until(job, pool.grow_after)) and pool.now < again:
            times = count(len(job.changed_at), "time")
            said = (
                f"it was resized or preempted {times} within a day, last "
                f"{in_seconds(pool.now - job.changed_at[-1])} ago; it may grow from "
                f"{again:%H:%M:%S} UTC on"
            )
            return self._kept(job, said, again=again)
        most = pool.packing.most_paid_for(job.id)
        if most is not None and most <= job.gpus:
            return self._kept(job, "no budget pays for more, or a quota leaves no room for it")
        best = self._weighed(job, job.sizes.target if most is None else most, None)
        return None if best.grows else best

    def _larger(self, job: Elastic) -> tuple[int, ...]:
        """Return the sizes that a job may grow to, the largest first."""
        return larger(job.asked, job.gpus, self._pool.packing.most_paid_for(job.id))

    def _foresee(self, job: Elastic) -> Foreseen:
        """Return what the next cycle would decide, were the job stopped now and queued again; or
        where further ranks of it would go."""
        pool = self._pool
        if job.in_place:
            joining = Joining.of(
                job.asked, job.gpus_by_node, pool.queue, pool.nodes, pool.running, pool.packing,
                pool.now, pool.recent,
            )  # fmt: skip
            return Foreseen(job, joining.largest(self._larger(job)), joining)
        nodes = list(pool.nodes)
        positions = {node.id: position for position, node in enumerate(nodes)}
        others: list[RunningJob] = []
        for share in pool.running:
            if share.job_id != job.id:
                others.append(share)
            elif (position := positions.get(share.node_id)) is not None:
                nodes[position] = without_job(nodes[position], share)
        found = foresee(
            job.asked, pool.queue, nodes, others, pool.packing, pool.now, pool.recent
        )  # fmt: skip
        return Foreseen(job, found.decision)

    def _if_free_for_it(self, foreseen: Foreseen) -> GrowthDecision | Foreseen:
        """Return what was foreseen; or why the job does not grow, for want of GPUs that nobody who
        waits could use."""
        job, size, its = foreseen.job, foreseen.size, foreseen.free_for_it
        rival = next((name for name, on in self._waiting if on & its), None)
        refused = None
        if rival is not None:
            said = f"{rival} waits, and could run there"
            refused = self._kept(job, said, to=size or None)
        elif size <= job.gpus:
            said = f" in place: {foreseen.decision.reason}" if job.in_place else ""
            return self._kept(job, f"no more are free for it{said}")
        if foreseen.joining is None:
            return refused or foreseen
        joining = self._unwanted(foreseen.joining, its)
        if refused and not joining.largest(self._larger(job)).gpus:
            return refused
        return foreseen._replace(joining=joining, refused=refused)

    def _unwanted(self, joining: Joining, its: frozenset[str]) -> Joining:
        """Return where a job may grow in place on nodes that nobody who waits could use: those of
        its largest size, and those with the most free GPUs."""
        wanted = frozenset[str]().union(*(on for _, on in self._waiting))
        free = {name: gpus for name, gpus in joining.free.items() if name not in wanted}
        others = sorted(free.keys() - its, key=lambda name: (-free[name].bit_count(), name))
        few = {*others[:MOST_NODES], *its}
        return joining.only({name: gpus for name, gpus in free.items() if name in few})

    @cached_property
    def _waiting(self) -> list[tuple[str, frozenset[str]]]:
        """The jobs that wait, in no order, with the nodes that could take each, or a share of it,
        were nobody there. So nothing that is kept for one of them is ever grown into."""
        pool = self._pool
        queue = [job.smallest for job in pool.queue]
        if not queue:
            return []
        cluster = WhatIfCluster(
            pool.nodes, pool.running, pool.packing, pool.now, labels=labels_named(queue)
        )
        return [(job.id, frozenset(cluster.nodes_for(job))) for job in queue]

    def _weighed(self, job: Elastic, size: int, hourly: int | None) -> GrowthDecision:
        """Return whether a job grows to a size, where its new GPUs bring so many micro-dollars an
        hour otherwise; with None as if they were for nothing."""
        pool, work, gpus = self._pool, job.work, job.gpus
        worth = work.price + pool.policy.price_of_waiting(work.request)
        left = left_of(job, pool.now)
        then = left * (job.sizes.speed(gpus) / job.sizes.speed(size))
        start = save_time(work) + TO_START  # a save comes back in the time that it took
        stop = victim_of(work, start, pool.policy, pool.now)
        starts = cost_of(start, work.gpus, work.price) + stop.requeue
        recompute = 0 if job.in_place else stop.recompute
        added = cost_of(start + then, 1, max(hourly or 0, 0))
        earns = cost_of(left - then, gpus, worth)
        decided = GrowthDecision(
            job_id=job.id, attempt=job.asked.attempt - 1, at=pool.now, gpus=gpus,
            desired=job.sizes.target, to=size, earns=earns,
            stop=recompute + stop.write + starts, added=added, reason="",
        )  # fmt: skip
        unsaved = in_seconds(max(pool.now - work.unsaved_since, _NOTHING))
        lost = f"{amount(recompute)} for {unsaved} of work in no save, "
        if job.in_place:
            lost = ""
        terms = f"{lost}{amount(stop.write)} to save, {amount(starts)} to start"
        if hourly is not None:
            more = count(size - gpus, "more GPU")
            terms += f", {amount(added)} that {more} would bring otherwise"
        sooner = f"it would end {in_seconds(left - then)} sooner{_measured(job)}"
        if earns > decided.cost:
            sooner = sooner.replace("would end", "ends")
            how = " in place" if job.in_place else ""
            said = (
                f"grown{how} from {gpus} to {count(size, 'GPU')}: {sooner}, which earns "
                f"{amount(earns)}; it costs {amount(decided.cost)} ({terms})"
            )
            return decided.model_copy(update={"grows": True, "reason": said})
        said = (
            f"to grow to {size} would cost {amount(decided.cost)} ({terms}) and earn "
            f"{amount(earns)} ({sooner})"
        )
        return decided.model_copy(update={"reason": _of_desired(job, said)})

    def _kept(
        self,
        job: Elastic,
        said: str,
        *,
        to: int | None = None,
        again: datetime | None = None,
        settled: bool = False,
    ) -> GrowthDecision:
        return GrowthDecision(
            job_id=job.id, attempt=job.asked.attempt - 1, at=self._pool.now, gpus=job.gpus,
            desired=job.sizes.target, to=to, again=again, settled=settled,
            reason=_of_desired(job, said),
        )  # fmt: skip


def _measured(job: Elastic) -> str:
    """Return by what it is known how much faster more GPUs make a job, where it was measured."""
    if job.measured is None:
        return ""
    on = listed([str(size) for size in job.measured.sizes], 3)
    return f" by its steps on {on} GPUs"


def _of_desired(job: Elastic, said: str) -> str:
    return f"{job.gpus} of {job.sizes.target} desired GPUs: {said}"


def _spread(sizes: Sequence[int]) -> list[int]:
    """Return `MOST_SIZES` of these that are evenly apart, or all where they are fewer."""
    if len(sizes) <= MOST_SIZES:
        return list(sizes)
    apart = (len(sizes) - 1) / (MOST_SIZES - 1)
    return [sizes[round(number * apart)] for number in range(MOST_SIZES)]
