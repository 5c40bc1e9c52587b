"""Gangs that change their size in place: by a resize, by the loss of a node, for another job; and
one that is stopped and starts again, since it does not save."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio.client import WorkflowHandle

from longshore.models.resize import Resize
from longshore.workflows.job import JobWorkflow
from tests.support.scripted_node import FABRIC, ScriptedNode
from tests.support.waiting import eventually

WISH: dict[str, Any] = {
    "gpus": 16, "gang": {}, "malleable": {"min": 8, "max": 16, "step": 8, "in_place": True},
    "checkpoint": {"folder": "saved", "store": False, "save_file": True},
    "retry": {"node": {"max_retries": 0}},
}  # fmt: skip


async def play(
    start_job: Callable[..., Awaitable[WorkflowHandle[JobWorkflow, Any]]],
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    """Run one job after the other on two nodes; ranks go by the names of nodes."""
    async with (
        node("in-place-a", pool="in-place", labels=FABRIC) as a,
        node("in-place-b", pool="in-place", labels=FABRIC) as b,
    ):
        job = await start_job("in-place-resized", pool="in-place", **WISH)
        await _started(job, a, b)
        await job.execute_update(JobWorkflow.resize, Resize(gpus=8))
        await _changed(job)
        await a.end("in-place-resized")
        await job.result()

        job = await start_job("in-place-preempted", pool="in-place", priority=3, **WISH)
        await _started(job, a, b)
        high = await start_job("above", pool="in-place", recorded=False, gpus=8, priority=8)
        await _changed(job)
        for name, where in (("above", b), ("in-place-preempted", a)):
            await where.end(name)
        await high.result()
        await job.result()

        job = await start_job("in-place-refused", pool="in-place", **WISH)
        await _started(job, a, b)
        a.saves_nothing = True
        await job.execute_update(JobWorkflow.resize, Resize(gpus=8))
        await a.end("in-place-refused", 2)
        await job.result()
        a.saves_nothing = False

        job = await start_job("in-place-node-lost", pool="in-place", **WISH)
        await _started(job, a, b)
        b.leave()
        await _changed(job)
        a.leave()  # rank 0: the attempt ends, and no retry is left


async def _started(job: WorkflowHandle[JobWorkflow, Any], *nodes: ScriptedNode) -> None:
    for node in nodes:
        await node.started(job.id.removeprefix("job-"))


async def _changed(job: WorkflowHandle[JobWorkflow, Any]) -> None:
    async def there() -> bool:
        return (await job.query(JobWorkflow.status)).resizes == 1

    await eventually(there)
