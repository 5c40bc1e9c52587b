"""The time after a block is bought where its work goes on: the same machine, the same process."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.scheduling.buying.start_backoff import closed_until
from tests.buying.buyer import Buyer, block_option
from tests.buying.test_pool_buys import may_buy
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually


async def ends_soon(buyer: Buyer, block: str, minutes: int = 5) -> None:
    """Have a block end in so many minutes, as far as anybody here knows."""
    await buyer.rows(
        "UPDATE blocks SET starts_at = starts_at - interval '2 hours',"
        " ends_at = date_trunc('minute', now()) + CAST(:left AS interval) WHERE id = :id",
        id=block,
        left=timedelta(minutes=minutes),
    )


async def renewal_of(buyer: Buyer, block: str) -> dict[str, Any]:
    """Return the purchase of the time after a block, once its machines go on."""
    rows = await buyer.rows("SELECT * FROM purchases WHERE renews = :id", id=block)
    (row,) = [row for row in rows if row["state"] == "READY"]
    return row


async def test_work_that_overruns_its_block_goes_on_in_the_one_after_it(
    buyer: Buyer, longshore: Longshore
):
    bought = await buyer.buy(block_option())
    (first,), (node,) = bought.orders, bought.nodes
    spec = a_spec(
        buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1s",
        tenant="goes-on",
    )  # fmt: skip
    job = await longshore.submit(spec)
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: _overruns(buyer, job.job_id))
    await ends_soon(buyer, first)
    # The limit is what the market asks; a cap below it would refuse.
    await may_buy(buyer, max_price={"FAST": "$3.00"}, startup_limit="1h")
    block = buyer.temporal.get_workflow_handle(f"block-{first}")
    await block.signal("wake")
    renewal = await eventually(lambda: _row(buyer, first))
    buyer.purchases.append(renewal["id"])
    assert renewal["tenant"] == "goes-on"  # not who bought the time before it
    second = f"{renewal['id']}.1"
    (ends,) = await buyer.rows("SELECT starts_at, ends_at FROM blocks WHERE id = :id", id=second)
    (old,) = await buyer.rows("SELECT ends_at FROM blocks WHERE id = :id", id=first)
    assert ends["starts_at"] == old["ends_at"]

    async def goes_on() -> bool:
        (there,) = await buyer.rows("SELECT expires_at, block_id, state FROM nodes WHERE id = :id",
                                    id=node)  # fmt: skip
        # It was drained for its end, five minutes ahead, before the time after it was bought.
        assert there["state"] == "READY", there
        return (there["expires_at"], there["block_id"]) == (ends["ends_at"], first)

    await eventually(goes_on)

    await buyer.let_go(first)
    (there,) = await buyer.rows("SELECT block_id, state FROM nodes WHERE id = :id", id=node)
    assert (there["block_id"], there["state"]) == (second, "READY")
    status = await longshore.status(job.job_id)
    assert (status.state, status.attempt) == (JobState.RUNNING, 1)
    used = await buyer.rows("SELECT micro FROM ledger WHERE block_id = :id AND debit = :job",
                            id=first, job=f"job:{job.job_id}")  # fmt: skip
    assert used
    assert used[0]["micro"] > 0

    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.let_go(second)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_renewal_over_the_cap_is_not_made(buyer: Buyer, longshore: Longshore):
    bought = await buyer.buy(block_option())
    (first,) = bought.orders
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1s")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: _overruns(buyer, job.job_id))
    await ends_soon(buyer, first)
    await may_buy(buyer, max_price={"FAST": "$2.00"}, startup_limit="1h")
    await buyer.temporal.get_workflow_handle(f"block-{first}").signal("wake")

    async def decided() -> dict[str, Any]:
        (row,) = await buyer.rows("SELECT decision FROM blocks WHERE id = :id", id=first)
        assert row["decision"]
        return row["decision"]

    decision = await eventually(decided)
    assert (decision["kind"], "over the cap" in decision["reason"]) == ("keep", True)
    assert await buyer.rows("SELECT 1 FROM purchases WHERE renews = :id", id=first) == []
    await longshore.cancel(job.job_id)
    await asyncio.wait_for(longshore.wait(job.job_id), timedelta(minutes=1).total_seconds())
    await buyer.let_go(first)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_renewal_that_is_refused_for_money_is_asked_for_again_as_a_purchase_is(
    buyer: Buyer, longshore: Longshore
):
    bought = await buyer.buy(block_option())
    (first,) = bought.orders
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1s")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: _overruns(buyer, job.job_id))
    await ends_soon(buyer, first, minutes=18)  # more than it drains ahead
    buyer.market.fault("funds", times=2, provider="sfcompute", route="POST /orders")
    await may_buy(buyer, max_price={"FAST": "$3.00"}, startup_limit="1h")
    await buyer.wake(first)

    async def says_when(times: int) -> bool:
        refused = await buyer.rows("SELECT times, at FROM market_refusals WHERE for_funds")
        assert [each["times"] for each in refused] == [times]
        until = closed_until(times, refused[0]["at"], for_funds=True)
        block = await PurchaseDetails(buyer.database).block(first)
        assert block.decision
        assert "the balance is too low" in block.decision.reason
        assert (await buyer.look(first)).look_at == until
        return f"Nothing is bought there until {until:%Y-%m-%d %H:%M:%S} UTC" in (
            block.decision.reason
        )

    async def renewals() -> int:
        return len(await buyer.rows("SELECT id FROM purchases WHERE renews = :id", id=first))

    assert await eventually(lambda: says_when(1))
    for _ in range(3):
        await buyer.wake(first)
    assert await renewals() == 1
    await _let_time_pass(buyer)
    await buyer.wake(first)
    assert await eventually(lambda: says_when(2))
    assert await renewals() == 2
    await _let_time_pass(buyer)  # somebody has paid in
    await buyer.wake(first)
    renewal = await eventually(lambda: _row(buyer, first))
    buyer.purchases.append(renewal["id"])
    assert await buyer.rows("SELECT * FROM market_refusals") == []
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.let_go(first)
    await buyer.let_go(f"{renewal['id']}.1")
    await buyer.agrees()


async def _let_time_pass(buyer: Buyer) -> None:
    await buyer.rows("UPDATE market_refusals SET at = at - interval '1 hour'")


async def _row(buyer: Buyer, block: str) -> dict[str, Any]:
    try:
        return await renewal_of(buyer, block)
    except ValueError as error:
        raise AssertionError(str(error)) from error


async def _overruns(buyer: Buyer, job_id: str) -> bool:
    return bool(
        await buyer.rows(
            "SELECT 1 FROM placements WHERE job_id = :id AND ended_at IS NULL"
            " AND placed_at + make_interval(secs => expected_seconds) < clock_timestamp()",
            id=job_id,
        )
    )
