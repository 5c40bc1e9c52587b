"""Jobs that begin later: one that nobody holds, and one that is held beyond its begin."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from longshore.models.job_status import JobState
from longshore.models.messages import CommandReason
from longshore.workflows.job import JobWorkflow
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def play(
    start_job: Callable[..., Awaitable[Any]],
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    async with node("begins", pool="begins") as here:
        job = await start_job("begun", pool="begins", begin="2s")
        await here.end("begun")
        await job.result()
        held = await start_job("begun-held", pool="begins", begin="2s", held=True)

        async def has_begun() -> bool:
            status = await held.query(JobWorkflow.status)
            return (status.state, status.reason) == (JobState.HELD, "held at submit")

        await eventually(has_begun)
        await held.signal(JobWorkflow.release, CommandReason())
        await here.end("begun-held")
        await held.result()
