"""Time that was paid for is used: what cannot be started there is tried again while it lasts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.switch import BuyingSwitch
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.purchase import PurchaseState
from longshore.scheduling.buying.start_backoff import LONGEST_PAUSE, closed_until, start_again
from tests.buying.buyer import Buyer, block_option
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually

STARTS = {"provider": "sfcompute", "route": "POST /instances"}


async def orders_of(buyer: Buyer) -> list[dict[str, Any]]:
    return await buyer.rows(
        "SELECT o.key, o.provider, o.nodes, o.refused FROM orders o"
        " JOIN purchases p ON p.id = o.purchase_id WHERE p.pool = :pool ORDER BY o.key",
        pool=buyer.pool,
    )


async def machines_of(buyer: Buyer) -> list[dict[str, Any]]:
    return await buyer.rows(
        "SELECT m.name, m.state, m.refused, m.tries FROM machines m"
        " JOIN purchases p ON p.id = m.purchase_id WHERE p.pool = :pool ORDER BY m.name",
        pool=buyer.pool,
    )


@pytest.mark.usefixtures("short_pauses")
async def test_a_start_that_is_refused_is_tried_again_in_the_same_window(buyer: Buyer):
    buyer.market.fault("forbidden", times=2, **STARTS)
    bought = await buyer.buy(block_option(reprices=1))
    assert bought.state is PurchaseState.READY, bought.reason
    assert len(bought.orders) == 1
    (machine,) = await machines_of(buyer)
    assert (machine["state"], machine["tries"]) == ("READY", 2)
    assert (bought.reason, (await buyer.purchase())["reason"]) == ("", "")
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_answers_that_cannot_be_read_cost_no_second_window(buyer: Buyer):
    """A page of maintenance with status 200, for a moment."""
    buyer.market.fault("malformed_json", times=2, provider="sfcompute", route="GET /instances")
    bought = await buyer.buy(block_option(reprices=1))
    assert (len(bought.orders), len(bought.nodes)) == (1, 1), bought.reason
    assert len(await machines_of(buyer)) == 1
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


@pytest.mark.usefixtures("short_pauses")
async def test_a_machine_that_fails_is_followed_by_others_while_its_time_is_paid(buyer: Buyer):
    buyer.market.fault("instance_failed", times=3)
    bought = await buyer.buy(block_option(reprices=1), machine_tries=2)
    assert (len(bought.orders), len(bought.nodes)) == (1, 1), bought.reason
    assert [row["state"] for row in await machines_of(buyer)].count("READY") == 1
    assert len(await machines_of(buyer)) == 4
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("begun_minute")
async def test_nothing_is_bought_where_paid_time_waits_for_the_right_to_start(
    buyer: Buyer, longshore: Longshore
):
    """A token that may order and may not start: one window is bought, and no other."""
    buyer.market.fault("forbidden", times=-1, **STARTS)
    buyer.market.fault("empty_availability", times=-1)
    await may_buy(buyer, instance_types=["8xH100"])
    jobs = [await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))]
    await eventually(lambda: _is_refused(buyer), 150)
    (purchase,) = await buyer.rows("SELECT id FROM purchases WHERE pool = :pool", pool=buyer.pool)
    detail = await PurchaseDetails(buyer.database).purchase(purchase["id"])
    assert "the token may not do this" in detail.machines[0].reason
    assert any("it is tried again, after: " in each.text for each in detail.timeline)

    async def tells_its_job() -> bool:
        said = (await longshore.explain(jobs[0].job_id)).headline
        return "is asked for again, after: " in said and "the token may not do this" in said

    await eventually(tells_its_job, interval=1)
    jobs.append(await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="2h")))
    await reaches(longshore, jobs[1].job_id, JobState.QUEUED)

    async def says_so() -> bool:
        why = (await longshore.explain(jobs[1].job_id)).buying
        return why is not None and "has 0 of 1 machines, which are tried again" in why.reason

    await eventually(says_so, interval=1)
    assert [order["provider"] for order in await orders_of(buyer)] == ["sfcompute"]
    await longshore.cancel(jobs[1].job_id)  # what would be bought for it now has no block yet
    buyer.market.clear_faults()
    result = await longshore.wait(jobs[0].job_id)
    assert result.state is JobState.SUCCEEDED, result

    async def is_open_again() -> bool:
        return not await buyer.rows("SELECT * FROM market_refusals")

    await eventually(is_open_again)  # its job may end before the start's answer is taken in


@pytest.mark.exhaustive
async def test_an_order_that_our_key_may_not_make_is_not_made_again_and_again(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.fault("forbidden", times=-1, provider="sfcompute", route="POST /orders")
    buyer.market.fault("empty_availability", times=-1)
    await may_buy(buyer, instance_types=["8xH100"])
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    await reaches(longshore, job.job_id, JobState.QUEUED)

    async def says_so() -> bool:
        why = (await longshore.explain(job.job_id)).buying
        return why is not None and "Nothing is bought there until" in why.reason

    await eventually(says_so, interval=1)
    assert len(await orders_of(buyer)) == 1
    buyer.market.clear_faults()
    await BuyingSwitch(buyer.database).resume()  # a person has given the key the role
    await eventually(lambda: _has_orders(buyer, 2))
    await longshore.cancel(job.job_id)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("begun_minute")
@pytest.mark.parametrize(
    ("provider", "route", "gpus"),
    [
        ("sfcompute", "POST /orders", 8),
        pytest.param("prime", "POST /pods/", 1, marks=pytest.mark.exhaustive),
    ],
)
async def test_a_market_whose_account_lacks_money_is_asked_again_after_longer_each_time(
    buyer: Buyer, longshore: Longshore, provider: str, route: str, gpus: int
):
    buyer.market.fault("funds", times=2, provider=provider, route=route)
    if provider == "sfcompute":
        buyer.market.fault("empty_availability", times=-1)
    await may_buy(buyer, instance_types=[f"{gpus}xH100"])
    job = await longshore.submit(a_spec(buyer.pool, gpus=gpus, expected_duration="10m"))

    async def says_when(times: int) -> bool:
        refused = await buyer.rows("SELECT times, at FROM market_refusals")
        assert [each["times"] for each in refused] == [times]
        until = closed_until(times, refused[0]["at"], for_funds=True)
        why = (await longshore.explain(job.job_id)).headline
        assert "the account there has too little money" in why
        return f"Nothing is bought there until {until:%Y-%m-%d %H:%M:%S} UTC" in why

    await eventually(lambda: says_when(1), interval=1)
    assert len(await orders_of(buyer)) == 1
    await _let_time_pass(buyer)
    await eventually(lambda: says_when(2), interval=1)
    assert len(await orders_of(buyer)) == 2
    await _let_time_pass(buyer)  # somebody has paid in
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    assert await buyer.rows("SELECT * FROM market_refusals") == []
    await bought(buyer)
    await buyer.let_all_go()
    await buyer.agrees()


async def _is_refused(buyer: Buyer) -> bool:
    return any(machine["refused"] for machine in await machines_of(buyer))


async def _let_time_pass(buyer: Buyer) -> None:
    await buyer.rows("UPDATE market_refusals SET at = at - interval '1 hour'")


async def _has_orders(buyer: Buyer, count: int) -> bool:
    return len(await orders_of(buyer)) >= count


def test_pauses_grow_and_end_with_the_use_of_the_paid_time():
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    end, least = now + timedelta(hours=1), timedelta(minutes=10)
    pauses = [start_again(tries, now, end, least) for tries in range(1, 10)]
    assert pauses[:4] == [timedelta(seconds=s) for s in (5, 10, 20, 40)]
    assert pauses[-1] == LONGEST_PAUSE
    assert start_again(1, end - least - timedelta(seconds=5), end, least) is not None
    assert start_again(1, end - least, end, least) is None
    assert closed_until(1, now) == now + timedelta(minutes=10)
    assert closed_until(3, now) == now + timedelta(minutes=40)
    assert closed_until(99, now) == now + timedelta(hours=24)
    for_funds = [closed_until(times, now, for_funds=True) - now for times in (1, 2, 5, 99)]
    assert for_funds == [timedelta(minutes=each) for each in (1, 2, 15, 15)]
