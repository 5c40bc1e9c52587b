"""Runs of schedules: a job that succeeds, a DAG that fails, one that another run takes the place
of, and one that takes over the job of a run that was ended from outside."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client, WorkflowHandle

from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.schedule_messages import ScheduleRunInput, run_id, schedule_workflow_id
from longshore.workflows.schedule_run import ScheduleRunWorkflow
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

POOL = "schedules"
AT = datetime(2026, 11, 1, 2, tzinfo=UTC)
_COMMAND = {"pool": POOL, "command": "true"}


async def play(
    temporal: Client,
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
    record: Callable[[str], str],
) -> None:
    """Run them, and have their workflows recorded."""

    async def start(name: str, *, recorded: bool = True, **what: Any) -> WorkflowHandle[Any, Any]:
        what = what or {"job": {"name": name, **_COMMAND}}
        workflow_id = f"{schedule_workflow_id(name)}-{AT:%FT%TZ}"
        return await temporal.start_workflow(
            ScheduleRunWorkflow.run,
            ScheduleRunInput.model_validate({"schedule": name, **what}),
            id=record(workflow_id) if recorded else workflow_id,
            task_queue=CONTROL_TASK_QUEUE,
        )

    async with node(POOL, pool=POOL) as scripted:
        succeeds = await start("succeeds")
        await scripted.end(run_id("succeeds", AT))
        await succeeds.result()

        dag = {"name": "fails", "jobs": {"a": {"name": "a", **_COMMAND}}}
        fails = await start("fails", dag=dag)
        await scripted.end(f"{run_id('fails', AT)}.a", report=USER_ERROR)
        await eventually(lambda: _is_over(fails))

        cancelled = await start("cancelled")
        await scripted.started(run_id("cancelled", AT))
        await cancelled.cancel(reason="cancelled by schedule overlap policy")
        await eventually(lambda: _is_over(cancelled))

        first = await start("takes-over", recorded=False)
        await scripted.started(run_id("takes-over", AT))
        await first.terminate()
        again = await start("takes-over")
        await scripted.end(run_id("takes-over", AT))
        await again.result()


async def _is_over(handle: WorkflowHandle[Any, Any]) -> bool:
    return (await handle.describe()).close_time is not None
