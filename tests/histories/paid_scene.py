"""A job that a relative's envelope pays for, until its owner takes that back, and then again."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.funding import telling
from longshore.activities.funding.edits import apply_budgets, set_tenant
from longshore.models.funding import Budget, Envelope, Tenant
from tests.support.histories import signals_to
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def play(
    temporal: Client,
    database: Database,
    start_job: Callable[..., Awaitable[Any]],
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    main = Envelope(name="main", gpus=1, end=None)
    async with database.transaction() as connection:
        await set_tenant(connection, Tenant(name="family"))
        for tenant in ("owner", "relative"):
            await set_tenant(connection, Tenant(name=tenant, parent="family"))
        await apply_budgets(
            connection, [Budget(tenant="owner", envelopes=(main,)), Budget(tenant="relative")]
        )
    with patch.object(telling, "TOLD_EVERY", timedelta(0)):
        async with node("paid", pool="paid") as here:
            job = await start_job("recalled", pool="paid", tenant="relative")
            await here.started("recalled")
            owner = await start_job("recalls", pool="paid", tenant="owner", recorded=False)
            await here.started("recalls")

            async def heard(times: int) -> bool:
                return len(await signals_to(temporal, job.id, "paid")) == times

            await eventually(lambda: heard(1))
            await here.end("recalls")
            await owner.result()
            await eventually(lambda: heard(2))
            await here.end("recalled")
            await job.result()
