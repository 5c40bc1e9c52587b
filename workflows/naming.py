"""Workflows that others find by their id."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from models.errors import SpecError
from models.messages import job_workflow_id


def refuse_another_id(job_id: str) -> None:
    """Raise ApplicationError unless this workflow's id is that of the job.

    Pools and nodes find a job's workflow by its id: no signal would reach another one.
    """
    found = workflow.info().workflow_id
    if found != job_workflow_id(job_id):
        raise ApplicationError(
            f"the workflow id of a job must begin with job-, and {found} does not",
            type=SpecError.__name__,
            non_retryable=True,
        )
