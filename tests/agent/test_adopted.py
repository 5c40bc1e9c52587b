"""What came to the agent from a killed nursery: what nobody can end."""

import logging
import subprocess
from collections.abc import Iterator

import pytest

from activities.node import orphans, supervision
from activities.node.supervision import Nursery

_GONE = (2**22 + 1, 1)
"""A supervisor that has ended: no process has that number."""


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    """One that adopts as far as it knows: the process of the tests has other children."""
    monkeypatch.setattr(supervision, "become_subreaper", lambda: True)
    nursery = Nursery()
    nursery.adopt()
    yield nursery
    nursery.close()


@pytest.fixture
def left() -> Iterator[subprocess.Popen[bytes]]:
    """What a job has left."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


async def test_what_cannot_be_ended_is_said_of_one_job_alone(
    adopting: Nursery,
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
