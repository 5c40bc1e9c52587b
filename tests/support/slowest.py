"""A plugin of the test suite: after a long run, where its time went."""

from collections import defaultdict
from collections.abc import Mapping

import pytest

LONG = 300.0
"""Seconds of all tests, one after the other, from which on it is told."""
_MOST = 20
"""Files that are named."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: dict[str, float] = defaultdict(float)
    for outcome in terminalreporter.stats:
        for report in terminalreporter.getreports(outcome):
            if isinstance(report, pytest.TestReport):
                files[report.nodeid.partition("::")[0]] += report.duration
    whole = sum(files.values())
    if whole < LONG:
        return
    folders: dict[str, float] = defaultdict(float)
    for file, seconds in files.items():
        folders[file.rpartition("/")[0]] += seconds
    terminalreporter.section(f"{whole:.0f} seconds of tests, by folder and in the slowest files")
    for name, seconds in (*_longest(folders), *_longest(files)[:_MOST]):
        terminalreporter.write_line(f"{seconds:7.1f} {seconds / whole:6.1%}  {name}")


def _longest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])
