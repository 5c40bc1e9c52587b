"""What carries the output of jobs to files, on disks that are full and of pipes that stay."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longshore.activities.node.element_runner import UNWRITTEN
from longshore.activities.node.journal import batch_report
from longshore.activities.node.output_pipes import PATIENCE, OutputPipes, Spool, open_spools
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from tests.agent.test_full_run_folder import RUNS_ELEMENTS
from tests.support.screens import NOW


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_each_element_says_what_the_disk_did_not_take(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", RUNS_ELEMENTS, str(tmp_path), "echo twelve_bytes; exit 3"]
    with Path("/dev/full").open("wb") as full:
        subprocess.run(argv, check=True, timeout=60, stdout=full, stderr=subprocess.DEVNULL)
    errors = [each.error for each in batch_report(tmp_path, indirect=True).results]
    lost = "13 bytes of its output are lost: the disk of the node was full"
    assert errors == [f"exited with code 3; {lost}"] * 40


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_of_an_element_whose_runner_was_killed_it_is_told_too(tmp_path: Path) -> None:
    """It noted what was lost while it ran: nothing of it has to be written on the full disk."""
    noted = f"until grep -q 13 {tmp_path}/{UNWRITTEN}; do :; done"
    kills = f"test $N = 1 && {{ echo twelve_bytes; {noted}; kill -9 $PPID; }}; true"
    runs = RUNS_ELEMENTS.replace('"env": {}}', '"env": {"N": str(index)}}')
    argv = [sys.executable, "-c", runs, str(tmp_path), kills]
    with Path("/dev/full").open("wb") as full:
        subprocess.run(argv, check=False, timeout=60, stdout=full, stderr=subprocess.DEVNULL)
    over = ProcessReport(
        exit_code=137,
        failure=FailureClass.NODE,
        message="it was killed",
        started_at=NOW,
        ended_at=NOW,
    )
    first, second = batch_report(tmp_path, indirect=True, over=over).results
    lost = "13 bytes of its output are lost: the disk of the node was full"
    assert (first.error, second.error) == ("", f"it was killed; {lost}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_elements_go_on_where_the_disk_does_not_take_the_note_either(tmp_path: Path) -> None:
    """As under a quota: what an element wrote was carried no more, and it waited without end."""
    refuses = "import os\ndef refuse(*_): raise OSError(122, 'quota')\nos.pwrite = refuse\n"
    more_than_a_pipe = "head -c 200000 /dev/zero"
    argv = [sys.executable, "-c", refuses + RUNS_ELEMENTS, str(tmp_path), more_than_a_pipe]
    with Path("/dev/full").open("wb") as full:
        subprocess.run(argv, check=True, timeout=60, stdout=full)
    results = batch_report(tmp_path, indirect=True).results
    assert [each.exit_code for each in results] == [0] * 40
    assert "200000 bytes of its output are lost" in results[-1].error


def test_the_next_element_tells_what_the_one_before_has_lost(tmp_path: Path, disk: "Disk") -> None:
    spool = Spool(open_spools(str(tmp_path / "out"))[0])
    disk.room = 0
    assert _run(spool, b"lost\n").lost == 5
    disk.room = 1000
    assert _run(spool, b"there\n").lost == 0
    told = "\nlongshore: 5 bytes of output are lost: the disk was full\n"
    assert (tmp_path / "out").read_text() == f"{told}there\n"


def test_a_notice_that_was_written_in_part_is_written_to_its_end(
    tmp_path: Path, disk: "Disk"
) -> None:
    spool = Spool(open_spools(str(tmp_path / "out"))[0])
    for room, piece, untold in ((0, b"12345", 5), (20, b"678", 8), (10, b"", 8), (1000, b"9", 0)):
        disk.room = room
        spool.write(piece)
        assert spool.untold == untold
    told = "".join(
        f"\nlongshore: {lost} bytes of output are lost: the disk was full\n" for lost in (5, 3)
    )
    assert (tmp_path / "out").read_text() == f"{told}9"


def test_the_end_waits_for_nobody_who_holds_a_pipe(tmp_path: Path) -> None:
    """A daemon that a job gave its stdout, and that is not below it."""
    spool = Spool(open_spools(str(tmp_path / "out"))[0])
    pipes = OutputPipes([spool])
    held = os.dup(pipes.ends[0])
    os.write(held, b"last words\n")
    pipes.start()
    began = time.monotonic()
    pipes.finish()
    assert time.monotonic() - began < PATIENCE / 2
    with pytest.raises(BrokenPipeError):
        os.write(held, b"later\n")
    os.close(held)
    assert (tmp_path / "out").read_text() == "last words\n"


def _run(spool: Spool, said: bytes) -> OutputPipes:
    pipes = OutputPipes([spool])
    os.write(pipes.ends[0], said)
    pipes.start()
    pipes.finish()
    return pipes


class Disk:
    """Has room for so many bytes of files that are named `out`."""

    room = 0

    def __init__(self) -> None:
        self._write = os.write

    def write(self, file: int, data: bytes) -> int:
        if not str(Path(f"/proc/self/fd/{file}").readlink()).endswith("/out"):
            return self._write(file, data)
        if not self.room and data:
            raise OSError(28, "No space left on device")
        written = self._write(file, data[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    if sys.platform != "linux":
        pytest.skip("it asks /proc which file is which")
    disk = Disk()
    monkeypatch.setattr(os, "write", disk.write)
    return disk
