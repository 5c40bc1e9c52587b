"""Models that are served and runtimes in the typed client."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.serving.examination import Examined, examine
from longshore.activities.serving.model_room import model_in_full
from longshore.activities.serving.stored_models import (
    load_gpus,
    load_model,
    load_models,
    load_runtime,
    load_runtimes,
    memory_of,
    remove_model,
    remove_runtime,
    runtime_in,
    store_models,
    store_runtimes,
)
from longshore.activities.threads import in_thread
from longshore.client.reading import Reading
from longshore.client.user import user_name
from longshore.models.errors import NotFoundError, RefusedError, SpecError, StoreError
from longshore.models.model_registry import (
    ModelFacts,
    ModelsEdit,
    ModelView,
    RegistryChange,
    RuntimesEdit,
    RuntimeView,
)
from longshore.models.problems import beyond_bounds
from longshore.models.serving import ModelSpec, Runtime
from longshore.scheduling.buying.fleet import VRAM
from longshore.scheduling.serving.fits import NodeGPUs, room_for

_UNREAD = ". With `memory` (--memory), which says what it needs, it is added unread"


class _Undone(Exception):
    """Ends a transaction without its changes; no error."""


class LookedAt(NamedTuple):
    """Models that may be stored."""

    models: tuple[Examined, ...]
    runtimes: dict[str, RuntimeView]
    """By which they were looked at."""
    warnings: tuple[str, ...]

    async def store(self, connection: AsyncConnection) -> tuple[RegistryChange, ...]:
        """Store them, and return what that changes. Raises RefusedError where a runtime is another
        one by now."""
        changes = await store_models(connection, self.models, user_name())
        _refuse_others(self.runtimes, await load_runtimes(connection))
        return changes


class ModelReading(Reading):
    """What the capacity database says of models and runtimes."""

    async def models(self) -> tuple[ModelView, ...]:
        """Return the models by name."""
        async with self._db().snapshot() as connection:
            return await load_models(connection)

    async def model(self, name: str) -> ModelView:
        """Return a model with its sizes, and where each has room now. Raises NotFoundError."""
        async with self._db().snapshot() as connection:
            return await model_in_full(connection, name)

    async def runtimes(self) -> tuple[RuntimeView, ...]:
        """Return the runtimes: those that are built in first, and by name."""
        async with self._db().snapshot() as connection:
            return tuple((await load_runtimes(connection)).values())

    async def runtime(self, name: str) -> RuntimeView:
        """Return a runtime. Raises NotFoundError."""
        async with self._db().snapshot() as connection:
            return await load_runtime(connection, name)


class ModelControl(ModelReading):
    """What the client can do with models and runtimes."""

    async def add_models(
        self,
        models: Sequence[ModelSpec],
        *,
        verify: bool = False,
        dry_run: bool = False,
        told: Callable[[int, int], None] | None = None,
    ) -> ModelsEdit:
        """Store models, all or none of them, in place of those of the same name.

        Their files are read, as far as they can be from here: headers alone, and a whole file for
        its digest, of which `told` hears the bytes that were read, and of how many; one behind a
        URL with `verify` only. With `dry_run` nothing is stored. Raises NotFoundError for a
        runtime that there is not, SpecError with all that is wrong, StoreError where a file cannot
        be read that has to be. Paths that begin with ./ are seen from the current folder.
        """
        looked_at = await self._look_at(models, verify=verify, told=told)
        edit = ModelsEdit(warnings=looked_at.warnings)
        try:
            async with self._db().transaction() as connection:
                changes = await looked_at.store(connection)
                views = [await load_model(connection, each.name) for each in models]
                more = {"changes": changes, "models": tuple(views)}
                edit = edit.model_copy(update=more)
                if dry_run:
                    raise _Undone
        except _Undone:
            pass
        return edit

    async def _look_at(
        self,
        models: Sequence[ModelSpec],
        *,
        verify: bool = False,
        told: Callable[[int, int], None] | None = None,
    ) -> "LookedAt":
        """Look at models that are to be stored. Raises what `add_models` raises."""
        models = [each.seen_from(Path()) for each in models]
        if wrong := _beyond("model", models):
            raise SpecError("models", wrong)
        async with self._db().snapshot() as connection:
            runtimes = await load_runtimes(connection)
            nodes = await load_gpus(connection)
            stored = {each.spec.name: each for each in await load_models(connection)}
        used: dict[str, RuntimeView] = {}
        for each in models:
            try:
                used[each.runtime] = runtime_in(runtimes, each.runtime)
            except NotFoundError as error:
                raise NotFoundError(f"model {each.name}: runtime: {error}") from None
        found: list[Examined] = []
        problems: list[str] = []
        warnings: list[str] = []
        for each in models:
            runtime = used[each.runtime].runtime
            before = stored.get(each.name)
            known = before.facts if before and before.spec.source == each.source else None
            try:
                seen = await examined(each, runtime, verify=verify, told=told, known=known)
            except StoreError as error:
                unread = "" if each.memory is not None else _UNREAD
                raise StoreError(f"model {each.name}: source: {error}{unread}") from error
            refused, warning = _room(seen, runtime, nodes)
            problems += (f"model {each.name}: {why}" for why in (*seen.problems, *refused))
            warnings += (f"model {each.name}: {why}" for why in (*seen.warnings, *warning))
            found.append(seen)
        if problems:
            raise SpecError("models", tuple(problems))
        return LookedAt(tuple(found), used, tuple(warnings))

    async def remove_model(self, name: str) -> RegistryChange:
        """Remove a model. Raises NotFoundError, RefusedError where something uses it."""
        async with self._db().transaction() as connection:
            return await remove_model(connection, name)

    async def add_runtimes(
        self, runtimes: Sequence[Runtime], *, dry_run: bool = False
    ) -> RuntimesEdit:
        """Store runtimes, all or none of them, in place of those of the same name.

        With `dry_run` nothing is stored. Raises RefusedError for one that is built in, and for
        another memory rule or way to split of one that models have.
        """
        if wrong := _beyond("runtime", runtimes):
            raise SpecError("runtimes", wrong)
        edit = RuntimesEdit()
        try:
            async with self._db().transaction() as connection:
                changes = await store_runtimes(connection, runtimes, user_name())
                edit = RuntimesEdit(changes=changes)
                if dry_run:
                    raise _Undone
        except _Undone:
            pass
        return edit

    async def remove_runtime(self, name: str) -> RegistryChange:
        """Remove a runtime. Raises NotFoundError, RefusedError where it is built in or models
        have it."""
        async with self._db().transaction() as connection:
            return await remove_runtime(connection, name)


async def examined(
    spec: ModelSpec,
    runtime: Runtime,
    *,
    verify: bool = False,
    told: Callable[[int, int], None] | None = None,
    known: ModelFacts | None = None,
) -> Examined:
    """Examine a model in a thread, which ends soon where nobody waits for it any more."""

    def of_model(go_on: Callable[[], None]) -> Examined:
        def hear(read: int, of: int) -> None:
            go_on()
            if told is not None:
                told(read, of)

        return examine(spec, runtime, verify=verify, told=hear, known=known)

    return await in_thread(of_model)


def _beyond(what: str, given: Sequence[Any]) -> tuple[str, ...]:
    """Return what has more than it may: a value may have been copied, and not validated."""
    return tuple(f"{what} {each.name}: {why}" for each in given for why in beyond_bounds(each))


def _room(
    seen: Examined, runtime: Runtime, nodes: Sequence[NodeGPUs]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what refuses a model for its size, and what warns of it."""
    memory = memory_of(seen.spec, seen.facts)
    if seen.problems or not memory:
        return (), ()
    room = room_for(seen.spec, memory, seen.facts, runtime.split, nodes, VRAM)
    return tuple(filter(None, [room.refused])), tuple(filter(None, [room.warning]))


def _refuse_others(used: dict[str, RuntimeView], now: dict[str, RuntimeView]) -> None:
    """Raise RefusedError where a runtime is another one than that by which a model was looked
    at."""
    for name, view in used.items():
        if now[name].runtime != view.runtime:
            raise RefusedError(f"runtime {name} was changed meanwhile: add the models again")
