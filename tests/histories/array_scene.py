"""Arrays: one of which some elements are cancelled, one that fails and is tried
again, one that is cancelled while it is held, and one that continues as new; and their slots."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy

from longshore.models.array_messages import ArrayInput, ElementsReply, ElementsRequest
from longshore.models.elements import ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, CommandReason, job_workflow_id
from longshore.models.retry import FailureClass
from longshore.workflows.array import ArrayWorkflow
from tests.support.histories import tells
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

POOL = "arrays"


async def play(
    temporal: Client,
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
    record: Callable[[str], str],
) -> None:
    """Run the arrays, and have their workflows, and some slots, recorded."""

    async def start(name: str, array: str, **given: Any) -> WorkflowHandle[Any, Any]:
        spec = JobSpec.model_validate(
            {"name": name, "pool": POOL, "command": "true", "array": array}
        )
        return await temporal.start_workflow(
            ArrayWorkflow.run,
            ArrayInput(spec=spec, **given),
            id=record(job_workflow_id(name)),
            task_queue=CONTROL_TASK_QUEUE,
        )

    async with node(POOL, pool=POOL) as scripted:
        some = await start("array-some-cancelled", "0-9%2")
        record(job_workflow_id("array-some-cancelled.s1"))
        await scripted.batch_of("array-some-cancelled.s1")
        await scripted.batch_of("array-some-cancelled.s2")
        await some.execute_update(
            "cancel_elements", ElementsRequest(indices="0,9"), result_type=ElementsReply
        )
        await eventually(lambda: scripted.stopped_elements)
        await scripted.end_batch("array-some-cancelled.s2")
        await scripted.end_batch("array-some-cancelled.s1", cancelled=True)
        await scripted.end_batches("array-some-cancelled.s1", "array-some-cancelled.s2")
        await eventually(lambda: _is_over(some))

        named = await start("array-named", "0")  # which gives itself what its starter left out
        await scripted.end_batch("array-named.s1")
        await named.result()

        told = await start("array-told", "0")  # and which tells its state
        await scripted.batch_of("array-told.s1")
        await eventually(lambda: tells(told, JobState.RUNNING))
        await told.signal(ArrayWorkflow.hold, CommandReason(reason="for the record"))
        await eventually(lambda: tells(told, JobState.HELD))
        await told.signal(ArrayWorkflow.release, CommandReason())
        await scripted.end_batch("array-told.s1")
        await told.result()

        again = await start("array-continues", "0-1%1", max_looks_per_run=1)
        await scripted.end_batches("array-continues.s1")
        await again.result()

        held = await start("array-cancelled", "0-3%1")
        record(job_workflow_id("array-cancelled.s1"))
        await scripted.batch_of("array-cancelled.s1")
        await held.signal(ArrayWorkflow.hold, CommandReason(reason="for the record"))
        await held.signal(ArrayWorkflow.release, CommandReason())
        await held.signal(ArrayWorkflow.hold, CommandReason())
        await held.cancel(reason="recorded")
        await eventually(lambda: _is_over(held))

        fails = await start("array-fails", "0")  # its newest run, the retry, is recorded
        await scripted.end_batch("array-fails.s1", failure=FailureClass.USER)
        await eventually(lambda: _is_over(fails))
        retried = await temporal.start_workflow(
            ArrayWorkflow.run,
            ArrayInput(
                spec=JobSpec.model_validate(
                    {"name": "array-fails", "pool": POOL, "command": "true", "array": "0"}
                ),
                retry=(ElementState.FAILED,),
            ),
            id=job_workflow_id("array-fails"),
            task_queue=CONTROL_TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        await scripted.end_batch("array-fails.s2", failure=FailureClass.USER)
        await eventually(lambda: _is_over(retried))


async def _is_over(handle: WorkflowHandle[Any, Any]) -> bool:
    return (await handle.describe()).close_time is not None
