"""What `doctor` says of services."""

from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.serving.service_rows import record_service, remove_service
from longshore.activities.signals import Signals
from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ReplicaView, ServiceSpec, ServiceState, ServiceView
from longshore.models.service_messages import service_workflow_id
from longshore.models.serving import EngineSpec, EngineStage, ModelSpec
from longshore.workers.doctor.findings import Level
from longshore.workers.doctor.services import services, wrong_with

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
MODEL = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
ENGINE = EngineSpec(model=MODEL, runtime=BUILT_IN["llama.cpp"], memory=1000)


def an_engine(**fields: Any) -> ReplicaView:
    usual = {
        "job_id": "chat-r1-a", "service": "chat", "model": "tiny", "revision": 1,
        "stage": EngineStage.READY, "node_id": "a", "gpu_indices": (0,), "endpoint": "http://x",
        "leased": 1000, "used": 400, "created_at": NOW,
    }  # fmt: skip
    return ReplicaView.model_validate(usual | fields)


def a_service(*engines: ReplicaView, **fields: Any) -> ServiceView:
    usual = {
        "name": "chat", "state": ServiceState.RUNNING, "revision": 1, "replicas": engines,
        "ready": sum(bool(each.endpoint) for each in engines), "updated_at": NOW,
        "spec": ServiceSpec(name="chat", model="tiny"),
    }  # fmt: skip
    return ServiceView.model_validate(usual | fields)


FAILED = an_engine(
    stage=EngineStage.LOADING, endpoint="", failures=4, failed=True, message="it broke"
)


@pytest.mark.parametrize(
    ("service", "says"),
    [
        (a_service(an_engine(failures=4)), []),
        (a_service(an_engine(stage=None, endpoint="", failures=4)), []),
        (a_service(an_engine(endpoint="")), []),
        (a_service(trouble="what is stored: no"), ["what is stored: no"]),
        (a_service(trouble="what is stored: no", state=ServiceState.REMOVING), []),
        (
            a_service(an_engine(used=2100, gpu_indices=(0, 1)), an_engine(job_id="b", used=1001)),
            ["more GPU memory is taken than is held: chat-r1-a takes 2.1GB, holds 2GB; "
             "b takes 1.001GB, holds 1GB"],
        ),
        (
            a_service(FAILED),
            ["service chat: 0 of 1 replica ready; engines of chat-r1-a failed 4 times, the last "
             "one: it broke"],
        ),
        (a_service(FAILED, an_engine()), []),
        (a_service(FAILED, state=ServiceState.REMOVING), []),
    ],
)  # fmt: skip
def test_what_is_wrong_with_services(service: ServiceView, says: list[str]):
    found = wrong_with([service])
    assert [each.says for each in found] == says
    assert {each.level for each in found} <= {Level.WARN}


async def test_one_that_nobody_keeps_is_named(control: Database, temporal: Client, pool: str):
    assert await services(temporal, control) == []
    names = [f"a-{pool}", f"b-{pool}"]
    for name in names:
        spec = ServiceSpec(name=name, model="tiny", pool=pool, replicas=0)
        async with control.transaction() as connection:
            await record_service(connection, spec, ENGINE, 1)
    await Signals(temporal).begin_service(names[0])
    (found,) = await services(temporal, control)
    assert found.level is Level.WARN
    assert found.says.startswith(f"nobody keeps {names[1]}: no workflow runs")
    assert "longshore reconcile" in found.mend
    await Signals(temporal).begin_service(names[1])
    (found,) = await services(temporal, control)
    assert (found.level, found.says) == (Level.OK, "2 services, 0 of 0 replicas ready")
    for name in names:
        async with control.transaction() as connection:
            await remove_service(connection, name)
        await Signals(temporal).begin_service(name)
        await temporal.get_workflow_handle(service_workflow_id(name)).result()
