"""Data sets that a node fetches for its jobs: once, whole, checked, shared read-only."""

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.activities import own_link
from longshore.activities.node import data_cache, data_fetch, data_sets
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_fetch import Fetch
from longshore.activities.node.data_source import DataSource, ForbiddenError
from longshore.activities.node.source_links import with_linked
from longshore.activities.storage import SourceError, connect
from longshore.models.data import DataSet
from longshore.models.errors import StoreError
from longshore.models.retry import FailureClass
from longshore.scheduling.staging import Wanted
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.object_store import object_store
from tests.support.served import Served, serving
from tests.support.waiting import eventually

SHOW = (
    "cd $LONGSHORE_DATA_DIR/digits;"
    " for file in $(find . -type f | sort); do echo $file $(cat $file); done"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a file tried again after 0.01 s; starts nothing."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A data set in a folder of this machine."""
    folder = tmp_path / "source"
    (folder / "val").mkdir(parents=True)
    (folder / "one.csv").write_text("1")
    (folder / "val/two.csv").write_text("2")
    return folder


@pytest.fixture
def served(source: Path) -> Iterator[Served]:
    """The data set behind HTTP on this machine; 0.01 s."""
    with serving(source) as served:
        yield served


def digits(url: str, **more: object) -> dict[str, object]:
    return {"digits": {"from": url, **more}}


async def test_a_job_finds_the_files_of_a_folder(box: LocalNode, source: Path):
    run = box.start(f"{SHOW}; ls -ld $LONGSHORE_DATA_DIGITS", data=digits(source.as_uri() + "/"))
    report = await run.done
    assert report.failure is None, report.message
    lines = box.output(run.record.key).splitlines()
    assert lines[:2] == ["./one.csv 1", "./val/two.csv 2"]
    assert box.output(run.record.key, "stderr") == ""


async def test_one_file_is_a_data_set_too(box: LocalNode, source: Path):
    url = (source / "val/two.csv").as_uri()
    run = box.start("cat $LONGSHORE_DATA_DIGITS/two.csv", data=digits(url))
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "2"


async def test_files_of_any_name_and_empty_ones_are_there(box: LocalNode, source: Path):
    (source / "b#1.jpg").write_text("3")
    (source / "c ?.jpg").write_text("4")
    (source / "_SUCCESS").touch()
    data = digits(source.as_uri(), start_at="100%")
    run = box.start("ls -1 $LONGSHORE_DATA_DIGITS | sort | tr '\\n' ','", data=data)
    report = await run.done
    assert report.failure is None, report.message
    assert set(box.output(run.record.key).strip(",").split(",")) == {
        "_SUCCESS", "b#1.jpg", "c ?.jpg", "one.csv", "val",
    }  # fmt: skip


async def test_a_bucket_is_a_source(box: LocalNode):
    with object_store() as url:
        fs, root = connect(url)
        for name, text in (("one.csv", b"1"), ("val/two.csv", b"2")):
            fs.pipe_file(f"{root}/set/{name}", text)
        for folder in ("", "val/"):  # as the console of AWS makes them
            fs.call_s3("put_object", Bucket=root.split("/")[0],
                       Key=f"{root.partition('/')[2]}/set/{folder}".lstrip("/"))  # fmt: skip
        run = box.start(SHOW, data=digits(f"{url}/set/"))
        report = await run.done
    assert report.failure is None, report.message
    assert box.output(run.record.key) == "./one.csv 1\n./val/two.csv 2\n"
    assert box.output(run.record.key, "stderr") == ""


async def test_a_second_job_finds_what_the_first_one_had(box: LocalNode, served: Served):
    for _ in range(2):
        run = box.start(SHOW, data=digits(served.url))
        assert (await run.done).failure is None
        assert box.output(run.record.key) == "./one.csv 1\n./val/two.csv 2\n"
    assert sorted(name for name in served.asked if name.endswith(".csv")) == ["one.csv", "two.csv"]


async def test_what_is_whole_here_serves_while_its_source_is_away(
    box: LocalNode, served: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_cache, "_LISTED_FOR", 0.0)
    for _ in range(2):
        run = box.start(SHOW, data=digits(served.url))
        assert (await run.done).failure is None
        assert box.output(run.record.key) == "./one.csv 1\n./val/two.csv 2\n"
        served.refused = {""}  # the index page


async def test_ten_jobs_at_once_fetch_it_once(box: LocalNode, served: Served):
    runs = [box.start(SHOW, data=digits(served.url)) for _ in range(10)]
    for run in runs:
        assert (await run.done).failure is None
    assert sorted(name for name in served.asked if name.endswith(".csv")) == ["one.csv", "two.csv"]


async def test_a_source_that_has_changed_is_another_set(
    box: LocalNode, source: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_cache, "_LISTED_FOR", 0.0)
    for text in ("1", "other"):
        (source / "one.csv").write_text(text)
        run = box.start("cat $LONGSHORE_DATA_DIGITS/one.csv", data=digits(source.as_uri()))
        assert (await run.done).failure is None
        assert box.output(run.record.key) == text
    assert len(list((box.folder / "cache/data/default").glob("*.set"))) == 2


async def test_nobody_writes_to_it(box: LocalNode, source: Path):
    run = box.start(
        "find -L $LONGSHORE_DATA_DIGITS -perm /222 | wc -l", data=digits(source.as_uri())
    )
    await run.done
    assert box.output(run.record.key).strip() == "0"


async def test_a_job_starts_once_its_part_is_there_and_waits_for_the_rest(
    box: LocalNode, served: Served
):
    served.held_back = {"two.csv"}
    run = box.start(
        "ls $LONGSHORE_DATA_DIGITS; echo up;"
        " longshore-wait $LONGSHORE_DATA_DIGITS//./val/././two.csv/ &&"
        " cat $LONGSHORE_DATA_DIGITS/val/two.csv; longshore-wait $LONGSHORE_DATA_DIR/digits"
        " && echo whole",
        data=digits(served.url, start_at="50%"),
    )
    await eventually(lambda: "up" in box.output(run.record.key))
    served.open.set()
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "one.csv\nup\n2whole\n"


async def test_a_job_waits_until_its_part_is_there(box: LocalNode, served: Served):
    served.held_back = {"two.csv"}
    run = box.start("echo up", data=digits(served.url))
    await eventually(lambda: "digits: 1B of 2B" in run.progress().message)
    assert not run.started.done()
    served.open.set()
    assert (await run.done).failure is None


async def test_what_cannot_be_had_after_three_tries_is_told_and_the_job_starts(
    box: LocalNode, served: Served
):
    served.refused = {"two.csv"}
    run = box.start(
        "echo lacks $LONGSHORE_DATA_MISSING; longshore-wait $LONGSHORE_DATA_DIGITS/val 2>&1;"
        " echo $?; longshore-wait $LONGSHORE_DATA_DIGITS/one.csv; echo $?",
        data=digits(served.url),
    )
    assert (await run.done).failure is None
    lines = box.output(run.record.key).splitlines()
    assert lines[0] == "lacks digits/val/two.csv"
    assert "/val cannot be had: " in lines[1]
    assert "503" in lines[1]
    assert lines[2:] == ["1", "0"]
    assert served.asked.count("two.csv") == 3
    assert "it starts without digits/val/two.csv" in box.output(run.record.key, "stderr")


async def test_of_very_many_that_cannot_be_had_each_is_told(
    box: LocalNode, served: Served, source: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_fetch, "_LONGEST_FAILED", 1)
    monkeypatch.setattr(data_sets, "_MOST_NAMED", 1)
    (source / "val/three.csv").write_text("3")
    served.refused = {"two.csv", "three.csv"}
    run = box.start(
        'echo "$LONGSHORE_DATA_MISSING" | tail -n 1; cd $LONGSHORE_DATA_DIGITS;'
        " for file in val/two.csv val/three.csv val val/four.csv;"
        " do longshore-wait --timeout 9 $file 2>&1; echo $?; done",
        data=digits(served.url),
    )
    assert (await run.done).failure is None
    missing, *lines = box.output(run.record.key).splitlines()
    assert missing == "1 more file"
    assert lines[1::2] == ["1"] * 4
    for file, said in zip(("two.csv", "three.csv"), lines[::2], strict=False):
        assert f"longshore-wait: val/{file} cannot be had: " in said
    last = "cannot be had: it is, or holds, one of 1 more file that could not be fetched"
    assert [last in said for said in lines[:4:2]].count(True) == 1
    assert lines[6] == "longshore-wait: data set digits has no val/four.csv"
    said = box.output(run.record.key, "stderr")
    assert "it starts without 1 more file: `longshore-wait PATH` tells of each" in said


async def test_a_source_that_has_nothing_is_told(box: LocalNode, tmp_path: Path):
    run = box.start(
        "echo lacks $LONGSHORE_DATA_MISSING; longshore-wait $LONGSHORE_DATA_DIR/digits 2>&1",
        data=digits((tmp_path / "nowhere").as_uri()),
    )
    assert (await run.done).exit_code == 1
    lines = box.output(run.record.key).splitlines()
    assert lines[0] == "lacks digits"
    assert "cannot be had: there is nothing at file://" in lines[1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("$LONGSHORE_DATA_DIGITS/three.csv", 1, "data set digits has no three.csv"),
        ("/etc/passwd", 1, "/etc/passwd is in no data set of this job"),
        ("--timeout 1 $LONGSHORE_DATA_DIGITS/val/two.csv", 124, "was not there within 1 s"),
        ("--timeout soon x", 64, "--timeout takes whole seconds"),
        ("", 64, "usage: longshore-wait"),
        ("--help", 0, "usage: longshore-wait"),
    ],
)
async def test_waiting_for_what_does_not_come_ends(
    box: LocalNode, served: Served, words: str, code: int, said: str
):
    served.held_back = {"two.csv"}
    data = digits(served.url, start_at=0)
    run = box.start(f"longshore-wait {words} 2>&1; echo $?", data=data)
    assert (await run.done).failure is None
    out = box.output(run.record.key)
    assert said in out
    assert out.endswith(f"{code}\n")
    served.open.set()


async def test_its_own_digests_are_held_against_the_files(box: LocalNode, source: Path):
    right, wrong = (hashlib.sha256(text).hexdigest() for text in (b"1", b"3"))
    (source / "SHA256SUMS").write_text(f"{right}  one.csv\n{wrong}  val/two.csv\n")
    run = box.start("echo $LONGSHORE_DATA_MISSING", data=digits(source.as_uri(), start_at="100%"))
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "digits/val/two.csv\n"
    assert not list((box.folder / "cache/data").rglob("two.csv"))
    assert not list((box.folder / "cache/data").glob("*/*.set/parts/*"))


async def test_a_job_in_an_image_cannot_have_files_of_the_node_as_data(
    make_box: MakeBox, tmp_path: Path
):
    (tmp_path / "shared").mkdir()
    (tmp_path / "agent-token").write_text("secret")
    box = make_box(
        tmp_path / "node", runtime="podman", image="localhost/none:1",
        image_folders=[tmp_path / "shared"],
    )  # fmt: skip
    (tmp_path / "shared/me?").mkdir()
    (tmp_path / "shared/out").symlink_to(tmp_path)
    for path in (
        "agent-token", "shared/../agent-token", "shared/me?/../../agent-token",
        "shared/me%3F/../../agent-token", "shared/out/agent-token",
    ):  # fmt: skip
        report = await box.report("true", data=digits(f"file://{tmp_path}/{path}"))
        assert report.failure is FailureClass.START, path
        assert "a job in an image may not read file://" in report.message
    with serving(tmp_path) as served:
        report = await box.report("true", data=digits(f"{served.url}agent-token"))
    assert report.failure is FailureClass.START
    assert f"a job in an image may not read {served.url}agent-token" in report.message
    assert not served.asked


async def test_links_that_lead_out_of_a_data_set_bring_nothing(
    box: LocalNode, source: Path, tmp_path: Path
):
    (tmp_path / "secret").write_text("secret")
    (source / "inside").symlink_to("one.csv")
    (source / "outside").symlink_to(tmp_path / "secret")
    run = box.start("ls $LONGSHORE_DATA_DIGITS; echo lacks $LONGSHORE_DATA_MISSING",
                    data=digits(source.as_uri()))  # fmt: skip
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "lacks digits\n"
    assert "leads out of the data set" in box.output(run.record.key, "stderr")
    (source / "outside").unlink()
    run = box.start("cat $LONGSHORE_DATA_DIGITS/inside", data=digits(source.as_uri()))
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "1"


async def test_a_link_is_the_file_or_folder_that_it_leads_to(box: LocalNode, source: Path):
    (source / "latest").symlink_to("val")
    (source / "newest").symlink_to("latest")
    (source / "val/best.csv").symlink_to("../latest/two.csv")
    for name, leads in (("gone", "val/three.csv"), ("here", "."), ("a", "b"), ("b", "a")):
        (source / name).symlink_to(leads)
    data = digits(source.as_uri(), start_at="100%")
    run = box.start(f"{SHOW}; echo lacks $LONGSHORE_DATA_MISSING", data=data)
    assert (await run.done).failure is None
    assert box.output(run.record.key).splitlines() == [
        "./latest/best.csv 2", "./latest/two.csv 2", "./newest/best.csv 2", "./newest/two.csv 2",
        "./one.csv 1", "./val/best.csv 2", "./val/two.csv 2", "lacks",
    ]  # fmt: skip


def test_links_are_followed_over_others_and_in_no_circle():
    """As in a cache of Hugging Face, where each file of a snapshot is a link."""
    links = {"snap/v1/m": "blobs/1", "latest": "snap/v1", "a/loop": "a", "x/y": "z", "z/w": "x"}
    files = {"blobs/1": 1, "a/b": 2, "x/n": 3, "z/o": 4}
    found = with_linked(files, links)
    assert found["latest/m"] == found["snap/v1/m"] == 1
    assert {path for path in found if path[0] in "axz"} == {
        "a/b", "a/loop/b", "x/n", "x/y/o", "x/y/w/n", "z/o", "z/w/n", "z/w/y/o",
    }  # fmt: skip
    behind = with_linked({"shared/y": 5}, {"v1/data": "shared", "cur": "v1"})
    assert behind["cur/data/y"] == 5


def test_a_file_that_became_a_link_since_it_was_listed_is_not_read(source: Path, tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    reads = DataSource(source.as_uri())
    (file, _) = reads.look().files
    (source / "one.csv").unlink()
    (source / "one.csv").symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError, match="leads out of the data set"):
        b"".join(reads.read(file))
    (source / "one.csv").unlink()
    os.mkfifo(source / "one.csv")
    with pytest.raises(StoreError, match="is no file"):
        b"".join(reads.read(file))


async def test_no_store_of_ours_is_data(tmp_path: Path, source: Path):
    store = tmp_path / "artifacts"
    store.mkdir()
    cache = DataCache(tmp_path / "cache", stores=[store.as_uri()])
    for url in (store.as_uri(), f"{store.as_uri()}/objects/", tmp_path.as_uri()):
        data, gone = DataSet.model_validate({"from": url}), threading.Event()
        with pytest.raises(ForbiddenError, match="a store of Longshore's own"):
            cache.want("default", "x", data, object(), Wanted("", 0), gone)
    data = DataSet.model_validate({"from": source.as_uri()})
    cache.want("default", "x", data, object(), Wanted("", 0), threading.Event())


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]"])
async def test_what_clouds_tell_machines_is_no_data(box: LocalNode, host: str):
    run = box.start(
        "longshore-wait $LONGSHORE_DATA_DIGITS 2>&1", data=digits(f"http://{host}/latest/")
    )
    assert (await run.done).exit_code == 1
    assert "is an address of the machine's own link" in box.output(run.record.key)


async def test_a_job_in_an_image_sees_its_data_and_waits_for_it(
    image_box: LocalNode, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(own_link, "is_of_machine", lambda address: False)  # as of another machine
    served.held_back = {"two.csv"}
    gone = {"gone": {"from": (tmp_path / "shared/nowhere").as_uri()}}
    run = image_box.start(
        "cd $LONGSHORE_DATA_DIGITS; pwd; ls; touch x 2>/dev/null || echo closed; echo up >&2;"
        " /longshore/bin/longshore-wait val/two.csv && cat one.csv val/two.csv; echo;"
        " /longshore/bin/longshore-wait $LONGSHORE_DATA_GONE 2>&1 | cut -c1-60",
        data={**digits(served.url, start_at="50%"), **gone},
    )
    await eventually(lambda: "up" in image_box.output(run.record.key, "stderr"))
    served.open.set()
    report = await run.done
    assert report.failure is None, report.message
    assert image_box.output(run.record.key).splitlines() == [
        "/longshore/data/digits", "one.csv", "closed", "12",
        "longshore-wait: /longshore/data/gone cannot be had: there is",
    ]  # fmt: skip


async def test_one_that_lacked_something_is_tried_anew_for_the_next_job(
    box: LocalNode, served: Served, tmp_path: Path
):
    served.refused = {"two.csv"}
    first = box.start(
        f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.05; done", data=digits(served.url)
    )
    await eventually(lambda: "up" in box.output(first.record.key))
    served.refused = set()
    second = box.start(SHOW, data=digits(served.url))
    assert (await second.done).failure is None
    assert box.output(second.record.key) == "./one.csv 1\n./val/two.csv 2\n"
    (tmp_path / "go").touch()
    assert (await first.done).failure is None
    assert not any(entry.in_use for entry in box.processes.files.data.entries())


@pytest.mark.exhaustive
async def test_names_that_no_disk_can_have_beside_each_other_are_told(box: LocalNode):
    with object_store() as url:
        fs, root = connect(url)
        for name in ("a", "a/b", "c", "x" * 300):
            fs.pipe_file(f"{root}/set/{name}", name.encode())
        run = box.start("echo lacks $LONGSHORE_DATA_MISSING", data=digits(f"{url}/set/"))
        report = await run.done
    assert report.failure is None, report.message
    lacks = set(box.output(run.record.key).split()[1:])
    # Which of the two comes first is a matter of chance; where it is the file, the other lacks.
    assert lacks - {f"digits/{'x' * 300}"} in ({"digits/a"}, {"digits/a/b"})


async def test_a_stop_ends_a_fetch_that_nobody_else_wants(box: LocalNode, served: Served):
    served.held_back = {"two.csv"}
    run = box.start("true", data=digits(served.url))
    await eventually(lambda: "two.csv" in served.asked)
    ended = await box.stop(run)
    assert ended.stopped_for == "test"
    assert not run.started.done()
    served.open.set()
    (state,) = (box.folder / "cache/data/default").glob("*.set")
    await eventually(lambda: not list((state / "parts").iterdir()))
    # What was there stays, and another job fetches the rest.
    again = box.start(SHOW, data=digits(served.url))
    assert (await again.done).failure is None
    assert box.output(again.record.key) == "./one.csv 1\n./val/two.csv 2\n"


def a_cache(folder: Path) -> DataCache:
    return DataCache(folder)


def test_what_is_held_and_what_goes(tmp_path: Path, source: Path):
    cache = a_cache(tmp_path)
    gone = threading.Event()
    sets: list[tuple[Fetch, object]] = []
    for number, sticky in ((1, True), (2, False)):
        folder = tmp_path / f"source-{number}"
        folder.mkdir()
        (folder / "x").write_bytes(os.urandom(1000 * number))
        data = DataSet.model_validate({"from": folder.as_uri(), "sticky": sticky})
        token = object()
        fetch = cache.want("default", f"set-{number}", data, token, Wanted("", 0), gone)
        assert fetch.done.wait(30)
        sets.append((fetch, token))
    held = {each.name: (each.bytes, each.total, each.tenant) for each in cache.held()}
    assert held == {"set-1": (1000, 1000, "default"), "set-2": (2000, 2000, "default")}
    assert all(entry.in_use for entry in cache.entries())
    for fetch, token in sets:
        cache.leave(fetch, token)
    stays = {Path(entry.key).name: entry.in_use for entry in cache.entries()}
    assert sorted(stays.values()) == [False, True]  # a sticky one stays
    cache.evict(entry.key for entry in cache.entries() if not entry.in_use)
    assert [each.name for each in cache.held()] == ["set-1"]


def test_what_is_the_same_in_a_newer_set_takes_no_more_disk_and_stays_without_the_older(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_cache, "_LISTED_FOR", 0.0)
    (source / "one.csv").write_bytes(os.urandom(1000))
    cache, token = a_cache(tmp_path), object()
    data = DataSet.model_validate({"from": source.as_uri()})
    sets: list[Fetch] = []
    for text in ("2", "two"):
        (source / "val/two.csv").write_text(text)
        before = sets[0] if sets else None
        sets.append(
            cache.want("default", "digits", data, token, Wanted("", 0), threading.Event(),
                       before=before)
        )  # fmt: skip
        assert sets[-1].done.wait(30)
    old, new = sets
    assert (old.folder / "val/two.csv").read_text() == "2"
    assert (new.folder / "val/two.csv").read_text() == "two"
    assert sum(entry.bytes for entry in cache.entries()) == 1000 + len("2") + len("two")
    cache.leave(old, token)
    cache.evict(entry.key for entry in cache.entries() if not entry.in_use)
    assert not old.folder.exists()
    assert len((new.folder / "one.csv").read_bytes()) == 1000


async def test_agents_that_share_a_cache_fetch_it_once(tmp_path: Path, served: Served):
    caches = [a_cache(tmp_path / "shared") for _ in range(3)]
    data = DataSet.model_validate({"from": served.url})

    def fetch(cache: DataCache) -> None:
        token = object()
        fetch = cache.want("default", "digits", data, token, Wanted("", 0), threading.Event())
        assert fetch.done.wait(30)
        assert not fetch.failed
        cache.leave(fetch, token)

    await asyncio.gather(*(asyncio.to_thread(fetch, cache) for cache in caches))
    assert sorted(name for name in served.asked if name.endswith(".csv")) == ["one.csv", "two.csv"]
