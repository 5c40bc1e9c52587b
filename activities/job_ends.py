"""Asking jobs to end: those of a DAG, slots of an array, and replicas of a service."""

import asyncio
from collections.abc import Mapping

from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.rpc_errors import is_unknown
from longshore.models.messages import job_workflow_id

_IN_FLIGHT = 25


async def ask_to_end(temporal: Client, whys: Mapping[str, str]) -> frozenset[str]:
    """Cancel jobs, each with why; return those that Temporal does not know, or that have ended:
    they are left as they ended."""
    gate = asyncio.Semaphore(_IN_FLIGHT)
    unknown = set[str]()

    async def cancel(job_id: str, why: str) -> None:
        async with gate:
            try:
                await temporal.get_workflow_handle(job_workflow_id(job_id)).cancel(reason=why)
            except RPCError as error:
                if not is_unknown(error):
                    raise
                unknown.add(job_id)

    await asyncio.gather(*(cancel(job_id, why) for job_id, why in whys.items()))
    return frozenset(unknown)
