"""The system's Chromium, driven by Playwright."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright, expect

from tests.support.chromium import find_chromium

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
expect.set_options(timeout=60_000)  # milliseconds: on a busy machine a page takes its time


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Yield a browser without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(FLAGS)
        )
        yield browser
        await browser.close()
