"""Sources that come slowly: they hold up the data of no other tenant, and it is said."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longshore.activities import web_files
from longshore.activities.node import data_cache, data_source
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_fetch import Fetch
from longshore.activities.node.data_sets import fetched_sets, take_sets
from longshore.activities.node.data_source import DataSource
from longshore.activities.storage import GivenUp
from longshore.models.data import DataSet
from longshore.models.errors import StoreError
from longshore.models.job import JobSpec
from longshore.scheduling.staging import Wanted
from tests.support.scripted_http import Reply, ScriptedHTTP, SlowHeaders, Trickle
from tests.support.served import serving
from tests.support.waiting import eventually

ONE_BYTE = Reply(b"", headers={"Content-Length": "1"})
"""To HEAD."""


async def test_a_source_that_gives_almost_nothing_is_away(
    monkeypatch: pytest.MonkeyPatch,
):
    """A byte each 20 s was enough to hold a thread of the node as long as it liked."""
    monkeypatch.setattr(data_source, "_LEAST_OVER", 0.1)
    async with ScriptedHTTP() as web:
        web.on("GET /d", Trickle())
        source = DataSource(f"{web.url}/d")
        listing = await asyncio.to_thread(source.look)
        with pytest.raises(StoreError, match="gives less than 1,000 bytes a second"):
            await asyncio.to_thread(lambda: [*source.read(listing.files[0])])


def wanting(cache: DataCache) -> Callable[[str, str], Fetch]:
    """Return what has a data set fetched for a tenant, whose job has its GPUs."""
    wanted, never = Wanted("", 0, placed=True), threading.Event()

    def want(tenant: str, url: str) -> Fetch:
        data = DataSet.model_validate({"from": url})
        return cache.want(tenant, "d", data, object(), wanted, never)

    return want


async def test_a_source_that_is_slow_holds_up_no_other(tmp_path: Path):
    """Four files of one tenant held up the data of all others."""
    for name in ("slow", "quick"):
        (tmp_path / name).mkdir()
    for number in range(2 * data_cache.AT_ONCE):
        (tmp_path / "slow" / f"{number}.csv").write_text("1")
    (tmp_path / "quick" / "a.csv").write_text("1")
    cache = DataCache(tmp_path / "cache")
    with serving(tmp_path / "slow") as slow, serving(tmp_path / "quick") as quick:
        slow.held_back = {path.name for path in slow.folder.iterdir()}
        held = await asyncio.to_thread(wanting(cache), "alice", slow.url)
        await eventually(lambda: held.under_way == data_cache.AT_ONCE)
        for tenant in ("bob", "alice"):
            fetch = await asyncio.to_thread(wanting(cache), tenant, quick.url)
            await eventually(fetch.done.is_set)
        assert held.under_way == data_cache.AT_ONCE
        slow.open.set()
        await eventually(held.done.is_set)
    assert held.files_here == 2 * data_cache.AT_ONCE


async def test_jobs_that_come_and_go_take_no_more_threads_than_those_that_stay(tmp_path: Path):
    """What a thread reads ends some time after nobody wants it any more."""
    names = [f"{number}.csv" for number in range(5 * data_cache.AT_ONCE)]
    for name in names:
        (tmp_path / name).write_text("1")
    cache, before = DataCache(tmp_path / "cache"), {*threading.enumerate()}
    most = 2 * data_cache.AT_ONCE
    with serving(tmp_path) as slow:
        slow.held_back = {*names}
        for name in names:
            fetch = await asyncio.to_thread(wanting(cache), "alice", f"{slow.url}{name}")
            await eventually(lambda name=name: name in slow.asked or len(slow.asked) == most)
            for token in [*fetch.wants]:
                cache.leave(fetch, token)
        new = [each for each in {*threading.enumerate()} - before if each.name == "data"]
        assert len(new) <= most
        held = await asyncio.to_thread(wanting(cache), "alice", f"{slow.url}0.csv")
        slow.open.set()
        await eventually(held.done.is_set)


async def test_a_source_that_is_listed_slowly_holds_up_no_other_tenant(tmp_path: Path):
    """The 16 threads in which they were listed bring the code of jobs, too."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.csv").write_text("1")
    cache, unwanted = DataCache(tmp_path / "cache"), threading.Event()

    def taking(tenant: str, url: str) -> asyncio.Task[Any]:
        job: dict[str, Any] = {"name": "j", "command": "true", "data": {"d": {"from": url}}}
        spec = JobSpec.model_validate({**job, "tenant": tenant})
        folder = tmp_path / tenant
        return asyncio.create_task(take_sets(cache, spec, folder, unwanted, lambda what: None))

    with serving(tmp_path / "source") as slow, serving(tmp_path / "source") as quick:
        slow.held_back = {""}  # the index page
        held = [taking("alice", slow.url) for _ in range(20)]
        await eventually(lambda: "" in slow.asked)
        await eventually(taking("bob", quick.url).done)
        unwanted.set()
        slow.open.set()
        await asyncio.wait(held)
    assert [type(each.exception()) for each in held] == [GivenUp] * 20


async def test_it_is_said_that_nothing_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("longshore.activities.node.data_sets._SILENT_FOR", 0.001)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.csv").write_text("1")
    said: list[str] = []
    with serving(tmp_path / "source") as served:
        served.held_back = {"a.csv"}
        job: dict[str, Any] = {"name": "j", "command": "true", "data": {"d": {"from": served.url}}}
        spec = JobSpec.model_validate(job)
        taking = asyncio.create_task(
            take_sets(DataCache(tmp_path / "cache"), spec, tmp_path / "d", threading.Event(),
                      said.append)
        )  # fmt: skip
        await eventually(lambda: any("nothing has come of it for" in each for each in said))
        served.open.set()
        sets = await taking
        assert sets is not None
        assert list(sets.fetches) == list(fetched_sets(spec))
        sets.release()


async def test_no_more_is_written_than_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.csv").write_text("1")
    with serving(tmp_path / "source") as served:
        served.held_back = {"a.csv"}
        fetch = await asyncio.to_thread(wanting(DataCache(tmp_path / "cache")), "bob", served.url)
        (tmp_path / "source" / "a.csv").write_text("1" * 100)
        served.open.set()
        await eventually(fetch.done.is_set)
    assert fetch.failed == {"a.csv": "more bytes come than 1"}


async def test_headers_that_never_end_are_waited_for_no_longer_than_silence(
    monkeypatch: pytest.MonkeyPatch,
):
    """A byte now and then was never silent."""
    monkeypatch.setattr(web_files, "ANSWERS_WITHIN", 0.2)
    async with ScriptedHTTP() as web:
        source = DataSource(f"{web.url}/d")
        web.on("HEAD /d", ONE_BYTE, SlowHeaders())
        web.on("GET /d", SlowHeaders())
        (file,) = (await asyncio.to_thread(source.look)).files
        for ask in (source.look, lambda: source.is_as_listed(file), lambda: [*source.read(file)]):
            with pytest.raises(StoreError, match="it did not answer in time"):
                await asyncio.to_thread(ask)


async def test_files_of_a_page_are_asked_for_beside_each_other_and_within_a_time(
    monkeypatch: pytest.MonkeyPatch,
):
    """One after the other, as slowly as each may answer, 100,000 files took months."""
    names = [f"{number}.csv" for number in range(40)]
    page = "".join(f"<a href={name}>x</a>" for name in names).encode()
    monkeypatch.setattr(web_files, "LOOK_WITHIN", 1.0)
    async with ScriptedHTTP() as web:
        for folder, answer in (("slow", SlowHeaders()), ("quick", ONE_BYTE)):
            web.on(f"GET /{folder}/", Reply(page, headers={"Content-Type": "text/html"}))
            for name in names:
                web.on(f"HEAD /{folder}/{name}", answer)
        with pytest.raises(StoreError, match="could not be listed within 1 s"):
            await asyncio.to_thread(DataSource(f"{web.url}/slow/").look)
        asked = [each for each in web.requests if each.method == "HEAD"]
        assert len(asked) == web_files.ASKED_AT_ONCE
        monkeypatch.undo()
        listing = await asyncio.to_thread(DataSource(f"{web.url}/quick/").look)
    assert [file.path for file in listing.files] == sorted(names)
    assert listing.total == 40
