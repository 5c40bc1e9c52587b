"""What an array does now, by its rows.

Its slots take elements without a word to its workflow, which would cost an action each time: what
that says of itself is as old as its last look.
"""

from longshore.activities.views import Views
from longshore.client.recorded_end import status_on_record
from longshore.models.errors import LongshoreError
from longshore.models.job_status import JobState, JobStatus
from longshore.scheduling.arrays import progress_text

_UNDER_WAY = (JobState.QUEUED, JobState.RUNNING)


async def as_on_record(status: JobStatus, views: Views) -> JobStatus:
    """Return the status of an array as the capacity database has it, and that of a job that had
    ended before; any other as it is, and theirs too where the database does not answer."""
    if status.state.ended:
        return await status_on_record(status, views)
    if status.attempt or status.state not in _UNDER_WAY:
        return status
    try:
        job = await views.job(status.job_id)
    except LongshoreError:
        return status
    if job.elements is None or job.state not in _UNDER_WAY:
        return status
    since = status.since
    if job.state is not status.state and job.first_started_at is not None:
        since = job.first_started_at
    return status.model_copy(
        update={
            "state": job.state, "since": since,
            "reason": progress_text(job.elements, job.claimed, job.slots_aside),
        }
    )  # fmt: skip
