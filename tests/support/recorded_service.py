"""A service that is on record, whose steps a test makes itself."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from longshore.activities.database import Database
from longshore.activities.serving.service_rows import (
    record_service,
    remove_service,
)
from longshore.activities.serving.service_views import service_view, services_view
from longshore.activities.serving.services import ServiceActivities
from longshore.models.job import JobSpec
from longshore.models.messages import JobInput, job_workflow_id
from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ServiceSpec, ServiceView
from longshore.models.service_messages import (
    AdvanceService,
    EngineNotice,
    ServiceProgress,
)
from longshore.models.serving import (
    EngineReport,
    EngineSize,
    EngineSpec,
    EngineStage,
    ModelSpec,
)
from tests.support.waiting import eventually

MODEL = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
ENGINE = EngineSpec(model=MODEL, runtime=BUILT_IN["llama.cpp"], memory=1000)
SIZES = (EngineSize(gpus=1, memory=500_000), EngineSize(gpus=4, memory=130_000))


class RecordedService:
    """A service that is on record, in a pool without nodes; no workflow follows it."""

    def __init__(self, control: Database, temporal: Client, pool: str) -> None:
        self.control, self.temporal = control, temporal
        self.steps = ServiceActivities(control, temporal)
        self.name, self.pool = f"s-{pool}", pool
        # Of a model of its own: what engines of one take counts for all of its services.
        model = MODEL.model_copy(update={"source": f"/m/{pool}.gguf"})
        self.engine = ENGINE.model_copy(update={"model": model})
        self.model_revision = 1

    async def record(self, sizes: Sequence[EngineSize] = (), **fields: Any) -> int:
        given = {"name": self.name, "model": "tiny", "pool": self.pool, "drain": 0, **fields}
        async with self.control.transaction() as connection:
            spec = ServiceSpec.model_validate(given)
            return await record_service(connection, spec, self.engine, self.model_revision, sizes)

    async def look(self, *notices: EngineNotice, attempt: int = 1) -> ServiceProgress:
        step = ActivityEnvironment()
        step.info = dataclasses.replace(step.info, attempt=attempt)
        request = AdvanceService(service=self.name, notices=notices)
        return await step.run(self.steps.advance_service, request)

    async def queued(self, job_id: str) -> int:
        """Wait until the job of a replica is in its queue; return the MB that its engine holds."""

        async def held() -> int | None:
            async with self.control.transaction() as connection:
                return await connection.scalar(
                    text("SELECT (spec #>> '{engine,memory}')::integer FROM jobs WHERE id = :id"),
                    {"id": job_id},
                )

        return await eventually(held) or 0

    async def start_of(self, job_id: str) -> JobSpec:
        """Return what a job was started with."""
        handle = self.temporal.get_workflow_handle(job_workflow_id(job_id))
        first = await anext(aiter(handle.fetch_history_events()))
        given = first.workflow_execution_started_event_attributes.input.payloads
        (found,) = await self.temporal.data_converter.decode(given, [JobInput])
        return found.spec

    async def view(self) -> ServiceView:
        async with self.control.transaction() as connection:
            return await service_view(connection, self.name)

    async def begin_one(self, revision: int, job_id: str) -> None:
        """Insert a replica as no code of ours would."""
        async with self.control.transaction() as connection:
            await connection.execute(
                text(
                    "INSERT INTO replicas (job_id, service, revision)"
                    " VALUES (:id, :name, :revision)"
                ),
                {"id": job_id, "name": self.name, "revision": revision},
            )

    async def spoil(self, **changed: Any) -> int:
        """Go to a new revision as a newer version may write it; return it."""
        other = {"spec": {"newer": 1}, "engine": {}} | changed
        async with self.control.transaction() as connection:
            await connection.execute(
                text(
                    "WITH newest AS ("
                    " INSERT INTO service_revisions (service, number, spec, engine,"
                    "                                model_revision)"
                    " SELECT service, number + 1, spec || CAST(:spec AS jsonb),"
                    "        engine || CAST(:engine AS jsonb), 1"
                    "   FROM service_revisions WHERE service = :name"
                    "  ORDER BY number DESC LIMIT 1 RETURNING number)"
                    " UPDATE services SET revision = newest.number FROM newest"
                    "  WHERE name = :name"
                ),
                {"name": self.name} | {part: json.dumps(value) for part, value in other.items()},
            )
            found = await connection.scalar(
                text("SELECT revision FROM services WHERE name = :name"), {"name": self.name}
            )
            return int(found or 0)

    async def listed(self) -> ServiceView:
        """Return it as it stands among all services."""
        async with self.control.snapshot() as connection:
            (found,) = [one for one in await services_view(connection) if one.name == self.name]
            return found

    async def remove(self) -> None:
        async with self.control.transaction() as connection:
            await remove_service(connection, self.name)

    def said(self, job_id: str, stage: EngineStage, attempt: int = 1) -> EngineNotice:
        report = EngineReport(stage=stage, endpoint="http://127.0.0.1:1/v1", message="it broke")
        return EngineNotice(job_id=job_id, attempt=attempt, node_id="n", report=report)

    async def end(self) -> None:
        async with self.control.transaction() as connection:
            await remove_service(connection, self.name)
        await self.look()
        for each in (await self.view()).replicas:
            handle = self.temporal.get_workflow_handle(job_workflow_id(each.job_id))
            with pytest.raises(Exception, match=r"ailed|ancelled"):
                await handle.result()
