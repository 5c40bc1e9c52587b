"""Revisions of services as they are stored: what a service was to be like at one time."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.stored_specs import stored_error
from longshore.models.bounds import TAKEN
from longshore.models.errors import NotFoundError, StoredError
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSize, EngineSpec
from longshore.models.visible import shown

BY_HAND = "by hand: back to revision "
"""Begins why a revision was undone, where somebody went back from it; somebody, or an update that
fails, may go back to it again."""
_READ_SIZES = TypeAdapter(tuple[EngineSize, ...])


async def revision_of(
    connection: AsyncConnection, name: str, number: int
) -> tuple[ServiceSpec, EngineSpec]:
    """Return what a revision says. Raises NotFoundError, StoredError where it cannot be read."""
    rows = await connection.execute(text(_REVISION), {"name": name, "number": number})
    row = rows.mappings().one_or_none()
    if row is None:
        raise NotFoundError(
            f"service {shown(name)} has no revision {number}: `longshore service {name}` lists "
            "them"
        )
    return read_revision(name, number, row)


async def sizes_of(connection: AsyncConnection, name: str, number: int) -> tuple[EngineSize, ...]:
    """Return the sizes that replicas of a revision may have, the fewest GPUs first; none where
    they have that of its engine. Raises StoredError."""
    stored = await connection.scalar(text(_SIZES), {"name": name, "number": number})
    try:
        return _READ_SIZES.validate_python(stored or (), context=TAKEN)
    except ValidationError as error:
        what = f"what is stored of the sizes of revision {number} of service {name}"
        found = stored_error(what, stored, error)
        raise StoredError(found.source, (*found.problems, _mend(name))) from error


async def undone_alike(connection: AsyncConnection, name: str, number: int) -> tuple[int, int]:
    """Return the newest revision that was undone, never ready, and had the engine of this one;
    and the revision of the model. 0 and 0 where there is none, or one with that engine was ever
    ready."""
    row = {"name": name, "number": number}
    found = (await connection.execute(text(_UNDONE_ALIKE), row)).one_or_none()
    return (found.number, found.model_revision) if found else (0, 0)


async def model_revision_of(connection: AsyncConnection, name: str, number: int) -> int:
    """Return the revision of the model that a revision serves; 0 where there is none."""
    row = {"name": name, "number": number}
    return int(await connection.scalar(text(_MODEL_REVISION), row) or 0)


async def measured_memory(
    connection: AsyncConnection, engine: EngineSpec, model_revision: int
) -> int:
    """Return the most bytes of GPU memory that an engine like this one was seen to take; 0 where
    none was. One of another revision of the model is not: it may have had another file."""
    like = {**_alike(engine), "model_revision": model_revision}
    return int(await connection.scalar(text(_MEASURED), like) or 0)


async def measured_load(connection: AsyncConnection, engine: EngineSpec) -> timedelta:
    """Return the longest that an engine like this one took to load; 0 where none has."""
    return timedelta(seconds=await connection.scalar(text(_LOAD), _alike(engine)) or 0)


def _alike(engine: EngineSpec) -> dict[str, str]:
    """Return what engines like this one have in common with it."""
    return {
        "model": engine.model.model_dump_json(), "runtime": engine.runtime.model_dump_json(),
    }  # fmt: skip


def read_revision(
    name: str, number: int, row: Mapping[str, Any] | RowMapping
) -> tuple[ServiceSpec, EngineSpec]:
    """Return what a row with `spec` and `engine` says. Raises StoredError."""
    what = f"what is stored of revision {number} of service {name}"
    stored = row["spec"]
    try:
        spec = ServiceSpec.model_validate(stored, context=TAKEN)
        stored = row["engine"]
        return spec, EngineSpec.model_validate(stored, context=TAKEN)
    except ValidationError as error:
        found = stored_error(what, stored, error)
        raise StoredError(found.source, (*found.problems, _mend(name))) from error


def _mend(name: str) -> str:
    return (
        "where a newer version has stored it, run that one; `longshore serve FILE` stores it "
        f"anew, `longshore service {name} --remove` removes it"
    )


_REVISION = """
    SELECT spec, engine FROM service_revisions WHERE service = :name AND number = :number
"""
_SIZES = "SELECT sizes FROM service_revisions WHERE service = :name AND number = :number"
_MODEL_REVISION = """
    SELECT model_revision FROM service_revisions WHERE service = :name AND number = :number
"""
_UNDONE_ALIKE = """
    SELECT o.number, v.model_revision
      FROM service_revisions v
      JOIN service_revisions o ON o.service = v.service AND o.engine = v.engine
     WHERE v.service = :name AND v.number = :number AND o.undone IS NOT NULL
       AND NOT EXISTS (SELECT FROM service_revisions w
                        WHERE w.service = v.service AND w.engine = v.engine
                          AND w.ready_at IS NOT NULL)
     ORDER BY o.number DESC LIMIT 1
"""
_ALIKE = """
      FROM service_revisions v
      JOIN replicas r ON r.service = v.service AND r.revision = v.number
     WHERE v.engine -> 'model' = CAST(:model AS jsonb)
       AND v.engine -> 'runtime' = CAST(:runtime AS jsonb)
"""
_MEASURED = f"SELECT max(r.memory) {_ALIKE} AND v.model_revision = :model_revision"
_LOAD = f"SELECT max(r.load_seconds) {_ALIKE}"
