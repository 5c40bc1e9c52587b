"""Both streams of an attempt, put in order by the looks at their sizes."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.activities.log_order import Chunk, OrderedOutput, WholeLines, last_lines, looks_in
from longshore.activities.logstore import SHIPPED, STREAMS, LogStore, Stream

BEGUN = datetime(2026, 11, 25, 6, 0, tzinfo=UTC)
Events = Sequence[tuple[Stream, bytes]]
lines = st.integers(0, 999).map(lambda number: f"line {number}\n".encode())
events = st.lists(st.tuples(st.sampled_from(STREAMS), lines), max_size=30)


class Spool:
    """What an attempt wrote, part by part on its way to a store."""

    def __init__(self, folder: str) -> None:
        self.store = LogStore(Path(folder).as_uri())
        self.written = dict.fromkeys(SHIPPED, b"")
        self.shipped = dict.fromkeys(self.written, 0)
        self.looks = 0

    def write(self, stream: Stream, data: bytes) -> None:
        """Write something, and look at the sizes a second after the last look."""
        self.written[stream] += data
        millis = int((BEGUN + timedelta(seconds=self.looks)).timestamp() * 1000)
        self.looks += 1
        sizes = " ".join(str(len(self.written[stream])) for stream in STREAMS)
        self.written["times"] += f"{millis} {sizes}\n".encode()

    def ship(self, *, over: bool = False) -> None:
        for name, data in self.written.items():
            if part := data[self.shipped[name] :]:
                self.store.write("job", 1, "node", name, self.shipped[name], part)
                self.shipped[name] = len(data)
        if over:
            self.store.write_end("job", 1, "node")

    def output(self, only: Stream | None = None) -> OrderedOutput:
        return OrderedOutput(self.store, "job", 1, "node", only=only)


def joined(chunks: Sequence[Chunk]) -> list[tuple[Stream, bytes]]:
    """Return lines with their stream."""
    return [
        (chunk.stream, line) for chunk in chunks for line in chunk.data.splitlines(keepends=True)
    ]


@given(written=events, ships=st.sets(st.integers(0, 29)))
@settings(deadline=None, max_examples=60)
def test_what_is_read_as_it_comes_is_in_the_order_of_writing(
    written: Events, ships: set[int]
) -> None:
    with TemporaryDirectory() as folder:
        spool, found = Spool(folder), list[Chunk]()
        output = spool.output()
        for number, event in enumerate(written):
            spool.write(*event)
            if number in ships:
                spool.ship()
                found += output.read()[0]
        spool.ship(over=True)
        ended = False
        while not ended:
            chunks, ended = output.read()
            found += chunks
        assert joined(found) == list(written)
        assert output.read() == ((), True)


@given(written=events, number=st.integers(0, 35), only=st.sampled_from((None, *STREAMS)))
@settings(deadline=None, max_examples=60)
def test_the_last_lines_are_those_of_the_whole(
    written: Events, number: int, only: Stream | None
) -> None:
    with TemporaryDirectory() as folder:
        spool = Spool(folder)
        for event in written:
            spool.write(*event)
        spool.ship()
        output = spool.output(only)
        wanted = [event for event in written if only in (None, event[0])]
        assert joined(output.last(number)) == (wanted[-number:] if number else [])
        assert output.all_of_it() == ()


def test_long_logs_are_read_from_near_their_end(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    for number in range(3_000):
        spool.write(STREAMS[number % 2], f"{number:>99}\n".encode())
    spool.ship()
    output = spool.output()
    found = output.last(1_500)
    assert [int(line) for _, line in joined(found)] == list(range(1_500, 3_000))
    spool.write("stdout", b"more\n")
    spool.ship()
    assert joined(output.all_of_it()) == [("stdout", b"more\n")]


@pytest.mark.parametrize("before", [b"", b"begins\n"], ids=["alone", "behind-a-line"])
@pytest.mark.parametrize("looks", [True, False])
def test_of_a_long_bar_the_end_alone_is_read(
    tmp_path: Path, before: bytes, *, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar writes 100 MB a day."""
    spool = Spool(str(tmp_path))
    spool.write("stdout", before)
    for first in range(0, 300_000, 3_000):
        bar = b"".join(b"\r%99d" % number for number in range(first, first + 3_000))
        spool.write("stdout", bar)
    if not looks:  # as of an agent of an older version
        spool.written["times"] = b""
    spool.ship()
    read = list[int]()
    whole = spool.store.read

    def counted(*args: Any, **more: Any) -> Any:
        found = whole(*args, **more)
        read.append(len(found.data))
        return found

    monkeypatch.setattr(spool.store, "read", counted)
    output = spool.output()
    ((stream, shown),) = [(each.stream, each.data) for each in output.last(5)]
    assert stream == "stdout"
    assert shown.endswith(b"299998\r%99d" % 299_999)
    assert (len(shown) < 70_000, sum(read) < 2**24) == (True, True)
    spool.write("stdout", b"\n")
    spool.ship()
    assert joined(output.all_of_it()) == [("stdout", b"\n")]


def test_a_long_line_that_is_no_bar_is_shown_whole(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.write("stdout", b"one\n" + b"x" * 6_000_000 + b"\n")
    spool.ship()
    assert [len(line) for _, line in joined(spool.output().last(2))] == [4, 6_000_001]


def test_what_was_there_before_a_time_is_left_out(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    for number in range(10):
        spool.write(STREAMS[number % 2], f"{number}\n".encode())
    spool.ship()
    output = spool.output()
    output.start_at(BEGUN + timedelta(seconds=6))
    assert [int(line) for _, line in joined(output.all_of_it())] == [6, 7, 8, 9]


def test_without_looks_all_is_shown_stdout_first(tmp_path: Path) -> None:
    """As of an agent of an older version."""
    store = LogStore(tmp_path.as_uri())
    store.write("job", 1, "node", "stderr", 0, b"an error\n")
    store.write("job", 1, "node", "stdout", 0, b"one\ntwo\n")
    output = OrderedOutput(store, "job", 1, "node")
    assert joined(output.read()[0]) == [
        ("stdout", b"one\n"), ("stdout", b"two\n"), ("stderr", b"an error\n")
    ]  # fmt: skip
    assert joined(OrderedOutput(store, "job", 1, "node").last(2)) == [
        ("stdout", b"two\n"), ("stderr", b"an error\n")
    ]  # fmt: skip


def test_a_part_that_never_came_holds_nothing_up_once_the_attempt_is_over(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.write("stderr", b"lost\n")
    spool.write("stdout", b"kept\n")
    spool.shipped["stderr"] = 5
    spool.ship()
    assert spool.output().read() == ((), False)
    spool.ship(over=True)
    assert [chunk.data for chunk in spool.output().read()[0]] == [b"kept\n"]


def test_a_torn_line_of_looks_is_passed_over() -> None:
    found = looks_in(b"1000 5 0\n2000 7\n3000 4 9\nx\n4000 9 1\n5000 10")
    assert [tuple(look) for look in found] == [(1000, 5, 0), (4000, 9, 1)]


def test_no_line_is_cut_by_the_other_stream() -> None:
    put = WholeLines()
    chunks = [Chunk("stdout", b"one\ntw"), Chunk("stderr", b"an error\n"), Chunk("stdout", b"o\n")]
    assert [chunk.data for chunk in put.of(chunks)] == [b"one\n", b"an error\n", b"two\n"]
    assert [chunk.data for chunk in put.of([Chunk("stdout", b"50 %\r60")])] == [b"50 %\r"]
    assert [chunk.data for chunk in put.rest()] == [b"60"]


def test_of_a_stream_without_ends_of_lines_no_more_than_a_line_is_held() -> None:
    put, piece = WholeLines(), b"x" * 2**18
    sizes = [sum(len(chunk.data) for chunk in put.of([Chunk("stdout", piece)])) for _ in range(10)]
    assert sizes == [0, 0, 0, 0, 5 * 2**18] * 2
    assert list(put.rest()) == []


def test_the_last_lines_begin_within_a_chunk() -> None:
    chunks = [Chunk("stdout", b"a\nb\n"), Chunk("stderr", b"c\nd")]
    assert joined(last_lines(chunks, 3)) == [
        ("stdout", b"b\n"), ("stderr", b"c\n"), ("stderr", b"d")
    ]  # fmt: skip


def test_a_progress_bar_is_one_line_of_the_last_lines() -> None:
    bar = [Chunk("stderr", f"\r{part} %".encode()) for part in range(0, 110, 10)]
    between = [*bar[:5], Chunk("stdout", b"a\x0bb\x0cc\x1cd\x85e\n"), *bar[5:]]
    whole = b"".join(chunk.data for chunk in bar)
    assert [(chunk.stream, chunk.data) for chunk in last_lines(between, 2)] == [
        ("stdout", b"a\x0bb\x0cc\x1cd\x85e\n"), ("stderr", whole)
    ]  # fmt: skip
    ended = [*between, Chunk("stderr", b"\nloss 0.5\n")]
    assert [chunk.data for chunk in last_lines(ended, 2)] == [whole + b"\n", b"loss 0.5\n"]
    assert last_lines(ended, 0) == ()


@pytest.mark.parametrize("looks", [b"", b"1000 1024 0\n"], ids=["none", "cut off"])
def test_output_is_read_whole_however_long_it_is_where_looks_are_missing(
    tmp_path: Path, looks: bytes
) -> None:
    """A full disk has room for neither all of them nor any."""
    line, store = b"x" * 1023 + b"\n", LogStore(tmp_path.as_uri())
    store.write("job", 1, "node", "stdout", 0, line * 17 * 1024)
    store.write("job", 1, "node", "stderr", 0, line * 9 * 1024)
    if looks:
        store.write("job", 1, "node", "times", 0, looks)
    for over in (False, True):
        if over:
            store.write_end("job", 1, "node")
        found = joined(OrderedOutput(store, "job", 1, "node").all_of_it())
        assert [stream for stream, _ in found] == ["stdout"] * 17408 + ["stderr"] * 9216
        assert joined(OrderedOutput(store, "job", 1, "node").last(2)) == [("stderr", line)] * 2
