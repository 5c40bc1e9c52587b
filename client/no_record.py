"""Jobs of which the database has no row, and only Temporal knows.

A workflow that refuses its input, or the id that it was started under, fails before its job comes
into a queue. One that no control worker has taken up is not there yet.
"""

import re
from collections.abc import Callable
from datetime import timedelta

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.service import RPCError

from longshore.activities.job_runs import failure_of, has_result
from longshore.activities.views import Views
from longshore.client.submission import GENERATED_ID
from longshore.models.dag_view import DagJobView
from longshore.models.errors import (
    NoRecordError,
    NotFoundError,
    NotSubmittedError,
    NotTakenUpError,
)
from longshore.models.job_status import JobResult
from longshore.models.messages import job_workflow_id
from longshore.models.visible import shown

_MOST = 100
"""Workflows that are looked through for a name."""
_NAME = re.compile(r"[a-z0-9._-]+")
PATIENCE = timedelta(seconds=3)
"""For Temporal to answer before the database alone does."""
_GOES_ON = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)
_ENDS = {
    WorkflowExecutionStatus.COMPLETED: "has completed",
    WorkflowExecutionStatus.FAILED: "has failed",
    WorkflowExecutionStatus.CANCELED: "was cancelled",
    WorkflowExecutionStatus.TERMINATED: "was terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
}


async def why_no_record(temporal: Client, job_id: str) -> NotFoundError | None:
    """Return what to say of a job that the database does not know, and Temporal does: a
    NoRecordError where its workflow is over, a NotTakenUpError where it runs.

    None where there is no workflow, and where nobody says.
    """
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    try:
        found = await handle.describe(rpc_timeout=PATIENCE)
        if found.status is None or found.status in _GOES_ON:
            return NotTakenUpError(job_id, not_taken_up(job_id))
        failed = await failure_of(temporal, found, within=PATIENCE)
    except RPCError:
        return None
    if failed is not None and not _has_run(failed):
        return refused(job_id, failed)
    why = f": {message_of(failed)}" if failed is not None else ""
    return NoRecordError(
        f"the database has no job {job_id}, and its workflow {_ENDS[found.status]}{why}"
    )


def not_taken_up(job_id: str) -> str:
    """Return what to say of a job that is submitted and not in its queue yet."""
    return (
        f"job {job_id} is submitted, but no control worker has taken it up yet: ask again in a "
        "moment. Is one running? `longshore up` starts one, or `longshore worker`; `longshore "
        "doctor` looks for one."
    )


def refuse_no_reference(ref: str) -> None:
    """Raise NotFoundError for what no job can be called by, before a server is asked: nothing
    would be every job to one, and an error to another."""
    if not ref.strip() or "\0" in ref:
        raise NotFoundError(f"no job {shown(ref)}: give its id or its name")


async def newest_not_taken_up(temporal: Client, views: Views, name: str) -> NotTakenUpError | None:
    """Return what to say of the newest job of a name where Temporal has it and the database not
    yet; None where it has."""
    newest = await newest_running(temporal, name, job_workflow_id)
    if newest is None:
        return None
    try:
        await views.id_of(newest)
    except NotFoundError:
        return NotTakenUpError(newest, not_taken_up(newest))
    return None


async def newest_running(
    temporal: Client, name: str, workflow_id: Callable[[str], str]
) -> str | None:
    """Return the id of the newest job, or DAG, of this name whose workflow runs, as far as
    Temporal lists it already; None for none, and where it does not say. `workflow_id` makes the
    workflow's id from such an id."""
    if not _NAME.fullmatch(name):
        return None
    query = f"WorkflowId STARTS_WITH '{workflow_id(name)}-' AND ExecutionStatus = 'Running'"
    try:
        flows = [
            flow
            async for flow in temporal.list_workflows(query, limit=_MOST, rpc_timeout=PATIENCE)
        ]
    except RPCError:
        return None
    found = [flow for flow in flows if GENERATED_ID.sub("", flow.id) == workflow_id(name)]
    newest = max(found, key=lambda flow: flow.start_time, default=None)
    return newest.id.removeprefix(workflow_id("")) if newest else None


def not_submitted(dag_id: str, step: DagJobView) -> NotSubmittedError:
    """Return what to say of a job of a DAG that is in no queue."""
    ref, ended = f"{dag_id}.{step.name}", step.step.ended
    if ended:
        told = f"was never submitted: it is {step.step.value} ({step.reason})"
    else:
        told = (
            f"is in no queue yet: it is {step.step.value}, and {step.reason}. `longshore cancel "
            f"{ref}` cancels it; `longshore dag hold {dag_id}` has its DAG submit no further job"
        )
    return NotSubmittedError(dag_id, step.name, f"job {ref} {told}", ended=ended)


def _has_run(failed: FailureError) -> bool:
    """Return whether an attempt of the job was placed: the database has lost its row."""
    if not isinstance(failed, ApplicationError) or not has_result(failed):
        return False
    return JobResult.model_validate(failed.details[0]).attempts > 0


def message_of(failed: FailureError) -> str:
    """Return the sentence that a workflow has failed with."""
    while isinstance(failed, ActivityError) and isinstance(failed.cause, FailureError):
        failed = failed.cause
    return failed.message


def refused(job_id: str, failed: FailureError) -> NoRecordError:
    """Return what to say of a job whose workflow has refused it."""
    why = message_of(failed)
    return NoRecordError(f"job {job_id} was refused, and never came into a queue: {why}", why)
