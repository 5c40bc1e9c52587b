"""One label is one number: of a block that was used and resold, on every screen and in JSON."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from longshore.activities.buying.block_end_views import BlockEndViews
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.console import blocks_view, costs_view, purchases_view
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from longshore.models.spending import Account, CostView
from tests.buying.buyer import Buyer, block_option
from tests.buying.test_pool_buys import may_buy
from tests.buying.test_resale import bids, ended, settled
from tests.support.console import RunningConsole
from tests.support.control import a_spec, reaches
from tests.support.home import PROGRAM
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)
PARTS = tuple(Account.model_fields)


@dataclass(frozen=True)
class Sold:
    pool: str
    job: str
    purchase: str
    block: str
    open: Mapping[str, Any]
    """The account of the block while it lasted."""
    sale: Mapping[str, Any]
    """While it lasted, and"""
    sales: Sequence[Mapping[str, Any]]
    """with what a bid took when it was let go."""
    cost: int
    used: int
    database: Database


@pytest.fixture(scope="module")
async def sold(
    temporal: Client, settings: Settings, buying: Database, market: RunningMarket
) -> AsyncIterator[Sold]:
    """Buys two nodes, runs a job on one and sells the other, and ends the block; 20 s."""
    buyer, longshore = Buyer(temporal, buying, market), Longshore(temporal, settings)
    bids(buyer, "1.80", "1.60")
    bought = await buyer.buy(block_option(length=timedelta(hours=4)), nodes=2)
    (block,) = bought.orders
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1h")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await may_buy(buyer)
    await buyer.wake(block)
    await eventually(lambda: settled(buyer, block))
    (sale,) = await settled(buyer, block)
    seen = (await PurchaseDetails(buying).block(block)).model_dump()
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.let_go(block)
    end = await ended(buyer, block)
    await buyer.agrees()
    await longshore.close()
    sales = await settled(buyer, block)
    yield Sold(buyer.pool, job.job_id, buyer.purchases[0], block, seen, sale, sales, end["cost"],
               end["used"], buying)  # fmt: skip
    await buyer.close()


def account(shown: Mapping[str, Any]) -> Account:
    return Account.model_validate({name: shown[name] for name in PARTS})


async def command(settings: Settings, *words: str) -> str:
    env = {
        **os.environ, "LONGSHORE_DATABASE_URL": settings.resolve_database_url(), "COLUMNS": "240",
    }  # fmt: skip
    ran = await asyncio.to_thread(
        subprocess.run, [PROGRAM, *words], env=env, capture_output=True, text=True, check=True
    )
    return ran.stdout


async def test_the_account_is_the_ledgers_and_adds_up_to_the_micro_dollar(sold: Sold):
    found = await PurchaseDetails(sold.database).block(sold.block)
    assert (found.paid_micro_usd, found.used_micro_usd) == (sold.cost, sold.used)
    assert found.resold_micro_usd == sum(each["proceeds"] for each in sold.sales)
    assert found.fees_micro_usd == sum(each["fee"] for each in sold.sales) > 0
    assert len(sold.sales) == 2
    assert sold.used > 0
    assert found.open_micro_usd == 0
    assert found.adds_up
    assert found.sum_in_words.count("$") == 5
    # While it lasted, nothing of it was divided.
    before = account(sold.open)
    assert before.adds_up
    assert (before.used_micro_usd, before.idle_micro_usd) == (0, 0)
    assert before.open_micro_usd == sold.cost - sold.sale["proceeds"] + sold.sale["fee"]
    assert sold.open["used_so_far_micro_usd"] is not None


async def test_every_answer_has_the_same_numbers(
    sold: Sold, settings: Settings, console: RunningConsole
):
    whole = account((await PurchaseDetails(sold.database).block(sold.block)).model_dump())
    of = {"pool": sold.pool, "ended": True}
    answers: dict[str, Mapping[str, Any]] = {
        "block": console.get(f"/blocks/{sold.block}").json(),
        "purchase": console.get(f"/purchases/{sold.purchase}").json(),
        "blocks": console.get("/blocks", **of).json()["blocks"][0],
        "purchases": console.get("/purchases", **of).json()["purchases"][0],
    }
    for by, name in (("block", sold.block), ("pool", sold.pool)):
        costs = console.get("/costs", by=by, limit=500).json()["costs"]
        (answers[f"costs by {by}"],) = [each for each in costs if each["name"] == name]
    for words in (("purchases", "--all"), ("blocks", "--all")):
        found = json.loads(await command(settings, *words, "--pool", sold.pool, "--json"))
        (answers[f"longshore {words[0]}"],) = found
    for words in (("purchase", sold.purchase), ("block", sold.block)):
        found = json.loads(await command(settings, *words, "--json"))
        answers[f"longshore {words[0]}"] = found.get("block", found)
    for what, answer in answers.items():
        assert account(answer) == whole, what
    (job,) = [each for each in console.get("/costs", by="job", limit=500).json()["costs"]
              if each["name"] == sold.job]  # fmt: skip
    assert job["paid_micro_usd"] == job["used_micro_usd"] == whole.used_micro_usd
    assert account(job).adds_up
    sales = json.loads(await command(settings, "block", sold.block, "--json"))["sales"]
    assert sum(each["resold_micro_usd"] for each in sales) == whole.resold_micro_usd
    assert sum(each["fee_micro_usd"] for each in sales) == whole.fees_micro_usd


async def test_screens_and_pages_show_the_sum(sold: Sold, settings: Settings):
    details = PurchaseDetails(sold.database)
    block, purchase = await details.block(sold.block), await details.purchase(sold.purchase)
    for words in (("block", sold.block), ("purchase", sold.purchase)):
        assert block.sum_in_words in " ".join((await command(settings, *words)).split())
    cost = CostView(name=sold.pool, **account(block.model_dump()).model_dump())
    pages = {
        "block": blocks_view.head_html(block),
        "blocks": blocks_view.sums_html([block]),
        "purchase": purchases_view.head_html(purchase),
        "purchases": purchases_view.sums_html([purchase]),
        "costs": costs_view.sums_html([cost]),
    }
    labels = [dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", page)) for page in pages.values()]
    for label in ("Paid", "Resold", "Fees", "Used", "Idle", "Open"):
        assert len({each[label] for each in labels}) == 1, label
    for page in ("block", "purchase", "costs"):
        assert block.sum_in_words in pages[page]
    end = await BlockEndViews(sold.database).of_block(sold.block)
    assert "Resold" in blocks_view.sales_html(end.sales)
