"""What a plan is made again without, where hard quotas refuse a part of it."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.quotas import Refused, milli_of


def left_out(
    over: Mapping[str, Refused],
    placed: Collection[str],
    jobs: Iterable[JobRequest],
    *,
    last: bool,
) -> dict[str, str]:
    """Return whom the next plan leaves out, with why: those that a quota has refused, and those
    under the same quota that ask for as much and have no place either. They would take the same
    room one after the other, and no plan would have it for who comes behind them.

    The `last` plan leaves out all under these quotas that may count on several nodes, or for more
    than they ask for: gangs and sensitive jobs.
    """
    found = {job_id: refused.why for job_id, refused in over.items()}
    by_id: dict[str, JobRequest] = {}
    others: list[JobRequest] = []
    for job in jobs:
        if job.id in over:
            by_id[job.id] = job
        elif job.id not in placed:
            others.append(job)
    asked = [(refused, _asked(by_id[job_id])) for job_id, refused in over.items()]
    for job in others:
        wants = _asked(job)
        for refused, least in asked:
            if job.tenant not in refused.below:
                continue
            if wants.covers(least) or (last and (wants.gang or wants.alone)):
                found[job.id] = refused.why
                break
    return found


class _Asked(NamedTuple):
    milli: int
    gang: bool
    alone: bool

    def covers(self, other: "_Asked") -> bool:
        """Return whether this asks for as much as another does, or more."""
        return all(mine >= its for mine, its in zip(self, other, strict=True))


def _asked(job: JobRequest) -> _Asked:
    least = job.smallest
    return _Asked(least.gpus_held * milli_of(least), job.gang is not None, job.sensitive)
