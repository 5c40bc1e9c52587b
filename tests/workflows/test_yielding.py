"""On a live stack: a job that has run for long yields to jobs of its class that come, and goes on
afterwards."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.packing import QueueOrder
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.preemption import PreemptionPolicy
from longshore.models.retry import FailureClass
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

SAVES = {"folder": "saved", "save_file": True}
RULES = PreemptionPolicy(yields_after=timedelta(0), restart=timedelta(0))
BURST = 6


@pytest.fixture
async def by_rank(longshore: Longshore, pool: str) -> str:
    """A pool by attained service, where jobs yield without a minimum run."""
    packing = PoolPacking(order=QueueOrder.ATTAINED_SERVICE)
    await longshore.set_pool(PoolSpec(name=pool, packing=packing, preemption=RULES))
    return pool


async def test_a_long_job_yields_to_a_burst_once_and_goes_on(
    longshore: Longshore, node: ScriptedNode, by_rank: str, control: Database
):
    long = (await longshore.submit(a_spec(by_rank, gpus=8, checkpoint=SAVES))).job_id
    await node.started(long)
    await _has_run(control, long, "2 days")
    burst = [
        (await longshore.submit(a_spec(by_rank, gpus=4, checkpoint=SAVES))).job_id
        for _ in range(BURST)
    ]

    async def runs_once(job_id: str) -> None:
        await node.started(job_id)
        await node.end(job_id)
        assert (await longshore.wait(job_id)).attempts == 1, "none of them stops another"

    # In the order in which they came into the queue, which on a busy machine may be another one.
    await asyncio.gather(*map(runs_once, burst))
    assert [stop.key.job_id for stop in node.stops] == [long]
    why = await longshore.explain(long)
    assert why.gave_way is not None
    assert why.gave_way.reason.startswith(f"stop {long}, which yields to twice its rank: ")
    await node.end(long, attempt=2)
    result = await longshore.wait(long)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    status = await longshore.status(long)
    assert (status.attempts[0].failure, status.preemptions) == (FailureClass.PREEMPTED, 1)


async def test_a_pool_by_age_stops_nobody_of_a_class(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    await longshore.set_pool(PoolSpec(name=pool, preemption=RULES))
    long = (await longshore.submit(a_spec(pool, gpus=8, checkpoint=SAVES))).job_id
    await node.started(long)
    await _has_run(control, long, "2 days")
    new = (await longshore.submit(a_spec(pool, gpus=4, checkpoint=SAVES))).job_id
    await reaches(longshore, new, JobState.QUEUED)
    await eventually(lambda: _looked_at(control, new))
    assert node.stops == []
    await node.end(long)
    await node.end(new)
    assert (await longshore.wait(new)).state is JobState.SUCCEEDED


async def _has_run(control: Database, job_id: str, time: str) -> None:
    """Let a job have begun so long ago, and have saved a second ago. The database rewrites no
    placement, and a test may not wait."""
    async with control.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(
            text(
                "UPDATE placements SET placed_at = placed_at - CAST(:time AS interval)"
                " WHERE job_id = :id"
            ),
            {"id": job_id, "time": time},
        )
        await connection.execute(
            text(
                "INSERT INTO job_checkpoints (job_id, attempt, number, ranks, bytes,"
                " write_seconds, saved_at, simulated)"
                " VALUES (:id, 1, 1, 1, 1000, 0, clock_timestamp(), true)"
            ),
            {"id": job_id},
        )


async def _looked_at(control: Database, job_id: str) -> bool:
    async with control.transaction() as connection:
        query = text("SELECT decided_at IS NOT NULL FROM queue WHERE job_id = :id")
        return bool(await connection.scalar(query, {"id": job_id}))
