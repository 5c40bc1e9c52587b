"""What a job has cost is read without a look at what all others have cost."""

from sqlalchemy import text

from longshore.activities.buying.reasons import COST_OF_JOB
from tests.support.ledger import Ledger


async def test_the_cost_of_a_job_is_found_by_the_blocks_that_it_ran_on(ledger: Ledger):
    async with ledger.database.transaction() as connection:
        # A small table is read whole where that is allowed.
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = await connection.execute(text(f"EXPLAIN {COST_OF_JOB}"), {"id": "a"})
        steps = "\n".join(plan.scalars())
    assert "ledger_by_block" in steps
