"""The state of one round of plans: who may be stopped where, for whom, and what that costs."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import chain, repeat
from operator import attrgetter
from types import MappingProxyType

from longshore.models.job import Tier
from longshore.models.job_request import FILLS, JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy, RunningJob
from longshore.models.preemption import (
    BuyQuote,
    GainedGPUs,
    PreemptionPlan,
    PreemptionPolicy,
    PreemptionUnderWay,
    RejectedVictim,
    RunningWork,
    Victim,
    WayKind,
)
from longshore.models.text import count
from longshore.models.topology import Gang
from longshore.scheduling import cycle
from longshore.scheduling.order import queue_order, with_turns
from longshore.scheduling.placement.filters import labels_named
from longshore.scheduling.placement.mix import Mix
from longshore.scheduling.placement.state import Need
from longshore.scheduling.preemption.afterwards import (
    Chosen,
    Waits,
    cheapest_afterwards,
    waits_after,
)
from longshore.scheduling.preemption.candidates import Candidates
from longshore.scheduling.preemption.cheapest import CheapestSets
from longshore.scheduling.preemption.costs import AT_ONCE, probable_end, victim_of
from longshore.scheduling.preemption.parts import Parts, parts_of, size_paid_for, size_without
from longshore.scheduling.preemption.stoppable import Stoppable
from longshore.scheduling.preemption.ways import no_node, refused, weigh, with_victims
from longshore.scheduling.preemption.what_if import WhatIfCluster, gains_of
from longshore.scheduling.preemption.yielding import Yielding
from longshore.scheduling.serving.running_engine import alike, is_idle

_OWN = {"id", "attempt", "submitted_at", "waits_since", "attained", "path_behind", "tenant",
        "data", "turn", "turn_at"}  # fmt: skip
"""What two jobs that ask for the same differ in: a plan looks at none of it but the data, and
whether it is a turn."""
_asked = attrgetter(*sorted(JobRequest.model_fields.keys() - _OWN))


class Scene:
    """The state of one round of plans."""

    _by_what = "a budget pays for it first"
    """Why those of `_by_payer` are stopped."""

    def __init__(
        self,
        nodes: Sequence[Node],
        works: Sequence[RunningWork],
        policy: PreemptionPolicy,
        packing: PackingPolicy,
        now: datetime,
        mix: Mix,
        queue: Sequence[JobRequest],
        stoppable: Stoppable,
        yielding: Yielding | None,
        *,
        stops_only: bool = False,
        parts: Mapping[str, Parts] = MappingProxyType({}),
        later: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """With `stops_only` nobody hears why nobody is stopped. `parts` are what jobs give up
        beside those that are paid for in part, `later` as `Candidates` has it."""
        self.policy = policy
        self.now = now
        self.works = {work.id: work for work in works}
        found = ((work.id, parts_of(work, packing.funding)) for work in works)
        self._parts = {id: each for id, each in found if each is not None} | {**parts}
        shares = list(chain.from_iterable(map(self._shares_of, works, repeat(packing.by_rank))))
        asking = chain(queue, (work.request for work in works), (k.need for k in mix.kinds))
        self.cluster = WhatIfCluster(nodes, shares, packing, now, mix, labels_named(asking))
        self.candidates = Candidates(
            works, stoppable, policy, now, self._kind, self._wait, self.cluster.free_gpus,
            self.cluster.changes, yielding, self._parts, later,
        )  # fmt: skip
        self._cheapest = CheapestSets(self.cluster, self.candidates)
        self.mix = mix
        self.yielding = yielding
        self._stoppable = stoppable
        self._stops_only = stops_only
        self._in_vain: dict[Hashable, PreemptionPlan] = {}
        """By what a job asks for: plans that stop nobody."""
        self._tight: set[Hashable] = set()
        """Of these what finds no room either: there is only less, until somebody is stopped."""
        self._never_starts: set[Hashable] = set()
        """Of these what no end gives room to, as far as that is known."""

    def _shares_of(self, work: RunningWork, in_class: bool) -> list[RunningJob]:
        """Return what a job holds, with the end that a plan expects."""
        end = probable_end(work, self.policy, self.now, in_class=in_class)
        new: dict[str, object] = {"expected_end": end, "ends": (), "since": None, "latest": None}
        new["waited"] = work.waited
        parts = self._parts.get(work.id)
        shares = parts.shares if parts else work.shares
        return [RunningJob.trusted(**{**share.__dict__, **new}) for share in shares]

    def begin(self, under_way: Sequence[PreemptionUnderWay]) -> None:
        """Put what is being freed where it goes."""
        for one in sorted(under_way, key=lambda one: one.job_id):
            self.cluster.remove(frozenset(one.victims))
            self.candidates.busy |= dict.fromkeys(
                one.victims, f"is being stopped for {one.job_id}"
            )
            self.candidates.busy[one.job_id] = "its GPUs are being freed"
            self.cluster.hold(one.shares)

    def plan_all(
        self,
        queue: Sequence[JobRequest],
        quotes: Mapping[str, BuyQuote],
        stopping: int,
        recent: Sequence[RecentJobs],
        when_due: "WhenDue | None" = None,
    ) -> tuple[PreemptionPlan, ...]:
        """`when_due` says whom a job has give way whose start is due; None where it is not."""
        plans: list[PreemptionPlan] = []
        waiting = [job for job in queue if job.id not in self.candidates.busy]
        nodes, running = self.cluster.as_it_is()

        @cache
        def start_next() -> frozenset[str]:
            """Return the jobs that a cycle starts now."""
            made = cycle.plan(waiting, nodes, running, self.cluster.packing, self.now, recent)
            return frozenset(decision.job_id for decision in made.placements)

        reserved = Counter[Tier]()
        coming: set[tuple[str, str, str | None]] = set()
        """Models that an engine is to serve for whose turn others are stopped."""
        packing = with_turns(self.cluster.packing, queue)
        ordered = queue_order(queue, packing, self.now, nodes, running)
        if self._stops_only:  # who is behind the last that may stop anybody is in nobody's way
            while ordered and not self._stoppable.whom(ordered[-1]):
                ordered.pop()
        for job in ordered:
            if job.id in self.candidates.busy:
                continue
            if job.turn and job.engine and job.engine.serves in coming:
                job = job.model_copy(update={"turn": None})
            stops = self.candidates.asks(job)
            asked = _asked(job), tuple(job.data.items()), quotes.get(job.id), stops
            if asked not in self._tight and self.cluster.fits(job):
                self.cluster.put(job, gains_of(self.cluster.decide(job)))
                continue
            room = self.policy.max_under_way - stopping
            plan = None
            if not self._stops_only or self._stoppable.whom(job):
                plan = self._plan_alike(job, asked, quotes.get(job.id), room)
            cut = None
            if when_due and not (plan and (plan.preempts or _buys(plan))):
                cut = when_due(self, job, room)
            plan = cut or plan
            if plan and plan.preempts and job.id in start_next():
                break
            if plan and (plan.preempts or not self._stops_only):
                plans.append(plan)
            if cut:
                break  # what it leaves of those that go on is known in the next cycle
            if plan and plan.preempts:
                stopping += len(plan.victims)
                self._take(job, plan)
                if job.turn and job.engine:
                    coming.add(job.engine.serves)
                self._tight.clear()
                self._never_starts.clear()
                continue
            self._tight.add(asked)
            if asked in self._never_starts:
                continue
            if reserved[job.tier] < self.cluster.packing.starts_kept:
                if self.cluster.reserve(job, alike(self.works.values(), job)):
                    reserved[job.tier] += 1
                else:
                    self._never_starts.add(asked)
        return tuple(plans)

    def _plan_alike(
        self, job: JobRequest, asked: Hashable, quote: BuyQuote | None, room: int
    ) -> PreemptionPlan:
        """Return the plan for one job: that of one before it which asks for the same and has
        nobody stopped, where there is one. It went first, so what is possible since is for it."""
        if before := self._in_vain.get(asked):
            return before.model_copy(update={"job_id": job.id})
        plan = self.plan(job, quote, room)
        if not plan.preempts:
            self._in_vain[asked] = plan
        return plan

    def plan(self, job: JobRequest, quote: BuyQuote | None, room: int) -> PreemptionPlan:
        """Return the plan for one job; at most `room` jobs may be stopped."""
        if not self.policy.enabled:
            return self._none(job, "preemption is off for this pool")
        if job.fills:
            return self._none(job, FILLS)
        if self.cluster.fits(job):
            reason = self.cluster.decide(job).reason
            return self._none(job, f"it needs nobody's GPUs: {reason}")
        if never := self.cluster.why_never(job):
            reason = f"{never}: no end and no stop of running jobs helps"
            return no_node(job, reason, quote, self.policy, self.now)
        names = self.cluster.nodes_for(job)
        if not names:
            reason = "no node could take it, were nobody there"
            return no_node(job, reason, quote, self.policy, self.now)
        if room < 1:
            return self._none(job, f"{self.policy.max_under_way} jobs are being stopped already")
        known = self.candidates.among(job, names)
        chosen: Chosen = ()
        waits: Waits = {}
        if known:
            search = partial(self._cheapest.of, job, names, min(room, self.policy.max_victims))
            after = partial(self._waits_after, job)
            chosen, waits = cheapest_afterwards(search, after, self.candidates)
        if not chosen and self._stops_only:
            return self._none(job, "nobody is stopped for it")
        rejected = self.candidates.kept(job, names)
        if not chosen:
            start = self.cluster.first_start(job, alike(self.works.values(), job))
            return refused(job, start, len(known), rejected, self.policy, self.now, quote)
        out = frozenset(one.id for one in chosen)
        victims = tuple(
            victim_of(
                one.work, waits.get(one.id, one.wait), self.policy, self.now, in_place=one.in_place
            )
            for one in sorted(chosen, key=lambda one: one.id)
        )
        return self._weighed(job, victims, out, quote, rejected)

    def _waits_after(self, job: JobRequest, chosen: Chosen) -> Waits:
        """Return how long those wait that seem to have room elsewhere at once."""
        at_once = [one for one in chosen if one.seems_at_once]
        if not at_once:
            return {}
        out = frozenset(one.id for one in chosen)
        waits = waits_after(self.cluster, job, out, [one.work for one in at_once])
        longest = {one.id: self.candidates.longest_wait(one.work, job) for one in at_once}
        return {id: min(wait, longest[id]) for id, wait in waits.items()}

    def _weighed(
        self,
        job: JobRequest,
        victims: tuple[Victim, ...],
        out: frozenset[str],
        quote: BuyQuote | None,
        rejected: Sequence[RejectedVictim],
    ) -> PreemptionPlan:
        """Return the plan to stop these jobs, with what the job gets where all of `out` is gone;
        or another way, where that costs less."""
        start = self.cluster.first_start(job, alike(self.works.values(), job))
        ids = [victim.job_id for victim in victims]
        plan = weigh(
            job, victims, start, quote, rejected, self.policy, self.now,
            by_payer=self._by_payer(ids, job), by_what=self._by_what,
            engines={
                one: not is_idle(self.works[one], self.policy, self.now)
                for one in ids
                if self.works[one].engine is not None
            },
        )  # fmt: skip
        if not plan.preempts:
            return plan
        gains = gains_of(self.cluster.decide(job, out))
        shrunk = plan.victims
        if not job.sensitive:  # who would stay on its nodes
            shrunk = tuple(self._shrunk(victim, gains, job) for victim in shrunk)
        return with_victims(plan, shrunk).model_copy(update={"gains": gains})

    def _by_payer(self, victims: Sequence[str], job: JobRequest) -> frozenset[str]:
        """Return which of these are stopped whatever that costs."""
        return self._stoppable.by_payer(victims, job)

    def _shrunk(self, victim: Victim, gains: Sequence[GainedGPUs], job: JobRequest) -> Victim:
        """Return a malleable job as one that goes on with what the other does not get of it, as
        far as that is one of its sizes. What is free on its nodes is in exchange for what it
        loses there."""
        work = self.works[victim.job_id]
        lost = self._lost(work.shares, gains)
        known = victim.job_id in self._parts
        left = size_without(work, lost) if known else work.without(lost)
        if left is None:
            return victim
        if funding := self.cluster.packing.funding:
            left = size_paid_for(work, left, job.id, funding)
        reason = victim.reason.replace(AT_ONCE, "starts again at once")
        said = f"goes on with {count(left, 'GPU')} of {victim.gpus:g}; {reason}"
        return victim.model_copy(update={"gpus_left": left, "reason": said})

    def _lost(self, shares: Iterable[RunningJob], gains: Sequence[GainedGPUs]) -> int:
        """Return how many GPUs of these go to another."""
        gets = {gain.node_id: set(gain.gpu_indices) for gain in gains}
        lost = 0
        for share in shares:
            gained = gets.get(share.node_id, set())
            missing = len(gained) - self.cluster.free_gpus(share.node_id)
            lost += min(len(gained & set(share.gpu_indices)), max(missing, 0))
        return lost

    def _take(self, job: JobRequest, plan: PreemptionPlan) -> None:
        victims = [victim.job_id for victim in plan.victims]
        self.cluster.remove(frozenset(victims))
        self.candidates.busy |= dict.fromkeys(victims, f"is to be stopped for {job.id}")
        self.cluster.put(job, plan.gains)

    def _kind(self, job: JobRequest) -> tuple[Need, Gang | None]:
        return Need.of(job, self.cluster.packing), job.gang

    def _wait(self, job: JobRequest) -> timedelta:
        """Return for how long a job waits that is stopped now: until there is room for it beside
        all that runs."""
        fits = job.gang is not None and self.cluster.fits(job)
        start = self.now if fits else self.cluster.first_start(job)
        return start - self.now if start else timedelta.max

    def _none(self, job: JobRequest, reason: str) -> PreemptionPlan:
        return PreemptionPlan(job_id=job.id, at=self.now, reason=reason)


WhenDue = Callable[[Scene, JobRequest, int], PreemptionPlan | None]
"""Asked with the state of a round of plans, a job, and how many jobs may be stopped for it."""


def _buys(plan: PreemptionPlan) -> bool:
    """Return whether to buy is the best way."""
    return any(way.chosen and way.kind is WayKind.BUY for way in plan.ways)
