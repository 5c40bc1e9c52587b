"""A service whose workflow, or whose replica's workflow, somebody terminated."""

from datetime import timedelta

from sqlalchemy import text
from temporalio.client import Client, WorkflowExecutionStatus

from longshore.activities.database import Database
from longshore.activities.serving.service_rows import record_service, remove_service
from longshore.activities.signals import Signals
from longshore.client.api import Longshore
from longshore.client.reconcile import reconcile
from longshore.models.messages import job_workflow_id
from longshore.models.reconcile import FindingKind, ReconcileRequest
from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ServiceSpec, ServiceState
from longshore.models.service_messages import service_workflow_id
from longshore.models.serving import EngineSpec, ModelSpec
from tests.support.waiting import eventually

AT_ONCE = timedelta(seconds=0.3)
SOON = ReconcileRequest(margin=AT_ONCE, missing_margin=AT_ONCE, second_look=AT_ONCE)


async def test_a_service_and_a_replica_whose_workflows_were_terminated_come_again(
    longshore: Longshore, control: Database, temporal: Client, pool: str
):
    name = f"s-{pool}"
    model = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
    engine = EngineSpec(model=model, runtime=BUILT_IN["llama.cpp"], memory=1000)
    async with control.transaction() as connection:
        await record_service(
            connection, ServiceSpec(name=name, model="tiny", pool=pool), engine, 1
        )
    await Signals(temporal).begin_service(name)

    async def replicas() -> list[str]:
        return [each.job_id for each in (await longshore.service(name)).replicas]

    async def queued() -> bool:
        async with control.transaction() as connection:
            waits = text("SELECT job_id FROM queue WHERE pool = :pool")
            jobs = list(await connection.scalars(waits, {"pool": pool}))
        return bool(jobs) and jobs == await replicas()

    await eventually(queued)
    (first,) = await replicas()
    workflow = temporal.get_workflow_handle(service_workflow_id(name))
    await workflow.terminate()
    await temporal.get_workflow_handle(job_workflow_id(first)).terminate()
    found = set[FindingKind]()

    async def another() -> bool:
        report = await reconcile(longshore, SOON)
        found.update(each.kind for each in report.findings)
        now = await replicas()
        return len(now) == 1 and now != [first]

    await eventually(another)
    assert {FindingKind.SERVICE_NOT_FOLLOWED, FindingKind.END_NOT_RECORDED} <= found
    assert (await workflow.describe()).status is WorkflowExecutionStatus.RUNNING
    async with control.transaction() as connection:
        await remove_service(connection, name)
    await Signals(temporal).begin_service(name)
    await workflow.result()
    assert (await longshore.service(name)).state is ServiceState.REMOVED
