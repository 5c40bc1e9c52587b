"""Many ask, one fetches."""

import asyncio

import pytest

from longshore.console.answer_cache import Shared


class Source:
    """Counts how often it is fetched from; answers when it is let."""

    def __init__(self) -> None:
        self.fetched = 0
        self.fails = False
        self.asked, self.let = asyncio.Event(), asyncio.Event()
        self.let.set()

    async def fetch(self) -> int:
        self.fetched += 1
        number = self.fetched
        self.asked.set()
        await self.let.wait()
        if self.fails:
            raise OSError(f"failure {number}")
        return number


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_who_asks_at_the_same_time_gets_one_answer() -> None:
    source, shared = Source(), Shared[str, int](2.0)
    source.let.clear()
    asking = [asyncio.create_task(shared.get("a", source.fetch)) for _ in range(20)]
    await source.asked.wait()
    source.let.set()
    assert await asyncio.gather(*asking) == [1] * 20


async def test_an_answer_is_kept_for_its_time() -> None:
    clock = Clock()
    source, shared = Source(), Shared[str, int](2.0, clock=clock)
    assert await shared.get("a", source.fetch) == 1
    clock.now = 1.9
    assert await shared.get("a", source.fetch) == 1
    assert await shared.get("b", source.fetch) == 2
    clock.now = 2.0
    assert await shared.get("a", source.fetch) == 3


async def test_a_failure_is_kept_as_long() -> None:
    clock = Clock()
    source, shared = Source(), Shared[str, int](2.0, clock=clock)
    source.fails = True
    for _ in range(3):
        with pytest.raises(OSError, match="failure 1"):
            await shared.get("a", source.fetch)
    source.fails, clock.now = False, 2.0
    assert await shared.get("a", source.fetch) == 2


async def test_one_who_goes_away_does_not_take_the_answer_along() -> None:
    source, shared = Source(), Shared[str, int](2.0)
    source.let.clear()
    gone = asyncio.create_task(shared.get("a", source.fetch))
    stays = asyncio.create_task(shared.get("a", source.fetch))
    await source.asked.wait()
    gone.cancel()
    source.let.set()
    assert await stays == 1
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_the_oldest_answers_make_room() -> None:
    source, shared = Source(), Shared[int, int](60.0, size=2)
    for key in (1, 2, 3):
        await shared.get(key, source.fetch)
    assert await shared.get(3, source.fetch) == 3
    assert await shared.get(1, source.fetch) == 4
