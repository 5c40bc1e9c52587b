"""When a running job is to save, in dollars: what would be lost without against what it costs.

    value = sum over risks of  P(loss) x GPU-seconds since the last save x price
    cost  = time to save x GPUs x price  +  size x price of storage

A node fails at a steady rate. There P(loss) is that of half the time since the last save: then a
job saves whenever it has spent as much on the last save as it had to expect to lose since, and
that is the interval of the square-root law (Young, Daly), sqrt(2 x time to save / rate), where
both together are least. What comes at a known time, the end of a node or a spot notice, is a
certain loss: it counts as 1 at the last look from which a save still comes in time, and not at all
before. Jobs of higher classes count by their chance to take these GPUs before the next look.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from longshore.models.checkpointing import (
    CheckpointDecision,
    CheckpointPolicy,
    CheckpointTerm,
    Risks,
)
from longshore.models.funding import PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.preemption import PreemptionPolicy, RunningWork
from longshore.models.text import dollars, in_seconds
from longshore.scheduling.preemption.costs import cost_of, why_not

_HOUR = timedelta(hours=1)


def decide_checkpoint(
    work: RunningWork, risks: Risks, policy: CheckpointPolicy, now: datetime
) -> CheckpointDecision:
    """Return whether a running job is to save now and go on, with every term."""
    unsaved = max(now - work.unsaved_since, timedelta(0))
    why = _cannot(work, risks, policy, unsaved, now)
    if why:
        return _answer(work, unsaved, now, save=False, reason=why)
    assert work.checkpoint is not None
    takes = work.checkpoint.takes
    lost = cost_of(unsaved, work.gpus, work.price)
    terms = tuple(
        CheckpointTerm(name=name, chance=chance, value=round(chance * lost))
        for name, chance in (
            ("failure", _failure(risks, unsaved)),
            ("end of a node", _certain(risks.ends_at, work, takes, policy, now)),
            ("spot notice", _certain(risks.taken_at, work, takes, policy, now)),
            ("preemption", _preemption(risks)),
        )
    )
    write = cost_of(takes, work.gpus, work.price)
    storage = round(work.checkpoint.size * policy.storage_price)
    decision = _answer(work, unsaved, now, terms=terms, write=write, storage=storage)
    save, reason = _weigh(decision, policy)
    return decision.model_copy(update={"save": save, "reason": reason})


def risks_of(
    work: RunningWork,
    waiting: Sequence[JobRequest],
    running: Sequence[RunningWork],
    ends_at: datetime | None,
    policy: CheckpointPolicy,
    preemption: PreemptionPolicy,
    now: datetime,
    funding: PoolFunding | None = None,
) -> Risks:
    """Return what threatens a job where nothing is known but its pool: how healthy nodes fail,
    when the first of its nodes ends, and which waiting jobs could take its GPUs: where tenants
    have budgets, by who pays for both (`funding`)."""

    def may_stop(job: JobRequest, other: RunningWork) -> bool:
        return why_not(other, job, preemption, now, funding=funding) is None

    above = [
        job
        for job in waiting
        if preemption.enabled and may_stop(job, work) and job.tier is work.request.tier
    ]
    exposed = [other for other in running if any(may_stop(job, other) for job in above)]
    return Risks(
        failures_per_hour=policy.failures_per_hour * len(work.runs_on),
        ends_at=ends_at,
        waiting_gpus=sum(job.gpus * job.milli / 1000 for job in above),
        exposed_gpus=sum(other.gpus for other in exposed),
        save_risk=preemption.save_risk,
    )


def _cannot(
    work: RunningWork, risks: Risks, policy: CheckpointPolicy, unsaved: timedelta, now: datetime
) -> str | None:
    """Return why the job is not asked, whatever threatens it."""
    if not policy.enabled:
        return "saving on request is off for this pool"
    if work.checkpoint is None:
        return "it has no checkpoint contract: it cannot save"
    if not work.checkpoint.saves_while_running:
        return "its contract has no way to save while it runs"
    if work.no_store:
        return f"a save would go nowhere: {work.no_store}"
    if unsaved < policy.min_interval:
        least = in_seconds(policy.min_interval)
        return f"it saved, or began, {in_seconds(unsaved)} ago: at least {least}"
    ends = [end for end in (risks.ends_at, risks.taken_at) if end is not None]
    if ends and now + work.checkpoint.takes > min(ends):
        return f"a save takes {in_seconds(work.checkpoint.takes)}, and the node goes before that"
    return None


def _failure(risks: Risks, unsaved: timedelta) -> float:
    """Return the chance of a failure within half the time since the last save."""
    return min(risks.failures_per_hour * (unsaved / _HOUR) / 2, 1.0)


def _certain(
    end: datetime | None,
    work: RunningWork,
    takes: timedelta,
    policy: CheckpointPolicy,
    now: datetime,
) -> float:
    """Return 1 where the next look would be too late to save before `end`, else 0."""
    if end is None or now < work.expected_end <= end:
        return 0.0
    return float(now + policy.look_every + takes + policy.margin >= end)


def _preemption(risks: Risks) -> float:
    """Return the chance that the job is stopped for another, and its save then fails."""
    if not risks.waiting_gpus:
        return 0.0
    taken = min(risks.waiting_gpus / max(risks.exposed_gpus, risks.waiting_gpus), 1.0)
    return taken * risks.save_risk


def _weigh(decision: CheckpointDecision, policy: CheckpointPolicy) -> tuple[bool, str]:
    value, cost = dollars(decision.value), dollars(decision.cost)
    if decision.unsaved >= policy.max_interval:
        return (
            True,
            f"it has not saved for {in_seconds(decision.unsaved)}, the longest that is allowed",
        )
    largest = max(decision.terms, key=lambda term: term.value)
    if decision.value > decision.cost:
        return True, f"{value} may be lost, most of it by {largest.name}; a save costs {cost}"
    return False, f"a save costs {cost}, and {value} may be lost"


def _answer(
    work: RunningWork,
    unsaved: timedelta,
    now: datetime,
    *,
    save: bool = False,
    terms: tuple[CheckpointTerm, ...] = (),
    write: int = 0,
    storage: int = 0,
    reason: str = "",
) -> CheckpointDecision:
    return CheckpointDecision(
        job_id=work.id, at=now, save=save, unsaved=unsaved,
        lost_gpu_seconds=unsaved.total_seconds() * work.gpus, terms=terms,
        value=sum(term.value for term in terms), write=write, storage=storage, reason=reason,
    )  # fmt: skip
