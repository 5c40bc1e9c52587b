"""Which run of a job's workflow is the job, whether it is over, and how one has failed.

Temporal takes the id of a workflow that was terminated again at once, and the run that begins so
refuses itself while the job is on record. Its end is not the job's.
"""

from datetime import timedelta

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError

from longshore.activities.rpc_errors import is_unknown
from longshore.models.job_status import JobResult
from longshore.models.messages import job_workflow_id
from longshore.models.retry import FailureClass

_ANSWER_WITHIN = timedelta(seconds=10)
_MOST = 100
"""Runs of one id, the newest, that are looked at."""


async def run_of_job(
    temporal: Client, newest: WorkflowExecutionDescription, *, within: timedelta
) -> WorkflowExecution:
    """Return the newest run that was not refused at its start, or `newest` where all were.

    To be asked of the newest run of a job that is on record and has not ended there. Each call may
    take `within`. Raises RPCError. A list of Temporal's may lag, and lack a run of this moment.
    """
    if not await _was_refused(temporal, newest, within):
        return newest
    runs = [
        flow
        async for flow in temporal.list_workflows(
            f"WorkflowId = '{newest.id}'", limit=_MOST, rpc_timeout=within
        )
    ]
    for run in sorted(runs, key=lambda each: each.start_time, reverse=True):
        if run.run_id != newest.run_id and not await _was_refused(temporal, run, within):
            return run
    return newest


async def failure_of(
    temporal: Client, found: WorkflowExecution, *, within: timedelta
) -> FailureError | None:
    """Return what a workflow has failed with; None of one that has not. Raises RPCError."""
    if found.status is not WorkflowExecutionStatus.FAILED:
        return None
    handle = temporal.get_workflow_handle(found.id, run_id=found.run_id)
    try:
        await handle.result(follow_runs=False, rpc_timeout=within)
    except WorkflowFailureError as error:
        return error.cause if isinstance(error.cause, FailureError) else None
    return None


def has_result(failed: FailureError) -> bool:
    """Return whether a job has ended so, with its result: it was not refused at its start."""
    return isinstance(failed, ApplicationError) and bool(failed.details)


async def _was_refused(temporal: Client, run: WorkflowExecution, within: timedelta) -> bool:
    """Return whether a run could not be read or came into no queue: it held nothing."""
    failed = await failure_of(temporal, run, within=within)
    if not isinstance(failed, ApplicationError):
        return False
    if not failed.details:
        return True
    try:
        result = JobResult.model_validate(failed.details[0])
    except ValidationError:  # somebody else's details
        return False
    return result.attempts == 0 and result.failure is FailureClass.UNSATISFIABLE


def may_be_on_record(workflow_id: str) -> bool:
    """Return whether the database can be asked for what a workflow's id names: anybody may start
    one under an id with NUL, which no row has, and it refuses to look."""
    return "\0" not in workflow_id


async def is_job_over(temporal: Client, job_id: str) -> bool:
    """Return whether a job's workflow has ended, or is not known at all. Raises RPCError."""
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    try:
        flow = await handle.describe(rpc_timeout=_ANSWER_WITHIN)
    except RPCError as error:
        if not is_unknown(error):
            raise
        return True
    return flow.status is not WorkflowExecutionStatus.RUNNING
