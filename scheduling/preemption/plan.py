"""Who gives way: running jobs of lower classes stop for one that waits, where that costs less
than to wait, or to buy.

What stopping costs is in `scheduling.preemption.costs`; which jobs, `scheduling.preemption.search`
finds; whether the job then fits, the packer says.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache

from models.node import Node
from models.placement import JobRequest, PackingPolicy, RecentJobs
from models.preemption import (
    BuyQuote,
    PreemptionPlan,
    PreemptionPolicy,
    PreemptionUnderWay,
    RejectedVictim,
    RunningWork,
    Victim,
)
from models.topology import Gang
from scheduling import cycle
from scheduling.order import queue_order
from scheduling.placement.mix import Mix, mix_of
from scheduling.placement.state import Need
from scheduling.preemption.costs import Candidate, probable_end, victim_of, why_not
from scheduling.preemption.ground import Ground, gains_of
from scheduling.preemption.search import Best, search
from scheduling.preemption.ways import refused, weigh
from scheduling.topology import domain_of

_OWN = {"id", "attempt", "submitted_at", "waits_since"}
"""What two jobs that ask for the same differ in: a plan looks at none of it."""


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
    does not matter.
    """
    mix = mix_of([job], recent, len(running), packing)
    scene = _Scene(nodes, running, policy, packing, now, mix)
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
) -> tuple[PreemptionPlan, ...]:
    """Return a plan for every job of a queue that waits, in queue order.

    Each job sees the nodes as the jobs before it will leave them: what they take, what they have
    stopped, and the start that is kept for those that wait on. So no job is stopped for two, and
    none is stopped for a job that could not start beside those before it. `under_way` are the jobs
    for which others are being stopped already: they get no second plan, and their GPUs are taken.
    A job that fits goes where the next cycle places it, by the pool's rule and what was placed
    lately (`recent`): elsewhere it might be in the way of one that then has others stopped. Nobody
    is stopped for a job that the next cycle starts since others of it change their places: that
    job, and those behind it, get their plans after that cycle.
    """
    queue, recent = tuple(queue), tuple(recent)
    mix = mix_of(queue, recent, len(running), packing)
    scene = _Scene(nodes, running, policy, packing, now, mix)
    scene.begin(under_way)
    stopping = sum(len(one.victims) for one in under_way)
    return scene.plan_all(queue, quotes or {}, stopping, recent)


class _Scene:
    """The state of one round of plans."""

    def __init__(
        self,
        nodes: Sequence[Node],
        running: Sequence[RunningWork],
        policy: PreemptionPolicy,
        packing: PackingPolicy,
        now: datetime,
        mix: Mix,
    ) -> None:
        self.policy = policy
        self.now = now
        self.works = {work.id: work for work in sorted(running, key=lambda work: work.id)}
        shares = [
            share.model_copy(update={"expected_end": probable_end(work, policy, now)})
            for work in self.works.values()
            for share in work.shares
        ]
        self.ground = Ground(nodes, shares, packing, now, mix)
        self._busy: dict[str, str] = {}
        """Why a job is out of the question, whoever asks."""
        self._waits: dict[tuple[Need, Gang | None], timedelta] = {}
        """Of jobs that ask alike."""
        self._waits_version = -1
        self._victims: dict[tuple[str, timedelta], Victim] = {}
        """By job and by how long it then waits."""
        self._in_vain: dict[tuple[str, BuyQuote | None], PreemptionPlan] = {}
        """By what a job asks for: plans that stop nobody, in the version that follows."""
        self._in_vain_version = -1

    def begin(self, under_way: Sequence[PreemptionUnderWay]) -> None:
        """Put what is being freed where it goes."""
        for one in sorted(under_way, key=lambda one: one.job_id):
            self.ground.remove(frozenset(one.victims))
            self._busy |= dict.fromkeys(one.victims, f"is being stopped for {one.job_id}")
            self._busy[one.job_id] = "its GPUs are being freed"
            self.ground.hold(one.shares)

    def plan_all(
        self,
        queue: Sequence[JobRequest],
        quotes: Mapping[str, BuyQuote],
        stopping: int,
        recent: Sequence[RecentJobs],
    ) -> tuple[PreemptionPlan, ...]:
        plans: list[PreemptionPlan] = []
        waiting = [job for job in queue if job.id not in self._busy]
        nodes, running = self.ground.as_it_is()

        @cache
        def start_next() -> frozenset[str]:
            """Return the jobs that a cycle starts now."""
            made = cycle.plan(waiting, nodes, running, self.ground.packing, self.now, recent)
            return frozenset(decision.job_id for decision in made.placements)

        reserved = 0
        for job in queue_order(queue, self.ground.packing, self.now):
            if job.id in self._busy:
                continue
            if self.ground.fits(job):
                self.ground.put(job, gains_of(self.ground.decide(job)))
                continue
            plan = self._plan_alike(job, quotes.get(job.id), self.policy.max_under_way - stopping)
            if plan.preempts and job.id in start_next():
                break
            plans.append(plan)
            if plan.preempts:
                stopping += len(plan.victims)
                self._take(job, plan)
            elif reserved < self.ground.packing.max_reservations:
                reserved += self.ground.reserve(job)
        return tuple(plans)

    def _plan_alike(self, job: JobRequest, quote: BuyQuote | None, room: int) -> PreemptionPlan:
        """Return the plan for one job: where nothing has changed, that of one before it which asks
        for the same and has nobody stopped."""
        if self._in_vain_version != self.ground.version:
            self._in_vain, self._in_vain_version = {}, self.ground.version
        alike = job.model_dump_json(exclude=_OWN), quote
        if before := self._in_vain.get(alike):
            return before.model_copy(update={"job_id": job.id})
        plan = self.plan(job, quote, room)
        if not plan.preempts:
            self._in_vain[alike] = plan
        return plan

    def plan(self, job: JobRequest, quote: BuyQuote | None, room: int) -> PreemptionPlan:
        """Return the plan for one job; at most `room` jobs may be stopped."""
        if not self.policy.enabled:
            return self._none(job, "preemption is off for this pool")
        if self.ground.fits(job):
            reason = self.ground.decide(job).reason
            return self._none(job, f"it needs nobody's GPUs: {reason}")
        names = self.ground.nodes_for(job)
        if not names:
            return self._none(job, "no node could take it, were nobody there")
        if room < 1:
            return self._none(job, f"{self.policy.max_under_way} jobs are being stopped already")
        candidates, rejected = self._candidates(job, frozenset(names))
        chosen = self._cheapest(job, names, candidates, min(room, self.policy.max_victims))
        if not chosen:
            return refused(job, self.ground.first_start(job), candidates, rejected, self.policy,
                           self.now)  # fmt: skip
        decision = self.ground.decide(job, frozenset(one.id for one in chosen))
        start = self.ground.first_start(job)
        victims = tuple(one.victim for one in sorted(chosen, key=lambda one: one.id))
        return weigh(job, victims, gains_of(decision), start, quote, rejected, self.policy,
                     self.now)  # fmt: skip

    def _take(self, job: JobRequest, plan: PreemptionPlan) -> None:
        victims = [victim.job_id for victim in plan.victims]
        self.ground.remove(frozenset(victims))
        self._busy |= dict.fromkeys(victims, f"is to be stopped for {job.id}")
        self.ground.put(job, plan.gains)

    def _candidates(
        self, job: JobRequest, names: frozenset[str]
    ) -> tuple[list[Candidate], list[RejectedVictim]]:
        """Return who may be stopped on these nodes, and who may not."""
        candidates: list[Candidate] = []
        rejected: list[RejectedVictim] = []
        for work in self.works.values():
            if names.isdisjoint(work.nodes):
                continue
            if busy := self._busy.get(work.id):
                rejected.append(RejectedVictim(job_id=work.id, reason=busy))
            elif kept := why_not(work, job, self.policy, self.now):
                rejected.append(kept)
            else:
                candidates.append(Candidate(work, self._victim(work, job)))
        return candidates, rejected

    def _victim(self, work: RunningWork, job: JobRequest) -> Victim:
        """Return what it costs to stop a job. It waits until there is room for it beside all that
        runs now, and never longer than `job` runs."""
        if self._waits_version != self.ground.version:
            self._waits, self._waits_version = {}, self.ground.version
        alike = Need.of(work.request, self.ground.packing), work.request.gang
        if alike not in self._waits:
            self._waits[alike] = self._wait(work.request)
        wait = min(self._waits[alike], job.expected_duration)
        if (work.id, wait) not in self._victims:
            self._victims[work.id, wait] = victim_of(work, wait, self.policy, self.now)
        return self._victims[work.id, wait]

    def _wait(self, job: JobRequest) -> timedelta:
        if self.ground.fits(job):
            return timedelta(0)
        start = self.ground.first_start(job)
        return start - self.now if start else timedelta.max

    def _cheapest(
        self, job: JobRequest, names: Sequence[str], candidates: list[Candidate], most: int
    ) -> tuple[Candidate, ...]:
        """Return the set of jobs to stop that costs least; none where no set suffices."""
        best = Best(most)
        if job.gang is not None:
            self._search_domains(job, names, candidates, best)
        else:
            self._search_nodes(job, names, candidates, best)
        return self._necessary(job, best.chosen)

    def _search_nodes(
        self, job: JobRequest, names: Sequence[str], candidates: list[Candidate], best: Best
    ) -> None:
        by_node: dict[str, list[Candidate]] = {}
        for one in candidates:
            for name in one.work.nodes:
                by_node.setdefault(name, []).append(one)
        # The cheapest first: nodes where any one costs more than the best so far are passed over.
        least = {name: min(one.cost for one in here) for name, here in by_node.items()}
        for name in sorted((name for name in names if name in least), key=least.__getitem__):
            here = by_node[name]
            if job.gpus == 1:  # jobs that share a GPU go together
                for gpu in self.ground.node(name).gpus:
                    some = [one for one in here if _holds(one.work, name, gpu.index)]
                    search(
                        some, lambda out, name=name: self.ground.node_fits(name, job, out), best
                    )
            search(here, lambda out, name=name: self.ground.node_fits(name, job, out), best)

    def _search_domains(
        self, job: JobRequest, names: Sequence[str], candidates: list[Candidate], best: Best
    ) -> None:
        assert job.gang is not None
        domains: dict[object, list[str]] = {}
        for name in names:
            key = domain_of(self.ground.node(name), unlabelled=job.gang.unlabelled_nodes)
            domains.setdefault(key, []).append(name)
        scopes = [*domains.values(), list(names)] if len(domains) > 1 else [list(names)]
        for scope in scopes:
            here = [one for one in candidates if not set(scope).isdisjoint(one.work.nodes)]
            search(here, lambda out, scope=scope: self.ground.gang_fits(scope, job, out), best)

    def _necessary(self, job: JobRequest, chosen: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the chosen without those that the packer can do without, dearest first; none
        where it finds that the job does not fit after all."""

        def fits(some: Sequence[Candidate]) -> bool:
            return self.ground.fits(job, frozenset(one.id for one in some))

        if not chosen or not fits(chosen):
            return ()
        for one in sorted(chosen, key=lambda one: (-one.cost, one.submitted, one.id)):
            fewer = tuple(other for other in chosen if other.id != one.id)
            if fits(fewer):
                chosen = fewer
        return chosen

    def _none(self, job: JobRequest, reason: str) -> PreemptionPlan:
        return PreemptionPlan(job_id=job.id, at=self.now, reason=reason)


def _holds(work: RunningWork, node_id: str, gpu: int) -> bool:
    return any(share.node_id == node_id and gpu in share.gpu_indices for share in work.shares)
