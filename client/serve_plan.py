"""`longshore serve --dry-run`: what would become of models and services, with nothing changed.

What would be stored is stored in a transaction that is undone; who decides there decides as ever.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.serving.model_engine import engine_of, replica_specs, with_sizes
from longshore.activities.serving.revisions import undone_alike
from longshore.activities.serving.service_rows import facts_of, lock_service, record_service
from longshore.activities.serving.service_views import service_view
from longshore.client.forecast import Foretold, foretell
from longshore.client.model_registry import LookedAt
from longshore.client.service_view import served_line
from longshore.client.services import as_undone, look_first
from longshore.models.errors import NotFoundError, StoredError
from longshore.models.forecast import ForecastKind
from longshore.models.job import JobSpec
from longshore.models.model_registry import RegistryChange
from longshore.models.serve_plan import ServePreview, ServicePreview, StoppedReplica
from longshore.models.service import ServiceSpec, ServiceState, ServiceView
from longshore.models.serving import EngineSize, EngineSpec, MemoryRule
from longshore.models.settings import Settings
from longshore.scheduling.serving.replicas import ServicePlan, begin_before_stops, in_the_end

MOST_FORETOLD = 20
"""Replicas of a service, each a plan of its pool."""
_LACKS_ROOM = (ForecastKind.WAITS, ForecastKind.PREEMPTS, ForecastKind.BUYS)
_OWN_STOPPED_FIRST = (
    "what is said of its last replica counts those of its own as there that would be stopped: one "
    "of them is stopped before, and that replica may start in its place"
)


class _Undone(Exception):
    """Ends a transaction without its changes; no error."""


class _Planned(NamedTuple):
    """A service as it would be, with the jobs of the replicas that would be started."""

    engine: EngineSpec
    sizes: tuple[EngineSize, ...]
    revision: int
    says: str
    plan: ServicePlan
    first: int
    """Replicas that may begin before one that has GPUs of their pool is stopped."""
    like: JobSpec
    """A replica."""
    new: Sequence[JobSpec]
    warnings: tuple[str, ...]


async def serve_preview(
    database: Callable[[], Database],
    settings: Settings,
    looked_at: LookedAt,
    specs: Sequence[ServiceSpec],
) -> ServePreview:
    """Return what would become of services, and of the models of their file. Raises what
    `serve_all` raises."""
    changes: tuple[RegistryChange, ...] = ()
    planned: list[_Planned] = []
    try:
        async with database().transaction() as connection:
            changes = await looked_at.store(connection)
            found = {
                each.name: await _planned(connection, each)
                for each in sorted(specs, key=lambda each: each.name)  # rows are locked in order
            }
            planned = [found[each.name] for each in specs]
            raise _Undone
    except _Undone:
        pass
    taken: list[Foretold] = []
    services = [await _preview(database, settings, each, taken) for each in planned]
    return ServePreview(models=changes, services=tuple(services), warnings=looked_at.warnings)


async def _planned(connection: AsyncConnection, spec: ServiceSpec) -> _Planned:
    """Return a service as it is once it is stored."""
    try:
        engine, sizes, of_model = await engine_of(connection, spec.model)
    except NotFoundError as error:
        raise NotFoundError(f"service {spec.name}: model: {error}") from None
    before = await _running(connection, spec.name)
    revision = await record_service(connection, spec, engine, of_model, sizes)
    undone = as_undone(spec.model, *await undone_alike(connection, spec.name, revision))
    says = served_line(spec, revision, before, await service_view(connection, spec.name))
    now = await clock(connection)
    facts = await facts_of(connection, await lock_service(connection, spec.name), spec, now)
    facts = await with_sizes(connection, facts, spec, engine, sizes, of_model)
    plan = in_the_end(facts, now)
    first = begin_before_stops(facts, spec.pool, now)
    new = await replica_specs(connection, spec, engine, sizes, of_model, max(plan.start, 1))
    return _Planned(engine, sizes, revision, says, plan, first, new[0], new[: plan.start], undone)


async def _running(connection: AsyncConnection, name: str) -> ServiceView | None:
    try:
        found = await service_view(connection, name)
    except (NotFoundError, StoredError):
        return None
    return found if found.state is ServiceState.RUNNING else None


async def _preview(
    database: Callable[[], Database],
    settings: Settings,
    planned: _Planned,
    taken: list[Foretold],
) -> ServicePreview:
    """Return what would become of a service beside the replicas that have `taken` GPUs before its
    own, which are added."""
    warnings = await look_first(database, planned.like)
    replicas: list[Foretold] = []
    for spec in planned.new[:MOST_FORETOLD]:
        replicas.append(await foretell(database, settings, spec, taken))
        taken.append(replicas[-1])
        if not replicas[-1].starts:  # what others behind it would find nobody knows
            break
    lacks_room = bool(replicas) and replicas[-1].forecast.kind in _LACKS_ROOM
    if lacks_room and len(replicas) > planned.first:
        warnings = (*warnings, _OWN_STOPPED_FIRST)
    job = planned.like
    memory = job.engine.memory if job.engine else 0
    return ServicePreview(
        service=job.name, says=planned.says, revision=planned.revision, gpus=job.gpus,
        memory=memory, memory_from=_memory_from(planned, memory), start=planned.plan.start,
        replicas=tuple(each.forecast for each in replicas),
        stop=tuple(StoppedReplica(job_id=one.job_id, why=one.reason) for one in planned.plan.stop),
        warnings=(*warnings, *planned.warnings),
    )  # fmt: skip


def _memory_from(planned: _Planned, held: int) -> str:
    """Return where the MB are from that a replica holds of each of its GPUs."""
    if any(each.gpus == planned.like.gpus and each.memory < held for each in planned.sizes):
        return "as one like it was seen to take"
    if planned.engine.model.memory is not None:
        return "as its model states"
    by_header = planned.engine.runtime.memory is MemoryRule.HEADER
    return "by the header of its model" if by_header else "by the files of its model"
