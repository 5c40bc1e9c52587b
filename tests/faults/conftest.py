"""Fleets for all tests of a module, a market, and the advice how to run a failed test alone."""

from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.faults.buyers import running_buyers
from tests.faults.fleet import Fleet, running_fleet
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket, market_with_machines


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Starts a stack with a control worker and two agents; 6 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=2) as running:
            yield running


@pytest.fixture
async def large_fleet() -> AsyncIterator[Fleet]:
    """Starts a stack with two control workers and more agents; 10 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=3, controls=2) as running:
            yield running


@pytest.fixture(scope="module")
def market() -> Iterator[RunningMarket]:
    """Starts a simulated market whose machines are agents; 0.2 s."""
    with temporary_folder() as folder, market_with_machines(folder) as running:
        yield running


@pytest.fixture(scope="module")
async def buyers(market: RunningMarket) -> AsyncIterator[Fleet]:
    """Starts a stack without nodes, whose control worker trades at the market; 5 s."""
    async with running_buyers(market) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        again = f"make test WORKERS=0 FOLDER=\"'{item.nodeid}'\" PYTEST=\"-m ''\""
        report.sections.append(("to run this case alone", again))
        for fleet in item.funcargs.values():
            if isinstance(fleet, Fleet):
                report.sections.append(("the fleet", fleet.describe()))
    return report
