"""Running jobs are asked to save where that is worth it; every decision is kept with its terms."""

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.models.checkpointing import (
    CheckpointDecision,
    CheckpointPolicy,
    CheckpointWatchReport,
)
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.pool import PoolSpec
from longshore.models.settings import Settings
from longshore.workflows.checkpoints import CheckpointWatchWorkflow
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

SAVES = {"folder": "saves", "save_file": True}
DANGEROUS = CheckpointPolicy(
    min_interval=timedelta(0), failures_per_hour=1000, storage_price=0
)  # fmt: skip


async def test_a_job_that_would_lose_more_than_a_save_costs_is_asked(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    await _set(control, PoolSpec(name=pool, checkpoints=DANGEROUS))
    contract = {**SAVES, "grace": 0.001}
    can = (await longshore.submit(a_spec(pool, checkpoint=contract))).job_id
    cannot = (await longshore.submit(a_spec(pool, checkpoint={"folder": "saves"}))).job_id
    for job_id in (can, cannot):
        await node.started(job_id)
    report = await eventually(lambda: _asks(temporal, can))  # once there is enough to lose
    assert cannot not in report.asked
    (save,) = node.saves
    assert (save.key.job_id, save.key.attempt) == (can, 1)
    decision = await _decision(control, can)
    assert decision is not None
    assert decision.save
    assert decision.value > decision.cost
    assert {term.name for term in decision.terms} >= {"failure", "preemption"}
    assert await _decision(control, cannot) is None
    assert await longshore.saving(can) == (await longshore.explain(can)).saving == decision
    assert await longshore.saving(cannot) is None
    for job_id in (can, cannot):
        await node.end(job_id)
        await longshore.wait(job_id)


async def test_a_job_that_has_just_begun_is_left_alone_and_the_reason_is_kept(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    job_id = (await longshore.submit(a_spec(pool, checkpoint=SAVES))).job_id
    await node.started(job_id)
    assert job_id not in (await _watch(temporal)).asked
    decision = await _decision(control, job_id)
    assert decision is not None
    assert not decision.save
    assert "at least 5m" in decision.reason
    await node.end(job_id)
    await longshore.wait(job_id)


async def test_a_node_that_does_not_answer_is_reported(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    always = CheckpointPolicy(min_interval=timedelta(0), max_interval=timedelta(0))
    await _set(control, PoolSpec(name=pool, checkpoints=always))
    job_id = (await longshore.submit(a_spec(pool, checkpoint=SAVES))).job_id
    await node.started(job_id)
    node.refusal = "it is fenced off"
    report = await _watch(temporal)
    assert "it is fenced off" in report.failed[job_id]
    node.refusal = None
    await node.end(job_id)
    await longshore.wait(job_id)


async def test_what_a_job_saves_on_storage_of_its_own_is_on_record(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    """And only of such a job: what is meant for the store counts once it is there."""
    always = CheckpointPolicy(min_interval=timedelta(0), max_interval=timedelta(0))
    await _set(control, PoolSpec(name=pool, checkpoints=always))
    own = (await longshore.submit(a_spec(pool, checkpoint={**SAVES, "store": False}))).job_id
    stored = (await longshore.submit(a_spec(pool, checkpoint=SAVES))).job_id
    for job_id in (own, stored):
        await node.started(job_id)
    node.publishes, node.step = False, 7
    assert set((await _watch(temporal)).asked) >= {own, stored}
    async with control.transaction() as connection:
        query = text("SELECT job_id, step FROM job_checkpoints WHERE job_id = ANY(:ids)")
        found = await connection.execute(query, {"ids": [own, stored]})
        assert found.all() == [(own, 7)]
    for job_id in (own, stored):
        await node.end(job_id)
        await longshore.wait(job_id)


@pytest.mark.parametrize("number", [2**31, -1])
async def test_what_no_node_can_have_saved_keeps_nothing_else_from_the_record(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database,
    number: int,
):  # fmt: skip
    always = CheckpointPolicy(min_interval=timedelta(0), max_interval=timedelta(0))
    await _set(control, PoolSpec(name=pool, checkpoints=always))
    job_id = (await longshore.submit(a_spec(pool, checkpoint={**SAVES, "store": False}))).job_id
    await node.started(job_id)
    node.publishes, node.number = False, number
    assert job_id in (await _watch(temporal)).asked
    async with control.transaction() as connection:
        query = text("SELECT count(*) FROM job_checkpoints WHERE job_id = :id")
        assert await connection.scalar(query, {"id": job_id}) == 0
    await node.end(job_id)
    await longshore.wait(job_id)


@pytest.mark.exhaustive
async def test_of_ranks_that_save_into_one_folder_one_is_enough(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str
):
    always = CheckpointPolicy(min_interval=timedelta(0), max_interval=timedelta(0))
    await _set(control, PoolSpec(name=pool, checkpoints=always))
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        contract = {**SAVES, "store": False}
        gang = a_spec(pool, gpus=16, gang={}, checkpoint=contract)
        job_id = (await longshore.submit(gang)).job_id
        for node in nodes:
            await node.started(job_id)
        nodes[0].saves_nothing, nodes[1].publishes = True, False
        assert job_id in (await _watch(temporal)).failed
        async with control.transaction() as connection:
            query = text("SELECT count(*) FROM job_checkpoints WHERE job_id = :id")
            assert await connection.scalar(query, {"id": job_id}) == 1
        for node in nodes:
            await node.end(job_id)
        await longshore.wait(job_id)


async def _watch(temporal: Client) -> CheckpointWatchReport:
    return await temporal.execute_workflow(
        CheckpointWatchWorkflow.run, id=f"look-{uuid.uuid4().hex}", task_queue=CONTROL_TASK_QUEUE
    )


async def _asks(temporal: Client, job_id: str) -> CheckpointWatchReport:
    report = await _watch(temporal)
    assert job_id in report.asked
    return report


async def _set(control: Database, spec: PoolSpec) -> None:
    async with control.transaction() as connection:
        await set_pool(connection, spec)


async def _decision(control: Database, job_id: str) -> CheckpointDecision | None:
    async with control.transaction() as connection:
        found = await connection.scalar(
            text("SELECT decision FROM checkpoint_decisions WHERE job_id = :id"), {"id": job_id}
        )
    return None if found is None else CheckpointDecision.model_validate(found)
