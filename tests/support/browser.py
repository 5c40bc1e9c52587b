"""The system's Chromium, driven by Playwright."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright, expect

from tests.support.chromium import find_chromium
from tests.support.local_stack import temporary_folder

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
expect.set_options(timeout=60_000)  # milliseconds: on a busy machine a page takes its time


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Yield a browser without a window."""
    # Chromium writes files of its own for temporary data at any time, and they stay until it ends:
    # in a folder of its own they are not laid to the test that happens to run.
    with temporary_folder() as folder:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=find_chromium(),
                args=list(FLAGS),
                env={**os.environ, "TMPDIR": str(folder)},
            )
            yield browser
            await browser.close()
