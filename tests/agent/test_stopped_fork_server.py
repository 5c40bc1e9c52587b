"""A job that stops the process which forks the supervisors of its node."""

import asyncio
import os
import uuid
from pathlib import Path

import psutil
import pytest

from longshore.activities.node import supervision
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode
from tests.support.marks import running
from tests.support.waiting import eventually

FORK_SERVER = 'S=$PPID; N=$(cut -d" " -f4 /proc/$S/stat); '
STOPPED = 'until grep -q "^State:.T" /proc/$N/status; do :; done; '


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server that does not answer is ended after 4 s."""
    monkeypatch.setattr(supervision, "FORK_SERVER_PATIENCE", 4.0)


@pytest.mark.parametrize("wait", ["", STOPPED], ids=["at once", "once it is stopped"])
async def test_what_a_killed_supervisor_left_to_a_stopped_fork_server_ends(
    box: LocalNode, wait: str
) -> None:
    seconds = _seconds()
    left = f"(env -i setsid sh -c 'sleep {seconds} & sleep {seconds}' &); "
    report = await box.report(
        f"{FORK_SERVER}{left}kill -STOP $N; {wait}kill -9 $S; exec sleep 300"
    )
    assert report.failure is FailureClass.NODE
    assert running(seconds) == []
    assert (await box.report("exit 3")).exit_code == 3


async def test_who_keeps_what_a_supervisor_said_open_does_not_keep_its_job(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fork server that was stopped between the fork and the close of its own copy."""
    kept: list[int] = []
    fork = supervision.ForkServer.fork

    def keeps(self: supervision.ForkServer, folder: Path, files: list[int]) -> object:
        kept.append(os.dup(files[1]))
        return fork(self, folder, files)

    monkeypatch.setattr(supervision.ForkServer, "fork", keeps)
    report = await asyncio.wait_for(box.report("kill -9 $PPID; exec sleep 300"), 60)
    assert report.failure is FailureClass.NODE
    for each in kept:
        os.close(each)


async def test_a_stopped_fork_server_keeps_no_other_job_from_its_start(
    box: LocalNode, soon: None
) -> None:
    run = box.start(f"{FORK_SERVER}kill -STOP $N; {STOPPED}echo $N; sleep 300")
    fork_server = psutil.Process(int(await box.says(run, "\n")))
    began = box.folder / "began"
    reports = await asyncio.gather(*(box.report(f"echo >> {began}; exit 3") for _ in range(3)))
    assert [report.exit_code for report in reports] == [3, 3, 3]
    assert began.read_text() == "\n" * 3  # each once
    await eventually(lambda: not fork_server.is_running())
    assert (await box.stop(run)).message == "stopped (test), exit code 143"


async def test_what_came_to_a_stopped_fork_server_ends_before_the_next_start(
    box: LocalNode, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody saw that it was stopped when the supervisor was killed."""

    async def unseen(*_: object) -> list[int]:
        return []

    monkeypatch.setattr(supervision.ForkServer, "collected", unseen)
    seconds = _seconds()
    began = box.folder / "began"
    # Until it has another environment it is found by the one that it inherited.
    left = f"(env -i setsid sh -c 'echo > {began}; exec sleep {seconds}' &); "
    left += f"until [ -e {began} ]; do :; done; "
    await box.report(f"{FORK_SERVER}{left}kill -STOP $N; {STOPPED}kill -9 $S; exec sleep 300")
    await eventually(lambda: running(seconds))
    assert (await box.report("exit 3")).exit_code == 3
    assert running(seconds) == []


async def test_a_job_that_waits_for_a_stopped_fork_server_can_be_stopped(
    box: LocalNode, soon: None
) -> None:
    first = box.start(f"{FORK_SERVER}kill -STOP $N; {STOPPED}echo ready; sleep 300")
    await box.says(first, "ready")
    began = box.folder / "began"
    second = box.start(["touch", str(began)])
    report = await asyncio.wait_for(box.stop(second), 60)
    assert (report.message, report.stopped_for) == ("stopped before it started (test)", "test")
    assert not began.exists()


async def test_where_no_supervisor_comes_the_node_is_at_fault(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision.fork_server, "START", "raise SystemExit")
    report = await asyncio.wait_for(box.report("exit 3"), 60)
    assert (report.failure, report.exit_code) == (FailureClass.NODE, None)
    # By whether it had ended before it was asked.
    ends = "what forks supervisors ends at once: "
    assert report.message.startswith(("no supervisor could be started for the process", ends))


async def test_an_agent_ends_with_a_stopped_fork_server(box: LocalNode) -> None:
    seconds = _seconds()
    run = box.start(f"{FORK_SERVER}kill -STOP $N; {STOPPED}echo $N; exec sleep {seconds}")
    fork_server = psutil.Process(int(await box.says(run, "\n")))
    closing = asyncio.create_task(asyncio.to_thread(box.processes.close))
    try:
        await asyncio.wait_for(asyncio.shield(closing), 60)
        assert len(running(seconds)) == 1  # what runs goes on
    finally:
        if fork_server.is_running():
            fork_server.kill()
        await closing


def _seconds() -> str:
    """Return how long to sleep: how a process is found that has no environment."""
    return f"300.{uuid.uuid4().int % 10**9}"
