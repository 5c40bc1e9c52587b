"""How files of data sets behind HTTP are named on the node, and that their digests are found."""

import hashlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from longshore.activities import own_link
from longshore.activities.index_pages import links_below
from longshore.activities.node import data_cache
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_fetch import Fetch
from longshore.activities.node.data_source import DataSource
from longshore.activities.serving.engine_command import path_of
from longshore.activities.serving.model_files import connect_model
from longshore.activities.storage import SourceError
from longshore.models.data import DataSet
from longshore.models.errors import StoreError
from longshore.scheduling.staging import Wanted
from tests.agent.conftest import LocalNode
from tests.support.served import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """An empty folder behind HTTP on this machine; 0.01 s."""
    (tmp_path / "source").mkdir()
    with serving(tmp_path / "source") as served:
        yield served


def paths_of(url: str) -> list[str]:
    return [file.path for file in DataSource(url).look().files]


async def test_files_of_an_index_page_have_their_own_names(served: Served):
    names = ["a b.csv", "c#1?.csv", "d%20.csv", "e+f.csv", "f\u00fc.csv", "val x/g h.csv"]
    names += ["a&b.csv", "a&amp;b.csv", "&copy.csv", "q\"'.csv", "x&y/z&lt;.csv"]
    (served.folder / "val x").mkdir()
    (served.folder / "x&y").mkdir()
    for name in names:
        (served.folder / name).write_text(name)
    source = DataSource(served.url)
    listing = source.look()
    assert [file.path for file in listing.files] == sorted(names)
    assert [b"".join(source.read(file)).decode() for file in listing.files] == sorted(names)


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("x&amp;y.csv", "x&amp;y.csv"),
        ("/a&amp;b/c.csv", "c.csv"), ("//h/a&amp;b/c.csv", "c.csv"),
        ("https://h/a&b/c.csv", "c.csv"), ("./c/", "c/"), ("c%26.csv", "c%26.csv"),
        ("../", ""), ("/a&amp;bc/x", ""), ("/", ""), ("http://other/a&amp;b/c", ""), ("", ""),
        ("http://[", ""),
        ("d&section1.csv", "d&section1.csv"), ("q&notes.csv", "q&notes.csv"),
        ("q&not=1", "q&not=1"), ("q&not;=1", "q\u00ac=1"), ("q&not.csv", "q\u00ac.csv"),
        ("q&notin;x", "q\u2209x"), ("q&notit;x", "q&notit;x"), ("q&amp=x", "q&amp=x"),
        ("q&amp;not=1", "q&amp;not=1"), ("q&none;x", "q&none;x"), ("q&#167x", "q\u00a7x"),
    ],
)  # fmt: skip
def test_links_are_read_as_browsers_read_them(link: str, path: str):
    found = links_below(f"<p>http://h/a&amp;b/text</p><A HREF='{link}'>x</A>", "http://h/a&b")
    assert found == ([f"http://h/a&b/{path.replace('&amp;', '&')}"] if path else [])


@pytest.mark.parametrize("before", ["<![x y]>", "<![CDATA[ x > ]]>", "<![if !IE]>", "<!x>", "<!>"])
def test_what_is_no_html_hides_no_link(before: str):
    assert links_below(f"{before}<a href=x.csv>x</a><![x y", "http://h/a") == ["http://h/a/x.csv"]


@pytest.mark.parametrize(
    ("base", "links"),
    [
        ("sub/", ["a/sub/x", "a/y"]), ("/a/b/c", ["a/b/x", "a/y"]), ("//h/a/", ["a/x", "a/y"]),
        ("http://other/a/", []), ("", ["a/x", "a/y"]), ("http://[", ["a/x", "a/y"]),
    ],
)  # fmt: skip
def test_links_are_relative_to_the_base_of_their_page(base: str, links: list[str]):
    bases = f"<base target=_top><base href='{base}'><base href='/other/'>"
    found = links_below(f"<a href=x>x</a>{bases}<a href=/a/y>y</a>", "http://h/a")
    assert found == [f"http://h/{link}" for link in links]


async def test_the_digest_of_a_file_with_a_space_is_checked(
    box: LocalNode, served: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)
    wrong = hashlib.sha256(b"other").hexdigest()
    (served.folder / "a b.csv").write_text("1")
    (served.folder / "SHA256SUMS").write_text(f"{wrong}  a b.csv\r\n")
    data = {"digits": {"from": served.url, "start_at": "100%"}}
    run = box.start('echo "lacks $LONGSHORE_DATA_MISSING"', data=data)
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "lacks digits/a b.csv\n"


@pytest.mark.parametrize("signed", ["", "?sig=1/2&x=%2F", "?sig=other"])
async def test_one_file_is_named_without_its_query(served: Served, signed: str):
    (served.folder / "a b.csv").write_text("1")
    assert paths_of(f"{served.url}a%20b.csv{signed}") == ["a b.csv"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("a.gguf", ""),
        ("a.gguf", "?download=true"),
        ("My%20Model.gguf", ""),
        ("f%C3%BC.gguf", "#1"),
    ],
)
async def test_an_engine_finds_the_file_of_its_model(
    served: Served, tmp_path: Path, path: str, asked: str
):
    (served.folder / unquote(path)).write_text("GGUF")
    local = (served.folder / path).as_uri().replace("%25", "%")
    for url in (f"{served.url}{path}{asked}", local):
        (stored,) = paths_of(url)
        environ = {"LONGSHORE_DATA_MODEL": str(tmp_path / "data")}
        assert path_of(url, "model", environ) == tmp_path / "data" / stored


@pytest.mark.parametrize("path", ["a.csv", ""])
async def test_no_redirect_leads_to_the_own_link_of_the_machine(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str
):
    """127.0.0.2 stands for it, which has the same files."""
    (served.folder / "a.csv").write_text("secret")
    there = served.url.replace("127.0.0.1", "127.0.0.2")
    served.moved[f"/moved/{path}"] = f"{there}{path}"
    served.moved["/again/a.csv"] = f"{served.url}moved/a.csv"
    served.moved["/aside/a.csv"] = f"{served.url}a.csv"
    monkeypatch.setattr(own_link, "is_of_link", lambda address: str(address) == "127.0.0.2")
    for url in (f"{served.url}moved/{path}", f"{served.url}again/a.csv", f"{there}{path}"):
        if path or "again" not in url:
            with pytest.raises(StoreError, match=r"127\.0\.0\.2\S+ is an address of the machine"):
                paths_of(url)
    assert paths_of(f"{served.url}aside/a.csv") == ["a.csv"]


@pytest.mark.parametrize("path", ["a.csv", ""])
async def test_no_redirect_from_elsewhere_leads_to_the_machine_itself(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str
):
    """127.0.0.2 stands for elsewhere."""
    (served.folder / "a.csv").write_text("secret")
    monkeypatch.setattr(own_link, "is_of_machine", lambda address: str(address) == "127.0.0.1")
    with serving(served.folder, "127.0.0.2") as elsewhere:
        elsewhere.moved[f"/moved/{path}"] = f"{served.url}{path}"
        served.moved[f"/moved/{path}"] = f"{served.url}{path}"
        with pytest.raises(StoreError, match=r"127\.0\.0\.1\S+ leads to an address of"):
            paths_of(f"{elsewhere.url}moved/{path}")
        assert paths_of(f"{elsewhere.url}{path}") == ["a.csv"]
    if path:
        assert paths_of(f"{served.url}moved/{path}") == ["a.csv"]


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.1"]])
async def test_a_name_that_leads_to_the_machine_once_it_is_connected_to_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
):
    """It was looked up once to be checked, and once to connect (DNS rebinding)."""
    from aiohttp.resolver import DefaultResolver

    (served.folder / "a.csv").write_text("secret")
    led = ["127.0.0.2"]

    async def resolve(self: object, host: str, port: int = 0, **_: object) -> list[dict[str, Any]]:
        return [{"hostname": host, "host": each, "port": port, "family": 2, "proto": 0, "flags": 0}
                for each in led]  # fmt: skip

    monkeypatch.setattr(DefaultResolver, "resolve", resolve)
    monkeypatch.setattr(own_link, "is_own_machine", lambda host: False)
    monkeypatch.setattr(own_link, "is_of_machine", lambda address: str(address) == "127.0.0.1")
    with serving(served.folder, "127.0.0.2") as elsewhere:
        url = elsewhere.url.replace("127.0.0.2", f"rebinds{len(addresses)}.test")
        assert paths_of(f"{url}a.csv") == ["a.csv"]
        led[:] = addresses
        url = served.url.replace("127.0.0.1", f"rebinds{len(addresses)}.test")
        with pytest.raises(own_link.OwnAddressError, match=r"rebinds\S+ leads to an address of"):
            paths_of(f"{url}a.csv")
        # Of several addresses one that may be read is.
        url, led[:] = elsewhere.url.replace("127.0.0.2", "both.test"), ["127.0.0.1", "127.0.0.2"]
        assert paths_of(f"{url}a.csv") == ["a.csv"]


async def test_a_name_that_led_elsewhere_gives_an_image_nothing_of_the_machine(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A name may lead to another address each time that it is looked up, as to connect."""
    (served.folder / "a.csv").write_text("secret")
    monkeypatch.setattr(data_cache, "is_own_machine", lambda host: False)
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.001)
    cache, never = DataCache(tmp_path / "cache"), threading.Event()
    data = DataSet.model_validate({"from": served.url})

    def want(tenant: str, within: Sequence[Path] | None) -> Fetch:
        return cache.want(tenant, "d", data, object(), Wanted("", 0), never, within)

    assert want("alice", None).done.wait(10)
    for tenant in ("bob", "alice"):  # of whom one has a listing for other jobs
        with pytest.raises(
            own_link.OwnAddressError, match="leads to an address of the machine itself"
        ):
            want(tenant, ())


@pytest.mark.parametrize("url", ["http://[abc/x", "http://a]b/"])
def test_what_is_no_url_is_a_source_that_cannot_be_read(url: str):
    """Jobs and models of before may have it."""
    for read in (DataSource, connect_model):
        with pytest.raises(StoreError, match="is no URL: Invalid IPv6 URL"):
            read(url)


@pytest.mark.parametrize(
    ("host", "link", "machine"),
    [
        ("169.254.169.254", True, False),
        ("::ffff:169.254.169.254", True, False),
        ("64:ff9b::a9fe:a9fe", True, False),
        ("fd20:ce::254", True, False),
        ("fd00:ec2::254", True, False),
        ("fe80::1", True, False),
        ("127.0.0.1", False, True),
        ("2130706433", False, True),
        ("0.0.0.0", False, True),
        ("::1", False, True),
        ("64:ff9b::7f00:1", False, True),
        ("192.0.2.1", False, False),
        ("2001:db8::1", False, False),
    ],
)
def test_addresses_of_the_own_link_and_of_the_machine_itself(host: str, link: bool, machine: bool):
    assert (own_link.is_own_link(host), own_link.is_own_machine(host)) == (link, machine)


@pytest.mark.parametrize("link", ["%2e%2e", "a%2Fb", "val/..%2F..%2Fetc", "a%00b", "val/%2e%2e/x"])
async def test_links_whose_decoded_name_leads_elsewhere_are_refused(served: Served, link: str):
    (served.folder / "index.html").write_text(f'<a href="{link}">x</a>')
    with pytest.raises(SourceError, match="whose name no node can give"):
        paths_of(served.url)


async def test_a_job_in_an_image_gets_nothing_that_a_job_without_one_had_of_the_machine(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a name, or a link, leads to can be another thing by then, or away."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(data_cache, "_LISTED_FOR", 0)
    cache, never, allowed = DataCache(tmp_path / "cache"), threading.Event(), tmp_path / "allowed"
    (served.folder / "a.csv").write_text("secret")
    allowed.mkdir()
    link = allowed / "link"
    link.symlink_to(served.folder)

    def want(url: str, within: Sequence[Path] | None) -> Fetch:
        data = DataSet.model_validate({"from": url})
        fetch = cache.want("alice", "d", data, object(), Wanted("", 0), never, within)
        assert fetch.done.wait(10)
        return fetch

    by_link, by_name = want(f"{link.as_uri()}/", None), want(served.url, None)
    assert (by_link.folder / "a.csv").read_text() == "secret"
    link.unlink()
    shutil.copytree(served.folder, link)  # with the same time
    assert want(f"{link.as_uri()}/", [allowed]).folder != by_link.folder
    shutil.rmtree(link)
    link.write_text("")
    monkeypatch.setattr(data_cache, "is_own_machine", lambda host: False)
    monkeypatch.setattr(own_link, "is_of_machine", lambda address: False)
    assert want(served.url, []).folder != by_name.folder
    served.away = {"", "a.csv"}
    assert want(served.url, []).folder != by_name.folder
    shutil.rmtree(cache.root / "alice" / want(served.url, []).state.name)
    with pytest.raises(StoreError):
        want(served.url, [])
