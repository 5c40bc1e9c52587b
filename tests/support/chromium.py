"""A plugin of the test suite: where Chromium is; where there is none, a line at
the end of a run says that no page was looked at."""

import shutil

import pytest

NAMES = (
    "/usr/lib/chromium/chromium-headless-shell",  # Debian's: its command would stay as a parent
    "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome",
    "google-chrome-stable",
)  # fmt: skip
"""The first that is there is taken: the shell needs less than half of the browser's time."""
HOW_TO_INSTALL = (
    "no Chromium is installed, so no page was looked at. Install it (Debian: "
    "apt install chromium-headless-shell), then run the tests again"
)


def find_chromium() -> str | None:
    """Return the path of the browser, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    count = sum(HOW_TO_INSTALL in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(
            f"SKIPPED {count} browser tests: {HOW_TO_INSTALL}.", yellow=True, bold=True
        )
