"""From a model that was added to the engine that serves it."""

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.serving.stored_models import load_model, load_runtimes, runtime_in
from longshore.models.errors import SpecError
from longshore.models.serving import EngineSpec
from longshore.scheduling.serving.replica_job import memory_of_each


async def engine_of(connection: AsyncConnection, name: str) -> tuple[EngineSpec, int]:
    """Return what an engine of a model is to be like, and the revision of the model.

    Raises NotFoundError, SpecError where it is too large to be started, and StoredError where what
    is stored cannot be read.
    """
    model = await load_model(connection, name)
    runtime = runtime_in(await load_runtimes(connection), model.spec.runtime).runtime
    engine = EngineSpec(
        model=model.spec, runtime=runtime, memory=memory_of_each(model.spec, model.memory)
    )
    if why := engine.too_large:
        raise SpecError(f"model {name}", (f"model {name}: {why}",))
    return engine, model.revision
