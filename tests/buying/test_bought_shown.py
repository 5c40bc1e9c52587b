"""What a pool bought, over REST and on the pages: bought for real at a simulated market."""

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.models.buying import BuyingPolicy
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from longshore.models.settings import Settings
from tests.buying.buyer import Buyer, buy_from_begun_minute
from tests.support.console import RunningConsole
from tests.support.control import a_spec
from tests.support.home import PROGRAM
from tests.support.market import RunningMarket

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Deal:
    """A job that ran on what was bought for it, and the block that has ended since."""

    pool: str
    tenant: str
    job: str
    purchase: str
    block: str
    cost: int
    used: int


@pytest.fixture(scope="module")
async def deal(
    temporal: Client, settings: Settings, buying: Database, market: RunningMarket
) -> Deal:
    """Buys a block for a job, runs it there and lets the block go; 6 s."""
    # Cheaper than any machine that is billed as it runs: those cost nothing in their first minute.
    market.book({"side": "sell", "dollars_per_gpu_hour": "0.05", "nodes": 8})
    buyer = Buyer(temporal, buying, market)
    # Nor is the wait for the next full minute, when bought time begins, worth the difference.
    policy = BuyingPolicy(enabled=True, instance_types=("8xH100",), fast_delay_price=100_000)
    spec = PoolSpec(name=buyer.pool, interval=timedelta(seconds=2), buying=policy)
    async with buying.transaction() as connection:
        await set_pool(connection, spec)
    longshore = Longshore(temporal, settings)
    with pytest.MonkeyPatch.context() as patch:
        buy_from_begun_minute(patch)
        job = await longshore.submit(
            a_spec(buyer.pool, gpus=8, expected_duration="10m", tenant=f"t-{buyer.pool}")
        )
        assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    await longshore.close()
    found = await buyer.rows("SELECT id FROM purchases WHERE pool = :pool", pool=buyer.pool)
    buyer.purchases = [row["id"] for row in found]
    [block] = await buyer.rows("SELECT id FROM blocks WHERE pool = :pool", pool=buyer.pool)
    end = await buyer.let_go(block["id"])
    await buyer.agrees()
    assert end.cost > end.used > 0
    return Deal(
        buyer.pool, f"t-{buyer.pool}", job.job_id, buyer.purchases[0], block["id"], end.cost,
        end.used,
    )  # fmt: skip


@pytest.fixture
async def page(browser: Browser, console: RunningConsole) -> AsyncIterator[Page]:
    """Opens a page that is signed in, in which nothing may fail; 0.5 s."""
    context = await browser.new_context()
    page = await context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    await page.goto(f"{console.url}/costs?token={console.token}")
    await expect(page.get_by_role("heading", name="Costs")).to_be_visible()
    yield page
    await context.close()
    assert not trouble


def test_a_purchase_tells_why_and_what_came_of_it(console: RunningConsole, deal: Deal):
    found = console.get(f"/purchases/{deal.purchase}").json()
    assert (found["state"], found["paid_micro_usd"], found["pool"]) == (
        "ENDED",
        deal.cost,
        deal.pool,
    )
    assert found["serves"] == [deal.job]
    assert found["decided"].startswith("buy ")
    [chosen] = [each for each in found["options"] if each["chosen"]]
    assert all(each["lost"] for each in found["options"] if not each["chosen"])
    assert chosen["total"] <= min(each["total"] for each in found["options"])
    assert found["blocks"] == [deal.block] == [each["key"] for each in found["made"]]
    assert [each["state"] for each in found["machines"]] == ["ENDED"]
    happened = [each["what"] for each in found["timeline"]]
    assert (happened[0], happened[-1]) == ("intent", "end")
    assert {"order", "money", "agent", "machine", "block"} <= set(happened)
    assert sorted(each["at"] for each in found["timeline"]) == [
        each["at"] for each in found["timeline"]
    ]


def test_a_block_tells_who_used_it_and_what_was_idle(console: RunningConsole, deal: Deal):
    found = console.get(f"/blocks/{deal.block}").json()
    assert (found["paid_micro_usd"], found["used_micro_usd"]) == (deal.cost, deal.used)
    assert found["used_micro_usd"] + found["idle_micro_usd"] == found["paid_micro_usd"]
    [use] = found["uses"]
    assert (use["job_id"], use["tenant"], use["gpus"]) == (deal.job, deal.tenant, 8)
    assert use["started_at"] < use["ended_at"]
    assert 0 < found["utilisation"] < 1
    assert found["simulated"]


def test_costs_agree_with_the_ledger(console: RunningConsole, deal: Deal):
    def cost(by: str, name: str, **query: Any) -> dict[str, Any] | None:
        found = console.get("/costs", by=by, limit=500, **query).json()["costs"]
        return next((each for each in found if each["name"] == name), None)

    for by, name in (("pool", deal.pool), ("block", deal.block)):
        row = cost(by, name)
        assert row, by
        assert (row["paid_micro_usd"], row["used_micro_usd"]) == (deal.cost, deal.used)
        assert (row["idle_micro_usd"], row["open_micro_usd"]) == (deal.cost - deal.used, 0)
    for by, name in (("tenant", deal.tenant), ("job", deal.job)):
        row = cost(by, name)
        assert row, by
        assert row["used_micro_usd"] == deal.used
    assert cost("pool", deal.pool, until="2021-01-01T00:00:00Z") is None


def test_pages_of_a_list_follow_each_other(console: RunningConsole, deal: Deal):
    whole = console.get("/purchases", ended=True, limit=500).json()
    assert whole["next"] is None
    one_by_one: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = console.get("/purchases", ended=True, limit=1, **after).json()
        one_by_one += [each["id"] for each in page["purchases"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert one_by_one == [each["id"] for each in whole["purchases"]]
    of_pool = console.get("/purchases", pool=deal.pool, state="ENDED").json()["purchases"]
    assert [each["id"] for each in of_pool] == [deal.purchase]
    assert console.get("/purchases", pool=deal.pool).json()["purchases"] == []
    assert console.get("/purchases", tenant="nobody", ended=True).json()["purchases"] == []


@pytest.mark.parametrize("what", ["purchases", "blocks"])
def test_rest_says_what_the_command_says(
    console: RunningConsole, settings: Settings, deal: Deal, what: str
):
    command = subprocess.run(
        [PROGRAM, what, "--all", "--json", "--pool", deal.pool],
        env={**os.environ, "LONGSHORE_DATABASE_URL": settings.resolve_database_url()},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (
        json.loads(command.stdout)
        == (console.get(f"/{what}", ended=True, pool=deal.pool).json()[what])
    )


async def test_a_purchase_is_opened_from_the_list(page: Page, console: RunningConsole, deal: Deal):
    await page.goto(f"{console.url}/purchases")
    row = page.locator("table.list tbody tr", has_text=deal.purchase)
    await expect(row.locator(".state")).to_have_text("ended")
    await expect(row.locator(".sim")).to_be_visible()
    await expect(page.get_by_text("Simulated market")).to_be_visible()
    await row.get_by_role("link").click()
    await expect(page).to_have_url(re.compile(f"/purchases/{deal.purchase}$"))
    await expect(page.locator("ol.happened li.of-agent")).to_have_count(1)
    await expect(page.locator("ol.happened li").first).to_contain_text("intent stored")
    chosen = page.get_by_role("table", name="Options for FAST").locator("[aria-current=true]")
    await expect(chosen).to_have_count(1)
    await expect(chosen).to_contain_text("chosen")


@pytest.mark.exhaustive
async def test_a_block_shows_its_job_on_the_axis(page: Page, console: RunningConsole, deal: Deal):
    await page.goto(f"{console.url}/blocks?show=all&hours=1")
    await page.get_by_role("link", name=deal.block).click()
    await expect(page).to_have_url(re.compile(f"/blocks/{deal.block}$"))
    bar = page.locator(".lanes .use")
    await expect(bar).to_have_count(1)
    await expect(bar).to_have_attribute("title", re.compile(rf"8 GPUs.*tenant {deal.tenant}"))
    await expect(page.locator(".lanes .bought")).to_have_attribute("title", re.compile("ended"))
    jobs = page.get_by_role("table", name="Jobs on this block")
    await expect(jobs).to_contain_text(deal.job)
    await expect(page.get_by_role("link", name=deal.purchase)).to_be_visible()


@pytest.mark.exhaustive
async def test_costs_are_summed_up_as_chosen(page: Page, console: RunningConsole, deal: Deal):
    row = page.locator("table.list tbody tr", has_text=deal.pool)
    await expect(row).to_contain_text(f"${deal.cost / 1e6:,.2f}")
    await page.get_by_role("button", name="Job").click()
    await expect(page.get_by_role("table", name="Costs by job")).to_contain_text(
        deal.job,
    )
    await expect(page).to_have_url(re.compile("by=job"))
    await page.reload()
    await expect(page.get_by_role("heading", name="By job")).to_be_visible()
