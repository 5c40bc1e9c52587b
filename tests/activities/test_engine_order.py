"""What the order asks of engines that wait: each cycle asks it, also of a long queue."""

from sqlalchemy import text

from longshore.activities.serving.engine_order import ENGINES, load_engine_order
from tests.support.ledger import Ledger
from tests.support.recorded_service import RecordedService


async def test_the_queue_is_looked_into_for_each_replica_and_not_read(ledger: Ledger):
    async with ledger.database.snapshot() as connection:
        plan = await connection.execute(text(f"EXPLAIN {ENGINES}"), {"pool": ledger.pool})
        steps = "\n".join(plan.scalars())
        assert await load_engine_order(connection, ledger.pool) == ({}, frozenset())
    assert "queue_pkey" in steps
    assert "Seq Scan on queue" not in steps
    assert "Seq Scan on jobs" not in steps


async def test_one_for_which_another_in_use_was_stopped_has_its_turn(served: RecordedService):
    await served.record(replicas=2)
    await served.look()
    first, second = (each.job_id for each in (await served.view()).replicas)
    for job_id in (first, second):
        await served.queued(job_id)

    async def turns(idle: bool) -> frozenset[str]:
        async with served.control.transaction() as connection:
            await connection.execute(
                text(_STOPPED), {"id": first, "for": second, "pool": served.pool, "idle": idle}
            )
            return (await load_engine_order(connection, served.pool)).turns

    assert await turns(idle=True) == frozenset()
    assert await turns(idle=False) == {second}
    await served.end()


_STOPPED = """
    INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,
                             for_priority, plan, idle, frees_by)
    VALUES (:id, 1, :pool, 'c', :for, 1, 5, 5, '{}', :idle, clock_timestamp())
    ON CONFLICT (job_id, attempt) DO UPDATE SET idle = excluded.idle
"""
