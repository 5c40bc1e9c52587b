"""The capacity database goes away in the middle, and comes back."""

import uuid
from typing import Any

from pydantic import SecretStr
from temporalio.client import Client, WorkflowHandle

from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.control import a_spec, lease_ends, on_task_queue, serving_control
from tests.support.database_away import database_away
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def test_submits_and_ends_wait_for_the_database_and_go_on_when_it_is_back(
    temporal: Client, stack: Stack, settings: Settings, database_url: str, pool: str
):
    queue = f"own-{uuid.uuid4().hex[:8]}"
    own = Settings(state_dir=settings.state_dir, database_url=SecretStr(database_url))
    temporal = on_task_queue(temporal, queue)
    longshore = Longshore(temporal, own)
    node = ScriptedNode(temporal, pool, own.resolve_agent_token(), task_queue=queue)
    async with serving_control(temporal, own, task_queue=queue) as database, node.serving():
        await node.register()
        running = (await longshore.submit(a_spec(pool))).job_id
        await node.started(running)
        with database_away(stack, database_url):
            submitted = await longshore.submit(a_spec(pool))
            assert "could not look at the nodes first" in submitted.warnings[0]
            await eventually(lambda: _tries_again(temporal, submitted.job_id, "enqueue"))
            await node.end(running)
            await eventually(lambda: _tries_again(temporal, running, "finish"))
            assert (await longshore.status(submitted.job_id)).state is JobState.SUBMITTED
        assert (await longshore.wait(running)).state is JobState.SUCCEEDED
        await node.end(submitted.job_id)
        assert (await longshore.wait(submitted.job_id)).state is JobState.SUCCEEDED
        for job_id in (running, submitted.job_id):
            assert await lease_ends(database, job_id) == ["finished"]
            assert (await longshore.job(job_id)).state is JobState.SUCCEEDED
    await longshore.close()


async def _tries_again(temporal: Client, job_id: str, activity: str) -> bool:
    """Return whether the job's workflow has had to try this activity a second time."""
    handle: WorkflowHandle[Any, Any] = temporal.get_workflow_handle(job_workflow_id(job_id))
    pending = (await handle.describe()).raw_description.pending_activities
    return any(each.activity_type.name == activity and each.attempt > 1 for each in pending)
