"""On what nodes a job starts that starts only where somebody pays: those that the envelopes are
for that would pay for it. On others nobody pays, and its start would be taken back."""

from collections.abc import Iterable, Mapping

from longshore.models.constraints import Constraint
from longshore.models.funding import PaidOn, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.cover import Cover
from longshore.scheduling.funding.facts import Facts


def paid_on(facts: Facts, covers: Mapping[str, Cover]) -> dict[str, PaidOn]:
    """Return for each job that envelopes for some nodes alone would pay for on which that is."""
    found = ((job_id, _on(facts, cover)) for job_id, cover in covers.items())
    return {job_id: on for job_id, on in found if on.gpu_type or on.labels}


def where_paid(jobs: Iterable[JobRequest], funding: PoolFunding | None) -> list[JobRequest]:
    """Return jobs as they are planned: those that start only where somebody pays ask for nodes on
    which that is so."""
    if funding is None or not funding.only_on:
        return list(jobs)
    return [_narrowed(job, funding.only_on.get(job.id)) for job in jobs]


def _narrowed(job: JobRequest, on: PaidOn | None) -> JobRequest:
    if on is None:
        return job
    asked = tuple(Constraint(name, (value,)) for name, value in on.labels)
    more = tuple(each for each in asked if each not in job.constraints)
    return job.model_copy(
        update={
            "gpu_type": job.gpu_type or on.gpu_type,
            "constraints": (*job.constraints, *more),
        }
    )


def _on(facts: Facts, cover: Cover) -> PaidOn:
    specs = [facts.envelopes[charge.envelope].spec for charge in cover.charges]
    types = {spec.gpu_type.casefold(): spec.gpu_type for spec in specs if spec.gpu_type}
    labels = sorted({label for spec in specs for label in spec.labels.items()})
    # Of several types no node has all: which one it comes to is left open.
    return PaidOn(next(iter(types.values())) if len(types) == 1 else None, tuple(labels))
