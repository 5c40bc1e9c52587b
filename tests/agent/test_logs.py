"""Logs: from the spool on the node into the store, and out of it again."""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from longshore.activities.log_order import Chunk, OrderedOutput
from longshore.activities.logstore import LogStore, Stream
from longshore.activities.node.outcome import AGENT_STOPPED
from longshore.client.logs import JobLogs
from longshore.models.addresses import without_secrets
from longshore.models.errors import StoreError
from longshore.models.job_status import JobState, JobStatus
from tests.agent.conftest import LocalNode, MakeBox
from tests.faults.chaos.machines import small_disk
from tests.support.waiting import eventually


class FullDisk(MemoryFileSystem):
    """A store whose disk is full until somebody makes room."""

    protocol = "fulldisk"
    store: dict[str, Any] = {}  # noqa: RUF012 (fsspec's own form)
    pseudo_dirs = [""]  # noqa: RUF012 (as above)
    full = True

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if type(self).full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pipe_file(path, value, mode, **kwargs)


@pytest.fixture
def full_disk() -> Iterator[type[FullDisk]]:
    fsspec.register_implementation("fulldisk", FullDisk, clobber=True)
    FullDisk.full = True
    FullDisk.store.clear()
    yield FullDisk
    FullDisk.store.clear()


async def test_both_streams_are_in_the_store_when_the_process_has_ended(box: LocalNode) -> None:
    run = box.start("echo out; echo err >&2; exit 3")
    await run.done
    out = box.logs.read(run.record.job_id)
    err = box.logs.read(run.record.job_id, stream="stderr")
    assert (out.data, out.attempt, out.ended) == (b"out\n", 1, True)
    assert (err.data, err.ended) == (b"err\n", True)


async def test_logs_can_be_followed_while_the_process_runs(box: LocalNode) -> None:
    go = box.folder / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
    run = box.start(f"echo first; {wait}; echo an error >&2; echo second; exit 3")
    following = JobLogs(box.logs, run.record.job_id, _runs).output(None, None, follow=True)
    first = await asyncio.wait_for(anext(following), 60)
    assert (first.stream, first.data) == ("stdout", b"first\n")
    assert not run.done.done()
    go.touch()
    rest = [chunk async for chunk in following]
    assert b"".join(chunk.data for chunk in rest if chunk.stream == "stdout") == b"second\n"
    assert b"".join(chunk.data for chunk in rest if chunk.stream == "stderr") == b"an error\n"


async def test_following_begins_before_anything_is_stored_and_ends_with_the_job(
    box: LocalNode,
) -> None:
    over = asyncio.Event()

    async def status() -> JobStatus:
        return await _runs() if not over.is_set() else await _has_ended()

    following = JobLogs(box.logs, "job-a", status).output(None, None, follow=True, only="stdout")
    pieces = asyncio.create_task(_all(following))
    box.logs.write("job-a", 1, "box", "stdout", 0, b"torn")
    over.set()
    assert await asyncio.wait_for(pieces, 60) == b"torn"


async def test_both_streams_come_in_the_order_in_which_they_were_written(box: LocalNode) -> None:
    times = box.folder / "runs" / "job-a-1" / "times"
    step = f"until [ -e {times} ] && [ $(wc -l < {times}) -ge $n ]; do sleep 0.02; done"
    run = box.start(
        f"n=1; echo one; {step}; n=2; echo two >&2; {step}; n=3; echo three; {step}; "
        "echo four >&2",
        job="job-a",
    )
    await run.done
    output = OrderedOutput(box.logs, run.record.job_id, 1, "box")
    assert [chunk.data for chunk in output.all_of_it()] == [
        b"one\n", b"two\n", b"three\n", b"four\n"
    ]  # fmt: skip


async def test_a_log_larger_than_a_part_arrives_whole(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.activities.node.log_shipper.PART_BYTES", 1000)
    run = box.start("seq 1 2000")
    await run.done
    expected = "".join(f"{i}\n" for i in range(1, 2001)).encode()
    assert box.logs.read(run.record.job_id).data == expected
    parts = sorted((box.folder / "logs" / run.record.job_id / "1" / "box").glob("stdout.*"))
    assert [part.name for part in parts][:2] == ["stdout.000000000000", "stdout.000000001000"]


def test_reading_goes_on_where_it_was_left(tmp_path: Path) -> None:
    store = LogStore(tmp_path.as_uri())
    _store(store, (0, b"abc"), (3, b"def"))
    piece = store.read("job-a", from_offset=2)
    assert (piece.data, piece.next_offset, piece.ended) == (b"cdef", 6, False)
    assert store.read("job-a", from_offset=6).data == b""
    limited = store.read("job-a", limit=1)
    assert (limited.data, limited.next_offset) == (b"abc", 3)


def test_parts_may_overlap(tmp_path: Path) -> None:
    store = LogStore(tmp_path.as_uri())
    _store(store, (0, b"abcd"), (2, b"cdef"), (4, b"e"))
    assert store.read("job-a").data == b"abcdef"


def test_the_latest_attempt_is_read_unless_one_is_named(tmp_path: Path) -> None:
    store = LogStore(tmp_path.as_uri())
    for attempt in (2, 10):
        store.write("job-a", attempt, "box", "stdout", 0, str(attempt).encode())
    assert store.attempts("job-a") == [2, 10]
    assert store.read("job-a").data == b"10"
    assert store.read("job-a", attempt=2).data == b"2"
    assert store.read("job-b").attempt is None


def test_half_written_parts_are_not_seen(tmp_path: Path) -> None:
    store = LogStore(tmp_path.as_uri())
    _store(store, (0, b"abc"))
    (tmp_path / "job-a" / "1" / "box" / ".stdout.000000000003.1234").write_bytes(b"de")
    assert store.read("job-a").data == b"abc"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/logs", "nosuch://key:hunter2@bucket/logs"])
def test_a_store_that_cannot_be_read_says_which(url: str) -> None:
    with pytest.raises(StoreError) as raised:
        LogStore(url).read("job-a")
    assert without_secrets(url) in str(raised.value)
    assert "hunter2" not in str(raised.value)


async def test_a_full_store_never_hurts_the_job(
    tmp_path: Path, make_box: MakeBox, full_disk: type[FullDisk]
) -> None:
    box = make_box(tmp_path, logs="fulldisk://logs")
    run = box.start("echo out; until [ -e go ]; do sleep 0.02; done", job="job-a")
    await eventually(lambda: "No space left" in run.progress().log_error)
    (box.folder / "jobs" / "job-a" / "work" / "go").touch()
    report = await run.done
    assert (report.exit_code, report.failure) == (0, None)
    assert "No space left" in report.log_error
    assert box.output(run.record.key) == "out\n"


async def test_logs_arrive_once_the_store_has_room_again(
    tmp_path: Path, make_box: MakeBox, full_disk: type[FullDisk]
) -> None:
    box = make_box(tmp_path, logs="fulldisk://logs")
    run = box.start("echo out; until [ -e go ]; do sleep 0.02; done", job="job-a")
    await eventually(lambda: run.progress().log_error)
    full_disk.full = False
    (box.folder / "jobs" / "job-a" / "work" / "go").touch()
    report = await run.done
    assert report.log_error == ""
    assert box.logs.read(run.record.job_id).data == b"out\n"


async def test_a_job_goes_on_where_the_disk_of_its_node_takes_no_output(
    tmp_path: Path, make_box: MakeBox
) -> None:
    box = make_box(tmp_path / "node")
    with small_disk(tmp_path / "node" / "runs", megabytes=1) as mounted:
        if not mounted:
            pytest.skip("this account may mount no small disk: as root it can")
        report = await box.report("head -c 2M /dev/zero")
    assert (report.exit_code, report.failure, report.log_error) == (0, None, "")
    assert report.message.startswith("finished; ")
    assert report.message.endswith("bytes of its output are lost: the disk of the node was full")


async def test_a_log_tells_what_a_full_disk_did_not_take(
    tmp_path: Path, make_box: MakeBox
) -> None:
    box = make_box(tmp_path / "node")
    with small_disk(tmp_path / "node" / "runs", megabytes=1) as mounted:
        if not mounted:
            pytest.skip("this account may mount no small disk: as root it can")
        filler = tmp_path / "node" / "runs" / "filler"
        run = box.start(
            f"head -c 2M /dev/zero 2> /dev/null > {filler}; yes | head -c 200000; rm {filler}; "
            "echo end"
        )
        report = await run.done
        said = box.output(run.record.key)
    assert report.message == "finished"
    assert "bytes of output are lost: the disk was full" in said
    assert said.endswith("end\n")


async def test_what_a_dead_agent_left_in_the_spool_is_shipped_by_the_next(
    box: LocalNode,
) -> None:
    run = box.start("echo one; echo two; sleep 300")
    await eventually(lambda: "two" in box.output(run.record.key))
    await box.processes.stop_all(AGENT_STOPPED, grace=0)
    record = box.folder / "runs" / f"{run.record.job_id}-1" / "record.json"
    record.write_text(run.record.model_copy(update={"report": None}).model_dump_json())
    stored = box.folder / "logs" / run.record.job_id / "1" / "box"
    for part in stored.glob("*"):  # as if only the first line had arrived
        part.unlink()
    box.logs.write(run.record.job_id, 1, "box", "stdout", 0, b"one\n")
    await box.life().recover()
    piece = box.logs.read(run.record.job_id)
    assert (piece.data, piece.ended) == (b"one\ntwo\n", True)


def _store(store: LogStore, *parts: tuple[int, bytes], stream: Stream = "stdout") -> None:
    for offset, data in parts:
        store.write("job-a", 1, "box", stream, offset, data)


async def _all(chunks: AsyncIterator[Chunk]) -> bytes:
    return b"".join([chunk.data async for chunk in chunks])


async def _runs() -> JobStatus:
    at = datetime(2026, 11, 25, tzinfo=UTC)
    return JobStatus(
        job_id="job-a", name="a", tenant="default", pool="default", state=JobState.RUNNING,
        submitted_at=at, since=at,
    )  # fmt: skip


async def _has_ended() -> JobStatus:
    return (await _runs()).model_copy(update={"state": JobState.SUCCEEDED})
