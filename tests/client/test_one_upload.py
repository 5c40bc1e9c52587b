"""How a submit waits for another one that sends the same."""

import os
from pathlib import Path

import pytest

from longshore.client import one_upload
from longshore.client.one_upload import alone

WAITS = "Waiting for another submit, which sends the same code"
STUCK = "The other submit has sent nothing for a minute: it is waited for no more"


class Clock:
    """Seconds that pass, one a look; the other submit sends something in some of them."""

    def __init__(self) -> None:
        self.now = 0
        self.locks: Path | None = None
        self.sends_until = 0

    def __call__(self) -> float:
        self.now += 1
        if self.locks is not None and self.now <= self.sends_until:
            for path in self.locks.iterdir():
                os.utime(path, (self.now, self.now))
        return self.now


def held(locks: Path) -> list[Path]:
    return list(locks.iterdir())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(one_upload, "_now", clock)
    monkeypatch.setattr(one_upload, "_BETWEEN_LOOKS", 0.0)
    return clock


async def test_one_that_is_stuck_is_waited_for_a_minute(tmp_path: Path, clock: Clock) -> None:
    said = list[str]()
    async with alone(tmp_path, "same"), alone(tmp_path, "same", said.append):
        assert said == [WAITS, STUCK]
        assert 60 <= clock.now <= 70


async def test_one_that_sends_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    said = list[str]()
    clock.locks, clock.sends_until = tmp_path, 500
    async with alone(tmp_path, "same"), alone(tmp_path, "same", said.append):
        assert said == [WAITS, STUCK]
        assert 560 <= clock.now <= 570


async def test_others_see_what_was_sent(tmp_path: Path) -> None:
    async with alone(tmp_path, "same") as moved:
        (lock,) = held(tmp_path)
        os.utime(lock, (1, 1))
        moved()
        assert lock.stat().st_mtime > 1
    assert held(tmp_path) == []


async def test_what_differs_is_sent_at_once(tmp_path: Path) -> None:
    said = list[str]()
    async with alone(tmp_path, "one", said.append), alone(tmp_path, "other", said.append):
        assert said == []
