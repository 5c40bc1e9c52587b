"""Which firmware of a host is in a fingerprint, and which is not and why, on the page of nodes."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator

from longshore import console
from longshore.console import nodes_view
from longshore.console.fingerprints import fingerprints_html, link_html
from longshore.models.domains import DomainNode, PoolTopology
from longshore.models.node import HostFirmware
from tests.client.test_fingerprints import NODES, of
from tests.support.screens import a_node

_THEME = Path(console.__file__).with_name("theme.css").read_text(encoding="utf-8")
_NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_the_page_has_both_and_shows_text_of_agents_as_text() -> None:
    assert fingerprints_html([of("simulated", None)]) == ""
    html = fingerprints_html([*NODES, of("odd", "4c", HostFirmware(part="BIOS", facts=("<b>",)))])
    assert '<h2 id="fingerprints">Fingerprints</h2>' in html
    assert "<div>BIOS: A, version 3.2b</div><div>BMC: version 1.71</div>" in html
    assert "<div>BMC not read: /sys/x: Permission denied</div>" in html
    assert "BIOS: &lt;b&gt;" in html
    many = fingerprints_html(of(f"node-{n}", f"{n:x}") for n in range(150))
    assert many.count("<tr id=") == 100
    assert "and 50 more" in many


def test_a_fingerprint_of_several_rows_has_them_together_below_one_anchor() -> None:
    silent = HostFirmware(part="BMC", missing="silent")
    html = fingerprints_html([of("a", "2"), of("b", "1"), of("c", "2", silent)])
    rows = html.split("<tr")[2:]
    assert [row[:20] for row in rows] == [
        ' id="fingerprint-1">', ' id="fingerprint-2">', '><th scope="row" cla'
    ]  # fmt: skip
    assert "silent" in rows[2]


async def test_a_phone_shows_all_of_a_fingerprint(browser: Browser) -> None:
    html = fingerprints_html(
        [of("node-0", "1f0e6b2c9d4a7e35", HostFirmware(part="BIOS", missing="/sys/" + "x" * 200))]
    )
    async with await browser.new_page(viewport={"width": 390, "height": 844}) as page:
        await page.set_content(f"<style>{_THEME}</style>{html}")
        for cell in await page.locator("tbody th, tbody td").all():
            assert 300 < await _right_of(cell) <= 390, await cell.inner_text()
        heads = "[...document.querySelectorAll('tbody [data-head]')].map(e => e.dataset.head)"
        assert await page.evaluate(heads) == ["Fingerprint", "Nodes", "Host firmware"]


@pytest.mark.parametrize("width", [1001, 1280])
async def test_long_words_of_an_agent_stay_in_their_column(browser: Browser, width: int) -> None:
    node = a_node(
        None, gpu_type="\u202e" * 12, hostname="h" * 200, conformance="f" * 200, simulated=True
    )
    member = DomainNode(node_id=node.id, state=node.state, flavor="h100", gpus=1, used=0, free=1)
    topology = PoolTopology(pool="default", domains=(), unlabelled=(member,))
    groups = nodes_view.groups_of([node], [topology])
    html = nodes_view.pools_html(nodes_view.lines_of(groups, fold=True), groups, _NOW, {})
    async with await browser.new_page(viewport={"width": width, "height": 900}) as page:
        await page.set_content(f"<style>{_THEME}</style>{html}")
        row = page.locator("tbody tr:not(.of-domain)")
        columns = [await _right_of(each) for each in await row.locator("th, td").all()]
        for number, column in enumerate(columns):
            cell = row.locator("th, td").nth(number)
            for part in await cell.locator("*").all():
                assert await _right_of(part) <= column, await part.inner_text()


async def test_a_node_leads_to_its_fingerprint(browser: Browser) -> None:
    odd = "1f 0e/\u202e&"
    link, html = link_html(odd), fingerprints_html([of("a", odd)])
    async with await browser.new_page() as page:
        await page.set_content(f"{link}{html}")
        await page.get_by_role("link").click()
        assert await page.locator("tr:target").count() == 1


async def _right_of(element: Locator) -> float:
    box = await element.bounding_box()
    assert box is not None
    return box["x"] + box["width"]
