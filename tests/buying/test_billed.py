"""What a market bills is in the ledger, whatever became of what was bought."""

import json
import re
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from longshore.activities.buying.bills import book_bill
from longshore.activities.buying.block_scene import read_scene
from longshore.activities.buying.inputs import read_need
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.database import Database
from longshore.activities.markets.findings import market_findings
from longshore.activities.markets.reconcile import Mismatch, compare
from longshore.activities.metrics import SILENT
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.client.api import Longshore
from longshore.models.block_end import BlockOptionKind
from longshore.models.margins import Margins
from longshore.models.market import InstanceType, Offer, Order
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseState
from longshore.models.reconcile import Finding, FindingKind
from longshore.models.settings import Settings
from longshore.scheduling.buying.block_end import decide_block
from tests.buying.buyer import Buyer, block_option, pod_option
from tests.buying.test_pool_buys import may_buy
from tests.support.control import a_spec
from tests.support.waiting import eventually

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


async def a_prepaid_offer(buyer: Buyer) -> Offer:
    """Return an offer of 8 H100 whose first hours are billed as it starts."""
    async with aclosing(registry.connect(buyer.market.settings(), "prime")) as provider:
        offers = await provider.offers(InstanceType.parse("8xH100"))
    return next(each for each in offers if each.prepaid and not each.spot)


async def test_a_machine_that_no_agent_came_from_is_booked_as_it_was_billed(buyer: Buyer):
    buyer.market.fault("machine_silent", provider="prime")
    option = pod_option(await a_prepaid_offer(buyer))
    bought = await buyer.buy(option, ready_within=timedelta(seconds=8))
    assert (bought.state, bought.nodes) == (PurchaseState.ENDED, ())
    assert bought.spent > 0
    (pod,) = await buyer.rows("SELECT state, reason FROM machines WHERE name = :name",
                              name=bought.orders[0])  # fmt: skip
    assert (pod["state"], pod["reason"]) == ("ENDED", "no agent registered in time")
    await buyer.agrees()


async def test_a_machine_that_comes_up_above_its_limit_is_stopped_at_once(buyer: Buyer):
    """Prime's maxPrice is no cap."""
    buyer.market.fault("price_above")
    bought = await buyer.buy(pod_option(await buyer.an_offer()), block_option())
    assert bought.orders[1:], bought.reason  # another way is taken
    (pod,) = await buyer.rows("SELECT state, reason FROM machines WHERE name = :name",
                              name=bought.orders[0])  # fmt: skip
    assert pod["state"] == "ENDED"
    assert re.fullmatch(r"it costs \$[\d.]+ a GPU-hour, above the limit of \$[\d.]+ that it was "
                        r"ordered with", pod["reason"])  # fmt: skip
    await buyer.let_go(bought.orders[1])
    await buyer.agrees()


async def test_a_machine_whose_price_rises_above_its_limit_is_stopped(buyer: Buyer):
    bought = await buyer.buy(pod_option(await buyer.an_offer()))
    key = bought.orders[0]
    await buyer.rows("UPDATE orders SET request = jsonb_set(request, '{limit}', '1000')"
                     " WHERE key = :key", key=key)  # fmt: skip
    await buyer.wake(key)
    assert "above the limit of $0.001" in (await buyer.ended(key)).reason
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_market_that_does_not_say_what_it_billed_changes_no_booking(buyer: Buyer):
    class Silent:
        """The market, before it knows what an ended pod has cost."""

        def __init__(self, market: Provider) -> None:
            self._market = market

        def __getattr__(self, name: str) -> Any:
            return getattr(self._market, name)

        async def orders(self) -> list[Order]:
            return [
                order.model_copy(update={"fills": tuple(
                    fill.model_copy(update={"cost": None}) for fill in order.fills
                )})
                for order in await self._market.orders()
            ]  # fmt: skip

    bought = await buyer.buy(pod_option(await a_prepaid_offer(buyer)))
    assert (await buyer.let_go(bought.orders[0])).cost > 0
    async with aclosing(registry.connect(buyer.market.settings(), "prime")) as market:
        asked = cast("Provider", Silent(market))
        found = await compare(buyer.database, [asked], datetime.now(UTC), timedelta(0))
    assert [each for each in found if each.kind is Mismatch.BILL] == []
    await buyer.agrees()


async def test_what_came_to_nothing_counts_as_a_try_whatever_it_cost(
    buyer: Buyer, longshore: Longshore, buying: Database
):
    job = await longshore.submit(a_spec(buyer.pool, gpus=1))

    async def is_queued() -> bool:
        return bool(await buyer.rows("SELECT FROM queue WHERE job_id = :id", id=job.job_id))

    await eventually(is_queued)  # what was bought before counts for no job
    buyer.market.fault("pod_error", provider="prime")
    bought = await buyer.buy(
        pod_option(await buyer.an_offer()), ready_within=timedelta(seconds=20)
    )
    assert (bought.state, bought.spent) == (PurchaseState.ENDED, 0)
    # As if the pool had decided it, which would go on buying for the job.
    await buyer.rows(
        "UPDATE purchases SET decision = CAST(:decision AS jsonb) WHERE id = :id",
        decision=json.dumps({"serves": [job.job_id]}), id=bought.purchase_id,
    )  # fmt: skip
    async with buying.transaction() as connection:
        need = await read_need(connection, PoolSpec(name=buyer.pool))
    (waits,) = need.unmet.jobs
    assert [each.purchase_id for each in waits.bought] == [bought.purchase_id]
    await longshore.cancel(job.job_id)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_bill_that_comes_after_the_account_was_closed_is_found_and_booked(
    buyer: Buyer, settings: Settings
):
    """Also above a cap: what is spent is spent."""
    buyer.market.fault("late_bill", provider="prime")
    bought = await buyer.buy(pod_option(await buyer.an_offer()))
    key = bought.orders[0]
    end = await buyer.let_go(key)
    await buyer.rows("UPDATE orders SET closed_at = closed_at - interval '1 hour'"
                     " WHERE key = :key", key=key)  # fmt: skip
    await buyer.rows("INSERT INTO purchase_caps (scope, name, micro) VALUES ('purchase', :id, 1)",
                     id=bought.purchase_id)  # fmt: skip

    async def found() -> list[Finding]:
        all_of_it = await market_findings(buyer.database, buyer.market.settings(), SILENT)
        return [each for each in all_of_it if each.kind is FindingKind.MARKET_BILL]

    (late,) = await eventually(found)
    assert key in late.problem
    assert late.mend is not None
    assert late.mend.book_bill is not None
    assert late.mend.book_bill.micro > end.cost
    for _ in range(2):
        assert await book_bill(buyer.database, key, late.mend.book_bill.micro) == ""
    assert await found() == []
    idle = await buyer.rows("SELECT micro FROM balances WHERE account = :idle", idle=f"idle:{key}")
    assert idle == [{"micro": late.mend.book_bill.micro}]
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_machine_that_failed_is_stopped_until_its_market_has_ended_it(buyer: Buyer):
    """A pod that is STOPPED is billed until it is deleted, also after a DELETE that was accepted
    and has not ended it yet."""
    bought = await buyer.buy(pod_option(await buyer.an_offer()))
    key = bought.orders[0]
    buyer.market.fault("delete_late", times=2)
    buyer.market.fault("pod_stopped")
    await buyer.wake(key)
    why = "the market says STOPPED/FINISHED; it may be billed until the market has ended it"
    assert (await buyer.ended(key)).reason == why
    (machine,) = (await PurchaseDetails(buyer.database).block(key)).machines
    assert (machine.state, machine.reason) == ("ENDED", why)
    assert buyer.market.happened("delete_late") == 2
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_hours_that_are_paid_at_the_order_are_kept_while_nothing_runs(buyer: Buyer):
    await may_buy(buyer)
    bought = await buyer.buy(pod_option(await a_prepaid_offer(buyer), length=30 * HOUR))
    key = bought.orders[0]
    look = await buyer.look(key)
    assert (look.over, look.decides) == (False, False)
    (block,) = await buyer.rows("SELECT starts_at FROM blocks WHERE id = :key", key=key)
    async with buyer.database.transaction() as connection:
        scene = await read_scene(connection, key, datetime.now(UTC), Margins())
    assert scene.block.idle_since == block["starts_at"] + 24 * HOUR - timedelta(minutes=1)
    assert scene.billed == {}
    assert decide_block(scene).kind is BlockOptionKind.KEEP
    # Until then it costs nothing more; after that it is billed as it runs.
    await buyer.rows("UPDATE blocks SET starts_at = starts_at - interval '24 hours'"
                     " WHERE id = :key", key=key)  # fmt: skip
    async with buyer.database.transaction() as connection:
        scene = await read_scene(connection, key, datetime.now(UTC) + 2 * MINUTE, Margins())
    assert [*scene.billed] == [key]
    assert decide_block(scene).kind is BlockOptionKind.LET_GO
    await buyer.let_go(key)
    await buyer.agrees()
