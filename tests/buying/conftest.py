"""A simulated market at the time of day, with real agents; a control worker that buys there."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from playwright.async_api import Browser
from temporalio.client import Client

from longshore.activities.buying import machines
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.settings import Settings
from longshore.scheduling.buying import start_backoff
from tests.buying.buyer import Buyer, buy_from_begun_minute
from tests.support.browser import running_browser
from tests.support.chromium import HOW_TO_INSTALL, find_chromium
from tests.support.console import RunningConsole, running_console
from tests.support.control import serving_control
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket, market_with_machines


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMarket]:
    """Starts a simulated market at the time of day, whose machines are agents; 0.2 s."""
    with market_with_machines(tmp_path_factory.mktemp("market"), steady=True) as running:
        yield running


@pytest.fixture(scope="module")  # one worker at a time may take from the task queue
async def buying(
    temporal: Client, settings: Settings, market: RunningMarket
) -> AsyncIterator[Database]:
    """Starts a control worker that buys at the market, and yields its database; 0.3 s."""
    changed = market.settings(
        state_dir=settings.state_dir,
        market_list_lag=timedelta(seconds=2),
        buying_every=timedelta(seconds=2),
    )
    async with serving_control(temporal, changed) as database:
        yield database


@pytest.fixture(scope="module", autouse=True)
def looks() -> Iterator[None]:
    """Has machines that start looked at each second, and for their agents each 0.1 s; no cost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "_POLL_EVERY", timedelta(seconds=1))
        yield


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the pauses between two starts on paid time begin with 0.5 s; starts nothing."""
    monkeypatch.setattr(start_backoff, "FIRST_PAUSE", timedelta(seconds=0.5))


@pytest.fixture
def begun_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has pools buy time from the minute that has begun, not from the next one; starts nothing."""
    buy_from_begun_minute(monkeypatch)


@pytest.fixture
def longshore(longshore: Longshore, buying: Database) -> Longshore:
    """A client whose jobs that control worker takes."""
    return longshore


@pytest.fixture
async def buyer(temporal: Client, buying: Database, market: RunningMarket) -> AsyncIterator[Buyer]:
    """Buys at a market with 8 nodes for sale at $2.10; lets go what it bought; 0.5 s."""
    market.clear_faults()
    market.book({"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8})
    buyer = Buyer(temporal, buying, market)
    yield buyer
    market.clear_faults()
    await buyer.close()


@pytest.fixture(scope="module")
def console(market: RunningMarket, settings: Settings) -> Iterator[RunningConsole]:
    """Starts a console of the market and this module's database; 3 s."""
    with (
        temporary_folder() as folder,
        running_console(folder, market, settings.resolve_database_url()) as console,
    ):
        yield console


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Starts the system's Chromium; 1 s."""
    if find_chromium() is None:
        pytest.skip(HOW_TO_INSTALL)
    async with running_browser() as browser:
        yield browser
