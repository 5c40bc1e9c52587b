"""A Temporal server on which nothing is open any more."""

import asyncio
import time
from collections.abc import Awaitable

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.support.waiting import eventually

LAG = 0.7
"""Seconds until a list has what was started (workers.temporal_server), and some more."""


async def end_everything(temporal: Client) -> None:
    """Delete every schedule of the namespace and terminate every workflow that is open there.

    The lists lag by half a second: what the test before this one started last may not be in them
    yet. So they have to stay empty for a little longer than that.
    """
    empty_since: float | None = None

    async def nothing_is_open() -> bool:
        nonlocal empty_since
        schedules = [each async for each in await temporal.list_schedules()]
        for schedule in schedules:
            await _unless_gone(temporal.get_schedule_handle(schedule.id).delete())
        open_ones = [each async for each in temporal.list_workflows("ExecutionStatus = 'Running'")]
        await asyncio.gather(
            *(
                _unless_gone(temporal.get_workflow_handle(each.id, run_id=each.run_id).terminate())
                for each in open_ones
            )
        )
        if schedules or open_ones:
            empty_since = None
            return False
        empty_since = empty_since or time.monotonic()
        return time.monotonic() - empty_since > LAG

    await eventually(nothing_is_open, interval=0.1)


async def _unless_gone(request: Awaitable[object]) -> None:
    try:
        await request
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
