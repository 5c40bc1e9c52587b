"""A Temporal server on which nothing is open any more."""

import asyncio
from collections.abc import Awaitable

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.support.waiting import eventually


async def end_everything(temporal: Client) -> None:
    """Delete every schedule of the namespace and terminate every workflow that is open there."""
    async for schedule in await temporal.list_schedules():
        await _unless_gone(temporal.get_schedule_handle(schedule.id).delete())

    async def nothing_is_open() -> bool:
        open_ones = [each async for each in temporal.list_workflows("ExecutionStatus = 'Running'")]
        await asyncio.gather(
            *(
                _unless_gone(temporal.get_workflow_handle(each.id, run_id=each.run_id).terminate())
                for each in open_ones
            )
        )
        return not open_ones

    await eventually(nothing_is_open)


async def _unless_gone(request: Awaitable[object]) -> None:
    try:
        await request
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
