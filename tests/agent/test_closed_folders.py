"""What jobs leave that cannot be removed at once, and what is in the way of an agent's start.

Where these tests run as root they act as another user, as root may write everywhere.
"""

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from longshore.activities.node import retention
from longshore.activities.node.removal import remove_tree, remove_what_can_be
from longshore.activities.node.retention import Keeping, Pruner
from longshore.activities.node.runs import RunRecord, RunStore
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import PlacementKey
from tests.agent.conftest import LocalNode
from tests.support.nobody import folder_of_nobody

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BEFORE = NOW - timedelta(days=30)


async def is_over(job_id: str) -> bool:
    return True


def ended(work: Path, job: str, minute: int) -> Path:
    """Have a run that has ended, with a file in the job's private folder; return that folder."""
    at = BEFORE + timedelta(minutes=minute)
    record = RunRecord(job_id=job, attempt=1, epoch=1, claimed_at=at, checkpoints=False)
    store = RunStore(work / "runs")
    store.claim(record)
    report = ProcessReport(exit_code=0, message="finished", ended_at=at)
    store.save(record.model_copy(update={"report": report}))
    folder = work / "jobs" / job
    (folder / "work").mkdir(parents=True)
    (folder / "work/result").write_text("x")
    return folder


def closed(folder: Path, mode: int) -> None:
    """Make a folder with a file, and close it."""
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    folder.chmod(mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def a_pruner(work: Path) -> Pruner:
    return Pruner(work, Keeping(runs=1000, age=timedelta(days=7)), is_over)


@pytest.mark.parametrize("mode", [0o555, 0o444, 0o000])
async def test_closed_folders_of_jobs_and_runs_go_too(mode: int):
    with folder_of_nobody() as work:
        closed(ended(work, "a", 0) / "work/go/pkg/mod/x@v1", mode)
        ended(work, "b", 1)
        closed(work / "runs/b-1/public/of-the-job", mode)
        (work / "runs/b-1").chmod(0o555)
        assert await a_pruner(work).prune(NOW) == 2
        assert (names(work / "runs"), names(work / "jobs")) == ([], [])


def test_a_closed_folder_behind_a_link_stays_closed():
    with folder_of_nobody() as work:
        closed(work / "other", 0o555)
        closed(work / "own/closed", 0o555)
        (work / "own/link").symlink_to(work / "other")
        remove_tree(work / "own")
        assert (work / "other").stat().st_mode & 0o777 == 0o555
        assert names(work) == ["other"]
        (work / "other").chmod(0o755)


@pytest.mark.parametrize("mode", [0o555, 0o000])
@pytest.mark.parametrize("remove", [remove_tree, remove_what_can_be])
def test_closed_folders_go_however_deep_they_are(remove: Callable[[Path], None], mode: int):
    with folder_of_nobody() as work:
        for depth in (0, 199, 200, 201, 202, 250, 450):
            closed(work.joinpath("own", *"d" * depth, f"closed-{depth}"), mode)
        for depth in (450, 250, 201, 200, 199):
            work.joinpath("own", *"d" * depth).chmod(mode)
        remove(work / "own")
        assert names(work) == []


def test_as_much_as_can_be_is_removed_of_closed_folders_too():
    if os.geteuid():
        pytest.skip("it needs two users")
    with folder_of_nobody() as work:
        for name in "acd":
            closed(work / "own" / name, 0o000)
        closed(work / "own/b/of-another-user", 0o700)
        os.seteuid(0)
        os.chown(work / "own/b/of-another-user", 0, 0)
        os.seteuid(65534)
        remove_what_can_be(work / "own")
        assert names(work / "own") == ["b"]


async def test_what_cannot_be_removed_holds_up_no_other_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    work = tmp_path
    for minute, job in enumerate("abc"):
        ended(work, job, minute)
    stays = True

    def remove(folder: Path, below: int | None = None) -> None:
        if stays and folder.name == "a":
            raise PermissionError("of another user")
        remove_tree(folder, below)

    monkeypatch.setattr(retention, "remove_tree", remove)
    pruner = a_pruner(work)
    with caplog.at_level(logging.WARNING):
        assert await pruner.prune(NOW) == 2
        assert await pruner.prune(NOW + retention.STUCK_AGAIN) == 0
    told = [each.getMessage() for each in caplog.records if each.name == retention.__name__]
    assert len(told) == 1
    assert told[0].endswith("cannot be removed: of another user")
    # Its record too, which alone says that its folder is to go.
    assert (names(work / "runs"), names(work / "jobs")) == (["a-1"], ["a"])
    stays = False
    assert await pruner.prune(NOW + retention.STUCK_AGAIN + timedelta(minutes=1)) == 0
    assert await pruner.prune(NOW + 2 * retention.STUCK_AGAIN) == 1
    assert (names(work / "runs"), names(work / "jobs")) == ([], [])


async def test_a_link_for_the_folder_of_a_run_is_removed_as_a_link(tmp_path: Path):
    work = tmp_path
    ended(work, "a", 0)
    (work / "runs/a-1/public").rmdir()
    (work / "runs/a-1/public").symlink_to(work / "jobs")
    (work / "jobs/other").mkdir()
    assert await a_pruner(work).prune(NOW) == 1
    assert (names(work / "runs"), names(work / "jobs")) == ([], ["other"])


async def test_an_agent_starts_whatever_lies_among_its_runs(box: LocalNode):
    runs = box.folder / "runs"
    (runs / "stray-1").write_text("no folder")
    (runs / "lost+found").mkdir(mode=0o000)
    prepared = runs / ".job-a-1"  # as an agent leaves it that is killed in a claim
    prepared.mkdir()
    record = RunRecord(job_id="job-a", attempt=1, epoch=1, claimed_at=NOW)
    (prepared / "record.json").write_text(record.model_dump_json())
    await box.life().recover()
    assert names(runs) == ["lost+found", "stray-1"]
    assert not (box.folder / "logs").exists()
    assert box.processes.find(PlacementKey(job_id="job-a", attempt=1)) is None
    (runs / "lost+found").chmod(0o755)


def test_runs_whose_folders_their_jobs_have_closed_are_read():
    with folder_of_nobody() as work:
        for minute, job in enumerate("abcd"):
            ended(work, job, minute)
        (work / "runs/a-1").chmod(0o000)
        (work / "runs/b-1/record.json").chmod(0o000)
        (work / "runs/c-1/record.json").unlink()
        (work / "runs/c-1/record.json").mkdir()
        store = RunStore(work / "runs")
        assert sorted(record.job_id for record in store.all()) == ["a", "d"]
        assert store.find(PlacementKey(job_id="b", attempt=1)) is None
        (work / "runs/a-1").chmod(0o000)
        assert store.find(PlacementKey(job_id="a", attempt=1)) is not None


def test_a_run_of_another_user_keeps_no_other_from_being_read():
    if os.geteuid():
        pytest.skip("it needs two users")
    with folder_of_nobody() as work:
        for minute, job in enumerate("ab"):
            ended(work, job, minute)
        os.seteuid(0)
        os.chown(work / "runs/a-1", 0, 0)
        (work / "runs/a-1").chmod(0o700)
        os.seteuid(65534)
        assert [record.job_id for record in RunStore(work / "runs").all()] == ["b"]
