"""An agent that hangs is lost in time, its jobs run elsewhere, none twice, and it comes back.

It is stopped, as when a machine is paused, or its event loop waits in a call that does not return:
then the SDK of Temporal goes on to take calls for it, and answers none.
"""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.models.job import JobSpec
from longshore.models.node import NodeState
from longshore.workers.stack import agent_process
from tests.faults import scenes
from tests.faults.fleet import GPUS_PER_NODE, PATIENCE, Fleet, running_fleet
from tests.faults.invariants import check
from tests.support.local_stack import temporary_folder
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)
LOST_AFTER = timedelta(seconds=16)
LATEST = 1.5 * LOST_AFTER
"""What is promised, and some for a busy machine: less than a second round of calls takes."""

Hangs = Callable[[Fleet, str], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]]
"""Makes ready that a node's agent hangs; yields what waits until it does, with a job coming."""


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Starts a stack with a control worker and two agents; 6 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=2, lost_after=LOST_AFTER) as running:
            yield running


@asynccontextmanager
async def stopped(fleet: Fleet, node: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    async def it_hangs() -> None:
        """It does from the beginning."""

    fleet.signal(agent_process(node), signal.SIGSTOP)
    try:
        yield it_hangs
    finally:
        fleet.signal(agent_process(node), signal.SIGCONT)


@asynccontextmanager
async def blocked(fleet: Fleet, node: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Have the next look at the clock wait for somebody to write down what it says."""
    fifo = fleet.clock_of(fleet.pid(agent_process(node)))
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    writers: list[int] = []

    def is_read() -> bool:
        try:
            writers.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False  # nobody reads
        return True

    async def it_hangs() -> None:
        await eventually(is_read, timeout=PATIENCE)

    try:
        yield it_hangs
    finally:
        fifo.unlink()
        for writer in writers:
            os.write(writer, b"0")
            os.close(writer)


@pytest.mark.exhaustive  # test_partition.py cuts one off, agent/test_agent.py freezes one
@pytest.mark.parametrize("hangs", [blocked, stopped])
async def test_it_is_lost_in_time_and_comes_back(fleet: Fleet, tmp_path: Path, hangs: Hangs):
    jobs = [await scenes.submit(fleet, _job(fleet, tmp_path, n, gpus=2)) for n in range(3)]
    await eventually(lambda: all(map(fleet.journal.running, jobs)), timeout=PATIENCE)
    on = {job_id: _node_of(fleet, job_id) for job_id in jobs}
    other, node = sorted(fleet.nodes, key=lambda each: -list(on.values()).count(each))
    epoch = fleet.epoch(node)
    async with hangs(fleet, node) as it_hangs:
        # There is room on that node alone: it is to start what it cannot answer for.
        jobs.append(await scenes.submit(fleet, _job(fleet, tmp_path, 3, gpus=2)))
        await it_hangs()
        began = _now(fleet)
        lost_at = await eventually(lambda: _lost_at(fleet, node), timeout=PATIENCE)
        assert lost_at
        assert lost_at - began < LATEST
        for number, job_id in enumerate(jobs):
            if on.get(job_id) == other:
                (tmp_path / str(number)).touch()
        moved = [job_id for job_id in jobs if on.get(job_id) != other]
        await eventually(lambda: all(_runs_on(fleet, job, other) for job in moved), PATIENCE)
    await fleet.registered_after(node, epoch)
    await _let_end(fleet, jobs, tmp_path)
    wide = [
        await scenes.submit(fleet, _job(fleet, tmp_path, number, gpus=GPUS_PER_NODE))
        for number in (4, 5)
    ]
    await eventually(lambda: all(map(fleet.journal.running, wide)), timeout=PATIENCE)
    await _let_end(fleet, [*jobs, *wide], tmp_path)


async def _let_end(fleet: Fleet, jobs: list[str], folder: Path) -> None:
    for number in range(len(jobs)):
        (folder / str(number)).touch()
    await check(fleet, jobs)
    journal = fleet.journal.by_job()
    for job_id in jobs:
        assert [line.word for line in journal[job_id]].count("end") == 1


def _job(fleet: Fleet, folder: Path, number: int, **fields: Any) -> JobSpec:
    """Return a job that runs until a file of its number lets it end."""
    work = 'until [ -e "$GO" ]; do sleep 0.1; done'
    go = {"GO": str(folder / str(number))}
    return fleet.journal.job(f"hung-{number}", work=work, env=go, **fields)


def _node_of(fleet: Fleet, job_id: str) -> str:
    live = "SELECT node_id FROM placements WHERE job_id = %s AND ended_at IS NULL"
    return "".join(row["node_id"] for row in fleet.rows(live, job_id))


def _runs_on(fleet: Fleet, job_id: str, node: str) -> bool:
    return _node_of(fleet, job_id) == node and fleet.journal.running(job_id)


def _now(fleet: Fleet) -> datetime:
    return fleet.rows("SELECT now() AS now")[0]["now"]


def _lost_at(fleet: Fleet, node: str) -> datetime | None:
    (row,) = fleet.rows("SELECT state, state_since FROM nodes WHERE id = %s", node)
    return row["state_since"] if row["state"] == NodeState.LOST.value else None
