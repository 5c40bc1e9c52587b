"""What a market lists and nobody here knows is found, with what it costs; and the other way."""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr

from longshore.activities.markets.findings import market_findings
from longshore.activities.markets.reconcile import NEXT, MarketFinding, Mismatch, compare
from longshore.activities.metrics import SILENT
from longshore.activities.providers import registry
from longshore.activities.providers.prime_reading import name_of
from longshore.console.bought import Bought
from longshore.console.purchases_view import orphans_html
from longshore.models.block import block_workflow_id
from longshore.models.reconcile import Finding, FindingKind, NotJudged, ReconcileRequest
from longshore.models.settings import Settings
from tests.buying.buyer import Buyer, an_offer, pod_option
from tests.support.market_shop import Shop, ok
from tests.support.waiting import eventually

NOW = timedelta(0)
_SOON = timedelta(seconds=0.3)


async def findings(
    buyer: Buyer, margin: timedelta = NOW, beside: Sequence[MarketFinding] = ()
) -> list[MarketFinding]:
    """Return what differs now, `beside` what did before: a market keeps what strangers bought."""
    settings = buyer.market.settings()
    found: list[MarketFinding] = []
    for name in ("sfcompute", "prime"):
        async with aclosing(registry.connect(settings, name)) as market:
            found += await compare(buyer.database, [market], datetime.now(UTC), margin)
    return [each for each in found if each.id not in {known.id for known in beside}]


async def test_what_was_bought_here_is_no_finding(buyer: Buyer):
    before = await findings(buyer)
    bought = await buyer.buy()
    pod = await buyer.buy(pod_option(await an_offer(buyer.market)))
    assert await findings(buyer, beside=before) == []
    for block in (*bought.orders, *pod.orders):
        await buyer.let_go(block)


async def test_what_somebody_else_bought_is_reported_with_what_it_costs(buyer: Buyer):
    before = await findings(buyer)
    shop = Shop(buyer.market)
    order = shop.buy(shop.make_pool("theirs"), limit_price_dollars_per_node_hour="20.000000")
    (found,) = await findings(buyer, beside=before)
    assert (found.kind, found.id) == (Mismatch.ORDER, order["id"])
    assert found.cost_micro_usd == 2 * 4 * 168 * 100_000  # 2 nodes for 4 hours at $16.80
    assert await findings(buyer, timedelta(minutes=5)) == []


@pytest.mark.exhaustive
async def test_a_twin_of_a_machine_that_is_known_is_reported(buyer: Buyer):
    """A name is known by its id: a second machine of that name is paid for beside the first."""
    before = await findings(buyer)
    bought = await buyer.buy(pod_option(await an_offer(buyer.market)))
    shop = Shop(buyer.market)
    row = next(each for each in shop.rows() if not each["isSpot"])
    twin = ok(shop.rent(row, name=name_of(bought.orders[0])))["id"]
    (found,) = await findings(buyer, beside=before)
    assert (found.kind, found.id, found.name) == (Mismatch.MACHINE, twin, bought.nodes[0])
    buyer.market.http.delete(f"/api/v1/pods/{twin}").raise_for_status()
    await buyer.let_go(bought.orders[0])


async def test_a_machine_that_has_gone_is_reported_missing(buyer: Buyer):
    bought = await buyer.buy(pod_option(await an_offer(buyer.market)))
    (row,) = await buyer.rows("SELECT machine_id FROM machines WHERE name = :name",
                              name=bought.nodes[0])  # fmt: skip
    buyer.market.http.delete(f"/api/v1/pods/{row['machine_id']}").raise_for_status()
    found = [each for each in await findings(buyer) if each.kind is Mismatch.MISSING]
    assert [(each.id, each.name) for each in found] == [(row["machine_id"], bought.nodes[0])]
    await buyer.let_go(bought.orders[0])
    assert [e for e in await findings(buyer) if e.kind is Mismatch.MISSING] == []


@pytest.mark.exhaustive
async def test_the_page_shows_what_differs_with_what_it_has_cost(buyer: Buyer, settings: Settings):
    bought = await buyer.buy(pod_option(await an_offer(buyer.market)))
    name = bought.nodes[0]
    (row,) = await buyer.rows("SELECT machine_id FROM machines WHERE name = :name", name=name)
    buyer.market.http.delete(f"/api/v1/pods/{row['machine_id']}").raise_for_status()
    await buyer.rows("UPDATE machines SET created_at = created_at - interval '1 hour'"
                     " WHERE name = :name", name=name)  # fmt: skip
    url = SecretStr(settings.resolve_database_url())
    shown = Bought(buyer.market.settings(database_url=url))
    try:
        (found,) = [each for each in await shown.differences() if each.name == name]
    finally:
        await shown.close()
    (order,) = await buyer.rows("SELECT spent FROM orders WHERE key = :key",
                                key=bought.orders[0])  # fmt: skip
    assert (found.kind, found.cost_micro_usd) == (Mismatch.MISSING, order["spent"])
    html = orphans_html([found])
    assert row["machine_id"] in html
    assert "is not listed" in html
    assert NEXT[Mismatch.MISSING] in html
    await buyer.let_go(bought.orders[0])


async def test_a_market_that_is_away_hides_no_other(buyer: Buyer):
    buyer.market.fault("unauthorized", provider="sfcompute")
    (found,) = [each for each in await findings(buyer) if each.kind is Mismatch.AWAY]
    assert found.provider == "sfcompute"


@pytest.mark.exhaustive
async def test_a_pass_of_reconcile_tells_of_both_and_changes_nothing(buyer: Buyer):
    bought = await buyer.buy(pod_option(await an_offer(buyer.market)))
    (row,) = await buyer.rows("SELECT machine_id FROM machines WHERE name = :name",
                              name=bought.nodes[0])  # fmt: skip
    buyer.market.http.delete(f"/api/v1/pods/{row['machine_id']}").raise_for_status()
    # Nothing is told of what may be a step under way.
    await buyer.rows("UPDATE machines SET created_at = created_at - interval '1 hour'"
                     " WHERE name = :name", name=bought.nodes[0])  # fmt: skip
    found = await market_findings(buyer.database, buyer.market.settings(), SILENT)
    (missing,) = [each for each in found if each.kind is FindingKind.MARKET_MISSING]
    assert row["machine_id"] in missing.subject
    assert (missing.mend, missing.mended) == (None, False)
    buyer.market.fault("unauthorized", provider="sfcompute")
    assert missing in await market_findings(buyer.database, buyer.market.settings(), SILENT)
    await buyer.let_go(bought.orders[0])


async def test_a_block_whose_workflow_was_terminated_is_followed_again(buyer: Buyer):
    bought = await buyer.buy(pod_option(await an_offer(buyer.market)))
    (block,) = bought.orders
    await buyer.temporal.get_workflow_handle(block_workflow_id(block)).terminate()

    async def not_judged() -> list[NotJudged]:
        report = await buyer.reconciled(ReconcileRequest(second_look=_SOON))
        return [each for each in report.not_judged if each.subject == f"block {block}"]

    async def found() -> list[Finding]:
        report = await buyer.reconciled(ReconcileRequest(margin=_SOON, second_look=_SOON))
        return [each for each in report.findings if each.subject == f"block {block}"]

    (waits,) = await eventually(not_judged)
    assert waits.problem == "it has not ended, and its workflow has ended"
    assert waits.after > datetime.now(UTC)
    (finding,) = await eventually(found)
    assert (finding.kind, finding.done) == (
        FindingKind.BLOCK_NOT_FOLLOWED, "its workflow was started again",
    )  # fmt: skip
    assert finding.mended
    await buyer.let_go(block)
    (row,) = await buyer.rows("SELECT state FROM machines WHERE name = :name",
                              name=bought.nodes[0])  # fmt: skip
    assert row["state"] == "ENDED"
