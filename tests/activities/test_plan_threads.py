"""A plan that does not end keeps neither the other pools nor a thread for each try."""

import asyncio
import threading

import pytest

from longshore.activities import plan_threads
from longshore.activities.plan_threads import PlanThreads
from longshore.models.errors import UnavailableError
from tests.support.waiting import eventually


async def test_of_a_plan_that_does_not_end_no_second_is_begun_and_other_pools_go_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(plan_threads, "_WAITS", 0.05)
    plans, ends, made = PlanThreads(), threading.Event(), list[int]()

    def slow(number: int) -> int:
        made.append(number)
        assert ends.wait(60)
        return number

    first = asyncio.create_task(plans.run("slow", slow, 1))
    await eventually(lambda: made)
    first.cancel()  # as the activity is, once it has taken too long
    with pytest.raises(asyncio.CancelledError):
        await first
    for number in range(2, 20):
        with pytest.raises(UnavailableError, match=r"a plan of pool slow .* does not end"):
            await plans.run("slow", slow, number)
    assert await plans.run("other", lambda: "made") == "made"
    assert made == [1]
    monkeypatch.undo()  # it ends in its time, on a busy machine too
    ends.set()
    assert await plans.run("slow", slow, 20) == 20
    assert made == [1, 20]


async def test_a_plan_begins_once_the_one_before_it_has_ended():
    plans, ends, order = PlanThreads(), threading.Event(), list[str]()

    def slow() -> None:
        assert ends.wait(60)
        order.append("first")

    first = asyncio.create_task(plans.run("p", slow))
    second = asyncio.create_task(plans.run("p", order.append, "second"))
    await asyncio.sleep(0)
    assert not second.done()
    ends.set()
    await asyncio.gather(first, second)
    assert order == ["first", "second"]


async def test_an_error_of_a_plan_is_its_callers():
    plans = PlanThreads()
    with pytest.raises(ZeroDivisionError):
        await plans.run("p", lambda: 1 // 0)
    assert await plans.run("p", lambda: 1) == 1
