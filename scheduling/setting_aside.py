"""A job on which planning fails is set aside, so that the others are planned all the same."""

from collections.abc import Callable, Iterator, Sequence

from pydantic import ValidationError

from models.placement import CyclePlan, Decision, JobRequest, PlacementKind
from models.problems import describe_all

Plan = Callable[[Sequence[JobRequest]], CyclePlan]
_LONGEST = 300
"""Characters of a mistake that a reason holds."""


def plan_without(plan: Plan, queue: Sequence[JobRequest]) -> CyclePlan:
    """Return the plan of `queue`, with a decision SET_ASIDE for each job on which `plan` fails.

    Those jobs come last. Raises what `plan` raises where no single job is to blame.
    """
    try:
        return plan(queue)
    except Exception:
        aside = tuple(set_aside(job.id, error) for job, error in _to_blame(plan, queue))
        if not aside:
            raise
    ids = {decision.job_id for decision in aside}
    planned = plan([job for job in queue if job.id not in ids])
    return planned.model_copy(update={"decisions": (*planned.decisions, *aside)})


def set_aside(job_id: str, error: Exception) -> Decision:
    """Return the decision for a job that cannot be planned."""
    kind = "" if isinstance(error, ValidationError) else f"{type(error).__name__}: "
    return _aside(
        job_id,
        f"it cannot be planned ({kind}{_in_one_line(error)}); "
        "cancel it, and submit it with other values",
    )


def set_aside_unread(job_id: str, error: ValidationError) -> Decision:
    """Return the decision for a job whose stored form cannot be read.

    The values that its user gave were taken, so others need not help: who stored it can read it.
    """
    return _aside(
        job_id,
        f"its stored form cannot be read ({_in_one_line(error)}): another version of Longshore "
        "stored it, or somebody by hand; it waits for a version that can, or for a cancel",
    )


def _aside(job_id: str, why: str) -> Decision:
    return Decision(
        job_id=job_id, kind=PlacementKind.SET_ASIDE, reason=f"set aside: {why}"
    )  # fmt: skip


def _in_one_line(error: Exception) -> str:
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
