"""Whose jobs no queue takes, whatever ends or starts: for a hard quota, or for a sponsor."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.funding.quotas import quotas_above
from longshore.activities.funding.sponsors import why_no_sponsor
from longshore.models.funding import Quotas
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.quotas import why_never


async def why_never_taken(
    connection: AsyncConnection, jobs: Sequence[tuple[JobRequest, JobSpec]]
) -> list[str]:
    """Return of each job why it could never start: for a quota of its tenant that is less than
    the job alone, or for a sponsor that there is not; empty where it may.

    Of an array one slot has to fit: as many run at one time as the quotas allow.
    """
    quotas: dict[str, tuple[tuple[str, Quotas], ...]] = {}
    found: list[str] = []
    for job, spec in jobs:
        if spec.tenant not in quotas:
            quotas[spec.tenant] = await quotas_above(connection, spec.tenant)
        why = why_never(quotas[spec.tenant], job)
        found.append(why or await why_no_sponsor(connection, spec))
    return found
