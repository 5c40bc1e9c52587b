"""What of its data could not be had is told to a job: before its start, and later."""

import hashlib
import threading
from pathlib import Path

import pytest

from longshore.activities.node import data_cache
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_sets import take_sets
from longshore.activities.node.data_source import DataSource, SourceFile
from longshore.models.errors import StoreError
from longshore.models.job import JobSpec
from tests.agent.conftest import LocalNode
from tests.support.waiting import eventually

LACKS = "sub/x.txt"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a file tried again after 0.2 s; starts nothing."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A large file, and a small one that does not have the digest on record."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "large").write_bytes(bytes(300_000))
    (folder / LACKS).write_text("abc")
    wrong = hashlib.sha256(b"other").hexdigest()
    (folder / "SHA256SUMS").write_text(f"{wrong}  {LACKS}\n")
    return folder


def of(source: Path, **more: object) -> dict[str, object]:
    return {"digits": {"from": source.as_uri(), **more}}


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Has the small file fail only once the event is set."""
    waits, reads = threading.Event(), DataSource.read

    def read(self: DataSource, file: SourceFile):
        if file.path == LACKS:
            waits.wait(60)
        return reads(self, file)

    monkeypatch.setattr(DataSource, "read", read)
    return waits


async def test_a_small_file_that_fails_is_told_at_the_start(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
):
    """The one large file is nearly all of it, and comes last."""
    failed, reads = threading.Event(), DataSource.read

    def read(self: DataSource, file: SourceFile):
        if file.path == "large":
            failed.wait(60)
        elif file.path == LACKS:
            threading.Timer(0.05, failed.set).start()
            raise StoreError("away")
        return reads(self, file)

    monkeypatch.setattr(DataSource, "read", read)
    spec = JobSpec.model_validate({"name": "x", "command": ["true"], "data": of(source)})
    sets = await take_sets(
        DataCache(tmp_path / "cache"), spec, tmp_path / "data", threading.Event(), lambda _: None
    )
    assert sets is not None
    assert sets.variables["LONGSHORE_DATA_MISSING"] == f"digits/{LACKS}"
    sets.release()


async def test_what_fails_later_is_told_on_stderr_and_by_its_progress(
    box: LocalNode, source: Path, in_order: threading.Event, tmp_path: Path
):
    run = box.start(
        f"echo lacks $LONGSHORE_DATA_MISSING; until [ -e {tmp_path}/go ]; do sleep 0.05; done",
        data=of(source),
    )
    await box.says(run, "lacks\n")
    in_order.set()
    await eventually(lambda: LACKS in box.output(run.record.key, "stderr"))
    (line,) = box.output(run.record.key, "stderr").splitlines()
    assert line.startswith(f"longshore: digits/{LACKS} cannot be had: its content does not have")
    assert run.progress().data_missing == line.removeprefix("longshore: ")
    (tmp_path / "go").touch()
    report = await run.done
    assert report.failure is None
    assert report.last_progress
    assert LACKS in report.last_progress.data_missing


async def test_what_has_failed_when_the_process_ends_is_told(
    box: LocalNode,
    source: Path,
    in_order: threading.Event,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 60.0)
    run = box.start(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.05; done", data=of(source))
    await box.says(run, "up\n")
    in_order.set()
    data = run.data
    assert data is not None
    await eventually(lambda: data.fetches["digits"].retried)
    (tmp_path / "go").touch()
    assert (await run.done).failure is None
    said = box.output(run.record.key, "stderr")
    assert f"longshore: digits/{LACKS} was not there when the process ended: its content" in said


async def test_a_source_that_was_repaired_is_listed_anew(
    box: LocalNode, source: Path, monkeypatch: pytest.MonkeyPatch
):
    """Within the minute in which a listing is kept: the job has what is there by now."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)
    first = box.start("echo lacks $LONGSHORE_DATA_MISSING", data=of(source, start_at="100%"))
    assert (await first.done).failure is None
    assert box.output(first.record.key) == f"lacks digits/{LACKS}\n"
    right = hashlib.sha256(b"abcd").hexdigest()
    (source / LACKS).write_text("abcd")
    (source / "SHA256SUMS").write_text(f"{right}  {LACKS}\n")
    second = box.start(f"cat $LONGSHORE_DATA_DIGITS/{LACKS}", data=of(source, start_at="100%"))
    assert (await second.done).failure is None
    assert box.output(second.record.key) == "abcd"
    assert box.output(second.record.key, "stderr") == ""


async def test_a_source_that_changes_while_it_is_fetched_is_listed_anew(
    box: LocalNode, source: Path, in_order: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)
    (source / "SHA256SUMS").unlink()
    run = box.start(f"cat $LONGSHORE_DATA_DIGITS/{LACKS}", data=of(source, start_at="100%"))
    await eventually(lambda: "300.0kB of" in run.progress().message)
    (source / LACKS).write_text("longer")
    in_order.set()
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "longer"
    assert box.output(run.record.key, "stderr") == ""


async def test_what_changes_at_its_source_after_the_start_is_told_and_not_mixed_in(
    box: LocalNode, source: Path, in_order: threading.Event, tmp_path: Path
):
    """The job began with 99.9 %: of the rest it gets nothing of a later day."""
    (source / "SHA256SUMS").unlink()
    run = box.start(
        f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.05; done;"
        " find $LONGSHORE_DATA_DIGITS/ -name x.txt",
        data=of(source),
    )
    await box.says(run, "up\n")
    (source / LACKS).write_text("ABC")
    in_order.set()
    why = f"digits/{LACKS} cannot be had: it was changed at its source since that was listed"
    await eventually(lambda: run.progress().data_missing == why)
    (tmp_path / "go").touch()
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "up\n"
    assert box.output(run.record.key, "stderr").splitlines()[0] == f"longshore: {why}"


async def test_of_a_source_that_changes_only_what_changed_is_fetched_again(
    box: LocalNode, source: Path, monkeypatch: pytest.MonkeyPatch
):
    """A log grows whenever it is read: it lacks in the end, and all others are fetched once."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)
    (source / "SHA256SUMS").unlink()
    (source / LACKS).unlink()
    (source / "z.log").write_text("0")
    asked, reads = list[str](), DataSource.read

    def read(self: DataSource, file: SourceFile):
        asked.append(file.path)
        if file.path == "z.log":
            with (source / "z.log").open("a") as log:
                log.write("more")
        return reads(self, file)

    monkeypatch.setattr(DataSource, "read", read)
    show = "wc -c < $LONGSHORE_DATA_DIGITS/large; echo $LONGSHORE_DATA_MISSING"
    run = box.start(show, data=of(source, start_at="100%"))
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "300000\ndigits/z.log\n"
    assert sorted(asked) == ["large", *["z.log"] * 6]
