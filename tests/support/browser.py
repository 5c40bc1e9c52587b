"""The system's Chromium, driven by Playwright."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright, expect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_INSTALL = (
    "no Chromium is installed, so no page was looked at. Install it (Debian and Ubuntu: "
    "apt install chromium), then run the tests again"
)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
expect.set_options(timeout=20_000)  # milliseconds: on a busy machine a page takes its time


def find_chromium() -> str | None:
    """Return the path of the browser, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Yield a browser without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(FLAGS)
        )
        yield browser
        await browser.close()
