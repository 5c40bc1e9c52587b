"""A job on which planning fails is set aside, so that the others are planned all the same."""

from collections.abc import Callable, Iterator, Sequence

from models.placement import CyclePlan, Decision, JobRequest, PlacementKind

Plan = Callable[[Sequence[JobRequest]], CyclePlan]


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
    what = " ".join(str(error).split())[:300]
    return Decision(
        job_id=job_id,
        kind=PlacementKind.SET_ASIDE,
        reason=(
            f"set aside: it cannot be planned ({type(error).__name__}: {what}); "
            "cancel it, and submit it with other values"
        ),
    )


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
