"""How many copies come before a prewarmed engine: each cycle asks it, also of a long queue."""

from sqlalchemy import text

from longshore.activities.serving.copies import COPIES, load_copies
from tests.support.ledger import Ledger


async def test_the_queue_is_looked_into_for_each_replica_and_not_read(ledger: Ledger):
    async with ledger.database.snapshot() as connection:
        plan = await connection.execute(text(f"EXPLAIN {COPIES}"), {"pool": ledger.pool})
        steps = "\n".join(plan.scalars())
        assert await load_copies(connection, ledger.pool) == {}
    assert "queue_pkey" in steps
    assert "Seq Scan on queue" not in steps
    assert "Seq Scan on jobs" not in steps
