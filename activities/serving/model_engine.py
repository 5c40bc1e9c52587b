"""From a model that was added to the engine that serves it, and to the jobs of its replicas."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.serving.revisions import measured_memory
from longshore.activities.serving.stored_models import load_model, load_runtimes, runtime_in
from longshore.activities.snapshot import load_nodes
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSize, EngineSpec, EngineStage
from longshore.scheduling.buying.fleet import VRAM
from longshore.scheduling.serving.engine_sizes import engine_sizes
from longshore.scheduling.serving.replica_job import corrected, replica_spec
from longshore.scheduling.serving.replica_sizes import choose_sizes, held_when_empty
from longshore.scheduling.serving.replicas import Replica, ServiceFacts


async def engine_of(
    connection: AsyncConnection, name: str
) -> tuple[EngineSpec, tuple[EngineSize, ...], int]:
    """Return what an engine of a model is to be like, its sizes, the fewest GPUs first, and the
    revision of the model.

    Raises NotFoundError, SpecError where it is too large to be started, and StoredError where what
    is stored cannot be read.
    """
    model = await load_model(connection, name)
    runtime = runtime_in(await load_runtimes(connection), model.spec.runtime).runtime
    sizes = engine_sizes(model.spec, model.facts, runtime.split, model.memory)
    engine = EngineSpec(model=model.spec, runtime=runtime, memory=sizes[0].memory)
    if why := engine.too_large:
        raise SpecError(f"model {name}", (f"model {name}: {why}",))
    return engine, sizes, model.revision


async def replica_specs(
    connection: AsyncConnection,
    service: ServiceSpec,
    engine: EngineSpec,
    sizes: Sequence[EngineSize],
    model_revision: int,
    count: int,
) -> list[JobSpec]:
    """Return the jobs of so many replicas, each of a size for which there is room now, or may
    be, with the memory that one like it was seen to take where that is more."""
    seen = await measured_memory(connection, engine, model_revision)
    gpu_memory = await largest_gpu(connection, service.pool, service.gpu_type)
    specs = in_sizes(service, engine, sizes, seen, gpu_memory)
    if len(specs) == 1:
        return specs * count
    now = await clock(connection)
    nodes = await load_nodes(connection, service.pool)
    options = [JobRequest.of("", spec, now, 1) for spec in specs]
    may_come = VRAM.get((service.gpu_type or "").upper(), max(VRAM.values()))
    chosen = choose_sizes(options, count, nodes, PackingPolicy(), now, may_come)
    return [specs[number] for number in chosen]


async def largest_gpu(
    connection: AsyncConnection, pool: str | None, gpu_type: str | None = None
) -> float:
    """Return the GB of the largest GPU of a pool, or of all where none is named; where that has
    none, of the type, or of the usual one."""
    found = await connection.scalar(text(_LARGEST), {"pool": pool, "type": gpu_type})
    return VRAM.get((gpu_type or "").upper(), VRAM[_USUAL]) if found is None else found / 1000


def in_sizes(
    service: ServiceSpec,
    engine: EngineSpec,
    sizes: Sequence[EngineSize],
    seen: int,
    gpu_memory: float,
) -> list[JobSpec]:
    """Return the job of a replica in each of its sizes, with the memory that one like it was
    `seen` to take where that is more. `gpu_memory` is GB, of the largest GPU it may be on."""
    return [replica_spec(service, each, gpu_memory) for each in _engines(engine, sizes, seen)]


def _engines(engine: EngineSpec, sizes: Sequence[EngineSize], seen: int) -> list[EngineSpec]:
    found = [engine.of_size(size) for size in sizes] or [engine]
    return [corrected(each, seen) for each in found]


async def with_sizes(
    connection: AsyncConnection,
    facts: ServiceFacts,
    service: ServiceSpec,
    engine: EngineSpec,
    sizes: Sequence[EngineSize],
    model_revision: int,
) -> ServiceFacts:
    """Return the facts with which replicas wait in a size that no node holds: one that was chosen
    when there were others, or none; and with which hold less than one like them was seen to take
    in all."""
    facts = replace(facts, has_sizes=len(sizes) > 1)
    to_load = [
        each.job_id
        for each in facts.replicas
        if each.stage in _TO_LOAD and not each.stopping and each.revision == facts.revision
    ]
    if not to_load:
        return facts
    seen = await measured_memory(connection, engine, model_revision)
    needs = {e.model.gpus or 1: e.memory for e in _engines(engine, sizes, seen)}
    held = dict[int, bool]()
    if facts.has_sizes:
        now = await clock(connection)
        gpu_memory = await largest_gpu(connection, service.pool, service.gpu_type)
        specs = in_sizes(service, engine, sizes, seen, gpu_memory)
        nodes = await load_nodes(connection, service.pool)
        found = held_when_empty([JobRequest.of("", spec, now, 1) for spec in specs], nodes)
        held = dict(zip((size.gpus for size in sizes), found, strict=True))
    rows = await connection.execute(text(_SIZES_OF), {"ids": to_load})
    sizes_now = {row.id: (row.gpus, row.memory) for row in rows}

    def looked_at(each: Replica) -> Replica:
        if each.job_id not in to_load:
            return each
        if each.job_id not in sizes_now:  # its job has just been started
            return replace(each, held=not facts.has_sizes)
        gpus, memory = sizes_now[each.job_id]
        waits = each.stage is None
        return replace(
            each, held=not waits or held.get(gpus, True), held_otherwise=any(held.values()),
            too_small=memory < needs.get(gpus, 0),
        )  # fmt: skip

    return replace(facts, replicas=tuple(map(looked_at, facts.replicas)))


_USUAL = "H100"
_LARGEST = """
    SELECT nullif(max(g.vram_mb), 0) FROM gpus g JOIN nodes n ON n.id = g.node_id
     WHERE n.state <> 'GONE'
       AND (CAST(:pool AS text) IS NULL OR n.pool = :pool)
       AND (CAST(:type AS text) IS NULL OR upper(n.gpu_type) = upper(:type))
"""
_TO_LOAD = (None, EngineStage.LOADING, EngineStage.FAILED)
_SIZES_OF = """
    SELECT id, CASE WHEN spec ->> 'gpus' ~ '^[0-9]{1,6}$' THEN (spec ->> 'gpus')::integer
                    ELSE 0 END AS gpus,
           CASE WHEN spec #>> '{engine,memory}' ~ '^[0-9]{1,9}$'
                THEN (spec #>> '{engine,memory}')::integer ELSE 0 END AS memory
      FROM jobs WHERE id = ANY (:ids)
"""
"""MB of each GPU."""
