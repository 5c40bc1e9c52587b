"""What the workflow of a job says of it, also when somebody ended it from outside."""

from temporalio.client import Client, WorkflowHandle

from client.outside_ends import outside_end
from models.job import JobResult, JobState, JobStatus
from models.messages import Progress
from workflows.job import JobWorkflow

JobHandle = WorkflowHandle[JobWorkflow, JobResult]


async def status_of(job: JobHandle) -> JobStatus:
    """Return the job's status. Raises RPCError.

    A workflow that was ended from outside still answers with the last state that it knew, and
    can say nothing of its end: the job has failed.
    """
    status = await job.query(JobWorkflow.status)
    if status.state.ended:
        return status
    end = outside_end(await job.describe())
    if end is None:
        return status
    result = JobResult(
        job_id=status.job_id, state=JobState.FAILED, message=end.how, attempts=status.attempt,
        ended_at=end.at,
    )  # fmt: skip
    return status.model_copy(
        update={"state": JobState.FAILED, "reason": end.how, "since": end.at, "result": result}
    )


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
