"""Jobs that bring something and wait: prepared where they start, elsewhere, in vain, and held."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from longshore.models.data import HeldData
from longshore.models.messages import CommandReason
from longshore.models.node_messages import Prepare
from longshore.workflows.job import JobWorkflow
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

WISH: dict[str, Any] = {"gpus": 8, "data": {"set": {"from": "s3://sets/set/", "size": "1GB"}}}


async def play(
    start_job: Callable[..., Awaitable[Any]],
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    """Run jobs behind others on a node whose agent says what it holds."""
    async with node("preparing", pool="prepares", recorded=True) as here:

        async def waits(name: str) -> Any:
            await start_job(f"before-{name}", pool="prepares", recorded=False, gpus=8)
            await here.started(f"before-{name}")
            job = await start_job(name, pool="prepares", **WISH)
            await eventually(lambda: here.prepares and here.prepares[-1].job_id == name)
            return job

        job = await waits("prepared")
        a_set = HeldData(name="set", tenant="default", source="s3://sets/set/", total=100)
        for so_far in (40, 100):
            await here.holds(a_set.model_copy(update={"bytes": so_far}))
        await here.end("before-prepared")
        await here.end("prepared")
        await job.result()
        here.cannot_prepare = True
        job = await waits("prepared-in-vain")
        await eventually(lambda: len(here.prepares) == 4)
        await here.end("before-prepared-in-vain")
        await here.end("prepared-in-vain")
        await job.result()
        here.cannot_prepare = False
        job = await waits("prepared-elsewhere")
        async with node("preparing-too", pool="prepares-too") as there:
            await job.signal(JobWorkflow.prepare, Prepare(attempt=1, node_ids=(there.id,)))
            await eventually(lambda: "prepared-elsewhere" in here.gave_up)
            await eventually(lambda: bool(there.prepares))
            await job.signal(JobWorkflow.hold, CommandReason(reason="later"))
            await eventually(lambda: "prepared-elsewhere" in there.gave_up)
        await job.signal(JobWorkflow.release, CommandReason())
        await here.end("before-prepared-elsewhere")
        await here.end("prepared-elsewhere")
        await job.result()
