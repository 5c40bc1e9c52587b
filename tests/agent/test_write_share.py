"""What a node fetches for later takes a part of the disk's time where jobs run."""

import os
import threading
from pathlib import Path

import pytest

from longshore.activities.node import write_share
from longshore.activities.node.write_share import WriteShare


@pytest.mark.parametrize(
    ("busy", "share", "rest"),
    [(True, 0.3, 7.0), (True, 0.5, 3.0), (True, 1.0, 0.0), (True, 0.01, 10.0), (False, 0.3, 0.0)],
)
def test_the_rest_leaves_the_write_its_share(busy: bool, share: float, rest: float):
    assert WriteShare(share, lambda: busy).pause_after(3.0) == pytest.approx(rest)


def test_writing_has_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    written: list[int] = []
    rests: list[float] = []

    class Quiet(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout or 0.0)
            return False

    def sync(fd: int) -> None:
        written.append(os.fstat(fd).st_size)
        clock[0] += 0.06

    monkeypatch.setattr(write_share, "boot_clock", lambda: clock[0])
    monkeypatch.setattr(write_share, "PIECE", 1000)
    monkeypatch.setattr(os, "fdatasync", sync)
    data = os.urandom(2500)
    with (tmp_path / "data").open("w+b") as file:
        WriteShare(0.3, lambda: True).write(file.fileno(), data, 0, Quiet())
    assert (tmp_path / "data").read_bytes() == data
    assert written == [1000, 2000, 2500]
    assert rests == pytest.approx([0.14] * 3)


def test_what_is_given_up_writes_no_more(tmp_path: Path):
    given_up = threading.Event()
    given_up.set()
    with (tmp_path / "data").open("w+b") as file:
        WriteShare(0.3, lambda: True).write(file.fileno(), b"data", 0, given_up)
    assert (tmp_path / "data").read_bytes() == b""
