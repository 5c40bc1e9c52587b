"""The page /budgets in a real browser, and the REST API of who pays."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.models.funding_use import FundingState, Leases, Payers, Usage
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.console import RunningConsole, running_console
from tests.support.control import new_pool
from tests.support.funding import cap, envelope, tenant
from tests.support.ledger import Ledger
from tests.support.local_stack import temporary_folder

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}
_CUT_OFF = "[...document.querySelectorAll('.body')].filter(b => b.scrollWidth > b.clientWidth)"


@pytest.fixture(scope="module")
def here(stack: Stack, settings: Settings) -> Iterator[RunningConsole]:
    """Starts a console that knows this module's database; 3 s."""
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setenv("TEMPORAL_ADDRESS", stack.temporal.address)
        with running_console(folder, database_url=settings.resolve_database_url()) as console:
            yield console


@pytest.fixture(scope="module")
async def family(temporal: Client, settings: Settings) -> AsyncIterator[Ledger]:
    """Two families of tenants, with jobs of every class on twelve GPUs."""
    database = Database(settings.resolve_database_url(), pool_size=2)
    ledger = Ledger(database, temporal, new_pool())
    await ledger.register(gpus=12)
    for name, above in (
        ("research", None), ("vision", "research"), ("speech", "research"), ("startup", None),
    ):  # fmt: skip
        await tenant(ledger, name, above)
    await ledger.rows(
        "UPDATE tenants SET quotas = CAST(:quotas AS jsonb) WHERE name = 'research'",
        quotas='{"max_gpus": 16, "max_jobs": 20, "gpu_hours": 1000}',
    )
    day = timedelta(days=1)
    now = datetime.now(UTC)
    await envelope(ledger, "vision", milli=4000, pool=ledger.pool, ends_at=now + 9 * day)
    await envelope(ledger, "research", "pool", milli=2000)
    await envelope(ledger, "speech", "next-month", milli=8000, starts_at=now + 5 * day)
    await envelope(ledger, "startup", milli=3000, lend_to=["speech"], lend_milli=2000)
    await cap(ledger, "research", 12000)
    borrows = {"allow_borrow": True, "sponsors": ["startup"]}
    async with ledger.listening("train", "tune", "asr", "sweep", "other"):
        await _runs(ledger, "train", 4, tenant="vision")
        await _runs(ledger, "tune", 2, tenant="vision")
        await _runs(ledger, "asr", 2, tenant="speech", funding=borrows)
        await _runs(ledger, "sweep", 1, tenant="speech")
        await _runs(ledger, "other", 1, tenant="guest")
        yield ledger
    await database.close()


async def _runs(ledger: Ledger, job: str, gpus: int, **spec: Any) -> None:
    await ledger.enqueue(job, gpus=gpus, **spec)
    await ledger.cycle(f"cycle-{job}")


@pytest.fixture
async def page(browser: Browser, here: RunningConsole) -> AsyncIterator[Page]:
    """Opens a page that is signed in."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{here.url}/budgets?token={here.token}")
    await page.wait_for_url(f"{here.url}/budgets")
    yield page
    await context.close()


async def test_the_page_tells_who_pays_for_whom(
    page: Page, here: RunningConsole, family: Ledger
) -> None:
    await page.goto(f"{here.url}/budgets")
    tenants = page.get_by_role("table", name="Tenants")
    vision = tenants.locator("tr", has_text="vision")
    await expect(vision).to_contain_text("6")
    assert (await vision.locator("td").all_inner_texts())[2:] == [
        "6",
        "4",
        "2",
        "–",
        "–",
        "4 GPUs",
    ]
    names = await tenants.locator("tbody tr td:first-child").all_inner_texts()
    assert names == ["guest", "research", "speech", "vision", "startup"]
    speech = await tenants.locator("tr", has_text="speech").locator("td").all_inner_texts()
    assert speech[2:] == ["3", "–", "–", "2", "1", "0 GPUs"]
    guest = tenants.locator("tr", has_text="guest")
    await expect(guest).to_contain_text("pays for itself")
    envelopes = page.get_by_role("table", name="Envelopes")
    await expect(envelopes.locator("tr", has_text="speech/next-month")).to_contain_text("opens")
    await expect(envelopes.locator("tr", has_text="vision/main")).to_contain_text("in 9d")
    await expect(page.get_by_role("table", name="Caps")).to_contain_text("6 of 12")
    quotas = page.get_by_role("table", name="Quotas")
    research = await quotas.locator("tbody tr td").all_inner_texts()
    assert research[:5] == ["research", "9 of 16", "1", "4 of 20", "0"]
    assert "of 1,000 GPU" in research[-1]
    loans = page.get_by_role("table", name="Lending")
    await expect(loans.locator("tr", has_text="startup/main")).to_contain_text("a sponsor pays")
    await expect(loans.locator("tr", has_text="research/pool")).to_contain_text("vision")
    await expect(page.get_by_role("table", name="GPU-hours by class")).to_contain_text("vision")
    await expect(page.locator(".legend")).to_contain_text("nobody pays, preempted first")


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
async def test_nothing_is_cut_off(
    page: Page, here: RunningConsole, family: Ledger, size: Any
) -> None:
    await page.set_viewport_size(size)
    await page.goto(f"{here.url}/budgets")
    await expect(page.get_by_role("table", name="Envelopes")).to_be_visible()
    assert await page.evaluate(f"{_CUT_OFF}.length") == 0
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_the_page_of_a_job_names_its_payers(
    page: Page, here: RunningConsole, family: Ledger
) -> None:
    await page.goto(f"{here.url}/jobs/tune")
    facts = page.get_by_role("region", name="Job")
    await expect(facts).to_contain_text("2 SHARED by research/pool")
    await page.goto(f"{here.url}/jobs/sweep")
    await expect(facts).to_contain_text("1 UNFUNDED preempted first")


async def test_programs_read_the_same(here: RunningConsole, family: Ledger) -> None:
    state = FundingState.model_validate_json(here.get("/budgets").text)
    assert {(each.tenant, each.funding, each.by, each.gpus) for each in state.in_use} == {
        ("vision", "OWNED", "vision/main", 4), ("vision", "SHARED", "research/pool", 2),
        ("speech", "BORROWED", "startup/main", 2), ("speech", "UNFUNDED", "", 1),
        ("guest", "OWNED", "guest", 1),
    }  # fmt: skip
    assert {each.tenant for each in state.budgets} == {"research", "vision", "speech", "startup"}
    used = Usage.model_validate_json(here.get("/usage", by="job", tenant="speech").text)
    assert {row.job_id for row in used.rows} == {"asr", "sweep"}
    payers = Payers.model_validate_json(here.get("/jobs/asr/payers").text)
    assert [(each.lender, each.gpus) for each in payers.now] == [("startup", 2)]
    held = Leases.model_validate_json(here.get("/leases", node="node-a", gpu=6).text)
    assert [(each.job_id, each.funding, each.by) for each in held.leases] == [
        ("asr", "BORROWED", "startup/main")
    ]
    assert here.get("/leases", gpu=6).json()["error"]["field"] == "gpu"
    later = here.get("/leases", at=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    assert (later.status_code, later.json()["error"]["field"]) == (422, "at")
    assert here.get("/leases", at=datetime.now(UTC).isoformat()).status_code == 200
    assert here.get("/leases", node="nowhere").status_code == 404
    assert here.get("/jobs/nobody/payers").status_code == 404


@pytest.mark.exhaustive
async def test_without_tenants_the_page_says_how_one_is_made(
    browser: Browser, database_url: str
) -> None:
    with (
        temporary_folder() as folder,
        running_console(folder, database_url=database_url) as console,
    ):
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{console.url}/budgets?token={console.token}")
        await page.wait_for_url(f"{console.url}/budgets")
        await expect(page.locator(".empty")).to_contain_text("longshore tenant set")
        await context.close()
