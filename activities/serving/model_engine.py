"""From a model that was added to the engine that serves it."""

from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.stored_specs import stored_error
from longshore.models.errors import NotFoundError
from longshore.models.model_registry import ModelFacts
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import EngineSpec, ModelSpec, Runtime
from longshore.models.visible import shown
from longshore.scheduling.serving.replica_job import memory_of_each


async def engine_of(connection: AsyncConnection, name: str) -> tuple[EngineSpec, int]:
    """Return what an engine of a model is to be like, and the revision of the model.

    Raises NotFoundError, and StoredError where what is stored cannot be read.
    """
    row = (await connection.execute(text(_MODEL), {"name": name})).mappings().one_or_none()
    if row is None:
        raise NotFoundError(
            f"no model {shown(name)}: `longshore models list` lists them, `longshore models add` "
            "adds one"
        )
    try:
        model = ModelSpec.model_validate(row["spec"])
        facts = None if row["facts"] is None else ModelFacts.model_validate(row["facts"])
        runtime = BUILT_IN.get(model.runtime) or Runtime.model_validate(row["runtime_spec"])
    except ValidationError as error:
        raise stored_error(f"what is stored of model {name}", row["spec"], error) from error
    memory = memory_of_each(model, None if facts is None else facts.memory.total)
    return EngineSpec(model=model, runtime=runtime, memory=memory), row["revision"]


_MODEL = """
    SELECT m.spec, m.facts, m.revision, r.spec AS runtime_spec
      FROM models m JOIN runtimes r ON r.name = m.runtime
     WHERE m.name = :name
"""
