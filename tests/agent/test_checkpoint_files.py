"""A moment of a folder where a job saves: all of its files, and none that a link leads to."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.activities.node.checkpoint_files import files_of, moment_of, remove
from longshore.models.errors import DamagedError
from tests.agent.conftest import LocalNode
from tests.support.nobody import folder_of_nobody


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, a link and a draft."""
    folder = tmp_path.resolve() / "work" / "saved"
    (folder / "shards").mkdir(parents=True)
    (folder / "weights").write_bytes(b"w" * 100)
    (folder / "shards" / "0").write_bytes(b"s")
    (folder / "latest").symlink_to("shards/0")
    (folder / "next.tmp").write_bytes(b"half")
    (folder / "half.draft").mkdir()
    (folder / "half.draft" / "0").write_bytes(b"half")
    return folder


@pytest.fixture
def where(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system, where there is one."""
    if (
        not Path("/dev/shm").is_dir()
        or Path("/dev/shm").stat().st_dev == Path("/tmp").stat().st_dev
    ):
        pytest.skip("there is no second file system here")
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def test_it_has_all_files_and_no_draft_and_takes_no_space(folder: Path, where: Path):
    moment = moment_of(folder, where)
    assert moment.parent == where
    assert [(file.path, file.size, file.link) for file in files_of(moment)] == [
        ("latest", 0, "shards/0"), ("shards/0", 1, None), ("weights", 100, None),
    ]  # fmt: skip
    assert (moment / "weights").samefile(folder / "weights")
    (folder / "weights").unlink()
    assert (moment / "weights").read_bytes() == b"w" * 100


def test_on_another_file_system_it_is_a_copy(folder: Path, elsewhere: Path):
    (folder / "weights").chmod(0o640)
    os.utime(folder / "weights", ns=(1, 2_000_000_000))
    moment = moment_of(folder, elsewhere)
    copy = moment / "weights"
    assert copy.read_bytes() == b"w" * 100
    assert (copy.stat().st_mode & 0o777, copy.stat().st_mtime_ns) == (0o640, 2_000_000_000)


def test_what_a_link_leads_to_is_not_in_it(folder: Path, where: Path, tmp_path: Path):
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "token").write_text("hunter2")
    (folder / "weights").unlink()
    (folder / "weights").symlink_to(secrets / "token")
    (folder / "all").symlink_to(secrets)
    os.mkfifo(folder / "pipe")
    moment = moment_of(folder, where)
    assert {file.path: file.link for file in files_of(moment)} == {
        "all": str(secrets), "latest": "shards/0", "shards/0": None,
        "weights": str(secrets / "token"),
    }  # fmt: skip


def test_a_folder_behind_a_link_is_not_entered(folder: Path, where: Path, tmp_path: Path):
    shutil.rmtree(folder)
    folder.symlink_to("/etc")
    with pytest.raises(OSError, match="is a link, which is not followed"):
        moment_of(folder, where)
    folder.unlink()
    folder.parent.rmdir()
    folder.parent.symlink_to("/")
    with pytest.raises(OSError, match="is a link, which is not followed"):
        moment_of(folder.with_name("etc"), where)
    assert list(where.iterdir()) == []


async def test_a_new_life_of_the_agent_removes_what_nobody_publishes_any_more(
    box: LocalNode, folder: Path
):
    run = box.start("true")
    await run.done
    record = run.folder / "record.json"  # as if the agent had died before it stored the report
    record.write_text(run.record.model_copy(update={"report": None}).model_dump_json())
    moment = moment_of(folder, run.folder)
    await box.life().recover()
    assert not moment.exists()
    assert record.exists()


def test_a_name_that_is_no_text_is_refused_and_leaves_nothing(folder: Path, where: Path):
    Path(os.fsdecode(bytes(folder) + b"/\xff")).touch()
    with pytest.raises(DamagedError, match=r"the name of a file is not UTF-8: \\xff"):
        moment_of(folder, where)
    assert list(where.iterdir()) == []


@pytest.mark.parametrize("mode", [0, 0o111])
def test_a_folder_that_the_agent_may_not_list_is_told_and_leaves_nothing(mode: int):
    """The rest counted as whole: the next attempt went on without the state of its optimizer."""
    with folder_of_nobody() as top:
        folder = top.resolve() / "saved"
        (folder / "opt/inner").mkdir(parents=True)
        (folder / "opt/inner/w").write_text("w")
        (top / "run").mkdir()
        for shut in (folder / "opt", folder / "opt/inner"):
            shut.chmod(mode)
            with pytest.raises(PermissionError, match=shut.name):
                moment_of(folder, top / "run")
            shut.chmod(0o755)
        assert list((top / "run").iterdir()) == []


def test_a_link_to_a_folder_that_the_agent_may_not_list_is_a_link():
    with folder_of_nobody() as top:
        folder = top.resolve() / "saved"
        (folder / "part.tmp").mkdir(parents=True)
        (folder / "part.tmp").chmod(0)
        (top / "shut").mkdir(mode=0)
        (folder / "all").symlink_to(top / "shut")
        (top / "run").mkdir()
        moment = moment_of(folder, top / "run")
        assert [(file.path, file.link) for file in files_of(moment)] == [("all", f"{top}/shut")]
        (folder / "part.tmp").chmod(0o755)


@pytest.mark.usefixtures("nests_deep")
def test_folders_that_are_nested_too_deep_are_refused_and_leave_nothing(folder: Path, where: Path):
    """The agent stopped listening to that job, and never said so."""
    opened = os.open(folder, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=opened)
        deeper = os.open("d", os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = deeper
    os.close(opened)
    with pytest.raises(DamagedError, match="nested too deep"):
        moment_of(folder, where)
    assert list(where.iterdir()) == []
    remove(folder)
    assert not folder.exists()
