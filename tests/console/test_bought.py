"""Pages and REST API of what was bought, where nothing was; the switch of buying."""

import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from playwright.async_api import Browser, Page, expect
from sqlalchemy import text

from longshore.activities.buying.purchase_rows import insert_purchase
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import Database
from longshore.activities.queue_rows import ensure_pool
from longshore.models.purchase import PurchaseOption, PurchaseRequest
from longshore.workers.stack import Stack
from tests.support.console import RunningConsole, running_console
from tests.support.databases import own_database
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def fresh_database(stack: Stack) -> Iterator[str]:
    """The URL of a database in which nothing is stored but the switch of buying; 0.1 s."""
    with own_database(stack) as url:
        yield url


@pytest.fixture(scope="module")
def fresh(market: RunningMarket, fresh_database: str) -> Iterator[RunningConsole]:
    """Starts a console of that database; 3 s."""
    with temporary_folder() as folder, running_console(folder, market, fresh_database) as console:
        yield console


@pytest.fixture
async def page(browser: Browser, fresh: RunningConsole) -> AsyncIterator[Page]:
    """Opens a page that is signed in, as wide as a phone; 0.5 s."""
    context = await browser.new_context(viewport=PHONE, is_mobile=True)  # pyright: ignore[reportArgumentType]
    page = await context.new_page()
    await page.goto(f"{fresh.url}/purchases?token={fresh.token}")
    await page.wait_for_url(f"{fresh.url}/purchases")
    await expect(page.get_by_role("heading", name="Purchases")).to_be_visible()
    yield page
    await context.close()


async def test_where_nothing_was_bought_it_is_said_what_to_do(page: Page, fresh: RunningConsole):
    for path, said in (
        ("purchases", "Nothing has been bought yet"),
        ("blocks", "No block has been bought yet"),
        ("costs", "Nothing was paid in this time"),
    ):
        await page.goto(f"{fresh.url}/{path}")
        await expect(page.get_by_text(said)).to_be_visible()
        await expect(page.locator(".empty code").first).to_contain_text("longshore")
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for path, said in (("purchases", "no such purchase"), ("blocks", "no such block")):
        await page.goto(f"{fresh.url}/{path}/p-nothing")
        await expect(page.get_by_text(said)).to_be_visible()


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("width", [390, 700])
async def test_narrow_windows_show_all_columns_of_the_purchases(
    page: Page, fresh_database: str, width: int
):
    database, purchase_id = Database(fresh_database), f"p-0123456789ab-{width}"
    option = PurchaseOption(
        provider="sfcompute", instance_type="8xH100-80GB-SXM5", gpus_per_node=8, limit=2_500_000,
        length=timedelta(hours=4),
    )  # fmt: skip
    why = "the pool has committed $96.00 today, and may commit $100.00 a day: buying would pass it"
    async with database.transaction() as connection:
        await ensure_pool(connection, "research-team")
        request = PurchaseRequest(pool="research-team", options=(option,))
        await insert_purchase(connection, purchase_id, request, refused=why)
    await page.set_viewport_size({"width": width, "height": 844})
    row = page.get_by_role("table", name="Purchases").locator("tbody tr").first
    await expect(row).to_contain_text(purchase_id)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    for cell in await row.locator("td").all():
        box = await cell.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= width, await cell.inner_text()
    await expect(row).to_contain_text(why)
    async with database.transaction() as connection:
        await connection.execute(text("DELETE FROM purchases"))
    await database.close()


async def test_a_stop_shows_on_the_page(page: Page, fresh: RunningConsole):
    assert fresh.http.post("/market/stop", json={"reason": "too dear"}).json()["stopped"]
    await expect(page.get_by_text("Buying is stopped.")).to_be_visible()
    await expect(page.get_by_text("too dear")).to_be_visible()
    fresh.http.post("/market/resume")
    await expect(page.get_by_text("Buying is stopped.")).not_to_be_visible()


async def test_a_stop_is_in_the_database_at_once(fresh: RunningConsole, fresh_database: str):
    database = Database(fresh_database)
    stopped = fresh.http.post("/market/stop", json={"reason": "too dear"})
    assert stopped.json()["reason"] == "too dear"
    assert (await BuyingSwitch(database).state()).stopped
    await eventually(lambda: fresh.get("/market/switch").json()["stopped"])
    assert not fresh.http.post("/market/resume").json()["stopped"]
    assert not (await BuyingSwitch(database).state()).stopped
    await database.close()


async def test_a_reason_that_the_database_cannot_store_is_refused(fresh: RunningConsole):
    refused = fresh.http.post("/market/stop", json={"reason": "too\0dear"})
    assert refused.status_code == 422
    assert refused.json()["error"] == {
        "type": "invalid", "field": "reason",
        "message": "reason: must not hold a NUL character, got 'too\\x00dear'",
    }  # fmt: skip
    # An answer of a moment ago may still be given, of the test before.
    await eventually(lambda: not fresh.get("/market/switch").json()["stopped"])


async def test_a_cookie_is_not_enough_for_a_change(fresh: RunningConsole):
    signed_in = fresh.stranger.get("/purchases", params={"token": fresh.token})
    assert re.search("Signed in", signed_in.text)
    assert fresh.stranger.get("/purchases").status_code == 200
    for path in ("/market/stop", "/market/resume"):
        refused = fresh.stranger.post(path, json={})
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "forbidden"
    fresh.stranger.cookies.clear()
    assert fresh.stranger.post("/market/stop", json={}).status_code == 401
    # An answer of a moment ago may still be given, of the test before.
    await eventually(lambda: not fresh.get("/market/switch").json()["stopped"])


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/purchases?limit=0", "limit"),
        ("/purchases?state=BROKEN", "state"),
        ("/purchases?after=%20", "after"),
        ("/purchases?tenant=%00", "tenant"),
        ("/blocks?pool=Not+a+name", "pool"),
        ("/costs?by=colour", "by"),
        ("/costs?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since"),
        ("/costs?since=1066-10-14T00:00:00Z", "since"),
    ],
)
def test_what_makes_no_sense_is_refused(console: RunningConsole, path: str, field: str):
    refused = console.http.get(path)
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == field


def test_what_is_not_there_is_not_found(console: RunningConsole):
    for path, command in (("/purchases/p-no", "purchases"), ("/blocks/p-no.1", "blocks")):
        refused = console.get(path)
        assert refused.status_code == 404
        assert f"longshore {command} --all" in refused.json()["error"]["message"]
