"""What is told of a replica of an update that has no room beside the old ones."""

from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.serving.update_room import replaced_by
from longshore.activities.views import Views
from longshore.client.explainer import Explainer
from longshore.models.explanation import Explanation
from longshore.models.serving import EngineStage
from longshore.models.settings import Settings
from tests.support.recorded_service import RecordedService
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

_LEAVES = (
    "have an old replica leave first: `unavailable: 1` in the file of its service, and `longshore "
    "serve FILE`, and nobody answers meanwhile"
)


async def _nobody() -> None:
    return None


async def _explained(served: RecordedService, job_id: str) -> Explanation:
    job = await Views(served.control).job(job_id)
    return await Explainer(served.control, Settings(), _nobody).explanation(job)


async def _updated(served: RecordedService, node: ScriptedNode, tenant: str = "default") -> str:
    """Have a replica on a node that is ready, and an update; return its replica, which waits."""
    served.engine = served.engine.model_copy(update={"memory": 70_000})
    await served.record(tenant=tenant)
    await served.look()
    (old,) = (await served.view()).replicas
    await node.started(old.job_id)
    await served.look(served.said(old.job_id, EngineStage.READY))
    await served.record(drain="5s", tenant=tenant)
    await served.look()
    (new,) = {each.job_id for each in (await served.view()).replicas} - {old.job_id}

    async def decided() -> bool:
        told = [each for each in (await served.view()).replicas if each.job_id == new]
        return bool(told[0].message)

    await eventually(decided)
    async with served.control.transaction() as connection:
        assert (await replaced_by(connection, new)).job_ids == {old.job_id}
        assert not (await replaced_by(connection, old.job_id)).replicas
    return new


async def test_where_only_the_old_ones_are_in_its_way_no_end_and_no_stop_is_offered(
    served: RecordedService, temporal: Client, settings: Settings, pool: str
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=1)
    async with node.serving():
        await node.register()
        new = await _updated(served, node)
        told = await _explained(served, new)
        assert told.hints[:2] == (_LEAVES, "add a node")
        assert not any("running jobs" in hint or "preempt" in hint for hint in told.hints)
        assert told.weighed is not None
        assert [way.title for way in told.weighed.ways] == ["wait, nobody knows for how long"]
        await served.record(drain="5s", unavailable=1)
        async with served.control.transaction() as connection:
            assert not (await replaced_by(connection, new)).replicas
        await served.end()


async def test_below_a_quota_that_the_old_ones_fill_it_is_named_too(
    served: RecordedService, temporal: Client, settings: Settings, pool: str
) -> None:
    tenant = f"t-{pool}"
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=2)
    async with served.control.transaction() as connection:
        quota = "INSERT INTO tenants (name, quotas) VALUES (:name, '{\"max_gpus\": 1}')"
        await connection.execute(text(quota), {"name": tenant})
    async with node.serving():
        await node.register()
        new = await _updated(served, node, tenant=tenant)
        told = await _explained(served, new)
        assert told.hints[0] == _LEAVES
        assert [each.startswith("raise the quota: ") for each in told.hints[1:]] == [True]
        await served.end()
