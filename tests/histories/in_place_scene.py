"""Gangs that change their size in place: by a resize, by the loss of a node, for another job; and
one that is stopped and starts again, since it does not save."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio.client import WorkflowHandle

from longshore.models.growth import Growing
from longshore.models.messages import InterruptRequest
from longshore.models.node_messages import joined_id
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


async def play_growth(
    start_job: Callable[..., Awaitable[WorkflowHandle[JobWorkflow, Any]]],
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    """Have jobs grow onto a second node: for a user, by themselves, in vain, and by a stop since
    a rank cannot be told, or could not be told apart in what it saves."""
    growing = {**WISH, "gpus": 8, "malleable": {**WISH["malleable"], "desired": 8}}
    async with (
        node("grown-a", pool="grown-in-place", labels=FABRIC) as a,
        node("grown-b", pool="grown-in-place", labels=FABRIC) as b,
    ):

        async def begun(name: str) -> tuple[Any, ScriptedNode, ScriptedNode]:
            job = await start_job(name, pool="grown-in-place", **growing)
            await eventually(lambda: any((name, 1) in each.runs() for each in (a, b)))
            return (job, a, b) if (name, 1) in a.runs() else (job, b, a)

        job, here, other = await begun("in-place-joined")
        await job.execute_update(JobWorkflow.resize, Resize(gpus=16))
        await _changed(job)
        await here.end("in-place-joined")
        await other.end(joined_id("in-place-joined", 1))
        await job.result()

        # By itself, and with a rank that does not start.
        job, here, other = await begun("in-place-grown")
        other.refusal = "fenced off"
        await job.execute_update(JobWorkflow.resize, Resize(gpus=16))
        await _changed(job, 2)
        other.refusal = None
        grown = Growing(attempt=1, gpus_before=8, gpus=16, reason="grown in place by a test")
        await job.signal(JobWorkflow.grow, grown)
        await _says(job, "; not grown: ")  # the pool has it rest after these changes
        await here.end("in-place-grown")
        await job.result()

        job, here, other = await begun("in-place-not-told")
        here.knows_no_sizes = True
        await job.execute_update(JobWorkflow.resize, Resize(gpus=16))
        for each in (a, b):
            await each.end("in-place-not-told", 2)
        await job.result()
        here.knows_no_sizes = False

        # Told before it has gone on without a rank whose agent began anew.
        job = await start_job("in-place-grown-early", pool="grown-in-place", **WISH)
        await _started(job, a, b)
        early = Growing(attempt=1, gpus_before=8, gpus=16, reason="grown early by a test")
        await job.signal(JobWorkflow.grow, early)
        await b.register(boot_id="again")
        await _changed(job, 2)
        await a.end("in-place-grown-early")
        await b.end(joined_id("in-place-grown-early", 2))
        await job.result()

        # Told before a resize of its user, who gets what they asked for.
        job = await start_job("in-place-grown-in-vain", pool="grown-in-place", **WISH)
        await _started(job, a, b)
        await job.signal(JobWorkflow.grow, early)
        await job.execute_update(JobWorkflow.resize, Resize(gpus=8))
        await _changed(job)
        await a.end("in-place-grown-in-vain")
        await job.result()

        # Asked to make room for a job that is gone, and then by its user.
        job = await start_job("in-place-for-nobody", pool="grown-in-place", **WISH)
        await _started(job, a, b)
        gone = InterruptRequest(attempt=1, reason="shrunk", for_job="job-gone", gpus_left=8)
        await job.signal(JobWorkflow.preempt, gone)
        await job.execute_update(JobWorkflow.resize, Resize(gpus=8))
        await _changed(job)
        await a.end("in-place-for-nobody")
        await job.result()

        # By a stop, since its saves are told apart by their number alone.
        growing["checkpoint"] = {"folder": "saved", "save_file": True}
        job, here, other = await begun("in-place-counts")
        await job.execute_update(JobWorkflow.resize, Resize(gpus=16))
        for each in (a, b):
            await each.end("in-place-counts", 2)
        await job.result()


async def _says(job: WorkflowHandle[JobWorkflow, Any], words: str) -> None:
    async def said() -> bool:
        return words in (await job.query(JobWorkflow.status)).reason

    await eventually(said)


async def _started(job: WorkflowHandle[JobWorkflow, Any], *nodes: ScriptedNode) -> None:
    for node in nodes:
        await node.started(job.id.removeprefix("job-"))


async def _changed(job: WorkflowHandle[JobWorkflow, Any], times: int = 1) -> None:
    async def there() -> bool:
        return (await job.query(JobWorkflow.status)).resizes == times

    await eventually(there)
