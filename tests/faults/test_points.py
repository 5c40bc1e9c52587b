"""Each process is killed at each point of each step, one at a time: nothing is lost or doubled.

A few cases run always, all of them with `make faults`.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any, get_args

import psutil
import pytest

from longshore.activities.failpoints import Point
from longshore.workers.processes import Recorded
from longshore.workers.stack import agent_process
from tests.faults import scenes
from tests.faults.cases import cases_of
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.faults.invariants import check
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)

AGENT, SUPERVISOR = "agent", "supervisor"
ON_NODES = ("run_process", "stop_process", "resize_process", "watch_agent")
"""Steps that the agent takes; the control worker takes the others."""
HOLDING = ("set_hold", "release", "stop_process")
"""Steps that only happen where somebody holds and releases jobs."""
IN_PLACE = ("leave_ranks", "resize_process")
"""Steps that only happen where a job changes its size in place."""
LEAVING = ("see_off",)
"""Steps that only happen where a node is drained."""
ALWAYS = {
    ("cycle.after-commit", CONTROL),
    ("cycle.after-first-signal", TEMPORAL),
    ("join_ranks.after-commit", CONTROL),
    ("run_process.after-claim", AGENT),
}


def _victims(point: Point) -> list[str]:
    if not point.startswith(ON_NODES):
        return [CONTROL, TEMPORAL, POSTGRES, AGENT]
    spawned = point == "run_process.after-spawn"
    return [AGENT, TEMPORAL, CONTROL, *([SUPERVISOR] if spawned else [])]


def _cases() -> list[object]:
    cases = [(point, victim) for point in get_args(Point) for victim in _victims(point)]
    return cases_of(cases, ALWAYS)


@pytest.mark.parametrize(("point", "victim"), _cases())
async def test_nothing_is_lost_or_doubled(fleet: Fleet, point: Point, victim: str) -> None:
    fleet.arm(point)
    jobs = asyncio.create_task(_scene(point)(fleet))
    try:
        leaving = await _provoke(fleet, point, jobs)
        await _kill_at(fleet, point, victim)
        if leaving:  # started again only when it has gone
            await eventually(lambda: leaving.find() is None, timeout=PATIENCE)
        await asyncio.to_thread(fleet.start_what_is_missing)
        async with asyncio.timeout(PATIENCE):
            submitted = await jobs
        await check(fleet, submitted)
    finally:
        fleet.let_go(point)
        jobs.cancel()
        await asyncio.to_thread(fleet.start_what_is_missing)


def _scene(point: Point) -> Callable[[Fleet], Coroutine[Any, Any, list[str]]]:
    if point.startswith("preempt"):
        return scenes.submit_and_preempt
    if point.startswith("grow"):
        return scenes.submit_and_grow
    if point.startswith("swap"):
        return scenes.submit_and_swap
    if point == "run_process.after-spawn":
        return scenes.submit_some_longer
    if point == "run_process.before-outputs":
        return scenes.submit_with_outputs
    if point.startswith("join_ranks"):
        return scenes.submit_and_grow_in_place
    if point.startswith(IN_PLACE):
        return scenes.submit_and_resize_in_place
    if point.startswith("resize"):
        return scenes.submit_and_resize
    if point.startswith(LEAVING):
        return scenes.submit_and_drain
    return scenes.submit_and_hold if point.startswith(HOLDING) else scenes.submit_some


async def _provoke(fleet: Fleet, point: Point, jobs: asyncio.Task[list[str]]) -> Recorded | None:
    """Have a node end or register, where the point is of that; return an agent that ends."""
    agent = agent_process(fleet.nodes[0])
    if point.startswith("register"):
        await asyncio.to_thread(fleet.kill, agent)
        await asyncio.to_thread(fleet.start, agent)
    elif point.startswith("end_node"):
        await jobs  # submitted, so that some may run there
        leaving = fleet.stack.processes.running(agent)
        fleet.signal(agent, signal.SIGTERM)
        return leaving
    return None


async def _kill_at(fleet: Fleet, point: Point, victim: str) -> None:
    """Wait until a process has stopped at the point, and kill the victim exactly then."""
    pid = await fleet.reached(point)
    if victim == SUPERVISOR:
        # Not seen at times: it is being forked, or ends while they are looked for.
        await eventually(lambda: _kill_a_supervisor(fleet), timeout=PATIENCE)
    elif victim == AGENT:
        await _kill_an_agent(fleet, point, pid)
    else:
        await asyncio.to_thread(fleet.kill, victim)
    fleet.let_go(point)


def _kill_a_supervisor(fleet: Fleet) -> bool:
    for supervisor in fleet.supervisors():
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor.kill()
            return True
    return False


async def _kill_an_agent(fleet: Fleet, point: Point, stopped: int) -> None:
    """Kill the agent that stopped, or one with jobs; have it back before the step goes on."""
    if point.startswith(ON_NODES):
        await asyncio.to_thread(fleet.kill, fleet.process_of(stopped))
        return
    placed = fleet.live_placements()
    node = placed[-1] if placed else fleet.nodes[0]
    epoch = fleet.epoch(node)
    await asyncio.to_thread(fleet.kill, agent_process(node))
    await asyncio.to_thread(fleet.start, agent_process(node))
    if _leaves_nodes_alone(point):
        await fleet.registered_after(node, epoch)


def _leaves_nodes_alone(point: Point) -> bool:
    """Return whether a node can register while a process has stopped at this point."""
    return not point.endswith("before-commit") and not point.startswith(("register", "end_node"))
