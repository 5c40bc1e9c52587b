"""The plan for a job whose start is due: whom it has give way, step by step."""

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter

from longshore.models.funding import PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.preemption import (
    Cut,
    GainedGPUs,
    Lottery,
    PreemptionPlan,
    RunningWork,
    Victim,
)
from longshore.models.text import amount, listed
from longshore.scheduling.preemption.afterwards import waits_after
from longshore.scheduling.preemption.costs import victim_of
from longshore.scheduling.preemption.due import (
    cuts,
    draws,
    entries,
    gives_up,
    having_right,
    may_cut,
)
from longshore.scheduling.preemption.parts import KEPT
from longshore.scheduling.preemption.scene import Scene
from longshore.scheduling.preemption.stoppable import Stoppable
from longshore.scheduling.preemption.what_if import gains_of

_LATER = {Cut.SPARES: 1, Cut.SHRINK: 2, Cut.LOTTERY: 2}
_NAMED = 4


def plan_due(scene: Scene, job: JobRequest, room: int, seed: str) -> PreemptionPlan | None:
    """Return whom a job has give way whose start is due; None where nobody may, or these are too
    few. At most `room` jobs are stopped for it."""
    funding = scene.cluster.packing.funding
    if funding is None or job.sensitive or job.fills or not scene.policy.enabled or room < 1:
        return None
    if not may_cut(job, funding):
        return None
    for cut in cuts(scene.policy.overcommit):
        at = _Cutting(scene, job, cut, funding)
        plan = at.by_lottery(job, room, seed) if cut is Cut.LOTTERY else at.by_parts(job, room)
        if plan is not None and plan.preempts:
            return plan.model_copy(update={"cut": cut, "reason": at.said(plan)})
    return None


class _Cutting(Scene):
    """A round of plans for one job, in which others give up what they do for a start that is
    due."""

    _by_what = "its start is due"

    def __init__(self, scene: Scene, job: JobRequest, cut: Cut, funding: PoolFunding) -> None:
        works = [work for work in scene.works.values() if work.id not in scene.candidates.busy]
        nodes, _ = scene.cluster.as_it_is()
        self._gives = gives_up(works, job, cut, funding, scene.policy, scene.now)
        self._funding = funding
        """As it is without what is due."""
        with_right = having_right(funding, job, self._gives)
        packing = scene.cluster.packing.model_copy(update={"funding": with_right})
        stoppable = Stoppable(
            works, scene.policy, scene.now, scene.yielding, with_right, (job.id,)
        )
        later = {
            id: _LATER[Cut.SPARES if parts.spares_alone else cut]
            for id, parts in self._gives.items()
        }
        super().__init__(
            nodes, works, scene.policy, packing, scene.now, scene.mix, [job], stoppable,
            scene.yielding, parts=self._gives, later=later,
        )  # fmt: skip

    def by_parts(self, job: JobRequest, room: int) -> PreemptionPlan | None:
        """Return the plan in which nobody whom a budget pays for is stopped whole."""
        return self.plan(job, None, room) if self._gives else None

    def by_lottery(self, job: JobRequest, room: int, seed: str) -> PreemptionPlan | None:
        """Return the plan in which jobs are drawn, until with all others that give way before them
        there is room. Who turns out unnecessary is left alone."""
        names = self.cluster.nodes_for(job)
        here = frozenset(names)
        works = [work for work in self.works.values() if not here.isdisjoint(work.nodes)]
        asked = entries(works, job, self._funding, self.policy, self.now)
        order = list(draws(seed, asked))
        before = sorted(
            (self.candidates.cost(one, job) for one in self.candidates.among(job, names)),
            key=attrgetter("cost", "id"), reverse=True,
        )  # fmt: skip
        early = [one.id for one in before]
        if not order or not self._fits(job, order, early):
            return None
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._fits(job, order[:middle], early) else (middle + 1, high)
            )
        drawn = order[:low]
        gains = gains_of(self.cluster.decide(job, _out(drawn, early)))
        used = {gain.node_id for gain in gains}
        whole = [id for id in drawn if not used.isdisjoint(self.works[id].nodes)]
        early = [id for id in early if not used.isdisjoint(self.works[id].nodes)]
        early = [id for id in early if id not in whole]
        if not self._fits(job, whole, early):
            return None
        for id in list(whole):
            fewer = [other for other in whole if other != id]
            whole = fewer if self._fits(job, fewer, early) else whole
        for id in list(early):
            fewer = [other for other in early if other != id]
            early = fewer if self._fits(job, whole, fewer) else early
        if len(whole) + len(early) > min(room, self.policy.max_victims):
            return None
        self._gives = {id: parts for id, parts in self._gives.items() if id not in whole}
        out = _out(whole, early)
        stopped = [*whole, *(id for id in early if id not in self._parts)]
        waits = dict.fromkeys(early, timedelta(0))  # who gives up a part goes on
        waits |= waits_after(self.cluster, job, out, [self.works[id] for id in stopped])
        victims = tuple(self._victim(self.works[id], waits[id], job) for id in sorted(waits))
        plan = self._weighed(job, victims, out, None, ())
        lottery = Lottery(seed=seed, entries=asked, drawn=tuple(drawn))
        return plan.model_copy(update={"lottery": lottery})

    def said(self, plan: PreemptionPlan) -> str:
        """Return what a plan has each of them do: some do what is asked before the last cut."""
        drawn = plan.lottery.drawn if plan.lottery else ()
        told: dict[str, list[str]] = {}
        for victim in plan.victims:
            if victim.spares_on:
                how = "gangs give up what stands by for them"
            elif plan.lottery and victim.job_id in drawn and victim.job_id not in self._gives:
                how = f"drawn by lottery with seed {plan.lottery.seed}"
            else:
                how = "stopped" if victim.gpus_left is None else "malleable jobs shrink"
            told.setdefault(how, []).append(victim.job_id)
        each = "; ".join(f"{how}: {listed(names, _NAMED)}" for how, names in told.items())
        lost = amount(sum(victim.total for victim in plan.victims))
        return f"its start is due: {each}; that costs {lost}"

    def _fits(self, job: JobRequest, whole: Sequence[str], early: Sequence[str]) -> bool:
        return self.cluster.fits(job, _out(whole, early))

    def _victim(self, work: RunningWork, wait: timedelta, job: JobRequest) -> Victim:
        return victim_of(work, min(wait, job.expected_duration), self.policy, self.now)

    def _by_payer(self, victims: Sequence[str], job: JobRequest) -> frozenset[str]:
        return frozenset(victims)

    def _shrunk(self, victim: Victim, gains: Sequence[GainedGPUs], job: JobRequest) -> Victim:
        parts = self._gives.get(victim.job_id)
        if parts is None:
            return super()._shrunk(victim, gains, job)
        shares = self.works[victim.job_id].shares
        if self._lost([share for share in shares if not share.spare], gains):
            return super()._shrunk(victim, gains, job)
        lost = [share for share in shares if share.spare and self._lost([share], gains)]
        nodes = tuple(share.node_id for share in lost)
        said = f"goes on without what stands by for it on {listed(nodes, _NAMED)}"
        costs = dict.fromkeys(("recompute", "write", "requeue", "total"), 0)
        save = {"save": self.now - self.now}
        return victim.model_copy(update={**costs, **save, "spares_on": nodes, "reason": said})


def _out(whole: Sequence[str], early: Sequence[str]) -> frozenset[str]:
    return frozenset([*early, *whole, *(id + KEPT for id in whole)])
