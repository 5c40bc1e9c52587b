"""One model in full: in which sizes an engine of it may run, and which nodes have room."""

from collections.abc import Awaitable, Callable

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.serving.model_engine import in_sizes, largest_gpu
from longshore.activities.serving.revisions import measured_memory
from longshore.activities.serving.stored_models import load_model, load_runtimes, runtime_in
from longshore.activities.snapshot import load_nodes, load_pool
from longshore.models.errors import StoredError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.model_registry import ModelView, SizeView
from longshore.models.node import NodeState
from longshore.models.placement import RejectionCode
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSpec
from longshore.scheduling.packer import place
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.serving.engine_sizes import engine_sizes

_SERVICE = "engine"
"""Stands for a service that says nothing but its model."""


async def model_in_full(connection: AsyncConnection, name: str) -> ModelView:
    """Return a model with its sizes, and where each has room; without where its runtime cannot be
    read, or its engine cannot be started. Raises NotFoundError, StoredError."""
    found = await load_model(connection, name)
    try:
        runtime = runtime_in(await load_runtimes(connection), found.spec.runtime).runtime
    except StoredError:
        return found
    sizes = engine_sizes(found.spec, found.facts, runtime.split, found.memory)
    engine = EngineSpec(model=found.spec, runtime=runtime, memory=sizes[0].memory)
    if engine.too_large:
        return found
    seen = await measured_memory(connection, engine, found.revision)
    service = ServiceSpec(name=_SERVICE, model=name)

    async def jobs_in(pool: str | None) -> list[JobSpec]:
        gpu_memory = await largest_gpu(connection, pool)
        return in_sizes(service, engine, sizes, seen, gpu_memory)

    return found.model_copy(update={"seen": seen, "sizes": await _with_room(connection, jobs_in)})


async def _with_room(
    connection: AsyncConnection, jobs_in: Callable[[str | None], Awaitable[list[JobSpec]]]
) -> tuple[SizeView, ...]:
    """Return the sizes; `jobs_in` are their jobs as they would be in a pool, or in none."""
    now = await clock(connection)
    jobs = await jobs_in(None)
    has_room: list[list[str]] = [[] for _ in jobs]
    holds: list[list[str]] = [[] for _ in jobs]
    for pool in list(await connection.scalars(text(_POOLS))):
        asked = [JobRequest.of(_SERVICE, job, now, 1) for job in await jobs_in(pool)]
        nodes = await load_nodes(connection, pool)
        try:
            policy = (await load_pool(connection, pool)).packing
        except StoredError:
            continue  # nothing is placed there either
        for number, job in enumerate(asked):
            decision = place(job, nodes, policy, now)
            fits = {each.node_id for each in decision.candidates}
            end = {
                each.node_id for each in decision.rejections if each.code is RejectionCode.EXPIRY
            }
            has_room[number] += sorted(fits)
            holds[number] += sorted(
                node.id
                for node in nodes
                if node.id not in fits
                and node.id not in end
                and node.state is NodeState.READY  # neither cordoned nor drained
                and could_ever_hold(node, job)
            )
    return tuple(
        SizeView(
            gpus=job.gpus, memory=job.engine.memory, nodes=tuple(now_on), when_empty=tuple(later)
        )
        for job, now_on, later in zip(jobs, has_room, holds, strict=True)
        if job.engine is not None
    )


_POOLS = "SELECT DISTINCT pool FROM nodes WHERE state <> 'GONE' ORDER BY pool"
