"""How a job has ended whose id was started again after that: as it is on record.

Temporal lets an id that has ended be started again, and forgets workflows after the retention of
its namespace. The record of a job does neither: a later workflow of the id is refused, and what it
says is no end of the job.
"""

from longshore.activities.views import Views
from longshore.models.errors import LongshoreError
from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.retry import FailureClass
from longshore.models.views import JobView

_OF_REFUSALS = (FailureClass.UNSATISFIABLE, None)
"""Of the results of workflows that never came into a queue."""


async def result_on_record(result: JobResult, views: Views) -> JobResult:
    """Return how the job of a workflow has ended that was refused; any other result as it is."""
    if result.state is not JobState.FAILED or result.failure not in _OF_REFUSALS:
        return result  # as nearly all: the database need not be asked
    job = await ended_job(result.job_id, views)
    return result if job is None else job.as_it_ended


async def status_on_record(status: JobStatus, views: Views) -> JobStatus:
    """Return the status of a job that had ended before its workflow came, as it ended; any other
    as it is."""
    refused = status.result is None or status.result.failure in _OF_REFUSALS
    if status.state is not JobState.FAILED or not refused:
        return status
    job = await ended_job(status.job_id, views)
    if job is None or job.ended_at is None or status.submitted_at <= job.ended_at:
        return status
    return status.model_copy(
        update={
            "state": job.state, "reason": job.reason, "since": job.ended_at,
            "result": job.as_it_ended,
        }
    )  # fmt: skip


async def ended_job(job_id: str, views: Views) -> JobView | None:
    """Return a job that has ended by its record; None of any other, and where the database does
    not answer."""
    try:
        job = await views.job(job_id)
    except LongshoreError:
        return None
    return job if job.ended_at is not None else None
