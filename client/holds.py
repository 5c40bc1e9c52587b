"""Since when a job is held, and why, when one that has failed is tried again, and what one that
runs says of itself: its workflow alone knows."""

import asyncio

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from longshore.client.status import progress_of
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import Progress
from longshore.workflows.job import JobWorkflow

_PATIENCE = 3.0
"""Seconds for Temporal to answer before the database alone does."""


async def hold_of(temporal: Client, job_id: str) -> JobStatus | None:
    """Return what the workflow of a job says, where it is held; None too where nobody says."""
    return await _status_in(temporal, job_id, JobState.HELD)


async def backoff_of(temporal: Client, job_id: str) -> JobStatus | None:
    """Return what the workflow of a job says, where it is between attempts; None too where nobody
    says."""
    return await _status_in(temporal, job_id, JobState.RETRYING)


async def told_of(temporal: Client, job_id: str) -> Progress | None:
    """Return what the process of a job said last of itself; None where nobody says."""
    job = temporal.get_workflow_handle_for(JobWorkflow.run, job_workflow_id(job_id))
    try:
        async with asyncio.timeout(_PATIENCE):
            return await progress_of(temporal, job)
    except (RPCError, TimeoutError):
        return None


async def _status_in(temporal: Client, job_id: str, state: JobState) -> JobStatus | None:
    job = temporal.get_workflow_handle_for(JobWorkflow.run, job_workflow_id(job_id))
    try:
        async with asyncio.timeout(_PATIENCE):
            status = await job.query(JobWorkflow.status)
    except (RPCError, WorkflowQueryFailedError, TimeoutError):
        return None
    return status if status.state is state else None
