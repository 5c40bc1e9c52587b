"""A job on which planning fails is set aside, so that the others are planned all the same."""

from collections.abc import Callable, Iterator, Sequence

from pydantic import ValidationError

from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan, Decision, PlacementKind
from longshore.models.problems import describe_all

Plan = Callable[[Sequence[JobRequest]], CyclePlan]
MOST_BYTES = 2_000_000
"""Of a placement, which its job is told: Temporal takes a signal of 2 MiB, and the cycle would try
in vain for ever, with all other jobs of the pool behind it."""
OF_A_NODE, OF_A_GPU = 1_800, 5
"""Bytes of them at most: a node with an address of 253 characters, each escaped, and the index of
a GPU. What is refused for them is far beyond what can start (`workflows/attempt.py`)."""
_LONGEST = 300
"""Characters of a mistake that a reason holds."""
_MOST_TOGETHER = 3
"""Jobs that are set aside because they fail with others: more are not their fault."""


def plan_without(plan: Plan, queue: Sequence[JobRequest]) -> CyclePlan:
    """Return the plan of `queue`, with a decision SET_ASIDE for each job on which `plan` fails.

    Those jobs come last: each that fails alone, then a few that fail only with those before them.
    Raises what `plan` raises where even without them it fails.
    """
    try:
        return plan(queue)
    except Exception:
        aside = [set_aside(job.id, error) for job, error in _to_blame(plan, queue)]
    for _ in range(_MOST_TOGETHER):
        left = _without(queue, aside)
        try:
            planned = plan(left)
        except Exception as error:
            job, why = _one_too_many(plan, left, error)
            aside.append(_beside_others(job.id, why))
        else:
            return _and_aside(planned, aside)
    return _and_aside(plan(_without(queue, aside)), aside)


def tellable(planned: CyclePlan) -> CyclePlan:
    """Return the plan with a decision SET_ASIDE for each gang on more nodes than its job could be
    told of; what it was to have stays free until the next cycle."""
    if not any(map(_is_too_long, planned.placements)):
        return planned
    decisions = (_untellable(each) if _is_too_long(each) else each for each in planned.decisions)
    return planned.model_copy(update={"decisions": tuple(decisions)})


def _is_too_long(decision: Decision) -> bool:
    gpus = sum(len(indices) for _, indices in decision.held)
    return len(decision.held) * OF_A_NODE + gpus * OF_A_GPU > MOST_BYTES


def _untellable(decision: Decision) -> Decision:
    return _aside(
        decision.job_id,
        f"it would be on {len(decision.held):,} nodes, of which it cannot be told in one message "
        f"({MOST_BYTES:,} bytes); cancel it, and submit it for fewer nodes with more GPUs each",
    )


def _without(queue: Sequence[JobRequest], aside: Sequence[Decision]) -> list[JobRequest]:
    ids = {decision.job_id for decision in aside}
    return [job for job in queue if job.id not in ids]


def _and_aside(planned: CyclePlan, aside: Sequence[Decision]) -> CyclePlan:
    return planned.model_copy(update={"decisions": (*planned.decisions, *aside)})


def set_aside(job_id: str, error: Exception) -> Decision:
    """Return the decision for a job that cannot be planned."""
    return _aside(
        job_id,
        f"it cannot be planned ({_kind_and_words(error)}); "
        "cancel it, and submit it with other values",
    )


def _beside_others(job_id: str, error: Exception) -> Decision:
    """Return the decision for a job that can be planned alone: another may be to blame."""
    return _aside(
        job_id,
        f"it cannot be planned beside the jobs before it ({_kind_and_words(error)}); "
        "it is looked at again in some minutes, when they may have started",
    )


def set_aside_unread(job_id: str, why: str) -> Decision:
    """Return the decision for a job whose stored form cannot be read, in one line why.

    The values that its user gave were taken, so others need not help: who stored it can read it.
    """
    return _aside(
        job_id,
        f"its stored form cannot be read ({why}): another version of Longshore "
        "stored it, or somebody by hand; it waits for a version that can, or for a cancel",
    )


def _aside(job_id: str, why: str) -> Decision:
    return Decision(
        job_id=job_id, kind=PlacementKind.SET_ASIDE, reason=f"set aside: {why}"
    )  # fmt: skip


def _kind_and_words(error: Exception) -> str:
    kind = "" if isinstance(error, ValidationError) else f"{type(error).__name__}: "
    return f"{kind}{in_one_line(error)}"


def in_one_line(error: Exception) -> str:
    """Return what is wrong, shortened where it is long."""
    told = isinstance(error, ValidationError)
    what = "; ".join(describe_all(error)) if told else str(error)
    return " ".join(what.split())[:_LONGEST]


def _to_blame(plan: Plan, jobs: Sequence[JobRequest]) -> Iterator[tuple[JobRequest, Exception]]:
    """Yield each job that fails alone: a plan of each half, and of their halves where it fails."""
    try:
        plan(jobs)
    except Exception as error:
        if len(jobs) == 1:
            yield jobs[0], error
            return
        half = len(jobs) // 2
        yield from _to_blame(plan, jobs[:half])
        yield from _to_blame(plan, jobs[half:])


def _one_too_many(
    plan: Plan, jobs: Sequence[JobRequest], found: Exception
) -> tuple[JobRequest, Exception]:
    """Return a job with which those before it cannot be planned, and without which they can.

    `found` is what `plan` raised of all. Raises what it raises of no job at all.
    """
    plan([])
    works, fails = 0, len(jobs)
    while fails - works > 1:
        middle = (works + fails) // 2
        try:
            plan(jobs[:middle])
            works = middle
        except Exception as error:
            fails, found = middle, error
    return jobs[fails - 1], found
