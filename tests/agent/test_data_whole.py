"""Nothing that a source has is left out in silence: all of it is listed, or why not is told."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longshore.activities import web_files
from longshore.activities.node import data_cache, data_source
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_source import DataSource
from longshore.activities.node.source_walk import files_below
from longshore.activities.storage import SourceError
from longshore.models.data import DataSet
from longshore.models.errors import StoreError
from longshore.scheduling.staging import Wanted
from tests.agent.conftest import LocalNode
from tests.support.nobody import folder_of_nobody
from tests.support.served import Served, serving

DEEP = Path("part1/part2")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A folder with files at three depths behind HTTP on this machine; 0.01 s."""
    with serving(filled(tmp_path / "source")) as served:
        yield served


def filled(folder: Path) -> Path:
    (folder / DEEP).mkdir(parents=True)
    for path in (Path(), DEEP.parent, DEEP):
        (folder / path / "f.csv").write_text("1")
    return folder


ALL = ["f.csv", "part1/f.csv", "part1/part2/f.csv"]


def paths_of(url: str) -> list[str]:
    return [file.path for file in DataSource(url).look().files]


@pytest.mark.parametrize("path", ["part1/", "part1/part2/"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (404, "part2/' is listed, and is not there"), (410, "part2/' is listed, and is not there"),
        (403, "part2/' is listed, and may not be read"), (429, "429"), (500, "500"), (503, "503"),
        ("", "did not answer in time"),
    ],
)  # fmt: skip
def test_a_folder_whose_page_cannot_be_had_is_told(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, answer: int | str, why: str
):
    assert paths_of(served.url) == ALL
    served.answers[f"/{path}"] = answer
    if answer == "":
        monkeypatch.setattr(web_files, "SILENT", 0.2)
    error = SourceError if "is listed" in why else StoreError
    with pytest.raises(error, match=why.replace("part2", path.split("/")[-2])):
        paths_of(served.url)


def test_a_folder_is_asked_for_as_it_is_linked(served: Served):
    served.answers |= {"/part1": 404, "/part1/part2": 404}
    assert paths_of(served.url) == ALL


def test_a_page_that_links_to_itself_and_by_a_query_is_asked_for_once(served: Served):
    links = ("f.csv", "./", "/", "/part1/", "/part1/?up=/", "/part1/#/", "//", "?C=N;O=D", "..")
    served.answers["/part1/"] = "".join(f"<a href='{link}'>x</a>" for link in links)
    served.answers |= {"/part1/?up=/": 500, "/part1/?C=N;O=D": 500}
    assert paths_of(served.url) == ALL[:2]


def test_a_file_that_is_linked_and_not_there_is_told(served: Served):
    """It was said that there is nothing at all."""
    served.answers["/part1/f.csv"] = 404
    with pytest.raises(SourceError, match=r"/part1/f\.csv' is listed, and is not there"):
        paths_of(served.url)


@pytest.mark.parametrize(
    "kind", ["TEXT/HTML", "Text/Html; charset=utf-8", "Application/XHTML+xml"]
)
def test_a_page_is_one_however_its_kind_is_written(served: Served, kind: str):
    served.kind = kind
    served.answers["/"] = "<a href='f.csv'>x</a>"
    assert paths_of(served.url) == ["f.csv"]


@pytest.mark.parametrize("path", [DEEP.parent, DEEP])
@pytest.mark.parametrize("mode", [0, 0o444, 0o111])
def test_a_folder_of_this_machine_that_cannot_be_listed_is_told(path: Path, mode: int):
    with folder_of_nobody() as top:
        filled(top / "source")
        source = (top / "source").as_uri()
        assert paths_of(source) == ALL
        (top / "source" / path).chmod(mode)
        with pytest.raises(SourceError, match="is listed, and may not be read"):
            paths_of(source)
        (top / "source" / path).chmod(0o755)


async def test_a_job_is_told_of_data_of_which_a_folder_cannot_be_listed(
    box: LocalNode, served: Served
):
    served.answers["/part1/part2/"] = 404
    run = box.start("echo lacks $LONGSHORE_DATA_MISSING", data={"digits": served.url})
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "lacks digits\n"
    assert "part2/' is listed, and is not there" in box.output(run.record.key, "stderr")


@pytest.mark.parametrize(
    ("path", "answer", "why"),
    [
        ("/part1/part2/", 404, "part1/part2/' is listed, and is not there"),
        ("/part1/part2/", 403, "part1/part2/' is listed, and may not be read"),
        ("/", 401, "/ may not be read"), ("/", 403, "/ may not be read"),
        ("/", 404, "there is nothing at"), ("/", 410, "/ is not there"),
    ],
)  # fmt: skip
async def test_what_was_fetched_before_is_not_taken_for_a_source_that_is_there(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, answer: int,
    why: str,
):  # fmt: skip
    """A dead link was as a source that is away: the set of before was used for good."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(data_cache, "_LISTED_FOR", 0)
    cache, never = DataCache(tmp_path / "cache"), threading.Event()
    data = DataSet.model_validate({"from": served.url})

    def want() -> set[str]:
        fetch = cache.want("alice", "d", data, cache, Wanted("", 0), never)
        assert fetch.done.wait(10)
        cache.leave(fetch, cache)
        return {file.path for file in fetch.listing.files}

    assert want() == {*ALL}
    served.answers[path] = answer
    with pytest.raises(SourceError, match=why):
        want()
    served.answers[path] = 503
    assert want() == {*ALL}


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (401, SourceError, "f.csv may not be read"), (403, SourceError, "f.csv may not be read"),
        (404, SourceError, "there is nothing at"), (410, SourceError, "there is nothing at"),
        (503, StoreError, "503"),
    ],
)  # fmt: skip
def test_one_file_that_is_refused_is_not_away(
    served: Served, answer: int, error: type[Exception], why: str
):
    served.answers["/f.csv"] = answer
    with pytest.raises(error, match=why):
        paths_of(f"{served.url}f.csv")


@pytest.mark.parametrize("path", ["", "/f.csv"])
def test_a_source_on_this_machine_that_may_not_be_read_is_not_away(path: str):
    with folder_of_nobody() as top:
        filled(top / "source").chmod(0)
        with pytest.raises(SourceError, match="may not be read"):
            paths_of(f"{(top / 'source').as_uri()}{path}")
        (top / "source").chmod(0o755)


@pytest.mark.parametrize("links", ["", "nowhere", "f.csv"])
def test_more_files_than_are_taken_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: str
):
    """Those beyond were left out, where links to nowhere made up for them."""
    source = filled(tmp_path / "source")
    for number in range(2):
        if links:
            (source / f"{number}").symlink_to(links)
        else:
            (source / f"{number}").write_text("1")
    monkeypatch.setattr(data_source, "MOST_FILES", 5)
    assert paths_of(source.as_uri())[-3:] == ALL
    (source / "part1/one-more.csv").write_text("1")
    with pytest.raises(SourceError, match="has over 5 files: pack them"):
        paths_of(source.as_uri())


def test_links_by_which_pages_are_sorted_are_none_of_too_many(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_source, "MOST_FILES", 5)
    sorts = "<a href='?C=N;O=D'>N</a><a href='?C=M;O=A'>M</a><a href=#top>x</a>"
    for path, link in (("/", "part1/"), ("/part1/", "part2/"), ("/part1/part2/", "f.csv")):
        served.answers[path] = f"{sorts}<a href=f.csv>x</a><a href={link}>x</a>"
    assert paths_of(served.url) == ALL
    monkeypatch.setattr(data_source, "MOST_FILES", 4)
    with pytest.raises(SourceError, match="/part1/part2/ and those before it have too many links"):
        paths_of(served.url)


def test_what_a_file_system_has_for_root_is_no_data():
    with folder_of_nobody() as top:
        source = filled(top / "source")
        for path in ("lost+found", "part1/lost+found"):
            (source / path).mkdir()
            (source / path / "f").write_text("1")
        (source / "lost+found").chmod(0)
        assert paths_of(source.as_uri()) == [*ALL[:1], ALL[1], "part1/lost+found/f", ALL[2]]
        (source / "lost+found").chmod(0o755)


class Endless:
    """A server that has whatever it is asked for."""

    def ls(self, folder: str, detail: bool) -> list[dict[str, Any]]:
        return [{"name": f"{folder}a/", "type": "directory", "size": None}]


def test_folders_without_end_are_refused():
    with pytest.raises(SourceError, match="has over 500 folders in each other"):
        list(files_below(Endless(), "http://h/", lambda _: True))


def test_an_ipv6_address_is_a_source(tmp_path: Path):
    try:
        with serving(filled(tmp_path / "source"), "::1") as served:
            assert paths_of(served.url) == ALL
            assert paths_of(f"{served.url}part1/f.csv") == ["f.csv"]
    except OSError:
        pytest.skip("this machine has no IPv6")


async def test_programs_of_a_folder_stay_programs(box: LocalNode, tmp_path: Path):
    program = filled(tmp_path / "source") / "run"
    program.write_text("#!/bin/sh\necho ran")
    (tmp_path / "source/link").symlink_to("run")
    data = {"digits": {"from": (tmp_path / "source").as_uri(), "start_at": "100%"}}
    shows = "cd $LONGSHORE_DATA_DIGITS; ./run; ./link; test -x f.csv || echo none"
    before = DataSource(data["digits"]["from"]).look()
    program.chmod(0o755)
    listing = DataSource(data["digits"]["from"]).look()
    assert listing.digest != before.digest
    run = box.start(shows, data=data)
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "ran\nran\nnone\n"
    program.chmod(0o644)
    source = DataSource(data["digits"]["from"])
    assert [file.path for file in listing.files if not source.is_as_listed(file)] == [
        "link",
        "run",
    ]
