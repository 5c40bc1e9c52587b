"""Signals from activities to workflows, by name: activities lie below workflows."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta

from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from longshore.activities.failpoints import failpoint
from longshore.activities.job_starts import of_service
from longshore.activities.rpc_errors import FULL, why_unheard
from longshore.models.base import Wire
from longshore.models.block import block_workflow_id
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    POOL_WORKFLOW,
    PoolInput,
    job_workflow_id,
    node_workflow_id,
    pool_workflow_id,
)
from longshore.models.price_messages import PRICE_WORKFLOW, PriceInput, price_workflow_id
from longshore.models.purchase import BUYING_WORKFLOW, BuyingInput, buying_workflow_id
from longshore.models.service import ServiceSpec
from longshore.models.service_messages import (
    SERVICE_WORKFLOW,
    ServiceInput,
    service_workflow_id,
)

_IN_FLIGHT = 50
_log = logging.getLogger(__name__)


class Signals:
    """Sends signals to pools and jobs."""

    def __init__(self, temporal: Client, buying_every: timedelta = timedelta(seconds=15)) -> None:
        """Use this client; `buying_every` is how often at most a pool decides what to buy."""
        self._temporal = temporal
        self._buying_every = buying_every

    async def poke_pool(self, pool: str) -> None:
        """Wake the pool's workflow, and start it where there is none yet."""
        await self._temporal.start_workflow(
            POOL_WORKFLOW,
            PoolInput(pool=pool),
            id=pool_workflow_id(pool),
            task_queue=CONTROL_TASK_QUEUE,
            start_signal="poke",
            static_summary=f"pool {pool}: packs its queue onto its nodes",
        )

    async def poke_dag(self, dag_id: str) -> None:
        """Have a DAG look at the ends of its jobs; one that is over needs no look."""
        await self._tell("poke", dag_workflow_id(dag_id))

    async def poke_array(self, array_id: str) -> None:
        """Have an array look at its slots and elements; one that is over needs no look."""
        await self._tell("poke", job_workflow_id(array_id))

    async def poke_service(self, service: str) -> None:
        """Have a service look at its replicas; one that is over needs no look."""
        await self._tell("poke", service_workflow_id(service))

    async def poke_services(self, services: Sequence[str]) -> None:
        """Have services look at their replicas; one that is over needs no look."""
        await self._tell("poke", *map(service_workflow_id, services))

    async def begin_service(self, service: str, spec: ServiceSpec | None = None) -> None:
        """Have a service look at its replicas, and start its workflow where there is none: with
        what its `spec` says, where that is known."""
        await self._temporal.start_workflow(
            SERVICE_WORKFLOW,
            ServiceInput(),
            id=service_workflow_id(service),
            task_queue=CONTROL_TASK_QUEUE,
            start_signal="poke",
            static_summary=f"service {service}: keeps its replicas",
            search_attributes=of_service(spec) if spec else None,
        )

    async def look_at_nodes(self, node_ids: Sequence[str]) -> None:
        """Have nodes look again who has to leave; one that is over has no job to move."""
        await self._tell("look", *map(node_workflow_id, node_ids))

    async def wake_blocks(self, block_ids: Sequence[str]) -> None:
        """Have blocks looked at now; one that is over needs none."""
        await self._tell("wake", *map(block_workflow_id, block_ids))

    async def begin_buying(self, pool: str) -> None:
        """Have it decided what the pool buys, unless that is being decided now."""
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await self._temporal.start_workflow(
                BUYING_WORKFLOW,
                BuyingInput(pool=pool, at_least=self._buying_every),
                id=buying_workflow_id(pool),
                task_queue=CONTROL_TASK_QUEUE,
                static_summary=f"pool {pool}: what to buy",
            )

    async def begin_pricing(self, pool: str) -> None:
        """Have the price of a pool read, unless that is being done now."""
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await self._temporal.start_workflow(
                PRICE_WORKFLOW,
                PriceInput(pool=pool),
                id=price_workflow_id(pool),
                task_queue=CONTROL_TASK_QUEUE,
                static_summary=f"pool {pool}: the price of a GPU-hour",
            )

    async def _tell(self, signal: str, *workflow_ids: str) -> None:
        """Signal workflows, of which one that is over need not hear it."""

        async def tell(workflow_id: str) -> None:
            try:
                await self._temporal.get_workflow_handle(workflow_id).signal(signal)
            except RPCError as error:
                _why_unheard(error, workflow_id, signal)

        await asyncio.gather(*map(tell, workflow_ids))

    async def tell_jobs(
        self, signal: str, messages: Sequence[tuple[str, Wire]]
    ) -> Mapping[str, str]:
        """Signal each (job id, message); return of each job that will never hear it why not: one
        must not keep the others from hearing theirs."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def tell(job_id: str, message: Wire) -> tuple[str, str]:
            workflow_id = job_workflow_id(job_id)
            async with gate:
                try:
                    await self._temporal.get_workflow_handle(workflow_id).signal(signal, message)
                except RPCError as error:
                    return job_id, _why_unheard(error, workflow_id, signal)
            if signal == "placed":
                await failpoint("cycle.after-first-signal")
            return job_id, ""

        told = await asyncio.gather(*(tell(job_id, message) for job_id, message in messages))
        return {job_id: why for job_id, why in told if why}


def _why_unheard(error: RPCError, workflow_id: str, signal: str) -> str:
    """Return why a workflow will never hear a signal; raise where it may at another try."""
    why = why_unheard(error)
    if not why:
        raise error
    if why is FULL:
        _log.warning(
            "workflow %s is not told %s: %s: %s. Cancel it, and submit what it is for again",
            workflow_id, signal, why, error.message,
        )  # fmt: skip
    return why
