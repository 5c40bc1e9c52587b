"""A simulated market, a real database, and a console of its own process between both."""

import time
from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Browser

from longshore.workers.stack import Stack
from tests.support.browser import running_browser
from tests.support.chromium import HOW_TO_INSTALL, find_chromium
from tests.support.console import RunningConsole, running_console
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket, running_market


@pytest.fixture(scope="session")
def market() -> Iterator[RunningMarket]:
    """Starts a market at which nobody trades but the test, whose clock stands still; 0.1 s."""
    with running_market() as market:
        yield market


@pytest.fixture(scope="session")
def console(market: RunningMarket, stack: Stack) -> Iterator[RunningConsole]:
    """Starts a console of that market, with the database of the stack; 3 s."""
    with (
        temporary_folder() as folder,
        running_console(folder, market, stack.postgres.url()) as console,
    ):
        yield console


@pytest.fixture
def console_database(console: RunningConsole, stack: Stack) -> str:
    """The URL of the database that the console of all modules shows."""
    return stack.postgres.url()


@pytest.fixture
def example(market: RunningMarket) -> RunningMarket:
    """The market at this hour, with the book of the documentation's example, and no faults."""
    market.clear_faults()
    market.advance(max(time.time() - market.now, 0))
    market.book(worked_example=True)
    return market


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Starts the system's Chromium; 1 s. Tests that need it are skipped where there is none."""
    if find_chromium() is None:
        pytest.skip(HOW_TO_INSTALL)
    async with running_browser() as browser:
        yield browser
