"""A gang gets nodes of one block; what does not hold its job is not bought for it again."""

import asyncio

from client.api import Longshore
from models.job import JobState
from tests.buying.buyer import Buyer
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec


async def test_a_gang_runs_on_the_one_block_that_is_bought_for_it(
    buyer: Buyer, longshore: Longshore
):
    await may_buy(buyer)
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=16, gang={"group_gpus": 16}, expected_duration="10m")
    )
    async with asyncio.timeout(150):
        result = await longshore.wait(job.job_id)
    assert result.state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    assert purchase["decision"]["serves"] == [job.job_id]


async def test_what_was_bought_and_does_not_hold_its_job_is_not_bought_again(
    buyer: Buyer, longshore: Longshore
):
    # Offers promise 13 cores for a GPU, and simulated machines have 8.
    await may_buy(buyer)
    job = await longshore.submit(a_spec(buyer.pool, gpus=1, cpus=12, expected_duration="10m"))
    async with asyncio.timeout(120):
        result = await longshore.wait(job.job_id)
    assert result.state is JobState.SUCCEEDED
    pod, block = sorted(await bought(buyer), key=lambda row: row["created_at"])
    assert pod["request"]["options"][0]["provider"] == "prime"
    assert block["request"]["options"][0]["provider"] == "sfcompute"
    lost = {option["lost"] for option in block["decision"]["options"] if option["kind"] == "pods"}
    assert f"bought once for it already ({pod['id']}), and the job still waits:" in lost.pop()
