"""Sources of data that a tenant made to take an agent's memory, its time or its threads."""

import asyncio
import gzip
import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longshore.activities import index_pages, web_files
from longshore.activities.index_pages import links_below
from longshore.activities.node import data_source
from longshore.activities.node.data_source import DataSource
from longshore.activities.serving.model_files import connect_model
from longshore.activities.storage import SourceError
from longshore.models.errors import StoreError
from tests.support.scripted_http import Reply, ScriptedHTTP, Silence

HTML = {"Content-Type": "text/html"}


@pytest.fixture
async def web() -> AsyncIterator[ScriptedHTTP]:
    """A server on this machine; 0.01 s."""
    async with ScriptedHTTP() as web:
        yield web


async def refused(url: str) -> str:
    """Return why a source cannot be listed."""
    with pytest.raises((SourceError, StoreError)) as refused:
        await asyncio.to_thread(DataSource(url).look)
    return str(refused.value)


async def test_an_index_page_that_is_packed_is_refused(web: ScriptedHTTP):
    """One of 4 MB took 8 GB of an agent."""
    packed = gzip.compress(b"<a href=x>x</a>" * 100_000)
    web.on("GET /d/", Reply(packed, headers={**HTML, "Content-Encoding": "gzip"}))
    assert "is sent packed" in await refused(f"{web.url}/d/")
    assert web.requests[0].headers["accept-encoding"] == "identity"


async def test_an_index_page_that_has_no_end_is_refused(
    web: ScriptedHTTP, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_pages, "MOST_BYTES", 1000)
    web.on("GET /d/", Reply(b" " * 1001, headers=HTML))
    assert f"the index page {web.url}/d/ has over 1,000 bytes" in await refused(f"{web.url}/d/")


async def test_an_index_page_that_does_not_come_is_refused(
    web: ScriptedHTTP, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(web_files, "PAGE_WITHIN", 0.1)
    web.on("GET /d/", Silence())
    assert "takes longer than 0.1 s" in await refused(f"{web.url}/d/")


async def test_pages_below_each_other_have_no_more_links_than_files_are_taken(
    web: ScriptedHTTP, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_source, "MOST_FILES", 2)
    web.on("GET /d/", Reply(b"<a href=x/>x</a><a href=a>a</a>", headers=HTML))
    web.on("GET /d/x/", Reply(b"<a href=x/b>b</a><a href=/d/x/c>c</a>", headers=HTML))
    assert "have too many links" in await refused(f"{web.url}/d/")


@pytest.mark.parametrize(
    "part", ["<a ", '<a x="', "<a x='\"", "<a href=x ", "<!--", "<!", "</", "<", "<script>",
             "<a =", "<a x= ", "<title", "<a\n", "&#1", "<a href='&#1&a'>"],
)  # fmt: skip
def test_a_page_is_looked_over_once(part: str):
    """A page of 120 kB held up all that a node read over HTTP, for hours."""
    began = time.process_time()
    links_below(part * 40_000, "http://h/a")
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("page", "links"),
    [
        ("<a href=a/b>", ["a/b"]), ("<a\nid=x HREF = 'a'/>", ["a"]), ("</a href=a>", []),
        ("<a href='a' href=>", ["a"]), ("<abbr href=a>", []),
        ('<a title="<a href=b>" href=a>', ["a"]), ("<!-- <a href=a>", []),
        ("<!-- <a href=b> --><a href=a>", ["a"]), ("<!--><a href=a>", ["a"]),
        ("<script>'<a href=b>'</SCRIPT ><a href=a>", ["a"]), ("<title><a href=b></title>", []),
        ("1 < 2 <a href=a>", ["a"]), ("<a href='a", []), ("<a href=' a '>", ["a"]),
        (f"<a href={'a' * 5000}>", []), ("<a href=?C=N><a href=a#b>", []),
        ("<a href=http://h/d/../x><a href=..a>", ["..a"]), ("<a href=&#x61;&#98>", ["ab"]),
    ],
)  # fmt: skip
def test_tags_are_read_as_browsers_read_them(page: str, links: list[str]):
    assert links_below(page, "http://h/d") == [f"http://h/d/{link}" for link in links]


async def test_digests_that_have_no_end_are_not_read(
    web: ScriptedHTTP, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_source, "_MOST_OF_SUMS", 100)
    web.on("GET /d/", Reply(b"<a href=SHA256SUMS>x</a>", headers=HTML))
    web.on("GET /d/SHA256SUMS", Reply(b"a" * 101, headers={"Content-Encoding": "unknown"}))
    assert "SHA256SUMS of" in (said := await refused(f"{web.url}/d/"))
    assert "has over 100 bytes" in said


def test_of_the_digests_those_of_its_files_are_kept(tmp_path: Path):
    digest = hashlib.sha256(b"1").hexdigest()
    (tmp_path / "a").write_text("1")
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  b\r\n{digest.upper()} *./a")
    sums, a = DataSource(tmp_path.as_uri()).look().files
    assert (sums.sha256, a.sha256) == ("", digest)


async def test_pages_of_a_model_have_the_same_bounds(web: ScriptedHTTP):
    web.on("GET /m/", Reply(b"1", headers={**HTML, "Content-Encoding": "gzip"}))
    fs, path = connect_model(f"{web.url}/m/")
    with pytest.raises(SourceError, match="is sent packed"):
        await asyncio.to_thread(fs.ls, f"{path}/")
