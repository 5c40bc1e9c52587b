"""Services in the typed client: serve, look, scale, undo, remove."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.serving.model_engine import engine_of, replica_specs
from longshore.activities.serving.revisions import undone_alike
from longshore.activities.serving.service_rows import (
    record_service,
    remove_service,
    scale_service,
    stop_replica,
    undo_rollout,
)
from longshore.activities.serving.service_views import (
    replicas_view,
    service_view,
    services_view,
)
from longshore.activities.signals import Signals
from longshore.client.reading import Reading
from longshore.client.submission import preflight
from longshore.client.untold import untold
from longshore.models.errors import (
    NotFoundError,
    RefusedError,
    SpecError,
    StoredError,
    UnsatisfiableError,
)
from longshore.models.job import JobSpec
from longshore.models.service import EvictedReplica, ReplicaView, ServiceSpec, ServiceView
from longshore.models.serving import EngineSize, EngineSpec
from longshore.models.text import listed
from longshore.models.visible import shown


class _LookedAt(NamedTuple):
    """A service that may be served."""

    spec: ServiceSpec
    engine: EngineSpec
    sizes: tuple[EngineSize, ...]
    model_revision: int
    warnings: tuple[str, ...]


def _no_engine(name: str, there: Sequence[ReplicaView]) -> str:
    """Return what to say of a name that is no engine's id: it may be that of a service."""
    of_service = [each.job_id for each in there if each.service == name]
    if not of_service:
        return f"no engine {shown(name)}: `longshore slots` lists them"
    engines = listed(of_service, 3)
    return f"{shown(name)} is a service, and evict takes the id of one engine: {engines}"


def as_undone(model: str, revision: int, of_model: int) -> tuple[str, ...]:
    """Return what to say of a model that a revision had which was undone; 0 for none."""
    if not revision:
        return ()
    return (
        f"model {model} is stored as its revision {of_model}, as revision {revision} of the "
        "service had it, which was undone: mend it first, with `longshore models add` or in "
        "`models` of the file",
    )


async def look_first(database: Callable[[], Database], replica: JobSpec) -> tuple[str, ...]:
    """Return what `preflight` says of a replica; what it raises of that names the service."""
    service = f"service {replica.name}"
    try:
        return await preflight(database, replica)
    except StoredError:  # of its pool, and not of what was asked for
        raise
    except SpecError as error:
        problems = tuple(f"{service}: {each}" for each in error.problems)
        raise SpecError(service, problems) from None
    except UnsatisfiableError as error:
        raise UnsatisfiableError(f"{service}: {error}") from None


class ServiceReading(Reading):
    """What the capacity database says of services."""

    async def services(self) -> tuple[ServiceView, ...]:
        """Return the services by name, with their replicas; one that cannot be read with its
        `trouble`."""
        async with self._db().snapshot() as connection:
            return await services_view(connection)

    async def service(self, name: str) -> ServiceView:
        """Return a service with its replicas and revisions. Raises NotFoundError, StoredError."""
        async with self._db().snapshot() as connection:
            return await service_view(connection, name)

    async def slots(self) -> tuple[ReplicaView, ...]:
        """Return the engines of all services, with what they hold and what they take."""
        async with self._db().snapshot() as connection:
            return await replicas_view(connection)


class ServiceControl(ServiceReading):
    """What the client can do with services."""

    temporal: Client

    async def serve(self, spec: ServiceSpec) -> tuple[int, tuple[str, ...]]:
        """Have a service be as it is given; return its revision, and what its user should know:
        also that its workflow could not be told, where that is so. It is stored all the same.

        Where more than the number of replicas is another than before, its replicas are replaced
        one by one. Raises NotFoundError for a model that was not added, RefusedError while one of
        the name is being removed, and what the submit of a job raises.
        """
        (served,) = await self.serve_all([spec])
        return served

    async def serve_all(self, specs: Sequence[ServiceSpec]) -> list[tuple[int, tuple[str, ...]]]:
        """Have several services be as they are given, all or none of them; return of each what
        `serve` returns, and raise the same."""
        found: dict[str, _LookedAt] = {}
        for spec in specs:
            async with self._db().transaction() as connection:
                try:
                    engine, sizes, model_revision = await engine_of(connection, spec.model)
                except NotFoundError as error:
                    raise NotFoundError(f"service {spec.name}: model: {error}") from None
                (replica,) = await replica_specs(
                    connection, spec, engine, sizes, model_revision, 1
                )
            warnings = await look_first(self._db, replica)
            found[spec.name] = _LookedAt(spec, engine, sizes, model_revision, warnings)
        revisions: dict[str, int] = {}
        undone: dict[str, tuple[str, ...]] = {}
        async with self._db().transaction() as connection:
            for name in sorted(found):  # the rows of services are locked in one order
                each = found[name]
                revisions[name] = await record_service(
                    connection, each.spec, each.engine, each.model_revision, each.sizes
                )
                alike = await undone_alike(connection, name, revisions[name])
                undone[name] = as_undone(each.spec.model, *alike)
        not_told = await asyncio.gather(*(self._tell(spec.name, spec) for spec in specs))
        return [
            (revisions[spec.name], (*found[spec.name].warnings, *undone[spec.name], *notes))
            for spec, notes in zip(specs, not_told, strict=True)
        ]

    async def scale(self, name: str, replicas: int) -> tuple[str, ...]:
        """Want so many replicas. Returns a note where its workflow cannot be told: it is stored
        all the same. Raises NotFoundError, RefusedError of one that is removed."""
        async with self._db().transaction() as connection:
            await scale_service(connection, name, replicas)
        return await self._tell(name)

    async def undo_rollout(
        self, name: str, revision: int | None = None
    ) -> tuple[int, tuple[str, ...]]:
        """Go back to a revision, or to the one before that was ready; return it, with a note where
        its workflow cannot be told: it is stored all the same.

        Raises NotFoundError where there is none, RefusedError of one that is removed, and where
        its newest revision was undone by itself and no `revision` is named.
        """
        async with self._db().transaction() as connection:
            number = await undo_rollout(connection, name, revision)
        return number, await self._tell(name)

    async def remove_service(self, name: str) -> tuple[str, ...]:
        """Have all replicas of a service end what they have begun, and stop. Returns a note where
        its workflow cannot be told: it is stored all the same. Raises NotFoundError."""
        async with self._db().transaction() as connection:
            await remove_service(connection, name)
        return await self._tell(name)

    async def evict(self, job_id: str) -> EvictedReplica:
        """Have one engine end what it has begun, and stop; its service starts another where one
        lacks. Returns it as it stops, with a note where its service cannot be told: it is stored
        all the same. Raises NotFoundError, RefusedError for one that stops already."""
        async with self._db().transaction() as connection:
            there = await replicas_view(connection)
            found = [each for each in there if each.job_id == job_id]
            if not found:
                raise NotFoundError(_no_engine(job_id, there))
            if found[0].stopping:
                raise RefusedError(f"{job_id} is being stopped already")
            await stop_replica(connection, job_id, "somebody evicted it")
            found = [each for each in await replicas_view(connection) if each.job_id == job_id]
        notes = await self._tell(found[0].service)
        return EvictedReplica(**dict(found[0]), notes=notes)

    async def _tell(self, name: str, spec: ServiceSpec | None = None) -> tuple[str, ...]:
        """Have the workflow of a service look at what is stored of it now. Return a note where it
        cannot be told."""
        return await untold(
            f"service {name} was", Signals(self.temporal).begin_service(name, spec)
        )
