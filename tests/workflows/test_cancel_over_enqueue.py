"""A job is cancelled while its way into the queue has no answer: it ends, and holds nothing."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from longshore.activities import failpoints
from longshore.activities.database import Database
from longshore.activities.queue_rows import put_into_queue
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import EnqueueRequest, job_workflow_id
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.control import a_spec, is_queued, on_task_queue, serving_control
from tests.support.database_away import database_away
from tests.support.waiting import eventually

_REFUSE = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'no room in the queue'; END $$",
    "CREATE TRIGGER refuse BEFORE INSERT ON queue FOR EACH ROW EXECUTE FUNCTION refuse()",
)


@asynccontextmanager
async def _own(
    temporal: Client, settings: Settings, database_url: str
) -> AsyncIterator[tuple[Longshore, Database]]:
    """Serve a database of the test's own, on a task queue of its own."""
    queue = f"own-{uuid.uuid4().hex[:8]}"
    own = Settings(state_dir=settings.state_dir, database_url=SecretStr(database_url))
    temporal = on_task_queue(temporal, queue)
    longshore = Longshore(temporal, own)
    async with serving_control(temporal, own, task_queue=queue) as database:
        yield longshore, database
    await longshore.close()


async def test_a_job_that_the_database_never_takes_is_cancelled(
    temporal: Client, settings: Settings, database_url: str, pool: str
):
    async with _own(temporal, settings, database_url) as (longshore, database):
        await _do(database, *_REFUSE)
        spec = a_spec(pool)
        job = await longshore.submit(spec, key="mine")
        await eventually(lambda: _tries_again(temporal, job.job_id))
        await longshore.cancel(job.job_id, "enough")
        result = await longshore.wait(job.job_id)
        assert (result.state, result.message) == (JobState.CANCELLED, "enough")
        handle = temporal.get_workflow_handle(job_workflow_id(job.job_id))
        assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
        seen = await longshore.job(job.job_id)
        assert seen.state is JobState.CANCELLED
        # A try that was under way, and comes through now, queues nothing.
        await _do(database, "DROP TRIGGER refuse ON queue")
        late = EnqueueRequest(
            job_id=job.job_id, attempt=1, spec=spec, key="mine", submitted_at=seen.submitted_at
        )
        async with database.transaction() as connection:
            assert "has ended before" in await put_into_queue(connection, late)
        assert not await is_queued(database, job.job_id)


async def test_a_job_is_cancelled_while_the_database_is_away(
    temporal: Client, stack: Stack, settings: Settings, database_url: str, pool: str
):
    async with _own(temporal, settings, database_url) as (longshore, database):
        with database_away(stack, database_url):
            job_id = (await longshore.submit(a_spec(pool))).job_id
            await eventually(lambda: _tries_again(temporal, job_id))
            await longshore.cancel(job_id)
            assert (await longshore.wait(job_id)).state is JobState.CANCELLED
        assert not await is_queued(database, job_id)


@pytest.mark.parametrize("point", ["enqueue.before-commit", "enqueue.after-commit"])
async def test_what_comes_into_the_queue_without_an_answer_is_freed(
    temporal: Client, settings: Settings, database_url: str, pool: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str,
):  # fmt: skip
    monkeypatch.setattr(failpoints, "_folder", str(tmp_path))
    (tmp_path / point).touch()
    reached = tmp_path / f"{point}.reached"
    async with _own(temporal, settings, database_url) as (longshore, database):
        job_id = (await longshore.submit(a_spec(pool))).job_id
        await eventually(lambda: asyncio.to_thread(reached.exists))
        await longshore.cancel(job_id)
        ended = asyncio.create_task(longshore.wait(job_id))
        if point == "enqueue.before-commit":  # the end waits for it
            await eventually(lambda: _waits_for_another(database))
            reached.unlink()
        assert (await ended).state is JobState.CANCELLED
        reached.unlink(missing_ok=True)
        assert not await is_queued(database, job_id)
        assert (await longshore.job(job_id)).state is JobState.CANCELLED


async def _do(database: Database, *statements: str) -> None:
    async with database.transaction() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def _waits_for_another(database: Database) -> bool:
    async with database.transaction() as connection:
        return bool(
            await connection.scalar(
                text(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
            )
        )


async def _tries_again(temporal: Client, job_id: str) -> bool:
    handle: WorkflowHandle[Any, Any] = temporal.get_workflow_handle(job_workflow_id(job_id))
    pending = (await handle.describe()).raw_description.pending_activities
    return any(each.activity_type.name == "enqueue" and each.attempt > 1 for each in pending)
