"""What becomes of a process: its environment, its end, and that it is started once."""

import asyncio
import errno
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.activities.node.job_path import without_own_environment
from longshore.models.errors import StaleError
from longshore.models.node_messages import StopProcessRequest
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode
from tests.support.waiting import eventually


async def test_a_command_that_ends_with_0_succeeds(box: LocalNode) -> None:
    report = await box.report("echo done")
    assert (report.exit_code, report.failure, report.message) == (0, None, "finished")
    assert report.started_at
    assert report.ended_at
    assert report.started_at <= report.ended_at


async def test_a_command_that_ends_with_another_code_is_the_users_failure(box: LocalNode) -> None:
    report = await box.report("exit 3")
    assert (report.exit_code, report.failure) == (3, FailureClass.USER)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["no-such-command"], 127, "command not found: no-such-command"),
        ("no-such-command", 127, "command not found"),
        (["/etc/passwd"], 126, "/etc/passwd cannot be executed"),
        (["x" * 5_000], 126, f"{'x' * 200}… cannot be executed: File name too long"),
    ],
    ids=["list", "shell", "not executable", "long"],
)
async def test_a_command_that_cannot_start_is_a_failed_start(
    box: LocalNode, command: str | list[str], code: int, message: str
) -> None:
    report = await box.report(command)
    assert (report.exit_code, report.failure) == (code, FailureClass.START)
    assert message in report.message


async def test_a_missing_working_folder_is_a_failed_start(box: LocalNode) -> None:
    report = await box.report("true", workdir="/no/such/folder")
    assert (report.exit_code, report.failure) == (127, FailureClass.START)
    assert "/no/such/folder" in report.message


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ("true", {"A": "😀" * 40_000}),
        ("true", {f"A{i}": "x" * 100_000 for i in range(100)}),
        (["true", "é" * 70_000], {}),
    ],
    ids=["a variable", "all variables", "an argument"],
)
async def test_what_is_too_long_for_linux_is_named(
    box: LocalNode, command: str | list[str], variables: dict[str, str]
) -> None:
    request = box.request(command)
    spec = request.spec.model_copy(update={"env": variables})  # all of them: as an older one took
    report = await box.processes.start(request.model_copy(update={"spec": spec})).done
    assert (report.exit_code, report.failure) == (126, FailureClass.START)
    assert "its arguments and environment variables are too long" in report.message


@pytest.mark.parametrize(
    ("workdir", "says"),
    [
        ("x" * 4000, f"{'x' * 100}… (4,000 characters) cannot be used on this node: File name"),
        ("{tmp}/no/" + "x" * 300, "x… (3"),
        ("{tmp}/loop", "loop does not exist on this node"),
        ("{tmp}/loop/below", "loop/below does not exist on this node"),
        ("{tmp}/file", "file is a file and not a folder on this node"),
        ("{tmp}/file/below", "file/below does not exist on this node"),
        ("/dev/null", "/dev/null is a file and not a folder on this node"),
    ],
    ids=["too long", "part too long", "loop", "below a loop", "file", "below a file", "device"],
)
async def test_a_working_folder_that_cannot_be_is_a_failed_start(
    box: LocalNode,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    workdir: str,
    says: str,
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    report = await box.report("true", workdir=workdir.replace("{tmp}", str(tmp_path)))
    assert (report.exit_code, report.failure) == (127, FailureClass.START)
    assert report.message.startswith("the working folder ")
    assert says in report.message
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("x" * 300, "x… (300 characters) cannot be made on this node: File name too long"),
        ("/dev/null", "/dev/null cannot be made on this node: Not a directory"),
        ("{tmp}/fifo", "fifo cannot be made on this node: Not a directory"),
        ("{tmp}/loop", "loop cannot be made on this node: Too many levels of symbolic links"),
        ("/proc/x", "/proc/x cannot be made on this node: No such file or directory"),
        ("../work/fifo", "../work/fifo cannot be made on this node: its path is no folder"),
    ],
    ids=["too long", "device", "fifo", "loop", "proc", "own"],
)
async def test_a_checkpoint_folder_that_cannot_be_made_is_a_failed_start(
    box: LocalNode, tmp_path: Path, caplog: pytest.LogCaptureFixture, folder: str, says: str
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    work = tmp_path / "jobs" / "job-a" / "work"
    work.mkdir(parents=True)
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(work / "fifo")
    given = folder.replace("{tmp}", str(tmp_path))
    report = await box.report("true", job="job-a", checkpoint={"folder": given})
    assert (report.exit_code, report.failure) == (127, FailureClass.START), report.message
    assert report.message.startswith("the checkpoint folder ")
    assert says in report.message
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize(
    "named", [{"workdir": "~nosuchuser/x"}, {"checkpoint": {"folder": "~nosuchuser/x"}}]
)
async def test_a_folder_of_a_user_that_the_node_has_not_is_a_failed_start(
    box: LocalNode, named: dict[str, Any]
) -> None:
    """And no trouble of the node, for which it would be tried again elsewhere."""
    report = await box.report("true", **named)
    assert (report.exit_code, report.failure) == (127, FailureClass.START)
    assert report.message.startswith("~nosuchuser/x is no path on this node: ")


async def test_a_disk_that_takes_no_folder_is_the_fault_of_the_node(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("longshore.activities.node.checkpoint_files.put_back", full)
    report = await box.report("true", checkpoint={"folder": "saved"})
    assert report.failure is FailureClass.NODE
    assert "No space left" in report.message


async def test_an_image_without_a_container_runtime_is_a_failed_start(box: LocalNode) -> None:
    box.inventory = box.inventory.model_copy(update={"container_runtime": None})
    box.life()
    report = await box.report("true", image="python:3.12")
    assert report.failure is FailureClass.START
    assert "neither docker nor podman" in report.message


async def test_a_signal_from_elsewhere_is_named(box: LocalNode) -> None:
    report = await box.report("kill -KILL $$")
    assert (report.exit_code, report.failure) == (137, FailureClass.USER)
    assert "killed by signal 9" in report.message


async def test_the_process_sees_its_gpus_and_its_job(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_AGENT_TOKEN", "secret")
    monkeypatch.setenv("TEMPORAL_API_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    run = box.start(
        ["env", "-0"],
        job="job-env",
        env={"MINE": "1", "LONGSHORE_NODE_ID": "forged"},
        checkpoint={"folder": "saved"},
        tenant="lab",
    )
    assert (await run.done).exit_code == 0
    pairs = box.output(run.record.key).rstrip("\0").split("\0")
    seen = dict(pair.split("=", 1) for pair in pairs)
    work = box.folder / "jobs" / "job-env" / "work"
    expected = {
        "CUDA_VISIBLE_DEVICES": "1,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "LONGSHORE_JOB_ID": "job-env",
        "LONGSHORE_JOB_NAME": "test",
        "LONGSHORE_ATTEMPT": "1",
        "LONGSHORE_NODE_ID": "box",
        "LONGSHORE_GPU_INDICES": "1,3",
        "LONGSHORE_GPU_COUNT": "2",
        "LONGSHORE_TENANT": "lab",
        "LONGSHORE_POOL": "default",
        "LONGSHORE_SIMULATED_GPUS": "1",
        "LONGSHORE_CHECKPOINT_DIR": str(work / "saved"),
        "MINE": "1",
        "PATH": without_own_environment(os.environ["PATH"], os.environ),
    }
    assert seen | expected == seen
    assert "secret" not in seen.values()
    assert (work / "saved").is_dir()


async def test_real_gpus_are_shown_by_uuid(box: LocalNode) -> None:
    gpus = tuple(gpu.model_copy(update={"uuid": f"GPU-{gpu.index}"}) for gpu in box.inventory.gpus)
    box.inventory = box.inventory.model_copy(update={"gpus": gpus, "simulated": False})
    box.life()
    run = box.start('echo "$CUDA_VISIBLE_DEVICES ${LONGSHORE_SIMULATED_GPUS:-real}"')
    await run.done
    assert box.output(run.record.key) == "GPU-1,GPU-3 real\n"


async def test_the_private_folder_starts_empty_and_stays_for_the_next_attempt(
    box: LocalNode,
) -> None:
    first = box.start("ls -A; echo kept > file; cat", job="job-a")
    await first.done
    second = box.start("cat file", job="job-a", attempt=2)
    await second.done
    assert box.output(first.record.key) == ""
    assert box.output(second.record.key) == "kept\n"


async def test_after_its_end_the_report_is_remembered(box: LocalNode) -> None:
    run = box.start("exit 3")
    report = await run.done
    assert box.processes.find(run.record.key) == report
    assert box.life().find(run.record.key) == report


async def test_an_attempt_is_started_at_most_once(box: LocalNode) -> None:
    request = box.request("echo once")
    await box.processes.start(request).done
    with pytest.raises(StaleError, match="claimed before"):
        box.processes.start(request)
    with pytest.raises(StaleError, match="claimed before"):
        box.life().start(request)
    assert box.output(request.placement.key) == "once\n"


async def test_an_older_attempt_than_one_that_was_here_is_refused(box: LocalNode) -> None:
    await box.report("true", job="job-a", attempt=2)
    with pytest.raises(StaleError, match="attempt 2 was here"):
        box.start("true", job="job-a", attempt=1)


async def test_a_new_attempt_ends_the_one_before(box: LocalNode) -> None:
    first = box.start("sleep 300", job="job-a")
    await eventually(first.started.done)
    second = box.start("true", job="job-a", attempt=2)
    assert (await second.done).exit_code == 0
    assert first.done.done()


async def test_an_attempt_that_was_stopped_before_it_came_never_starts(box: LocalNode) -> None:
    request = box.request("echo never")
    key = request.placement.key
    await box.processes.stop(_stop(key))
    found = box.life().find(key)
    assert found == await _stopped_report(box, key)
    with pytest.raises(StaleError):
        box.processes.start(request)


async def test_a_stop_can_be_repeated(box: LocalNode) -> None:
    run = box.start("sleep 300")
    await asyncio.gather(
        *(box.processes.stop(_stop(run.record.key)) for _ in range(3)),
    )
    await box.processes.stop(_stop(run.record.key))
    assert (await run.done).stopped_for == "test"


async def test_a_folder_that_cannot_be_made_is_the_nodes_failure(box: LocalNode) -> None:
    request = box.request("true")
    (box.folder / "jobs").write_text("a file where a folder should be")
    report = await box.processes.start(request).done
    assert report.failure is FailureClass.NODE
    assert "the agent failed" in report.message


async def _stopped_report(box: LocalNode, key: PlacementKey) -> object:
    report = box.processes.find(key)
    assert getattr(report, "stopped_for", None) == "test"
    return report


def _stop(key: PlacementKey) -> StopProcessRequest:
    return StopProcessRequest(key=key, grace=timedelta(seconds=5), reason="test")
