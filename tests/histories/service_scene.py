"""A service: begun, ready, scaled, looked at so often that it continues as new, and removed."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.serving.service_rows import (
    record_service,
    remove_service,
    scale_service,
)
from longshore.activities.serving.service_views import service_view
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ServiceSpec, ServiceView
from longshore.models.service_messages import EngineNotice, ServiceInput, service_workflow_id
from longshore.models.serving import EngineReport, EngineSpec, EngineStage, ModelSpec
from longshore.workflows.service import ServiceWorkflow
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

NAME = "served"


async def play(
    temporal: Client,
    database: Database,
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    model = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
    engine = EngineSpec(model=model, runtime=BUILT_IN["llama.cpp"], memory=1000)
    spec = ServiceSpec(name=NAME, model="tiny", pool=NAME)
    async with database.transaction() as connection:
        await record_service(connection, spec, engine, 1)

    async def view() -> ServiceView:
        async with database.transaction() as connection:
            return await service_view(connection, NAME)

    async with node(NAME, pool=NAME) as here:
        service = await temporal.start_workflow(
            ServiceWorkflow.run, ServiceInput(max_looks_per_run=3), id=service_workflow_id(NAME),
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip

        async def begun() -> bool:
            return bool((await view()).replicas)

        await eventually(begun)
        (replica,) = (await view()).replicas
        await here.started(replica.job_id)
        report = EngineReport(stage=EngineStage.READY, endpoint="http://127.0.0.1:1/v1")
        await service.signal(
            ServiceWorkflow.engine,
            EngineNotice(job_id=replica.job_id, attempt=1, node_id=NAME, report=report),
        )

        async def ready() -> bool:
            return (await view()).ready == 1

        await eventually(ready)
        async with database.transaction() as connection:
            await scale_service(connection, NAME, 0)
        await service.signal(ServiceWorkflow.poke)

        async def empty() -> bool:
            return not (await view()).replicas

        await eventually(empty)
        async with database.transaction() as connection:
            await remove_service(connection, NAME)
        await service.signal(ServiceWorkflow.poke)
        await service.result()
