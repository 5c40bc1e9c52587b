"""Capacity is bought ahead of jobs, and kept: without a queue, and no more than is asked for."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.activities.database import Database
from longshore.activities.markets.watch import MarketWatchActivities
from longshore.activities.signals import Signals
from longshore.client.api import Longshore
from longshore.models.buying import BuyingPolicy
from longshore.models.job_status import JobState
from longshore.models.market_memory import MarketLookRequest
from longshore.models.pool import PoolSpec
from tests.buying.buyer import Buyer
from tests.support.control import a_spec, new_pool, reaches
from tests.support.waiting import eventually


async def test_a_pool_without_a_queue_buys_its_warm_target_once_and_keeps_it(
    buyer: Buyer, longshore: Longshore
):
    policy = BuyingPolicy(enabled=True, fast_warm_gpus=8, idle_after=timedelta(0))
    await longshore.set_pool(
        PoolSpec(name=buyer.pool, interval=timedelta(seconds=2), buying=policy)
    )

    async def has_nodes() -> list[dict[str, Any]]:
        rows = await buyer.rows("SELECT id, block_id FROM nodes WHERE pool = :pool"
                                " AND state = 'READY'", pool=buyer.pool)  # fmt: skip
        assert rows
        return rows

    await eventually(has_nodes, 150)  # time at a market begins with a full minute
    nodes = await has_nodes()
    purchases = await buyer.rows("SELECT * FROM purchases WHERE pool = :pool", pool=buyer.pool)
    buyer.purchases = [row["id"] for row in purchases]
    assert all(row["decision"]["serves"][0].startswith("(warm") for row in purchases)

    # Idle for longer than the policy bears, and still wanted.
    for node in nodes:
        await buyer.temporal.get_workflow_handle(f"block-{node['block_id']}").signal("wake")
    await eventually(lambda: _decided_twice(buyer), interval=1)
    assert await has_nodes() == nodes
    again = await buyer.rows("SELECT id FROM purchases WHERE pool = :pool", pool=buyer.pool)
    assert len(again) == len(purchases)

    # No longer wanted: what is billed as it runs is let go, what is paid for waits for a buyer.
    await longshore.set_pool(PoolSpec(name=buyer.pool, buying=BuyingPolicy()))
    for node in nodes:
        await buyer.let_go(node["block_id"])
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_price_that_flex_jobs_wait_for_wakes_their_pool(
    buyer: Buyer, longshore: Longshore, buying: Database
):
    policy = BuyingPolicy.model_validate({"enabled": True, "flex_price": "$1.50"})
    await longshore.set_pool(
        PoolSpec(name=buyer.pool, interval=timedelta(minutes=10), buying=policy)
    )
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, tier="FLEX", expected_duration="10m"))
    await reaches(longshore, job.job_id, JobState.QUEUED)
    before = await eventually(lambda: _cycles(buyer))
    woken = _Poked()
    watch = MarketWatchActivities(
        buying, buyer.market.settings(market_watch=("8xH100",)), signals=woken
    )
    await watch.watch_markets(MarketLookRequest(id=f"dear-{buyer.pool}"))
    assert buyer.pool not in woken.pools, "$2.10 is more than its jobs wait for"
    # A pool that nobody can read keeps no other from its price.
    spoilt = new_pool()
    other = await longshore.submit(a_spec(spoilt, gpus=8, tier="FLEX"))
    await reaches(longshore, other.job_id, JobState.QUEUED)
    await buyer.rows(_SPOIL, pool=spoilt)
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "1.20", "nodes": 8})
    watch = MarketWatchActivities(
        buying, buyer.market.settings(market_watch=("8xH100",)), signals=Signals(buyer.temporal)
    )
    await watch.watch_markets(MarketLookRequest(id=f"cheap-{buyer.pool}"))

    async def cycled() -> bool:
        return await _cycles(buyer) > before

    await eventually(cycled)
    await longshore.cancel(job.job_id)
    await longshore.set_pool(PoolSpec(name=spoilt))
    await longshore.cancel(other.job_id)
    rows = await buyer.rows("SELECT id FROM purchases WHERE pool = :pool", pool=buyer.pool)
    buyer.purchases = [row["id"] for row in rows]


_SPOIL = """UPDATE pools SET spec = '{"interval": "soon"}' WHERE name = :pool RETURNING name"""


class _Poked(Signals):
    """Notes whom it would wake."""

    def __init__(self) -> None:
        self.pools: list[str] = []

    async def poke_pool(self, pool: str) -> None:
        self.pools.append(pool)


async def _cycles(buyer: Buyer) -> int:
    status = await buyer.temporal.get_workflow_handle(f"pool-{buyer.pool}").query("status")
    return status["cycles"]


async def _decided_twice(buyer: Buyer) -> bool:
    """Wake the pool; return whether a decision about buying came after the one that bought."""
    await Signals(buyer.temporal).poke_pool(buyer.pool)
    runs = [
        run
        async for run in buyer.temporal.list_workflows(
            f"WorkflowId = 'buying-{buyer.pool}' AND ExecutionStatus = 'Completed'"
        )
    ]
    return len(runs) >= 2
