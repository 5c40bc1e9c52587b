"""A job that waits for the price of its pool, which is read from the market."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.models.pool import PoolSpec
from longshore.models.price_messages import price_workflow_id
from longshore.models.price_series import MARKET, PoolPrice, Unknown
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

POOL = "priced"


async def play(
    temporal: Client,
    database: Database,
    start_job: Callable[..., Awaitable[Any]],
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    price = PoolPrice(source=MARKET, unknown=Unknown.WAIT)
    async with database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=POOL, price=price))
    async with node(POOL, pool=POOL) as here:
        job = await start_job("priced", pool=POOL, start_below="$1000/gpu-hour")
        await here.end("priced")
        await job.result()

    async def is_read() -> bool:
        try:
            found = await temporal.get_workflow_handle(price_workflow_id(POOL)).describe()
        except RPCError:
            return False
        return found.status is WorkflowExecutionStatus.COMPLETED

    await eventually(is_read)
