"""A FAST job that may wait leaves what is dear, and takes what costs less than its wait."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from tests.buying.buyer import DOLLAR, Buyer
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually

DEAR, CHEAP = "9.00", "2.00"


def sells(buyer: Buyer, price: str) -> None:
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": price, "nodes": 8})


async def patient(buyer: Buyer, fast_patience: str) -> None:
    """Have the pool wait for so long, at $10.00 a GPU-hour, where nodes of the exchange are all
    that there is."""
    buyer.market.fault("empty_availability", times=-1)
    policy: dict[str, Any] = {"fast_patience": fast_patience, "fast_delay_price": "$10.00"}
    await may_buy(buyer, **policy)


@pytest.mark.exhaustive
async def test_a_patient_job_leaves_a_dear_node_and_takes_a_cheap_one(
    buyer: Buyer, longshore: Longshore
):
    sells(buyer, DEAR)
    await patient(buyer, "30m")
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    await reaches(longshore, job.job_id, JobState.QUEUED)

    async def waits() -> str:
        why = (await longshore.explain(job.job_id)).buying
        assert why is not None
        dear = [each for each in why.options if each.kind == "block"]
        assert dear, why
        assert any(each.lost.endswith("more") for each in dear), dear
        return why.reason

    await eventually(waits, interval=1)
    assert await bought(buyer) == []
    sells(buyer, CHEAP)
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    assert purchase["request"]["options"][0]["limit"] < 3 * DOLLAR
    await buyer.let_all_go()
    await buyer.agrees()


@pytest.mark.exhaustive  # a minute; test_buying_patience.py decides it
async def test_when_its_patience_is_over_a_job_takes_what_there_is(
    buyer: Buyer, longshore: Longshore
):
    sells(buyer, DEAR)
    await patient(buyer, "15s")
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    (asked,) = await buyer.rows("SELECT submitted_at FROM jobs WHERE id = :id", id=job.job_id)
    assert purchase["created_at"] >= asked["submitted_at"] + timedelta(seconds=15)
    assert purchase["request"]["options"][0]["limit"] >= 9 * DOLLAR
    await buyer.let_all_go()
    await buyer.agrees()
