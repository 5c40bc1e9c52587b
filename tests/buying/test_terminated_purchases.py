"""Purchases whose workflow somebody has terminated: they order nothing more, free what they had
reserved, and what was bought is used."""

import json
from datetime import UTC, datetime, timedelta

from longshore.models.purchase import PurchaseState, purchase_workflow_id
from longshore.models.reconcile import Finding, FindingKind, ReconcileRequest
from longshore.workers.doctor import bought
from tests.buying.buyer import DOLLAR, Buyer, Purchase, block_option, pod_option
from tests.support.waiting import eventually

_SOON = timedelta(seconds=0.3)


async def _is(buyer: Buyer, state: PurchaseState) -> bool:
    found = await buyer.rows("SELECT state FROM purchases WHERE id = :id",
                             id=buyer.purchases[-1])  # fmt: skip
    return [row["state"] for row in found] == [state]


async def _terminated(buyer: Buyer, handle: Purchase) -> None:
    """Terminate a purchase, and have it taken up."""
    await handle.terminate("by hand")
    purchase_id = buyer.purchases[-1]
    said = f"purchase {purchase_id} may order on, and what it may cost is committed"
    assert any(
        each.says.startswith(said) for each in await bought.blocks(buyer.temporal, buyer.database)
    )

    (finding,) = await eventually(lambda: _found(buyer))
    assert (finding.kind, finding.mended) == (FindingKind.PURCHASE_NOT_FOLLOWED, True)
    await buyer.temporal.get_workflow_handle(purchase_workflow_id(purchase_id)).result()


async def _found(buyer: Buyer) -> list[Finding]:
    """Have everything compared; return what was found of the last purchase."""
    report = await buyer.reconciled(ReconcileRequest(margin=_SOON, second_look=_SOON))
    subject = f"purchase {buyer.purchases[-1]}"
    return [each for each in report.findings if each.subject == subject]


async def test_an_order_that_stands_is_cancelled_and_what_was_reserved_is_free(buyer: Buyer):
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "9.00", "nodes": 8})
    handle = await buyer.start(buyer.request(block_option(standing_for=timedelta(hours=1))))

    async def stands() -> bool:
        found = await buyer.rows("SELECT order_state FROM orders WHERE purchase_id = :id",
                                 id=buyer.purchases[-1])  # fmt: skip
        return [row["order_state"] for row in found] == ["STANDING"]

    await eventually(stands)
    assert (await buyer.purchase())["committed"] > 0
    await _terminated(buyer, handle)
    row = await buyer.purchase()
    assert (row["state"], row["committed"], row["buying"]) == ("ENDED", 0, False)
    assert row["reason"] == "its workflow was ended from outside"
    await buyer.agrees()


async def test_a_machine_that_starts_becomes_a_node_and_the_purchase_ready(buyer: Buyer):
    option = pod_option(await buyer.an_offer())
    handle = await buyer.start(buyer.request(option, block_option(limit=3 * DOLLAR), nodes=2))
    await eventually(lambda: _is(buyer, PurchaseState.STARTING))
    await _terminated(buyer, handle)
    row = await buyer.purchase()
    assert (row["state"], row["buying"]) == ("READY", False)
    orders = await buyer.rows("SELECT key FROM orders WHERE purchase_id = :id",
                              id=row["id"])  # fmt: skip
    assert [each["key"] for each in orders] == [f"{row['id']}.1"], "nothing more was ordered"
    await buyer.let_go(f"{row['id']}.1")
    await buyer.agrees()


async def test_time_that_has_not_begun_is_kept_and_costs_what_it_cost(buyer: Buyer):
    start = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
    handle = await buyer.start(
        buyer.request(block_option(start=start), block_option(limit=9 * DOLLAR), nodes=1)
    )
    await eventually(lambda: _is(buyer, PurchaseState.FILLED))
    await _terminated(buyer, handle)
    row = await buyer.purchase()
    assert (row["state"], row["buying"]) == ("FILLED", False)
    assert row["committed"] == row["spent"] > 0
    (block,) = await buyer.rows("SELECT id, state FROM blocks WHERE purchase_id = :id",
                                id=row["id"])  # fmt: skip
    assert block["state"] == "STARTING"
    await buyer.let_go(block["id"])
    await buyer.agrees()


async def test_one_that_cannot_be_read_is_left_to_a_person(buyer: Buyer):
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "9.00", "nodes": 8})
    handle = await buyer.start(buyer.request(block_option(standing_for=timedelta(hours=1))))
    await eventually(lambda: _is(buyer, PurchaseState.ORDERED))
    before = "SELECT request FROM purchases WHERE id = :id"
    (row,) = await buyer.rows(before, id=buyer.purchases[-1])
    await buyer.rows("""UPDATE purchases SET request = '{"options": []}' WHERE id = :id""",
                     id=buyer.purchases[-1])  # fmt: skip
    await handle.terminate("by hand")
    (finding,) = await eventually(lambda: _found(buyer))
    assert not finding.mended
    assert "what is stored of it cannot be read" in finding.done
    await buyer.rows("UPDATE purchases SET request = CAST(:request AS jsonb) WHERE id = :id",
                     request=json.dumps(row["request"]), id=buyer.purchases[-1])  # fmt: skip
    (finding,) = await eventually(lambda: _found(buyer))
    assert finding.mended
    await buyer.agrees()
