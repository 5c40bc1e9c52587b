"""Who may be stopped for another job, and what that costs, in dollars.

total   = recompute + write + requeue
recompute = chance that no save comes of it x work since the last save x GPUs x price; a job that
            gives up a part in place is asked to save before
write     = time to save x GPUs x price
            an engine loses neither: its recompute is what a reload costs, for each time that it
            is expected to be asked within an hour (`scheduling.serving.running_engine`)
requeue   = time until it probably runs again x GPUs x price of its waiting
"""

import math
from datetime import datetime, timedelta
from typing import Protocol

from longshore.models.funding import PoolFunding
from longshore.models.job_request import FILLS, JobRequest
from longshore.models.preemption import (
    PreemptionLevels,
    PreemptionPolicy,
    RejectedVictim,
    RunningEngine,
    RunningWork,
    Victim,
)
from longshore.models.text import amount, format_duration, span
from longshore.scheduling.preemption.payers import Right, right_over, says_payer
from longshore.scheduling.serving.running_engine import (
    as_victim,
    cost_of_reload,
    is_idle,
    is_like,
    is_of_its_service,
    why_it_stays,
)

_STAYS = "says that it is not preemptible"
_HOUR = timedelta(hours=1)
AT_ONCE = "runs elsewhere at once"
_BANDS = (1, 4, 7, 10)
"""The first class of each band but the lowest."""


class InClass(Protocol):
    """Who yields to whom within a class."""

    def why_not(self, work: RunningWork, job: JobRequest) -> str | None:
        """Return why a running job of the same class does not yield to `job`."""
        ...


def why_not(
    work: RunningWork,
    job: JobRequest,
    policy: PreemptionPolicy,
    now: datetime,
    in_class: InClass | None = None,
    funding: PoolFunding | None = None,
) -> RejectedVictim | None:
    """Return why a running job keeps its GPUs; None where it may be stopped for `job`.

    Jobs of one class are stopped for each other as `in_class` says, and not without it. Who pays
    for both comes before their classes, where `funding` says it.
    """
    if job.fills:
        return RejectedVictim(job_id=work.id, reason=FILLS)
    right = right_of(work, job, policy, now, funding)
    if right is Right.NONE:
        return RejectedVictim(job_id=work.id, reason=says_payer(work.id, funding))
    if right is Right.FIRST:
        reason = stays(work, policy, now)
        return RejectedVictim(job_id=work.id, reason=reason) if reason else None
    reason = _not_lower(work, job, policy, now)
    if reason and in_class and work.engine is None and same_class(work, job):
        reason = in_class.why_not(work, job) or _not_sure_to_save(work)
    if reason:
        return RejectedVictim(job_id=work.id, reason=reason)
    return why_spared(work, policy, now)


def right_of(
    work: RunningWork,
    job: JobRequest,
    policy: PreemptionPolicy,
    now: datetime,
    funding: PoolFunding | None,
) -> Right:
    """Return by what right `job` may have a running one stopped.

    No payer keeps an engine that nobody uses: nobody misses it, and nobody is stopped for it in
    turn.
    """
    right = right_over(work.id, job.id, funding)
    if right is Right.NONE and is_idle(work, policy, now) and not is_like(work, job):
        return Right.CLASS
    return right


def stays(work: RunningWork, policy: PreemptionPolicy, now: datetime) -> str | None:
    """Return why a running job leaves for nobody, whoever pays for whom; None where that
    depends."""
    if not work.preemptible:
        return _STAYS
    return why_it_stays(work, policy, now)


def why_spared(
    work: RunningWork, policy: PreemptionPolicy, now: datetime
) -> RejectedVictim | None:
    """Return why a running job keeps its GPUs, whoever asks; None where that depends."""
    if reason := _protected(work, policy, now):
        return RejectedVictim(job_id=work.id, reason=reason)
    if reason := _stopped_of_late(work, policy, now):
        return RejectedVictim(job_id=work.id, reason=reason, until=_left_alone_until(work, policy))
    return None


def victim_of(
    work: RunningWork,
    wait: timedelta,
    policy: PreemptionPolicy,
    now: datetime,
    *,
    in_place: bool = False,
) -> Victim:
    """Return what stopping a job costs, where it then waits for so long, or what it costs that it
    gives up a part `in_place`."""
    save = save_time(work)
    chance, unsaved = _at_risk(work, policy, now, in_place=in_place)
    recompute, write = _left_behind(work, policy, now, in_place=in_place)
    requeue = cost_of(wait, work.gpus, price_of_waiting(work, policy, now))
    if work.engine is not None:
        # Room that is there now may be on the very GPU that it leaves: of a share that is usual.
        comes_back = not wait or is_idle(work, policy, now)
        after = "comes back where there is room" if comes_back else _waits(wait, requeue)
        reason = f"{as_victim(work, work.engine, policy, now).reason}; {after}"
    else:
        costs = recompute, write, requeue
        reason = _in_words(work, unsaved, chance, save, wait, costs, in_place=in_place)
    return Victim(
        job_id=work.id,
        priority=work.request.priority,
        nodes=work.nodes,
        gpus=work.gpus,
        recompute=recompute,
        write=write,
        requeue=requeue,
        total=recompute + write + requeue,
        save=save,
        reason=reason,
    )


def price_of_waiting(work: RunningWork, policy: PreemptionPolicy, now: datetime) -> float:
    """Return what it costs that a job waits once it has been stopped, in micro-dollars for each of
    its GPUs and hour: nobody waits for an engine that nobody asks."""
    return 0.0 if is_idle(work, policy, now) else policy.price_of_waiting(work.request)


def lost_at_once(
    work: RunningWork, policy: PreemptionPolicy, now: datetime, *, in_place: bool = False
) -> int:
    """Return what stopping a job costs, however long it then waits."""
    return sum(_left_behind(work, policy, now, in_place=in_place))


def shrinks_in_place(work: RunningWork) -> bool:
    """Return whether a job can give up a part of its GPUs without a stop, after a save."""
    return (
        work.malleable is not None
        and work.malleable.in_place
        and work.checkpoint is not None
        and work.checkpoint.saves_while_running
    )


def save_time(work: RunningWork) -> timedelta:
    """Return how long a job takes to save and stop; never more than its grace."""
    saved = work.checkpoint
    return min(saved.takes, saved.grace) if saved else timedelta(0)


def probable_end(
    work: RunningWork, policy: PreemptionPolicy, now: datetime, *, in_class: bool = False
) -> datetime:
    """Return when a running job will probably end.

    Where jobs are stopped for each other `in_class`, one of which nobody knows, or that has run
    for longer than any before it, runs on for as long as it has. One that is overdue has shown
    that nobody knew: it counts as running on for a quarter of its age, and for `near_end` at
    least. To expect it back at once would let a job wait again and again for what does not come.
    """
    known = work.request.duration_known or (work.request.learnt and now < work.expected_end)
    if in_class and not known:
        ran = work.request.attained + (now - work.started_at)
        return now + max(ran, policy.near_end)
    if now < work.expected_end:
        return work.expected_end
    return now + max((now - work.started_at) / 4, policy.near_end)


def cost_of(span: timedelta, gpus: float, price: float) -> int:
    """Return micro-dollars of so many GPUs for a time, rounded up; `price` is for a GPU-hour."""
    # Rounded to a millionth of a micro-dollar first: what floats add to a whole number is no cost.
    return math.ceil(round(span / _HOUR * gpus * price, 6))


def _not_lower(
    work: RunningWork, job: JobRequest, policy: PreemptionPolicy, now: datetime
) -> str | None:
    if is_lower(work, job, policy, now):
        return None
    mine, theirs, counted = job.priority, work.request.priority, _counted(work)
    risen = f", counted as {counted} when it was placed" if counted > theirs else ""
    is_of = "is of"
    if work.engine is not None:
        if is_of_its_service(work, job):
            return "is of the same service"
        if reason := stays(work, policy, now):  # whatever class it is of
            return reason
        is_of = "serves the same model, of" if is_like(work, job) else _used(work.engine, now)
    if counted >= mine:
        return f"{is_of} class {theirs}{risen}, which is not below {mine}"
    return f"{is_of} class {theirs}{risen}, in one band with {mine}"


def _used(engine: RunningEngine, now: datetime) -> str:
    """Return what is said before the class of an engine that does not yield to any job yet."""
    if engine.idle_since is None:
        return "is in use, of"
    return f"is idle for {span(now - engine.idle_since)} only, of"


def is_lower(work: RunningWork, job: JobRequest, policy: PreemptionPolicy, now: datetime) -> bool:
    """Return whether a running job is of a class that is stopped for that of `job`.

    An engine that nobody uses is of the lowest of all, but for engines of its own model or
    service. One in use counts as lower than an engine of its class that has waited for its turn.
    """
    counted = _counted(work)
    if is_of_its_service(work, job):
        return False
    if work.engine is not None and not is_like(work, job):
        turn = job.turn is not None and counted == job.priority
        if turn or is_idle(work, policy, now):
            return True
    if policy.levels is PreemptionLevels.BANDS and _band(counted) == _band(job.priority):
        return False
    return counted < job.priority


def same_class(work: RunningWork, job: JobRequest) -> bool:
    """Return whether a running job counts as of the class of `job`."""
    return _counted(work) == job.priority


def _counted(work: RunningWork) -> int:
    # It went before jobs of the class that it counted as: whoever is stopped for one of these
    # would go before that again, and take its GPUs back.
    return max(work.request.priority, work.counted_as or 0)


def _not_sure_to_save(work: RunningWork) -> str | None:
    if work.checkpoint is None:
        return "cannot save, and is of the same class"
    if not is_sure_to_save(work):
        return "has not saved in time yet, and is of the same class"
    return None


def _protected(work: RunningWork, policy: PreemptionPolicy, now: datetime) -> str | None:
    if reason := stays(work, policy, now):
        return reason
    if work.request.duration_known and abs(work.expected_end - now) < policy.near_end:
        return f"should end at {work.expected_end:%H:%M:%S} UTC, which is near"
    if (
        work.checkpoint is None
        and work.request.priority >= policy.protected_class
        and work.engine is None  # it has nothing to save
    ):
        return f"cannot save, and is of class {work.request.priority}"
    if work.checkpoint is not None and work.no_store:
        return f"cannot save now: {work.no_store}"
    return None


def _stopped_of_late(work: RunningWork, policy: PreemptionPolicy, now: datetime) -> str | None:
    # An engine that nobody uses loses nothing by it, however often.
    if not work.preempted_at or is_idle(work, policy, now):
        return None
    last = work.preempted_at[-1]
    if now - last < policy.cooldown:
        return f"was preempted {format_duration(_whole(now - last))} ago"
    if now - work.started_at < policy.min_run:
        return f"runs again since {format_duration(_whole(now - work.started_at))} only"
    recent = sum(now - at < _HOUR for at in work.preempted_at)
    if recent >= policy.max_per_hour:
        return f"was preempted {recent} times within an hour"
    return None


def _left_alone_until(work: RunningWork, policy: PreemptionPolicy) -> datetime:
    """Return until when a job that was preempted before is spared: see `_stopped_of_late`."""
    times = [work.preempted_at[-1] + policy.cooldown, work.started_at + policy.min_run]
    if len(work.preempted_at) >= policy.max_per_hour:
        times.append(work.preempted_at[-policy.max_per_hour] + _HOUR)
    return max(times)


def _left_behind(
    work: RunningWork, policy: PreemptionPolicy, now: datetime, *, in_place: bool
) -> tuple[int, int]:
    """Return what is lost with the work since the last save, and what the save itself costs."""
    if work.engine is not None:
        return cost_of_reload(work, work.engine, policy, now), 0
    chance, unsaved = _at_risk(work, policy, now, in_place=in_place)
    return (
        cost_of(unsaved * chance, work.gpus, work.price),
        cost_of(save_time(work), work.gpus, work.price),
    )


def _at_risk(
    work: RunningWork, policy: PreemptionPolicy, now: datetime, *, in_place: bool
) -> tuple[float, timedelta]:
    """Return the chance that no save comes of a stop, and how much work is in none now."""
    chance = policy.save_risk if in_place or is_sure_to_save(work) else 1.0
    return chance, max(now - work.unsaved_since, timedelta(0))


def is_sure_to_save(work: RunningWork) -> bool:
    """Return whether a save on the way out can be counted on: one has come before, in time."""
    saved = work.checkpoint
    return saved is not None and saved.saved_at is not None and saved.takes <= saved.grace


def _band(priority: int) -> int:
    return sum(priority >= first for first in _BANDS)


def _in_words(
    work: RunningWork,
    unsaved: timedelta,
    chance: float,
    save: timedelta,
    wait: timedelta,
    costs: tuple[int, int, int],
    *,
    in_place: bool,
) -> str:
    recompute, write = amount(costs[0]), amount(costs[1])
    lost = f"{format_duration(_whole(unsaved))} of work is in no save"
    if chance < 1:
        lost += f", and one in {1 / chance:.0f} is lost" if chance else ", and none is lost"
    elif work.checkpoint is None:
        lost += ", and it cannot save"
    saving = f"saves in {format_duration(_whole(save))} ({write})"
    if in_place:
        return f"{saving} and goes on; {lost} ({recompute})"
    return f"{lost} ({recompute}); {saving}; {_waits(wait, costs[2])}"


def _waits(wait: timedelta, cost: int) -> str:
    waits = AT_ONCE if not wait else f"waits {format_duration(_whole(wait))}"
    return f"{waits} ({amount(cost)})"


def _whole(span: timedelta) -> timedelta:
    return timedelta(seconds=round(span.total_seconds()))
