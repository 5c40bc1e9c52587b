"""Models and runtimes in the capacity database."""

import difflib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NoReturn

from pydantic import ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.serving.examination import Examined
from longshore.models.bounds import TAKEN
from longshore.models.differences import differences
from longshore.models.errors import NotFoundError, RefusedError, StoredError
from longshore.models.funding_views import Edit
from longshore.models.model_registry import (
    ModelFacts,
    ModelView,
    RegistryChange,
    RuntimeView,
)
from longshore.models.problems import describe_all
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import ModelSpec, Runtime
from longshore.models.text import listed
from longshore.models.units import format_bytes
from longshore.models.visible import shown
from longshore.scheduling.serving.fits import NodeGPUs

_NAMED = 10
_OURS = "23000"
"""PostgreSQL's code for what our triggers refuse, with a sentence."""
_UNREADABLE = "what is stored, which cannot be read"


def memory_of(spec: ModelSpec, facts: ModelFacts | None) -> int:
    """Return the bytes of GPU memory of a model in all: as stated, else by its header."""
    if spec.memory is not None:
        return round(spec.memory * 1e9)
    return facts.memory.total if facts else 0


async def load_models(connection: AsyncConnection) -> tuple[ModelView, ...]:
    """Return all models by name; of one that cannot be read with its `trouble`."""
    rows = await connection.execute(text(_MODELS))
    return tuple(_model(row) for row in rows.mappings())


async def load_model(connection: AsyncConnection, name: str) -> ModelView:
    """Return a model. Raises NotFoundError, StoredError."""
    rows = await connection.execute(text(_MODEL), {"name": name})
    row = rows.mappings().one_or_none()
    if row is None:
        names = await connection.scalars(text("SELECT name FROM models ORDER BY name"))
        _refuse_unknown("model", name, list(names), "`longshore models add` makes one")
    found = _model(row)
    if found.trouble:
        raise StoredError(f"model {name}", (found.trouble,))
    return found


async def load_runtimes(connection: AsyncConnection) -> dict[str, RuntimeView]:
    """Return all runtimes, those that are built in first, each by its name; of one that cannot be
    read with its `trouble`."""
    rows = await connection.execute(text(_RUNTIMES))
    found = {row["name"]: _runtime(row) for row in rows.mappings()}
    return {view.runtime.name: view for view in found.values() if view is not None}


async def load_runtime(connection: AsyncConnection, name: str) -> RuntimeView:
    """Return a runtime. Raises NotFoundError, StoredError."""
    return runtime_in(await load_runtimes(connection), name)


def runtime_in(runtimes: Mapping[str, RuntimeView], name: str) -> RuntimeView:
    """Return the runtime of a name. Raises NotFoundError, StoredError."""
    if name not in runtimes:
        _refuse_unknown("runtime", name, [*runtimes], "`longshore runtimes add` makes one")
    if trouble := runtimes[name].trouble:
        raise StoredError(f"runtime {name}", (trouble,))
    return runtimes[name]


async def load_gpus(connection: AsyncConnection) -> tuple[NodeGPUs, ...]:
    """Return the GPUs of the nodes that there are."""
    rows = await connection.execute(text(_GPUS))
    return tuple(
        NodeGPUs(row["id"], row["gpu_type"], row["gpus"], row["vram_mb"] / 1000)
        for row in rows.mappings()
    )


async def store_models(
    connection: AsyncConnection, models: Sequence[Examined], by: str
) -> tuple[RegistryChange, ...]:
    """Store models, in place of those of the same name; return what that changes."""
    await _take_turn(connection)
    changes: list[RegistryChange] = []
    for each in models:
        name = each.spec.name
        rows = await connection.execute(text(_MODEL), {"name": name})
        row = rows.mappings().one_or_none()
        each = _as_stored(row, each) if row else each
        fields = _model_differences(row, each) if row else ()
        if row and not fields:
            continue
        values = {
            "name": name, "runtime": each.spec.runtime, "spec": each.spec.model_dump_json(),
            "facts": each.facts and each.facts.model_dump_json(), "by": by,
        }  # fmt: skip
        async with _told(f"model {name}"):
            revision = await connection.scalar(text(_SET_MODEL), values)
        changes.append(_change(name, row, fields, revision))
    return tuple(changes)


async def store_runtimes(
    connection: AsyncConnection, runtimes: Sequence[Runtime], by: str
) -> tuple[RegistryChange, ...]:
    """Store runtimes, in place of those of the same name; return what that changes.

    Raises RefusedError for one that is built in, and for another memory rule or way to split of
    one that models have.
    """
    await _take_turn(connection)
    before = await load_runtimes(connection)
    changes: list[RegistryChange] = []
    for each in runtimes:
        _refuse_built_in(each.name, "give yours another name")
        was = before.get(each.name)
        fields = tuple(differences(was.runtime, each)) if was else ()
        fields = (_UNREADABLE,) if was and was.trouble else fields
        if was and not fields:
            continue
        values = {"name": each.name, "spec": each.model_dump_json(), "by": by}
        async with _told("runtime"):
            revision = await connection.scalar(text(_SET_RUNTIME), values)
        changes.append(_change(each.name, was, fields, revision))
    return tuple(changes)


async def remove_model(connection: AsyncConnection, name: str) -> RegistryChange:
    """Remove a model. Raises NotFoundError, and RefusedError where something uses it."""
    await _take_turn(connection)
    async with _told(f"model {name}"):
        gone = await connection.scalar(text(_REMOVE_MODEL), {"name": name})
    if gone is None:
        await load_model(connection, name)
    return RegistryChange(name=name, edit=Edit.REMOVED, revision=gone or 1)


async def remove_runtime(connection: AsyncConnection, name: str) -> RegistryChange:
    """Remove a runtime. Raises NotFoundError, and RefusedError where it is built in or models
    have it."""
    await _take_turn(connection)
    _refuse_built_in(name, "it is not removed")
    if name not in (runtimes := await load_runtimes(connection)):
        runtime_in(runtimes, name)
    rows = await connection.scalars(text(_MODELS_OF), {"name": name})
    if models := list(rows):
        raise RefusedError(
            f"runtime {name} serves {listed(models, _NAMED)}: give "
            f"{'it' if len(models) == 1 else 'them'} another one first, or `longshore models rm`"
        )
    async with _told("runtime"):
        gone = await connection.scalar(text(_REMOVE_RUNTIME), {"name": name})
    return RegistryChange(name=name, edit=Edit.REMOVED, revision=gone or 1)


async def _take_turn(connection: AsyncConnection) -> None:
    """One edit after another: what one says that it changes is as it was."""
    await connection.execute(text(_TURN))


@asynccontextmanager
async def _told(about: str) -> AsyncIterator[None]:
    """Raise what the database refuses as RefusedError, in words."""
    try:
        yield
    except IntegrityError as error:
        cause = error.orig
        if getattr(cause, "sqlstate", None) == _OURS:
            raise RefusedError(f"{about} {str(cause).partition(chr(10))[0]}") from error
        constraint = getattr(getattr(cause, "diag", None), "constraint_name", None)
        if constraint not in _IN_WORDS:
            raise
        raise RefusedError(f"{about} {_IN_WORDS[constraint]}") from error


_IN_WORDS: Mapping[str | None, str] = {
    "models_runtime_fkey": "is not stored: its runtime was removed meanwhile",
    "services_model_fkey": "is served: `longshore services` lists what serves it",
}
"""By foreign key. A table whose rows use a model refers to `models`, and has its words here: so
the database refuses the removal, and who asks hears why."""


def _refuse_built_in(name: str, instead: str) -> None:
    if name in BUILT_IN:
        raise RefusedError(f"runtime {name} is built in: {instead}")


def _refuse_unknown(what: str, name: str, known: Sequence[str], instead: str) -> NoReturn:
    close = difflib.get_close_matches(name, known, n=1)
    there = f"there is {listed(known, _NAMED)}" if known else f"there is none: {instead}"
    hint = f"did you mean {close[0]}?" if close else there
    raise NotFoundError(f"there is no {what} {shown(name)}; {hint}")


def _change(
    name: str, before: object, fields: tuple[str, ...], revision: int | None
) -> RegistryChange:
    edit = Edit.CHANGED if before else Edit.MADE
    return RegistryChange(name=name, edit=edit, fields=fields, revision=revision or 1)


def _as_stored(row: RowMapping, wanted: Examined) -> Examined:
    """Return it with the revision since which it has its files."""
    before = _model(row).facts
    if before is None or wanted.facts is None:
        return wanted
    return replace(wanted, facts=wanted.facts.after(before, row["revision"] + 1))


def _model_differences(row: RowMapping, wanted: Examined) -> tuple[str, ...]:
    before = _model(row)
    if before.trouble:
        return (_UNREADABLE,)
    found = tuple(differences(before.spec, wanted.spec))
    if found or _same(before.facts, wanted.facts):
        return found
    was, now = memory_of(before.spec, before.facts), memory_of(wanted.spec, wanted.facts)
    sizes = format_bytes(was), format_bytes(now)
    grows = f": {sizes[0]} to {sizes[1]}" if sizes[0] != sizes[1] else ""
    said = list(_files_differences(before.facts, wanted.facts))
    return (f"{said[0]}{grows}", *said[1:])


def _files_differences(before: ModelFacts | None, after: ModelFacts | None) -> Iterator[str]:
    """Yield what the files say that is another than before."""
    read = "what its files say"
    if before is None or after is None:
        yield read
        return
    if known := after.adapters_known_since(before):
        one, names = len(known) == 1, listed(known, len(known))
        yield f"the {'adapter' if one else 'adapters'} {names} {'is' if one else 'are'} known now"
    if not after.is_shaped_as(before, but_adapters=bool(known)):
        yield read
    elif others := after.others_than(before):
        yield f"{listed(others, len(others))}, which are others of the same shape"


def _same(before: ModelFacts | None, after: ModelFacts | None) -> bool:
    if before is None or after is None:
        return before is after
    return after.is_shaped_as(before) and not after.others_than(before)


def _model(row: RowMapping) -> ModelView:
    """Return a model; one that cannot be read with its trouble."""
    facts, trouble = None, ""
    try:
        spec = ModelSpec.model_validate(row["spec"], context=TAKEN)
        facts = row["facts"] and ModelFacts.as_known(row["facts"])
    except ValidationError as error:
        trouble = _trouble("model", row["name"], error)
        spec = ModelSpec(name=row["name"], source="/", runtime=row["runtime"])
    return ModelView(
        spec=spec, facts=facts, memory=memory_of(spec, facts), revision=row["revision"],
        changed_by=row["changed_by"], changed_at=row["changed_at"], created_at=row["created_at"],
        trouble=trouble,
    )  # fmt: skip


def _runtime(row: RowMapping) -> RuntimeView | None:
    """Return a runtime, one that cannot be read with its trouble; None of one that a newer version
    has built in."""
    name, trouble = row["name"], ""
    if row["spec"] is None:
        known = BUILT_IN.get(name)
        return known and RuntimeView(runtime=known, built_in=True, models=row["models"])
    try:
        runtime = Runtime.model_validate(row["spec"], context=TAKEN)
    except ValidationError as error:
        trouble = _trouble("runtime", name, error)
        runtime = Runtime(name=name, command=("{port}",))
    return RuntimeView(
        runtime=runtime, built_in=False, models=row["models"], revision=row["revision"],
        changed_by=row["changed_by"], changed_at=row["changed_at"], trouble=trouble,
    )  # fmt: skip


def _trouble(what: str, name: str, error: ValidationError) -> str:
    first = describe_all(error)[0]
    return (
        f"what is stored of {what} {name} cannot be read: {first}. `longshore {what}s add` stores "
        f"it anew, `longshore {what}s rm {name}` removes it"
    )


_TURN = "SELECT pg_advisory_xact_lock(hashtextextended('longshore models', 0))"

_COLUMNS = "name, runtime, spec, facts, revision, changed_by, changed_at, created_at"
_MODELS = f"SELECT {_COLUMNS} FROM models ORDER BY name"
_MODEL = f"SELECT {_COLUMNS} FROM models WHERE name = :name"
_MODELS_OF = "SELECT name FROM models WHERE runtime = :name ORDER BY name"

_RUNTIMES = """
    SELECT r.name, r.spec, r.revision, r.changed_by, r.changed_at,
           (SELECT count(*) FROM models m WHERE m.runtime = r.name) AS models
      FROM runtimes r ORDER BY r.spec IS NOT NULL, r.name
"""

_GPUS = """
    SELECT n.id, n.gpu_type, count(*) AS gpus, min(g.vram_mb) AS vram_mb
      FROM nodes n JOIN gpus g ON g.node_id = n.id
     WHERE n.state <> 'GONE'
     GROUP BY n.id ORDER BY n.id
"""

_SET_MODEL = """
    INSERT INTO models (name, runtime, spec, facts, changed_by)
    VALUES (:name, :runtime, CAST(:spec AS jsonb), CAST(:facts AS jsonb), :by)
    ON CONFLICT (name) DO UPDATE
       SET runtime = excluded.runtime, spec = excluded.spec, facts = excluded.facts,
           changed_by = excluded.changed_by
    RETURNING revision
"""

_SET_RUNTIME = """
    INSERT INTO runtimes (name, spec, changed_by) VALUES (:name, CAST(:spec AS jsonb), :by)
    ON CONFLICT (name) DO UPDATE
       SET spec = excluded.spec, changed_by = excluded.changed_by
    RETURNING revision
"""

_REMOVE_MODEL = "DELETE FROM models WHERE name = :name RETURNING revision"
_REMOVE_RUNTIME = "DELETE FROM runtimes WHERE name = :name RETURNING revision"
