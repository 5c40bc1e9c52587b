"""A control worker for tests, and small helpers around jobs."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import text
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowHandle,
)

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.settings import Settings
from longshore.workers.control import control_worker
from tests.support.waiting import eventually


@asynccontextmanager
async def serving_control(
    temporal: Client,
    settings: Settings,
    *,
    task_queue: str = CONTROL_TASK_QUEUE,
    max_cached_workflows: int = 1000,
    strict: bool = False,
) -> AsyncIterator[Database]:
    """Run a control worker on the stack's database until the end of the block.

    `strict` as in `workers.control.workflow_runner`: a third of the time of a short test.
    """
    database = Database(settings.resolve_database_url())
    worker = control_worker(
        temporal, database, settings, task_queue=task_queue,
        max_cached_workflows=max_cached_workflows, strict=strict,
    )  # fmt: skip
    try:
        async with worker:
            yield database
    finally:
        await database.close()


def on_task_queue(temporal: Client, task_queue: str) -> Client:
    """Return a client whose workflows run on this task queue, whatever its caller says."""
    config = temporal.config()
    config["interceptors"] = [*config["interceptors"], _OnTaskQueue(task_queue)]
    return Client(**config)


def new_pool() -> str:
    """Return the name of a pool that no other test uses."""
    return f"pool-{uuid.uuid4().hex[:8]}"


def a_spec(pool: str, **fields: object) -> JobSpec:
    """Return a job of one GPU in `pool`."""
    return JobSpec.model_validate({"name": "job", "command": "true", "pool": pool, **fields})


async def reaches(
    longshore: Longshore, job_id: str, *states: JobState, within: float = 60.0
) -> JobStatus:
    """Wait until the job's workflow says that it is in one of these states."""

    async def there() -> JobStatus:
        status = await longshore.status(job_id)
        assert status.state in states, f"{status.state.value}: {status.reason}"
        return status

    return await eventually(there, within)


async def lease_ends(database: Database, job_id: str) -> list[str | None]:
    """Return why each lease of the job ended, in order; None for a live one."""
    async with database.transaction() as connection:
        ends = await connection.scalars(
            text("SELECT end_reason FROM leases WHERE job_id = :id ORDER BY id"), {"id": job_id}
        )
        return list(ends)


async def is_queued(database: Database, job_id: str) -> bool:
    async with database.transaction() as connection:
        found = await connection.scalar(
            text("SELECT count(*) FROM queue WHERE job_id = :id"), {"id": job_id}
        )
        return bool(found)


class _OnTaskQueue(Interceptor):
    def __init__(self, task_queue: str) -> None:
        self._task_queue = task_queue

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _StartsOn(next, self._task_queue)


class _StartsOn(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, task_queue: str) -> None:
        super().__init__(next)
        self._task_queue = task_queue

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        input.task_queue = self._task_queue
        return await super().start_workflow(input)
