"""The page /orderbook in a real browser."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from longshore.activities.database import Database
from longshore.activities.markets.memory import MarketMemory
from longshore.models.market import Level, OrderBook
from longshore.models.market_memory import Recommendation, Source
from longshore.models.price import PriceAnswer, PriceNeed
from longshore.scheduling.prices.price import price
from tests.support.console import RunningConsole
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

PHONE = {"width": 390, "height": 844}
ASKS = "table.asks tbody tr"
Open = Callable[..., Awaitable[Page]]


@pytest.fixture
async def open_page(browser: Browser, console: RunningConsole) -> AsyncIterator[Open]:
    """Opens the page with a query. At the end: nothing failed or came from elsewhere."""
    async with AsyncExitStack() as pages:

        async def opened(query: str = "node_count=8", **options: Any) -> Page:
            return await pages.enter_async_context(_looking(browser, console, query, options))

        yield opened


@asynccontextmanager
async def _looking(
    browser: Browser, console: RunningConsole, query: str, options: dict[str, Any]
) -> AsyncIterator[Page]:
    context = await browser.new_context(viewport=options.pop("viewport", None), **options)
    page = await context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((console.url, "data:", console.url.replace("http", "ws")))
            else trouble.append(request.url)
        ),
    )
    await page.goto(f"{console.url}/orderbook?{query}&token={console.token}")
    await page.wait_for_url(f"{console.url}/orderbook?{query}")
    yield page
    await context.close()
    assert not trouble


def the_limit(page: Page) -> Any:
    return page.locator(".pick .price")


async def test_the_book_with_the_recommended_row_marked(
    open_page: Open, example: RunningMarket
) -> None:
    page = await open_page()
    await expect(page).to_have_title("Order book · Longshore")
    await expect(the_limit(page)).to_contain_text("$25.00")
    await expect(page.locator(ASKS)).to_have_count(6)
    await expect(page.locator("table.bids tbody tr")).to_have_count(4)
    marked = page.locator(f"{ASKS}[aria-current=true]")
    await expect(marked).to_have_count(1)
    await expect(marked).to_contain_text("$25.00limit128224")
    facts = page.locator(".facts")
    for text in ("$24.25", "$24.50", "$1,552.00", "$1,600.00", "$1.00", "432 asked 120 bid"):
        await expect(facts).to_contain_text(text)
    await expect(page.locator(".reason")).to_contain_text("$25.00 (ask 3 of 6) scores 1.492")
    await expect(page.get_by_text("Simulated market")).to_be_visible()
    await expect(page.get_by_text("8 nodes × 8 GPUs = 64 GPUs")).to_be_visible()
    await expect(page.locator("time")).to_contain_text(re.compile(r"updated \d\d:\d\d:\d\d UTC"))
    depth = page.get_by_role("img", name="Depth of the book: 432 GPUs asked in 6 entries")
    await expect(depth.locator("svg path").first).to_be_attached()
    row = page.get_by_role("table", name="What other sizes would cost").locator(".pick")
    await expect(row).to_contain_text("64")


async def test_it_follows_the_market(open_page: Open, example: RunningMarket) -> None:
    page = await open_page()
    await expect(the_limit(page)).to_contain_text("$25.00")
    example.book({"side": "sell", "dollars_per_gpu_hour": 2, "nodes": 40})
    await expect(the_limit(page)).to_contain_text("$2.00")
    await expect(page.locator(ASKS)).to_have_count(1)
    said = page.locator("[aria-live=polite]", has_text="recommended limit")
    await expect(said).to_contain_text("$2.00")


@pytest.mark.exhaustive
async def test_the_past_of_prices_and_limits(
    open_page: Open, example: RunningMarket, console_database: str
) -> None:
    database = Database(console_database)
    memory = MarketMemory(database)
    now = datetime.now(UTC)
    for minutes in (40, 30, 20, 10):
        book = OrderBook(
            provider="sfcompute", instance_type="8xA100", asks=(Level(price=1_200_000, gpus=64),),
            observed_at=now - timedelta(minutes=minutes), simulated=True,
        )  # fmt: skip
        answer = price(book, PriceNeed(gpus=16), now)
        assert isinstance(answer, PriceAnswer)
        await memory.store(book, [Recommendation.of(answer, Source.WATCH)])
    await database.close()
    page = await open_page("instance_type=8xA100")
    chart = page.get_by_role("img", name="Best ask and best bid over time, from 4 books")
    await expect(chart.locator("svg path").first).to_be_attached()
    row = page.get_by_role("table", name="How past limits fared").locator("tbody tr")
    await expect(row).to_have_text(re.compile(r"9-64 ?4 ?100 % ?100 % ?\+0\.0 %"))
    await page.get_by_role("button", name="1 hour").click()
    await expect(chart).to_be_visible()


@pytest.mark.exhaustive
async def test_it_looks_at_the_market_only_while_it_can_be_seen(
    open_page: Open, console: RunningConsole, example: RunningMarket
) -> None:
    page = await open_page("node_count=1&instance_type=8xH100")
    await expect(the_limit(page)).to_contain_text("$24")
    await seen(page, False)
    for dollars in (2, 3, 4):  # each is in force some two seconds after the one before
        example.book({"side": "sell", "dollars_per_gpu_hour": dollars, "nodes": 40})
        await eventually(lambda wanted=dollars: limit_of(console) == wanted)
    await expect(the_limit(page)).to_contain_text("$24")
    await seen(page, True)
    await expect(the_limit(page)).to_contain_text("$4.00")


@pytest.mark.exhaustive
async def test_what_is_asked_for_can_be_changed_by_keyboard(
    open_page: Open, example: RunningMarket
) -> None:
    page = await open_page("instance_type=8xH100")
    await expect(the_limit(page)).to_contain_text("$24")
    nodes = page.get_by_label("Nodes")
    await nodes.focus()
    await page.keyboard.press("ControlOrMeta+A")
    await page.keyboard.type("8")
    await expect(the_limit(page)).to_contain_text("$25.00")
    await expect(page).to_have_url(re.compile(r"instance_type=8xH100&node_count=8"))
    kind = page.get_by_label("Instance type")
    await kind.focus()
    await page.keyboard.press("ControlOrMeta+A")
    await page.keyboard.type("8xA")
    options = page.get_by_role("option")
    await expect(options).to_have_text(["8xA100"])  # Enter chooses what is listed
    await page.keyboard.type("BACUS")
    await expect(options).to_have_count(0)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("8xABACUS is not traded here")).to_be_visible()
    await expect(page).to_have_url(re.compile("8xABACUS"))
    await page.reload()
    await expect(page.get_by_text("8xABACUS is not traded here")).to_be_visible()


@pytest.mark.exhaustive
async def test_a_thin_book_warns(open_page: Open, example: RunningMarket) -> None:
    page = await open_page("node_count=50")
    await expect(page.get_by_text("Thin book.")).to_be_visible()
    await expect(page.get_by_text("less than twice the 400 needed")).to_be_visible()
    await open_and_expect(open_page, "node_count=100", "Too few GPUs for sale.")


@pytest.mark.exhaustive
async def test_an_empty_book_says_so(open_page: Open, example: RunningMarket) -> None:
    example.book({"side": "buy", "dollars_per_gpu_hour": 2, "nodes": 3})
    page = await open_and_expect(open_page, "node_count=8", "Nothing of 8xH100 is for sale")
    await expect(the_limit(page)).to_have_count(0)


@pytest.mark.exhaustive
async def test_what_is_no_type_says_how_to_write_one(
    open_page: Open, example: RunningMarket
) -> None:
    await open_and_expect(open_page, "instance_type=H100", "Write it like 8xH100")


@pytest.mark.exhaustive
async def test_a_market_that_is_away_and_comes_back(
    open_page: Open, example: RunningMarket
) -> None:
    page = await open_page("instance_type=8xH100&node_count=4")
    await expect(the_limit(page)).to_be_visible()
    example.fault("unavailable", times=-1, provider="sfcompute")
    await expect(page.get_by_text("sfcompute does not answer")).to_be_visible()
    await expect(page.locator("table.asks")).not_to_be_visible()
    await expect(page.get_by_text("Simulated market")).to_be_visible()
    example.clear_faults()
    await expect(the_limit(page)).to_be_visible()


async def test_dark_follows_the_system_and_the_button_wins(
    open_page: Open, example: RunningMarket
) -> None:
    page = await open_page(color_scheme="dark")
    await expect(the_limit(page)).to_be_visible()  # so the page is complete, and the button works
    await expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    await page.get_by_role("button", name="Theme").click()
    await expect(page.locator("body")).to_have_class(re.compile("body--light"))
    await page.reload()
    await expect(page.locator("body")).to_have_class(re.compile("body--light"))


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("query", ["node_count=8", "node_count=9999", "instance_type=8xABACUS"])
async def test_a_phone_scrolls_in_one_direction(
    open_page: Open, example: RunningMarket, query: str
) -> None:
    page = await open_page(query, viewport=PHONE, is_mobile=True)
    await expect(page.locator(".pick, .empty h2").first).to_be_visible()
    width = "document.documentElement.scrollWidth"
    assert await page.evaluate(width) <= PHONE["width"]


async def test_the_form_signs_a_browser_in_and_out(
    browser: Browser, console: RunningConsole, example: RunningMarket
) -> None:
    async with await browser.new_context() as context:
        page = await context.new_page()
        await page.goto(f"{console.url}/orderbook?node_count=8")
        await page.get_by_label("Token").fill(console.token)
        await page.get_by_role("button", name="Sign in").click()
        await expect(the_limit(page)).to_contain_text("$25.00")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Token")).to_be_visible()


async def seen(page: Page, visible: bool) -> None:
    """Have the page believe that its tab was hidden, or shown again."""
    await page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        not visible,
    )


def limit_of(console: RunningConsole) -> float | None:
    limit = console.get("/orderbook", instance_type="8xH100").json()["optimal_price"]
    return limit and round(limit, 2)


async def test_a_wrong_address_says_so(browser: Browser, console: RunningConsole) -> None:
    async with await browser.new_context(extra_http_headers=console.headers) as context:
        page = await context.new_page()
        answer = await page.goto(f"{console.url}/nothing/here")
        assert answer
        assert answer.status == 404
        await expect(page.get_by_role("link", name="Go to the order book")).to_be_visible()


async def open_and_expect(open_page: Open, query: str, text: str) -> Page:
    page = await open_page(query)
    await expect(page.get_by_text(text).first).to_be_visible()
    return page
