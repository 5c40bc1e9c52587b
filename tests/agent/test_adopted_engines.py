"""Engines whose agent dies go on until their fence falls, and the next agent attends to them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from longshore.activities.node.adoption import ORDERS, Adopted
from longshore.activities.node.orphans import runs
from longshore.activities.node.run import Run
from longshore.activities.node.supervision import Supervised
from longshore.activities.node.system import boot_clock
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode, MakeBox
from tests.agent.test_engines import an_engine, ask, ready, tiny
from tests.support.agent import end_engines
from tests.support.waiting import eventually

__all__ = ["tiny"]


async def an_engine_runs(box: LocalNode, model: Path, job: str = "chat") -> tuple[Run, str]:
    """Start an engine; return it with where it answers."""
    run = box.start(None, job=job, engine=an_engine(model), gpus=1)
    return run, (await ready(box, run)).endpoint


async def dies(box: LocalNode, *its: Run) -> None:
    """Have the agent hear nothing more, and close the pipes of its supervisors."""
    for run in its:
        run.done.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run.done
        assert isinstance(run.supervised, Supervised)
        run.supervised.leave()
    box.processes.close()


def now_of(box: LocalNode, before: Run) -> Run:
    """Return how a run goes on in the life of the agent that is now."""
    found = box.processes.find(before.record.key)
    assert isinstance(found, Run)
    assert isinstance(found.supervised, Adopted)
    return found


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Ends what outlives the lives of an agent."""
    yield
    end_engines(tmp_path)


async def test_the_next_agent_goes_on_with_an_engine_and_ends_what_else_ran(
    box: LocalNode, tiny: Path
):
    run, endpoint = await an_engine_runs(box, tiny)
    job = box.start("echo up; exec sleep 600", job="job", gpus=1)
    await box.says(job, "up")
    pid = (await job.started)["pid"]
    await dies(box, run, job)
    await box.life().recover()
    assert not psutil.pid_exists(pid)
    assert box.processes.outliving() == [run.record.key]
    again = now_of(box, run)
    assert again.progress().engine == run.progress().engine
    assert len(ask(endpoint)["choices"]) == 1
    report = await box.stop(again)
    assert (report.stopped_for, report.failure) == ("test", None)
    assert report.started_at is not None
    with pytest.raises(OSError, match="refused"):
        ask(endpoint)
    assert box.processes.outliving() == []
    found = box.life()
    await found.recover()
    assert found.find(run.record.key) == report


async def test_it_is_fed_by_the_next_agent_and_ends_with_its_fence(
    make_box: MakeBox, tiny: Path, tmp_path: Path
):
    box = make_box(tmp_path, fence_after=2.0, engine_fence=8.0)
    run, endpoint = await an_engine_runs(box, tiny)
    job = box.start("exec sleep 600", job="job", gpus=1)
    assert (await job.done).failure is FailureClass.NETWORK
    assert ask(endpoint)["choices"]
    await dies(box, run)
    await box.life().recover()
    again = now_of(box, run)
    started = await again.started
    until = boot_clock() + 9
    while boot_clock() < until:
        assert again.supervised
        again.supervised.feed(boot_clock())
        await asyncio.sleep(0.2)  # a span of time that is longer than the fence
    assert psutil.pid_exists(started["pid"])
    report = await again.done
    assert report.failure is FailureClass.NETWORK
    assert not psutil.pid_exists(started["pid"])


async def test_what_the_server_does_not_have_go_on_is_gone_before_anything_starts(
    box: LocalNode, tiny: Path
):
    first, endpoint = await an_engine_runs(box, tiny)
    second, other = await an_engine_runs(box, tiny, "other")
    assert box.processes.outliving() == [first.record.key, second.record.key]
    await box.processes.keep_only([first.record.key])
    assert second.done.done()
    assert second.done.result().failure is FailureClass.NETWORK
    assert ask(endpoint)["choices"]
    with pytest.raises(OSError, match="refused"):
        ask(other)


async def test_one_that_is_to_stop_ends_with_its_agent(box: LocalNode, tiny: Path):
    run, endpoint = await an_engine_runs(box, tiny)
    pid = (await run.started)["pid"]
    os.kill(pid, signal.SIGSTOP)  # it does not hear of the stop
    box.processes.lifecycle.ask_to_stop(run, "SIGTERM", 600, "test")
    assert box.processes.outliving() == []
    await dies(box, run)
    await eventually(lambda: not psutil.pid_exists(pid))
    await box.life().recover()
    report = box.processes.find(run.record.key)
    assert not isinstance(report, Run)
    with pytest.raises(OSError, match="refused"):
        ask(endpoint)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_one_whose_supervisor_is_killed_is_ended(box: LocalNode, tiny: Path, when: str):
    run, endpoint = await an_engine_runs(box, tiny)
    supervisor = (await run.started)["supervisor"]
    await dies(box, run)
    if when == "before":
        os.kill(supervisor, signal.SIGKILL)
        await eventually(lambda: not runs(supervisor))
    await box.life().recover()
    if when == "after":
        os.kill(supervisor, signal.SIGKILL)
        report = await now_of(box, run).done
        assert report.failure is FailureClass.NODE
    assert not isinstance(box.processes.find(run.record.key), Run)
    with pytest.raises(OSError, match=r"refused|reset"):
        ask(endpoint)


async def test_a_job_leaves_no_request_and_listens_to_nobody(box: LocalNode):
    run = box.start("exec sleep 600", gpus=1)
    await run.started
    assert not (run.folder / "request.json").exists()
    assert not (run.folder / ORDERS).exists()
    await box.stop(run)
