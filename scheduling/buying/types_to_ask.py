"""Which of the types that a market with books trades are asked for: each takes several questions.

First those that jobs name, in the order of the queue, then that of the warm target, then those
that are nearest to what a job needs. What is left out is told: it is not that nobody sells it.
"""

from collections.abc import Iterable, Sequence

from longshore.models.buying import BookQuote, BuyingPolicy, NodeShape
from longshore.models.job_request import JobRequest
from longshore.models.market import InstanceType, NoQuote, NoQuoteReason
from longshore.scheduling.buying.fleet import holds, shape_of
from longshore.scheduling.buying.prices import is_allowed
from longshore.scheduling.buying.warm_target import wants_warm

MOST_TYPES = 8


def types_to_ask(
    traded: Iterable[InstanceType], jobs: Sequence[JobRequest], policy: BuyingPolicy
) -> tuple[tuple[InstanceType, ...], tuple[BookQuote, ...]]:
    """Return the types to ask for, and of those that are left out for their number that they
    are. Without a job it is the warm target that lacks."""
    found: list[tuple[tuple[float, ...], str, InstanceType]] = []
    for name, kind in {str(kind): kind for kind in traded}.items():
        shape = shape_of(name)
        if shape is not None and is_allowed(name, policy):
            place = _place(shape, jobs, policy)
            if place is not None:
                found.append((place, name, kind))
    ordered = [kind for _, _, kind in sorted(found, key=lambda each: each[:2])]
    detail = f"it is not asked for: {MOST_TYPES} other types come first"
    left_out = NoQuote(reason=NoQuoteReason.LEFT_OUT, detail=detail)
    rest = (BookQuote(instance_type=str(k), answer=left_out) for k in ordered[MOST_TYPES:])
    return tuple(ordered[:MOST_TYPES]), tuple(rest)


def _place(
    shape: NodeShape, jobs: Sequence[JobRequest], policy: BuyingPolicy
) -> tuple[float, ...] | None:
    """Return where a type comes in the order, the lowest first; None where it is of no use."""
    able = [number for number, job in enumerate(jobs) if holds(shape, job)]
    named = next((number for number in able if jobs[number].types), None)
    if named is not None:
        return 0, named
    warm = wants_warm(shape.gpu_type, policy)
    if warm and policy.keeps_warm and policy.fast_warm_type is not None:
        return 1, 0
    if able:
        over = min(
            (abs(shape.gpus - job.gpus), shape.vram - job.vram_per_gpu)
            for job in (jobs[number] for number in able)
        )
        return 2, *over
    return (3, 0) if warm and not jobs else None
