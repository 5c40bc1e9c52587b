"""What all pages look like, in a real browser: the choice that holds, and the navigation."""

import pytest
from playwright.async_api import Browser, expect

from tests.support.console import RunningConsole

LEAST = 4.5
"""Contrast of small text (WCAG 2.1, level AA)."""
_CONTRAST = """async e => {
  const rgb = color => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const [a, b] = [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]
    .map(rgb).map(light);
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_choice_that_holds_can_be_read(
    browser: Browser, console: RunningConsole, scheme: str
):
    context = await browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = await context.new_page()
    await page.goto(f"{console.url}/purchases?token={console.token}")
    chosen = page.get_by_role("button", name="All", exact=True)
    await expect(chosen).to_be_visible()
    assert await chosen.evaluate(_CONTRAST) >= LEAST
    await context.close()


async def test_a_phone_shows_in_the_navigation_where_it_is(
    browser: Browser, console: RunningConsole
):
    context = await browser.new_context(viewport={"width": 390, "height": 844})
    page = await context.new_page()
    await page.goto(f"{console.url}/cycles?token={console.token}")
    await expect(page.get_by_role("link", name="Cycles", exact=True)).to_be_in_viewport()
    await context.close()
