"""A fleet of two nodes for all tests of a module, and the advice how to run a failed one alone."""

from collections.abc import AsyncIterator, Generator

import pytest

from tests.faults.fleet import Fleet, running_fleet
from tests.support.local_stack import temporary_folder


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=2) as running:
            yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        again = f"make faults PYTEST=\"'{item.nodeid}'\""
        report.sections.append(("to run this case alone", again))
        for fleet in item.funcargs.values():
            if isinstance(fleet, Fleet):
                report.sections.append(("the fleet", fleet.describe()))
    return report
