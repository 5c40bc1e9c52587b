"""The whole score of a job, and what a pool asks of it before the job starts, or is bought for;
and that somebody pays for it, where a tenant has a budget (`scheduling.funding`).

Backlog and energy are the same for all jobs of a cycle, so they change no order: they count here.
Waiting counts for no more than a week. Where nobody knows the price of energy its weight has no
effect: the others count as if they summed to one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from longshore.models.job_request import FILLS, JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import RunningJob
from longshore.models.queue_view import ScoreOfJob
from longshore.models.text import format_duration
from longshore.scheduling import score
from longshore.scheduling.order import aged, counted_as
from longshore.scheduling.rank import GUARANTEED_AFTER, waiting

LONGEST = timedelta(days=7)
"""More waiting adds nothing to the whole score; in the order of the queue it does."""


class Scoring:
    """What the jobs of a pool that has a score are worth at one moment."""

    def __init__(
        self,
        queue: Iterable[JobRequest],
        policy: PackingPolicy,
        now: datetime,
        nodes: Iterable[Node],
        running: Iterable[RunningJob],
    ) -> None:
        """`queue` are all jobs that wait in the pool."""
        assert policy.score is not None
        self._policy = policy
        self._now = now
        self._weights = dict(policy.score.used.named())
        self._scores = score.Scores(policy, nodes)
        in_use = sum(share.gpus for share in running)
        self._backlog = score.backlog(sum(waiting(job, now).gpus for job in queue), in_use)
        self._energy = score.energy(policy.energy_price)

    def of(self, job: JobRequest) -> ScoreOfJob:
        """Return the terms of a job that waits, and its score."""
        now, policy = self._now, self._policy
        terms: dict[str, float | None] = {
            "priority": score.priority(counted_as(job, policy, now)),
            "waiting": score.waiting(aged(job, policy, now)),
            "backlog": self._backlog,
            "energy": self._energy,
            **self._scores.differing(job, can_stop=job.can_stop),
        }
        return ScoreOfJob.trusted(**terms, total=self._total(terms))

    def _total(self, terms: Mapping[str, float | None]) -> float:
        values = {name: value for name, value in terms.items() if value is not None}
        values["waiting"] = min(values["waiting"], score.waiting(LONGEST))
        weighed = sum(self._weights[name] * value for name, value in values.items())
        counts = sum(self._weights[name] for name in values)
        return weighed / counts if counts else 0.0

    def why_not(self, job: JobRequest, least: float, what: str) -> str:
        """Return why a job may not start, or what else is asked of its score; empty where it
        may."""
        terms = self.of(job)
        if terms.total >= least:
            return ""
        says = ", ".join(self._says(name, getattr(terms, name)) for name in self._weights)
        total = math.floor(terms.total * 100) / 100  # rounded up it may be what is asked for
        return f"its score of {total:.2f} is below the pool's `{what}` of {least:g} ({says})"

    def _says(self, name: str, value: float | None) -> str:
        of = name.replace("_", " ")
        if value is None:
            return f"{of}: no price known"
        return f"{of} {self._weights[name]:g} x {value:.2f}"

    def reached_after(self, job: JobRequest, least: float) -> timedelta | None:
        """Return how much longer a job has to wait until its score is `least`, if all else stays
        as it is; None where no waiting helps."""
        terms = self.of(job)
        counts = 1 - (self._weights["energy"] if terms.energy is None else 0)
        for_waiting = self._weights["waiting"] / counts if counts else 0.0
        if not for_waiting:
            return None
        now = min(terms.waiting, score.waiting(LONGEST))
        needed = now + (least - terms.total) / for_waiting
        if needed > score.waiting(LONGEST):
            return None
        return math.expm1(needed) * score.REFERENCE - aged(job, self._policy, self._now)


def held_back(
    queue: Sequence[JobRequest],
    policy: PackingPolicy,
    now: datetime,
    nodes: Iterable[Node],
    running: Iterable[RunningJob],
) -> dict[str, str]:
    """Return the jobs of a queue that may not start for their score, or since nobody would pay for
    them, with why.

    No score holds a job back for ever: who has waited for 36 hours in all may start.
    """
    unpaid = {job.id: why for job in queue if (why := _why_unpaid(job, policy, held=True))}
    return unpaid | _low_scores(queue, policy, now, nodes, running)


def _low_scores(
    queue: Sequence[JobRequest],
    policy: PackingPolicy,
    now: datetime,
    nodes: Iterable[Node],
    running: Iterable[RunningJob],
) -> dict[str, str]:
    if policy.score is None or policy.score.start_above is None:
        return {}
    least = policy.score.start_above
    scoring = Scoring(queue, policy, now, nodes, running)
    found: dict[str, str] = {}
    for job in queue:
        waited = waiting(job, now).waited
        if waited >= GUARANTEED_AFTER:
            continue
        if why := scoring.why_not(job, least, "start_above"):
            after = scoring.reached_after(job, least)
            longest = GUARANTEED_AFTER - waited
            soonest = longest if after is None else min(after, longest)
            found[job.id] = f"{why}; it may in {_about(soonest)}, or when the terms are better"
    return found


def not_bought_for(
    queue: Sequence[JobRequest],
    policy: PackingPolicy,
    now: datetime,
    nodes: Iterable[Node],
    running: Iterable[RunningJob],
) -> dict[str, str]:
    """Return the jobs of a queue for which nothing is bought for their score, since nobody would
    pay for them, or since they take what is free alone, with why."""
    unpaid = {job.id: why for job in queue if (why := _why_unpaid(job, policy))}
    unpaid |= {job.id: FILLS for job in queue if job.fills}
    if policy.score is None or policy.score.buy_above is None:
        return unpaid
    scoring = Scoring(queue, policy, now, nodes, running)
    least = policy.score.buy_above
    low = {job.id: why for job in queue if (why := scoring.why_not(job, least, "buy_above"))}
    return unpaid | low


def _why_unpaid(job: JobRequest, policy: PackingPolicy, *, held: bool = False) -> str:
    """Return why nobody would pay for a job; empty where somebody would, or where only the `held`
    are asked for and it starts all the same."""
    if held and not (policy.funding and job.id in policy.funding.held):
        return ""
    why = policy.unfunded.get(job.id, "")
    if not why and not held and policy.funding and job.id in policy.funding.own_nodes:
        return policy.funding.own_nodes[job.id].why_on_nodes
    return why


def _about(span: timedelta) -> str:
    return format_duration(timedelta(minutes=max(math.ceil(span / timedelta(minutes=1)), 1)))
