"""Malleable jobs: with which size they start, and what a change of the size is worth, in dollars.

A change by checkpoint and restart stops the job with its grace, so that it saves, and starts it
again. So it costs

    pause = (time to save and to start again) x GPUs x (price + price of waiting)
    lost  = chance that no save comes of it x work since the last save x GPUs x price

To grow costs what the GPUs would bring otherwise, too, and earns the time that the job needs less:

    added  = GPUs that it gets x time that it runs on them x what these would bring
    saved  = time by which it ends earlier x GPUs that it has x (price of waiting + what these
             would bring)
    shrunk = chance that it has to give them up again x (pause + lost)

What a GPU would bring is nothing on nodes of one's own, the resale on time that is paid already,
and the whole price on machines that are billed as they run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from longshore.models.elastic import Malleable
from longshore.models.placement import Decision, JobRequest, PlacementKind
from longshore.models.preemption import Victim
from longshore.models.resize import ResizeReply, SizeChange
from longshore.models.text import count, dollars, format_duration
from longshore.models.views import AttemptView
from longshore.scheduling.preemption.costs import cost_of


def start(
    job: JobRequest,
    place: Callable[[JobRequest], Decision | None],
    otherwise: Callable[[JobRequest], Decision],
) -> Decision:
    """Return the decision for a malleable job: on the largest size up to its desired one that
    `place` finds GPUs for now.

    `place` returns None, and changes nothing, where a job of that size does not start now.
    `otherwise` decides for the smallest size: that one may wait, and have a start kept.
    """
    assert job.malleable is not None
    sizes = job.malleable.up_to_target
    for size in sizes[:-1]:
        decision = place(job.at_size(size))
        if decision is not None:
            return _at_size(decision, size, job.malleable)
    decision = otherwise(job.smallest)
    if decision.kind is PlacementKind.EXISTING_NODE:
        return _at_size(decision, sizes[-1], job.malleable)
    if len(sizes) == 1:
        return decision
    reason = f"for {sizes[-1]} GPUs, the fewest of {sizes[-1]} to {sizes[0]}: {decision.reason}"
    return decision.model_copy(update={"reason": reason})


def _at_size(decision: Decision, size: int, sizes: Malleable) -> Decision:
    """Return the decision with its size in words, where it is not the desired one."""
    if size == sizes.target:
        return decision
    said = f"{size} of {sizes.target} desired GPUs, as many as fit now"
    return decision.model_copy(update={"reason": f"{said}; {decision.reason}"})


def resized(
    job: JobRequest, gpus: int | None, foreseen: Decision | None, cost: Victim | None
) -> ResizeReply:
    """Return what comes of a new desired size of a job that has so many GPUs, None where it does
    not run.

    `foreseen` is what a cycle would decide for it, were it stopped now and queued again; `cost`
    what a stop costs. It is stopped only where that brings it nearer to its desired size.
    """
    assert job.malleable is not None
    target = job.malleable.target
    if gpus is None:
        said = f"it starts on up to {count(target, 'GPU')} when it is placed"
        return ResizeReply(desired=target, reason=said)
    if gpus == target:
        said = f"it has {count(target, 'GPU')} already"
        return ResizeReply(desired=target, gpus=gpus, reason=said)
    size = sum(len(indices) for _, indices in foreseen.by_node) if foreseen else 0
    lost = f"; {dollars(cost.total)}: {cost.reason}" if cost else ""
    if size and abs(target - size) < abs(target - gpus):
        said = f"from {gpus} to {count(size, 'GPU')}, {target} desired{lost}"
        return ResizeReply(desired=target, gpus=gpus, restarts=size, reason=said)
    instead = f"it would have {count(size, 'GPU')}" if size else "it would wait"
    why = f" ({foreseen.reason})" if foreseen and not size else ""
    said = f"it keeps its {count(gpus, 'GPU')}: stopped now, {instead}{why}"
    return ResizeReply(desired=target, gpus=gpus, reason=said)


def changes_of(attempts: Sequence[AttemptView]) -> tuple[SizeChange, ...]:
    """Return where attempts, oldest first, have another number of GPUs than those before them."""
    return tuple(
        SizeChange(
            attempt=after.attempt, at=after.placed_at, gpus_before=before.gpus, gpus=after.gpus,
            paused=max(after.placed_at - before.ended_at, timedelta(0)),
            end_reason=before.end_reason or "ended", reason=before.end_message,
        )
        for before, after in pairwise(attempts)
        if before.gpus != after.gpus and before.ended_at is not None
    )  # fmt: skip


def shrunk_by(sizes: Malleable, now: int, missing: int) -> int | None:
    """Return the size to which a job goes from `now` to give up at least `missing` GPUs, as few
    steps as that takes; None where it would be below its smallest."""
    steps = -(-missing // sizes.step)
    left = now - max(steps, 0) * sizes.step
    return left if left >= sizes.min else None


@dataclass(frozen=True)
class Running:
    """A malleable job as it runs, and what its GPUs are worth. Prices are micro-dollars for a
    GPU-hour."""

    sizes: Malleable
    gpus: int
    remaining: timedelta
    """How long it will run yet with the GPUs that it has."""
    price: float = 0.0
    """Of the GPUs that it has."""
    price_of_waiting: float = 0.0
    save: timedelta = timedelta(0)
    restart: timedelta = timedelta(0)
    """From the end of its processes to the moment when it works again."""
    unsaved: timedelta = timedelta(0)
    """Work that is in no save now."""
    save_risk: float = 0.0
    """The chance that a stop does not bring it into one; 1 for a job that cannot save."""

    @property
    def pause(self) -> timedelta:
        """For how long it does not work."""
        return self.save + self.restart


@dataclass(frozen=True)
class ChangeCost:
    """What a change by checkpoint and restart costs, in micro-dollars."""

    pause: int
    lost: int
    reason: str

    @property
    def total(self) -> int:
        return self.pause + self.lost


def change_cost(job: Running) -> ChangeCost:
    """Return what it costs to stop the job and to start it again with another size."""
    pause = cost_of(job.pause, job.gpus, job.price + job.price_of_waiting)
    lost = cost_of(job.unsaved * job.save_risk, job.gpus, job.price)
    work = f"{_in_words(job.unsaved)} of work {_in_no_save(job.save_risk)} ({dollars(lost)})"
    reason = f"it pauses for {_in_words(job.pause)} ({dollars(pause)}); {work}"
    return ChangeCost(pause, lost, reason)


@dataclass(frozen=True)
class Growth:
    """What it is worth to give a job more GPUs, in micro-dollars."""

    gpus: int
    """The size that it would have."""
    saved: timedelta
    """By how much it would end earlier; negative where it would end later."""
    earns: int
    costs: int
    grows: bool
    reason: str


def growth(
    job: Running, gpus: int, *, idle_price: float, added_idle_price: float, shrink_chance: float
) -> Growth:
    """Return whether a running job is to grow to so many GPUs, one of its larger sizes.

    `idle_price` is what a GPU that it has would bring if it had ended, `added_idle_price` one that
    it would get, in micro-dollars for a GPU-hour; `shrink_chance` the chance that it has to give
    them up again before its end. Raises ValueError for a size that is not larger.
    """
    if gpus <= job.gpus:
        raise ValueError(f"{gpus} GPUs are not more than the {job.gpus} that it has")
    runs = job.remaining * (job.sizes.speed(job.gpus) / job.sizes.speed(gpus))
    saved = job.remaining - runs - job.pause
    # The pause is in the time that it ends later: what it costs beside that is work that is lost.
    change = change_cost(job)
    again = cost_of(job.pause, gpus, job.price_of_waiting) + change.lost
    added = cost_of(runs + job.pause, gpus - job.gpus, added_idle_price)
    costs = added + change.lost + round(again * shrink_chance)
    worth = cost_of(abs(saved), job.gpus, job.price_of_waiting + idle_price)
    earns = worth if saved > timedelta(0) else -worth
    grows = earns > costs
    sooner = f"{_in_words(abs(saved))} {'sooner' if saved > timedelta(0) else 'later'}"
    more = count(gpus - job.gpus, "more GPU")
    verdict = "which is more than" if grows else "which is not more than"
    reason = (
        f"with {more} it would end {sooner}, worth {dollars(earns)}, {verdict} the "
        f"{dollars(costs)} that it costs (the GPUs would bring {dollars(added)} otherwise)"
    )
    return Growth(gpus, saved, earns, costs, grows, reason)


def _in_no_save(risk: float) -> str:
    if risk >= 1:
        return "is lost"
    return "is in no save yet, and none is lost" if not risk else f"is lost with chance {risk:g}"


def _in_words(span: timedelta) -> str:
    return format_duration(timedelta(seconds=round(span.total_seconds())))
