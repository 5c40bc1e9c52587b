"""No wake-up is lost: who changes a pool while a cycle begins is seen by it, or pokes again."""

import asyncio

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.pokes import mark_poked, mark_poked_if_useful
from longshore.activities.queue_rows import ensure_pool
from tests.support.ledger import WAITING_FOR_LOCKS
from tests.support.waiting import eventually

POOL = "pokes"
BEGIN_CYCLE = text("UPDATE pools SET poked = false WHERE name = :pool")
BLOCKED = text(WAITING_FOR_LOCKS)


async def test_a_change_that_meets_the_begin_of_a_cycle_pokes_again(database_url: str):
    database = Database(database_url)
    async with database.transaction() as connection:
        await ensure_pool(connection, POOL)
        assert await mark_poked(connection, POOL)
    async with database.transaction() as cycle:
        await cycle.execute(BEGIN_CYCLE, {"pool": POOL})
        # Looked at without the lock, the pool would still seem to be poked.
        change = asyncio.create_task(_change(database))
        await eventually(lambda: _blocked(database))
    assert await change
    await database.close()


async def test_a_cycle_waits_for_a_change_that_found_the_pool_poked(database_url: str):
    database = Database(database_url)
    async with database.transaction() as connection:
        await ensure_pool(connection, POOL)
        assert await mark_poked(connection, POOL)
    async with database.transaction() as change:
        assert not await mark_poked(change, POOL)
        cycle = asyncio.create_task(_begin_cycle(database))
        await eventually(lambda: _blocked(database))
        assert not cycle.done()
    await cycle
    await database.close()


async def test_freed_capacity_waits_for_a_job_on_its_way_into_the_queue(database_url: str):
    database = Database(database_url)
    async with database.transaction() as connection:
        await ensure_pool(connection, POOL)
    async with database.transaction() as enqueue:
        await enqueue.execute(text(_JOB))
        assert await mark_poked(enqueue, POOL)
        await enqueue.execute(BEGIN_CYCLE, {"pool": POOL})
        freed = asyncio.create_task(_free(database))
        await eventually(lambda: _blocked(database))
    assert await freed, "the queue was looked at before the job was in it"
    await database.close()


async def _change(database: Database) -> bool:
    async with database.transaction() as connection:
        return await mark_poked(connection, POOL)


async def _free(database: Database) -> bool:
    async with database.transaction() as connection:
        return await mark_poked_if_useful(connection, POOL)


async def _begin_cycle(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(BEGIN_CYCLE, {"pool": POOL})


async def _blocked(database: Database) -> bool:
    async with database.transaction() as connection:
        return bool(await connection.scalar(BLOCKED))


_JOB = f"""
    WITH job AS (
        INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)
        VALUES ('j', 'j', 't', '{POOL}', '{{}}', now(), '') RETURNING id, pool)
    INSERT INTO queue (job_id, attempt, pool, held, priority, request, submitted_at)
    SELECT id, 1, pool, false, 5, '{{}}', now() FROM job
"""
