"""A drain of a node, and its end, wake the services with replicas there; no agent has to."""

from temporalio.client import Client

from longshore.activities.signals import Signals
from longshore.models.service import ReplicaView
from longshore.models.service_messages import service_workflow_id
from longshore.models.serving import EngineStage
from longshore.workflows.service import ServiceWorkflow
from tests.support.recorded_service import RecordedService
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def test_a_drain_and_its_end_wake_the_services_on_a_node(
    served: RecordedService, node: ScriptedNode, temporal: Client
):
    await served.record(replicas=1)
    await Signals(temporal).begin_service(served.name)
    workflow_id = service_workflow_id(served.name)
    service = temporal.get_workflow_handle_for(ServiceWorkflow.run, workflow_id)

    async def has(number: int, message: str = "") -> list[ReplicaView]:
        async def is_so() -> bool:
            found = await served.view()
            staying = [each for each in found.replicas if not each.stopping]
            return len(staying) == number and found.message == message

        await eventually(is_so)
        return [each for each in (await served.view()).replicas if not each.stopping]

    async def begun() -> bool:
        return bool((await served.view()).replicas)

    await eventually(begun)
    (old,) = (await served.view()).replicas
    await node.started(old.job_id)
    await service.signal("engine", served.said(old.job_id, EngineStage.READY))
    await has(1)
    await node.cordon("a look at it")
    assert (await served.look()).reason == "", "what runs there goes on"
    await node.drain("new disk", move=True)
    says = "1 replica to be replaced (1 on a node that drains): 0 of 1 new ones ready"
    await has(2, says)
    await node.uncordon()
    assert [each.job_id for each in await has(1)] == [old.job_id]
    await served.remove()
    await service.signal(ServiceWorkflow.poke)
    await service.result()
