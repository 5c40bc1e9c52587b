"""What a job gives back is stored after each attempt, and brought where somebody wants it."""

import errno
import os
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from longshore.activities.artifacts.outputs import OutputStore
from longshore.client.pull import Pulled, pull
from longshore.models.checkpoint import Manifest
from longshore.models.errors import DamagedError, RefusedError
from longshore.models.output_pattern import OutputPatterns
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode

WRITES = (
    "mkdir -p results/deep; echo 1 > results/a; echo 2 > results/deep/b; echo 3 > c.pt; echo 4 > d"
)
AT = datetime(2026, 11, 25, tzinfo=UTC)
OUTPUTS = ["results", "*.pt"]


def stored(box: LocalNode) -> OutputStore:
    return OutputStore((box.folder / "artifacts").as_uri())


def bring(box: LocalNode, job: str, folder: Path, attempt: int | None = None) -> Pulled:
    return pull(stored(box), stored(box).of_attempt(job, attempt), folder)


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def test_what_matches_is_stored_and_brought_and_then_only_what_differs(
    box: LocalNode, tmp_path: Path
) -> None:
    report = await box.report(WRITES, job="job-a", outputs=OUTPUTS)
    assert report.failure is None
    here = tmp_path / "here"
    first = bring(box, "job-a", here)
    all_of_it = {"c.pt": "3\n", "results/a": "1\n", "results/deep/b": "2\n"}
    assert files_in(here) == all_of_it
    assert first.fetched == ("c.pt", "results/a", "results/deep/b")
    assert bring(box, "job-a", here).fetched == ()
    (here / "results" / "a").write_text("x\n")
    (here / "own").write_text("mine")
    again = bring(box, "job-a", here)
    assert (again.fetched, again.fetched_bytes, again.files) == (("results/a",), 2, 3)
    assert files_in(here) == all_of_it | {"own": "mine"}


async def test_an_attempt_that_failed_or_was_stopped_gives_back_too(
    box: LocalNode, tmp_path: Path
) -> None:
    report = await box.report("echo first > r; exit 3", job="job-a", outputs=["r"])
    assert report.failure is FailureClass.USER
    run = box.start("echo second > r; echo up; sleep 600", job="job-a", attempt=2, outputs=["r"])
    await box.says(run, "up")
    await box.processes.stop_all("stopped by a test", grace=0)
    bring(box, "job-a", tmp_path / "last")
    bring(box, "job-a", tmp_path / "first", attempt=1)
    assert files_in(tmp_path / "last") == {"r": "second\n"}
    assert files_in(tmp_path / "first") == {"r": "first\n"}


async def test_an_attempt_that_made_nothing_hides_no_earlier_one(
    box: LocalNode, tmp_path: Path
) -> None:
    """As one that fails at once on another node: what the first gave back is still there."""
    await box.report("true", job="job-a", outputs=["r"])
    assert bring(box, "job-a", tmp_path / "none").files == 0
    await box.report("echo second > r", job="job-a", attempt=2, outputs=["r"])
    await box.report("rm r; exit 3", job="job-a", attempt=3, outputs=["r"])
    found = bring(box, "job-a", tmp_path / "last")
    assert (found.attempt, files_in(tmp_path / "last")) == (2, {"r": "second\n"})
    assert bring(box, "job-a", tmp_path / "third", attempt=3).files == 0


async def test_a_store_that_cannot_be_written_costs_the_outputs_alone(box: LocalNode) -> None:
    artifacts = box.folder / "artifacts"
    shutil.rmtree(artifacts, ignore_errors=True)
    artifacts.write_text("no folder")
    run = box.start("echo 1 > r", job="job-a", outputs=["r"])
    report = await run.done
    assert (report.failure, report.exit_code) == (None, 0)
    said = box.logs.read("job-a", stream="stderr").data.decode()
    assert "longshore: its outputs are not stored: the artifact store" in said


@pytest.mark.usefixtures("nests_deep")
@pytest.mark.parametrize(
    ("making", "told"),
    [
        (r"touch $(printf 'bad\377')", r"'out/bad\udcff' (a name that is not UTF-8)"),
        (r"ln -s $(printf 'bad\377') a", "'out/a' (a name that is not UTF-8)"),
        ("mkfifo pipe", "'out/pipe' (a FIFO, a socket or a device)"),
        (
            "for i in $(seq 1200); do mkdir d; cd -P d; done",
            "'out/d/d/d",
        ),
        (
            f"for i in $(seq 20); do mkdir {'d' * 250}; cd -P {'d' * 250}; done",
            f"'out/{'d' * 96}",
        ),
    ],
)
async def test_what_cannot_be_stored_costs_none_of_the_others(
    box: LocalNode, tmp_path: Path, making: str, told: str
) -> None:
    """All outputs of the attempt were lost."""
    run = box.start(f"mkdir out; cd out; echo 1 > best.pt; {making}", job="job-a", outputs=["out"])
    assert (await run.done).failure is None
    said = box.logs.read("job-a", stream="stderr").data.decode()
    assert said.startswith(f"longshore: not stored: {told}")
    bring(box, "job-a", tmp_path / "here")
    assert files_in(tmp_path / "here") == {"out/best.pt": "1\n"}


async def test_a_name_beside_the_outputs_may_be_anything(box: LocalNode, tmp_path: Path) -> None:
    making = r"mkdir out; echo 1 > out/a; touch $(printf 'bad\377')"
    run = box.start(making, job="job-a", outputs=["out"])
    assert (await run.done).failure is None
    assert box.logs.read("job-a", stream="stderr").data == b""
    bring(box, "job-a", tmp_path)
    assert files_in(tmp_path)["out/a"] == "1\n"


async def test_names_of_outputs_that_no_file_has_are_told(box: LocalNode) -> None:
    run = box.start("mkdir empty; echo 1 > a.pt", job="job-a",
                    outputs=["*.pt", "result", "empty", "!b.pt"])  # fmt: skip
    assert (await run.done).failure is None
    said = box.logs.read("job-a", stream="stderr").data.decode()
    told = "longshore: `outputs` names 'result', 'empty', and the job's folder has no such file\n"
    assert said == told


async def test_what_is_called_as_a_draft_of_a_checkpoint_is_stored(
    box: LocalNode, tmp_path: Path
) -> None:
    making = (
        "mkdir -p out/x.partial; echo 1 > out/x.partial/a; echo 2 > out/b.tmp; echo 3 > c.draft"
    )
    await box.report(making, job="job-a", outputs=["out", "*.draft"])
    assert box.logs.read("job-a", stream="stderr").data == b""
    bring(box, "job-a", tmp_path / "here")
    assert files_in(tmp_path / "here") == {
        "c.draft": "3\n", "out/b.tmp": "2\n", "out/x.partial/a": "1\n",
    }  # fmt: skip


async def test_a_name_that_nobody_can_read_costs_none_of_the_others(
    box: LocalNode, tmp_path: Path
) -> None:
    """An earlier version took it; the job was reported as one that its node had lost."""
    report = await box.report("echo 1 > r", job="job-a", outputs=["r", "[z-a]", "b\\"])
    assert (report.failure, report.exit_code) == (None, 0)
    bring(box, "job-a", tmp_path / "here")
    assert files_in(tmp_path / "here") == {"r": "1\n"}
    said = box.logs.read("job-a", stream="stderr").data.decode()
    assert "`outputs` names '[z-a]', 'b\\\\', and the job's folder has no such file" in said


async def test_what_the_agent_may_not_read_costs_none_of_the_others(
    box: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container leaves it. Root may read all, so the system is asked in place of it."""
    scandir, access = os.scandir, os.access

    def listed(path: Any) -> Any:
        if str(path).endswith("/theirs"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).endswith("/b.pt") and access(path, mode)
    )
    making = "mkdir theirs; echo 1 > a.pt; echo 2 > b.pt; echo 3 > theirs/c.pt"
    report = await box.report(making, job="job-a", outputs=["*.pt"])
    monkeypatch.undo()
    assert report.failure is None
    said = box.logs.read("job-a", stream="stderr").data.decode()
    assert said == "longshore: not stored: 'b.pt', 'theirs' (the agent may not read that)\n"
    bring(box, "job-a", tmp_path / "here")
    assert files_in(tmp_path / "here") == {"a.pt": "1\n"}


async def test_links_are_followed_neither_on_the_node_nor_here(
    box: LocalNode, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    links = (
        f"mkdir out; ln -s {secret} out/abs; ln -s ../.. out/up; echo 1 > out/f; ln -s f out/in"
    )
    await box.report(links, job="job-a", outputs=["out"])
    here = tmp_path / "here"
    found = bring(box, "job-a", here)
    assert found.left_out == ("out/abs", "out/up")
    assert sorted(path.name for path in (here / "out").iterdir()) == ["f", "in"]
    assert str((here / "out" / "in").readlink()) == "f"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "out").symlink_to(elsewhere)
    with pytest.raises(RefusedError, match="is a link"):
        bring(box, "job-a", tmp_path / "there")
    assert list(elsewhere.iterdir()) == []


async def test_a_file_in_the_place_of_a_folder_is_refused(box: LocalNode, tmp_path: Path) -> None:
    await box.report("echo 1 > r", job="job-a", outputs=["r"])
    await box.report("rm r; mkdir r; echo 2 > r/a", job="job-a", attempt=2, outputs=["r"])
    here = tmp_path / "here"
    bring(box, "job-a", here, attempt=1)
    with pytest.raises(RefusedError, match="/here/r' is a file: choose a folder with --to"):
        bring(box, "job-a", here)
    assert files_in(here) == {"r": "1\n"}
    with pytest.raises(RefusedError, match="/here/r' is a file: choose a folder with --to"):
        bring(box, "job-a", here / "r" / "deep")
    bring(box, "job-a", tmp_path / "other")
    with pytest.raises(RefusedError, match="/other/r' is a folder: choose another one"):
        bring(box, "job-a", tmp_path / "other", attempt=1)


async def test_links_stay_in_a_folder_that_is_named_by_a_way_round(
    box: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making = "mkdir r; echo 1 > r/a; ln -s a r/in; ln -s ../../../x r/out"
    await box.report(making, job="job-a", outputs=["r"])
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in ("x/../t", "./u", "../" + tmp_path.name + "/v", "."):
        found = bring(box, "job-a", Path(folder))
        assert (found.fetched, found.left_out) == (("r/a", "r/in"), ("r/out",))


async def test_a_program_becomes_one_here_too(box: LocalNode, tmp_path: Path) -> None:
    await box.report("echo 1 > r", job="job-a", outputs=["r"])
    await box.report("chmod +x r", job="job-a", attempt=2, outputs=["r"])
    bring(box, "job-a", tmp_path, attempt=1)
    assert not os.access(tmp_path / "r", os.X_OK)
    assert bring(box, "job-a", tmp_path).fetched == ("r",)
    assert os.access(tmp_path / "r", os.X_OK)
    assert bring(box, "job-a", tmp_path).fetched == ()


async def test_no_rank_writes_over_another(box: LocalNode, tmp_path: Path) -> None:
    """Rank 0 may have a folder that is called as that of another rank here."""
    (tmp_path / "rank-1").mkdir()
    (tmp_path / "rank-1" / "log").write_text("of rank 0")
    (tmp_path / "log").write_text("of rank 1")
    drafts = [
        Manifest(
            job_id="job-a", attempt=1, rank=rank, ranks=2, number=1, prefix="", files=(), bytes=0,
            saved_at=AT, published_at=AT, node_id="box",
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for draft, pattern in zip(drafts, ("rank-1/log", "/log"), strict=True):
        stored(box).keep(tmp_path, OutputPatterns([pattern]), draft, threading.Event())
    found = bring(box, "job-a", tmp_path / "here")
    assert (found.fetched, found.left_out) == (("rank-1/log",), ("rank-1/log",))
    assert files_in(tmp_path / "here") == {"rank-1/log": "of rank 0"}
    assert bring(box, "job-a", tmp_path / "here").fetched == ()


async def test_a_file_that_is_damaged_in_the_store_replaces_nothing(
    box: LocalNode, tmp_path: Path
) -> None:
    await box.report("echo 1 > r", job="job-a", outputs=["r"])
    (there,) = (box.folder / "artifacts" / "outputs" / "job-a" / "files").glob("*/000000")
    there.write_text("2\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "r").write_text("old")
    with pytest.raises(DamagedError):
        bring(box, "job-a", here)
    assert files_in(here) == {"r": "old"}
