"""A simulated market, a real database, and a console of its own process between both."""

from collections.abc import Iterator

import pytest

from models.settings import Settings
from tests.support.console import RunningConsole, running_console
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket, running_market


@pytest.fixture(scope="package")
def market() -> Iterator[RunningMarket]:
    """A market at which nobody trades but the test, whose clock stands still."""
    with running_market() as market:
        yield market


@pytest.fixture(scope="package")
def console(market: RunningMarket, settings: Settings) -> Iterator[RunningConsole]:
    """A console of that market, with the database of the stack."""
    with (
        temporary_folder() as folder,
        running_console(folder, market, settings.resolve_database_url()) as console,
    ):
        yield console


@pytest.fixture
def example(market: RunningMarket) -> RunningMarket:
    """The market with the book of the documentation's example, and no faults."""
    market.clear_faults()
    market.book(worked_example=True)
    return market
