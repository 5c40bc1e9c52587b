"""A control worker for tests, and small helpers around jobs."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.client import Client

from activities.database import Database
from models.job import JobSpec
from models.settings import Settings
from workers.control import control_worker


@asynccontextmanager
async def serving_control(
    temporal: Client, settings: Settings, *, max_cached_workflows: int = 1000
) -> AsyncIterator[Database]:
    """Run a control worker on the stack's database until the end of the block."""
    database = Database(settings.resolve_database_url())
    worker = control_worker(
        temporal, database, settings, max_cached_workflows=max_cached_workflows
    )
    try:
        async with worker:
            yield database
    finally:
        await database.close()


def new_pool() -> str:
    """Return the name of a pool that no other test uses."""
    return f"pool-{uuid.uuid4().hex[:8]}"


def a_spec(pool: str, **fields: object) -> JobSpec:
    """Return a job of one GPU in `pool`."""
    return JobSpec.model_validate({"name": "job", "command": "true", "pool": pool, **fields})
