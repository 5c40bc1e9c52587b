"""A gang gets nodes of one block; what does not hold its job is not bought for it again."""

import asyncio
from typing import Any

import pytest

from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from tests.buying.buyer import Buyer
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec


@pytest.mark.exhaustive
async def test_a_gang_runs_on_the_one_block_that_is_bought_for_it(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.fault("empty_availability", times=-1)  # no cluster, which is cheaper for 10 min
    await may_buy(buyer)
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=16, gang={"group_gpus": 16}, expected_duration="10m")
    )
    async with asyncio.timeout(150):
        result = await longshore.wait(job.job_id)
    assert result.state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    assert purchase["decision"]["serves"] == [job.job_id]
    (option,) = purchase["request"]["options"]
    assert (option["provider"], option["for_gang"], option["fast_fabric"]) == (
        "sfcompute", True, True,
    )  # fmt: skip
    orders = await buyer.rows("SELECT request FROM orders WHERE purchase_id = :id",
                              id=purchase["id"])  # fmt: skip
    assert [order["request"]["for_gang"] for order in orders] == [True], "looked at before it"
    started = instances_of(buyer)
    assert len(started) == 2
    assert {each["instance_sku"]["id"] for each in started} == {option["place"]}
    assert all(each["infiniband"] and each["enable_public_ipv4"] for each in started)


async def test_a_job_without_a_gang_asks_for_no_fabric_and_no_ports(
    buyer: Buyer, longshore: Longshore
):
    await buyer.buy()
    (started,) = instances_of(buyer)
    assert (started["infiniband"], started["enable_public_ipv4"]) == (False, False)


def instances_of(buyer: Buyer) -> list[dict[str, Any]]:
    """Return the instances that were started since the test began."""
    before = {each["id"] for each in buyer.before["instances"]}
    return [each for each in buyer.market.state()["instances"] if each["id"] not in before]


@pytest.mark.exhaustive  # a minute; test_buying_again.py decides it
async def test_what_was_bought_and_does_not_hold_its_job_is_not_bought_again(
    buyer: Buyer, longshore: Longshore
):
    # Offers promise 13 cores for a GPU, and simulated machines have 8.
    await may_buy(buyer)
    job = await longshore.submit(a_spec(buyer.pool, gpus=1, cpus=12, expected_duration="10m"))
    async with asyncio.timeout(240):
        result = await longshore.wait(job.job_id)
    assert result.state is JobState.SUCCEEDED
    pod, block = sorted(await bought(buyer), key=lambda row: row["created_at"])
    assert pod["request"]["options"][0]["provider"] == "prime"
    assert block["request"]["options"][0]["provider"] == "sfcompute"
    lost = {option["lost"] for option in block["decision"]["options"] if option["kind"] == "pods"}
    assert f"bought once for it already ({pod['id']}), and the job still waits:" in lost.pop()
