"""What reconcile does for an array whose workflow, or that of a slot, was ended from outside."""

from datetime import timedelta

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.views import Views
from longshore.client.api import Longshore
from longshore.client.reconcile import reconcile
from longshore.models.elements import ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.reconcile import Finding, FindingKind, ReconcileRequest
from tests.support.control import reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

AT_ONCE = timedelta(seconds=0.3)
SOON = ReconcileRequest(margin=AT_ONCE, missing_margin=AT_ONCE, second_look=AT_ONCE)


async def an_array(longshore: Longshore, pool: str) -> str:
    retry = {"node": {"max_retries": 0}}
    spec = JobSpec.model_validate(
        {"name": "array", "command": "true", "pool": pool, "array": "0-2%1", "retry": retry}
    )
    return (await longshore.submit(spec)).job_id


async def has_ended(longshore: Longshore, control: Database, array_id: str) -> bool:
    await reconcile(longshore, SOON)
    # By its record: what people are shown of a terminated one comes before that.
    return (await Views(control).job(array_id)).ended_at is not None


async def test_an_array_that_was_terminated_has_failed_and_can_be_gone_on_with(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    array_id = await an_array(longshore, pool)
    await node.batch_of(f"{array_id}.s1")
    await temporal.get_workflow_handle(job_workflow_id(array_id)).terminate()
    await eventually(lambda: has_ended(longshore, control, array_id))
    await node.end_batches(f"{array_id}.s1")  # its slot takes no more
    array = (await longshore.report(array_id)).array
    assert array
    assert array.counts == {ElementState.SUCCEEDED: 1, ElementState.WAITING: 2}
    assert await longshore.retry_array(array_id) == (array_id, 2)
    await node.end_batches(f"{array_id}.s2")
    assert (await longshore.wait(array_id)).state is JobState.SUCCEEDED


async def test_what_a_terminated_slot_had_has_failed_and_the_rest_is_told_why(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    array_id = await an_array(longshore, pool)
    await node.batch_of(f"{array_id}.s1")
    await temporal.get_workflow_handle(job_workflow_id(f"{array_id}.s1")).terminate()
    await eventually(lambda: has_ended(longshore, control, array_id))
    found = await longshore.elements(array_id)
    assert {each.state for each in found} == {ElementState.FAILED}
    assert "did not say what became of it" in found[0].message
    assert "no slot was left to run it" in found[-1].message


@pytest.mark.exhaustive
async def test_slots_of_an_array_that_was_terminated_give_up_what_they_hold(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    array_id = await an_array(longshore, pool)
    await node.batch_of(f"{array_id}.s1")
    await temporal.get_workflow_handle(job_workflow_id(array_id)).terminate()

    async def slot_has_ended() -> bool:
        report = await reconcile(longshore, SOON)
        said.extend(each for each in report.findings if each.kind is FindingKind.SLOT_LEFT)
        return (await Views(control).job(f"{array_id}.s1")).ended_at is not None

    said: list[Finding] = []
    await eventually(slot_has_ended)
    assert said[0].subject == f"job {array_id}.s1"
    assert said[0].mended
    await reaches(longshore, f"{array_id}.s1", JobState.CANCELLED)
    gpus = [gpu for each in await longshore.nodes() if each.pool == pool for gpu in each.gpus]
    assert gpus
    assert {gpu.job_id for gpu in gpus} == {None}
    array = (await longshore.report(array_id)).array
    assert array
    assert ElementState.RUNNING not in array.counts
    assert (await reconcile(longshore, SOON)).findings == ()
