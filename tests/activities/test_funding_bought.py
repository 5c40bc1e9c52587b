"""What is bought for jobs of tenants with a budget, read from the database."""

from longshore.activities.buying.inputs import read_need
from longshore.activities.usage import load_pool_to_plan
from longshore.activities.views import set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.margins import DEFAULT_MARGINS
from longshore.models.pool import PoolSpec
from tests.support.funding import envelope, tenant
from tests.support.ledger import Ledger


async def test_all_types_that_somebody_pays_for_are_looked_for(ledger: Ledger):
    async with ledger.database.transaction() as connection:
        buys = BuyingPolicy(enabled=True)
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=buys))
    await tenant(ledger, "red")
    await envelope(ledger, "red", "a", milli=2000, gpu_type="B300")
    await envelope(ledger, "red", "c", milli=4000, gpu_type="L40S")
    await ledger.enqueue("any", gpus=2, tenant="red")
    await ledger.enqueue("own", gpus=2, tenant="red", gpu_type="L40S")
    async with ledger.database.snapshot() as connection:
        pool = await load_pool_to_plan(connection, ledger.pool, DEFAULT_MARGINS)
        need = await read_need(connection, pool)
    assert {job.request.id: job.request.types for job in need.unmet.jobs} == {
        "any": ("B300", "L40S"),
        "own": ("L40S",),
    }
