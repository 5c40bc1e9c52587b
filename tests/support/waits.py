"""A plugin of the test suite: of a test that ran out of time it shows what its tasks wait for.

The limit of time strikes while the event loop waits: its traceback names the loop, and no line of
the test.
"""

import asyncio
import contextlib
import io
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        report.sections.append(("what its tasks wait for", _waits()))
    return report


def _waits() -> str:
    written = io.StringIO()
    with contextlib.suppress(RuntimeError):  # a test without a loop has no tasks
        for task in asyncio.all_tasks(asyncio.get_event_loop()):
            task.print_stack(file=written)
    return written.getvalue()
