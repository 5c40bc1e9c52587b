"""What the workflow of a job says of it, also when somebody ended it from outside."""

from datetime import datetime

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError

from longshore.activities.job_runs import failure_of, has_result
from longshore.client.errors import as_ours
from longshore.client.no_record import PATIENCE, message_of, refused
from longshore.client.outside_ends import outside_end
from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import Progress
from longshore.workflows.job import JobWorkflow

JobHandle = WorkflowHandle[JobWorkflow, JobResult]
_PREFIX = job_workflow_id("")


async def status_of(temporal: Client, job: JobHandle) -> JobStatus:
    """Return the job's status. Raises RPCError, and NoRecordError where its workflow could not
    read what it was started with: then it has none.

    A workflow that was ended from outside, or that refused its job, still answers with the last
    state that it knew, and can say nothing of its end: the job has failed.
    """
    try:
        status = await job.query(JobWorkflow.status)
    except WorkflowQueryFailedError:
        found = await job.describe()
        failed = await failure_of(temporal, found, within=PATIENCE)
        if failed is None:
            raise
        raise refused(found.id.removeprefix(_PREFIX), failed) from None
    if status.state.ended:
        return status
    found = await job.describe()
    end = outside_end(found)
    if end is not None:
        return _failed(status, end.how, end.at)
    failed = await failure_of(temporal, found, within=PATIENCE)
    if failed is None:
        return status
    if has_result(failed):
        return await job.query(JobWorkflow.status)  # it has ended since it was asked
    status = status.model_copy(
        update={"submitted_at": found.start_time, "attempt": 0, "attempts": ()}
    )
    return _failed(status, message_of(failed), found.close_time)


async def began_again(job: JobHandle) -> bool:
    """Return whether a job's workflow has other runs than its first. Raises LongshoreError."""
    try:
        found = await job.describe()
    except RPCError as error:
        raise as_ours(error, job.id) from error
    return found.run_id != _first_run(found)


async def reset_after(job: JobHandle, job_id: str, ended_at: datetime) -> str:
    """Return what to say of a job whose workflow was reset after it had ended; empty where it was
    not. Raises LongshoreError.

    The newest run says then what it does itself: that it waits, runs or was refused. The job has
    ended, and nothing of that is its state.
    """
    try:
        found = await job.describe()
    except RPCError as error:
        raise as_ours(error, f"job {job_id}") from error
    if found.start_time <= ended_at or found.run_id == _first_run(found):
        return ""
    says = (
        f"its workflow was reset at {found.start_time:%Y-%m-%d %H:%M:%S} UTC, after the job had "
        "ended: it stays as it ended"
    )
    if found.status is WorkflowExecutionStatus.RUNNING:
        says += f". That workflow still runs: `longshore cancel {job_id}` ends it"
    return says


def _first_run(found: WorkflowExecutionDescription) -> str:
    return found.raw_description.workflow_execution_info.first_run_id


def _failed(status: JobStatus, why: str, at: datetime | None) -> JobStatus:
    result = JobResult(
        job_id=status.job_id, state=JobState.FAILED, message=why, attempts=status.attempt,
        ended_at=at,
    )  # fmt: skip
    return status.model_copy(
        update={
            "state": JobState.FAILED, "reason": why, "since": at or status.since, "result": result,
        }
    )  # fmt: skip


async def progress_of(temporal: Client, job: JobHandle) -> Progress | None:
    """Return what the process of the newest attempt said last of itself; None when none runs.

    The activity of an attempt that was lost with its node may be pending beside it for a while.
    """
    description = await job.describe()
    pending = [
        each
        for each in description.raw_description.pending_activities
        if each.activity_type.name == "run_process"
    ]
    if not pending:
        return None
    newest = max(pending, key=lambda each: int(each.activity_id))
    if not newest.heartbeat_details.payloads:
        return None
    details = await temporal.data_converter.decode(newest.heartbeat_details.payloads, [Progress])
    return details[0]
