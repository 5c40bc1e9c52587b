"""Orphans of a killed fork server: those that nobody can end, and systems without a subreaper."""

import asyncio
import contextlib
import logging
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.activities.node import orphans, supervision, system
from longshore.activities.node.supervision import ForkServer
from tests.support.waiting import eventually

_GONE = (2**22 + 1, 1)
"""A supervisor that has ended: no process has that number."""


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """One that adopts as far as it knows: the process of the tests has other children."""
    monkeypatch.setattr(supervision, "become_subreaper", lambda: True)
    fork_server = ForkServer()
    fork_server.adopt()
    yield fork_server
    fork_server.close()


@pytest.fixture
def left() -> Iterator[subprocess.Popen[bytes]]:
    """What a job has left."""
    yield from _process()


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    """Of another job."""
    yield from _process()


def _process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def nothing() -> Iterator[int]:
    """Where nothing is read, and what is written is lost."""
    with Path(os.devnull).open("r+b") as file:
        yield file.fileno()


async def test_what_cannot_be_ended_is_said_of_one_job_alone(
    adopting: ForkServer,
    left: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as a process of another user (sudo)."""
    monkeypatch.setattr(orphans, "_adopted", lambda _children: [left.pid])  # pyright: ignore
    monkeypatch.setattr(orphans, "kill", lambda _found: None)  # pyright: ignore
    monkeypatch.setattr(orphans, "STRAY_PATIENCE", 0.2)
    with caplog.at_level(logging.WARNING):
        assert await adopting.collected(left, *_GONE) == [left.pid]
        assert await adopting.collected(left, *_GONE) == []
    assert [record.message.split()[0] for record in caplog.records] == ["killing", "processes"]


async def test_nothing_is_given_up_before_it_was_killed_once(
    adopting: ForkServer, left: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the first look takes."""
    monkeypatch.setattr(orphans, "_adopted", lambda _children: [left.pid])  # pyright: ignore
    monkeypatch.setattr(orphans, "STRAY_PATIENCE", -1.0)
    await adopting.collected(left, *_GONE)
    await eventually(lambda: not orphans.runs(left.pid))


async def test_what_could_not_be_ended_before_a_job_asked_is_said_of_the_next(
    adopting: ForkServer,
    left: subprocess.Popen[bytes],
    supervisor: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """But for what has ended meanwhile: the log says that of what it has named."""
    both = [left.pid, supervisor.pid]
    monkeypatch.setattr(orphans, "_adopted", lambda _children: both)  # pyright: ignore
    monkeypatch.setattr(orphans, "kill", lambda _found: None)  # pyright: ignore
    monkeypatch.setattr(orphans, "reap_adopted", lambda _is_fork_server: None)  # pyright: ignore
    monkeypatch.setattr(orphans, "STRAY_PATIENCE", 0.2)
    adopting.close()  # it has lost one
    with caplog.at_level(logging.INFO):
        reaping = asyncio.create_task(adopting.keep_reaping())
        await eventually(lambda: "could not be ended: " in caplog.text)
        reaping.cancel()
        supervisor.kill()
        supervisor.wait()
        assert await adopting.collected(left, *_GONE) == [left.pid]
        assert await adopting.collected(left, *_GONE) == []
    assert caplog.messages[-1] == (
        f"processes that could not be ended at first have ended: [{supervisor.pid}]"
    )


async def test_a_living_fork_server_stays_where_proc_cannot_be_read(
    adopting: ForkServer, nothing: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when the agent has no file descriptor left."""
    fork_server = adopting.fork(tmp_path, [nothing] * 3)
    for module in (orphans, system):
        monkeypatch.setattr(module, "stat_fields", lambda _pid: None)  # pyright: ignore
    await adopting.collected(fork_server, *_GONE)
    assert adopting.fork(tmp_path, [nothing] * 3) is fork_server
    assert fork_server.poll() is None


def test_what_cannot_be_read_runs_until_it_has_gone(left: subprocess.Popen[bytes]) -> None:
    with no_descriptors():
        assert orphans.runs(left.pid)
        assert not orphans.runs(_GONE[0])
    left.kill()
    left.wait()
    with no_descriptors():
        assert not orphans.runs(left.pid)


async def test_an_orphan_that_cannot_be_read_is_not_taken_for_ended(
    adopting: ForkServer,
    left: subprocess.Popen[bytes],
    supervisor: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a supervisor, at that moment, not for an orphan."""
    adopting.has_come(supervisor.pid)
    children = {os.getpid(): [left.pid, supervisor.pid]}
    monkeypatch.setattr(orphans, "_children", lambda: children)  # pyright: ignore
    monkeypatch.setattr(orphans, "kill", lambda _found: None)  # pyright: ignore
    monkeypatch.setattr(orphans, "STRAY_PATIENCE", 0.2)
    with no_descriptors():
        assert await adopting.collected(left, *_GONE) == [left.pid]


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing meanwhile, as an agent that has no file descriptor left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_nothing_is_adopted_where_the_system_gives_no_orphans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "_libc", None)
    monkeypatch.delattr(os, "waitid")
    fork_server = ForkServer()
    fork_server.adopt()
    await asyncio.wait_for(fork_server.keep_reaping(), 10)
