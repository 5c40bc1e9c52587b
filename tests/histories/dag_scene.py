"""DAGs: one that succeeds, one that fails and is tried again, one that is cancelled while it
holds jobs back, one of which a job is cancelled that waits, one that continues as new, and one of
two arrays, element to element."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy

from longshore.models.dag import DagSpec
from longshore.models.dag_messages import CancelDagJob, DagInput, dag_workflow_id
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, CommandReason, job_workflow_id
from longshore.models.retry import FailureClass
from longshore.workflows.dag import DagWorkflow
from tests.support.histories import tells
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

POOL = "dags"
_LINE: dict[str, Any] = {"a": {}, "b": {"after": "a"}, "tell": {"after": {"b": "failure"}}}
_ARRAYS: dict[str, Any] = {
    "prepare": {"array": "0-1%1"},
    "train": {"array": "0-2%1", "after": {"prepare": "corresponding"}},
}


async def play(
    temporal: Client,
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
    record: Callable[[str], str],
) -> None:
    """Run the DAGs, and have their workflows recorded."""

    async def start(
        name: str, jobs: dict[str, Any] = _LINE, **given: Any
    ) -> WorkflowHandle[Any, Any]:
        spec = DagSpec.model_validate({
            "name": name, "pool": POOL,
            "jobs": {key: {"command": "true", **job} for key, job in jobs.items()},
        })  # fmt: skip
        return await temporal.start_workflow(
            DagWorkflow.run,
            DagInput(spec=spec, **given),
            id=record(dag_workflow_id(name)),
            task_queue=CONTROL_TASK_QUEUE,
        )

    async with node(POOL, pool=POOL) as scripted:
        succeeds = await start("succeeds")
        await scripted.end("succeeds.a")
        await scripted.end("succeeds.b")
        await succeeds.result()

        again = await start("continues", max_looks_per_run=1)
        await scripted.end("continues.a")
        await scripted.end("continues.b")
        await again.result()

        held = await start("cancelled", held=True)
        await held.signal(DagWorkflow.release, CommandReason())
        await scripted.started("cancelled.a")
        await held.signal(DagWorkflow.hold, CommandReason(reason="for the record"))
        await held.cancel(reason="recorded")
        await eventually(lambda: _is_over(held))

        told = await start("told", held=True)  # which tells its state
        await eventually(lambda: tells(told, JobState.HELD))
        await told.signal(DagWorkflow.release, CommandReason())
        await scripted.end("told.a")
        await scripted.end("told.b")
        await told.result()

        arrays = await start("corresponding", _ARRAYS)
        record(job_workflow_id("corresponding.train"))
        await scripted.end_batch("corresponding.train.s1")  # 2, which has no partner
        await scripted.end_batch("corresponding.prepare.s1")
        await scripted.end_batch("corresponding.train.s2")
        await scripted.end_batch("corresponding.prepare.s1", failure=FailureClass.USER)
        await eventually(lambda: _is_over(arrays))

        single = await start("job-cancelled")  # one job, while it waits
        await scripted.started("job-cancelled.a")
        command = CancelDagJob(name="b", reason="recorded")
        await single.signal(DagWorkflow.cancel_job, command)
        await scripted.end("job-cancelled.a")
        await eventually(lambda: _is_over(single))

        fails = await start("fails")  # its newest run, the retry, is recorded
        await scripted.end("fails.a", report=USER_ERROR)
        await eventually(lambda: _is_over(fails))
        retried = await temporal.start_workflow(
            DagWorkflow.run,
            DagInput(retry=True),
            id=dag_workflow_id("fails"),
            task_queue=CONTROL_TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        await scripted.end("fails.a.r2", report=USER_ERROR)
        await eventually(lambda: _is_over(retried))


async def _is_over(handle: WorkflowHandle[Any, Any]) -> bool:
    return (await handle.describe()).close_time is not None
