"""What a job puts where its files belong is no way to other files of the node."""

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore.activities.node.progress import read_progress
from longshore.activities.node.public_files import (
    open_public,
    put_public,
    remove_public,
    replace_public,
)
from longshore.activities.node.saved_lines import SavedLines
from longshore.models.node_messages import Progress

SECRET = "0.5 hunter2"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    secret = tmp_path / "agent-token"
    secret.write_text(SECRET)
    return secret


@pytest.fixture
def public(tmp_path: Path) -> Path:
    (tmp_path / "run" / "public").mkdir(parents=True)
    return tmp_path / "run" / "public"


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A folder where a file may have any time: ext4 keeps to the years until 2446."""
    shm = Path("/dev/shm")
    if not shm.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shm.resolve()) as folder:
        yield Path(folder)


def a_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def a_fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path, secret: Path) -> None:
    path.mkdir()


def nothing(path: Path, secret: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (a_link, "symbolic links"), (a_fifo, "no regular file"), (a_folder, "no regular file"),
        (nothing, "No such file"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_its_own_is_not_read(
    public: Path, secret: Path, put: Callable[[Path, Path], None], why: str
):
    path = public / "progress"
    put(path, secret)
    with pytest.raises(OSError, match=why):
        open_public(path)
    last = Progress(fraction=0.25)
    assert read_progress(path, last) == last
    found = SavedLines(path).read()
    assert (found.checkpoints, found.problem) == (0, "")


@pytest.mark.parametrize("seconds", [999999999999, -99999999999, 4e9])
def test_a_time_that_a_job_gave_its_file_is_some_time_before_now(seconds: float, tmpfs: Path):
    path = tmpfs / "file"
    path.write_text("0.5 half\n")
    os.utime(path, (seconds, seconds))
    read = read_progress(path, Progress())
    assert read.fraction == 0.5
    assert read.at
    path.write_text("saved, step 12\n")
    os.utime(path, (seconds, seconds))
    found = SavedLines(path).read()
    assert (found.checkpoints, found.problem) == (1, "")
    assert found.at
    for at in (read.at, found.at):
        assert datetime.fromtimestamp(0, UTC) <= at <= datetime.now(UTC)


def test_a_folder_that_is_a_link_is_not_entered(tmp_path: Path, secret: Path):
    (tmp_path / "public").symlink_to(secret.parent)
    with pytest.raises(OSError, match="is a link, which is not followed"):
        open_public(tmp_path / "public" / secret.name)


def test_nothing_is_written_behind_a_link_further_up(tmp_path: Path, public: Path, secret: Path):
    (tmp_path / "elsewhere" / "public").mkdir(parents=True)
    public.rmdir()
    public.parent.rmdir()
    public.parent.symlink_to(tmp_path / "elsewhere")
    for write in (put_public, replace_public):
        with pytest.raises(NotADirectoryError, match="is a link, which is not followed"):
            write(public / "marker.json", "text")
    assert list((tmp_path / "elsewhere" / "public").iterdir()) == []


def test_what_is_replaced_is_not_written_to(public: Path, secret: Path):
    for name in ("marker.json", "marker.new"):
        (public / name).symlink_to(secret)
    replace_public(public / "marker.json", "text")
    assert [path.name for path in public.iterdir()] == ["marker.json"]
    assert ((public / "marker.json").read_text(), secret.read_text()) == ("text", SECRET)


def test_what_the_agent_writes_takes_the_place_of_a_link(public: Path, secret: Path):
    path = public / "save-request"
    path.symlink_to(secret)
    put_public(path, "save\n")
    assert (path.read_text(), path.is_symlink()) == ("save\n", False)
    assert secret.read_text() == SECRET
    put_public(path, "again\n")
    assert path.read_text() == "again\n"
    remove_public(path)
    remove_public(path)
    assert not path.exists()
    path.mkdir()
    remove_public(path)  # a folder is left to the job
    with pytest.raises(OSError, match=r"directory|permitted"):
        put_public(path, "save\n")
