"""Anything is killed at any moment while many jobs run: nothing is lost or doubled.

The seed that is printed with a failure chooses victims and moments again: `LONGSHORE_SEED=...`.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from tests.faults import scenes
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet, running_fleet
from tests.faults.invariants import check
from tests.support.local_stack import temporary_folder
from tests.support.waiting import eventually
from workers.stack import agent_process

BACKEND, SUPERVISOR, AGENT = "backend", "supervisor", "agent"
VICTIMS = (CONTROL, TEMPORAL, POSTGRES, BACKEND, AGENT, AGENT, SUPERVISOR, SUPERVISOR)


@pytest.fixture
async def large_fleet() -> AsyncIterator[Fleet]:
    """Starts a stack with a control worker and more agents; 8 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=3) as running:
            yield running


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [
        pytest.param(20, 6, id="small"),
        pytest.param(50, 40, id="large", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled(large_fleet: Fleet, jobs: int, kills: int) -> None:
    seed = int(os.environ.get("LONGSHORE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"the seed is LONGSHORE_SEED={seed}")
    chance = random.Random(seed)
    submitting = asyncio.create_task(_submit(large_fleet, random.Random(seed + 1), jobs))
    try:
        await _kill_now_and_then(large_fleet, chance, jobs, kills)
        async with asyncio.timeout(PATIENCE):
            submitted, cancelled = await submitting
        await check(large_fleet, submitted, cancelled)
    finally:
        submitting.cancel()


async def _submit(fleet: Fleet, chance: random.Random, count: int) -> tuple[list[str], list[str]]:
    """Submit so many jobs; cancel every tenth at once. Return ids of the rest and of those."""
    submitted: list[str] = []
    cancelled: list[str] = []
    for number in range(count):
        size: dict[str, Any] = {"gpus": chance.randint(1, 3)}
        if number % 5 == 4:  # more than a node has
            size = {"gpus": chance.randint(5, 8), "gang": {"unlabelled_nodes": True}}
        spec = fleet.journal.job(f"job-{number}", round(chance.uniform(0.1, 1.5), 2), **size)
        job_id = await scenes.submit(fleet, spec)
        if number % 10 == 9:
            await scenes.tell(lambda job_id=job_id: fleet.longshore.cancel(job_id))
            cancelled.append(job_id)
        else:
            submitted.append(job_id)
    return submitted, cancelled


async def _kill_now_and_then(fleet: Fleet, chance: random.Random, jobs: int, kills: int) -> None:
    """Kill something at random points of the work, and start it again."""
    # Lines of the journal: a job that is not cancelled writes two, or more where it is repeated.
    for progress in sorted(chance.randrange(3 * jobs // 2) for _ in range(kills)):
        await eventually(
            lambda progress=progress: len(fleet.journal.lines()) >= progress, timeout=PATIENCE
        )
        await asyncio.sleep(chance.uniform(0, 0.3))  # no wait for anything: a random moment
        victim = chance.choice(VICTIMS)
        print(f"after {progress} lines: kill -9 {victim}")
        await asyncio.to_thread(_kill, fleet, chance, victim)
        await asyncio.to_thread(fleet.start_what_is_missing)


def _kill(fleet: Fleet, chance: random.Random, victim: str) -> None:
    if victim == AGENT:
        fleet.kill(agent_process(chance.choice(fleet.nodes)))
    elif victim == SUPERVISOR:
        _kill_one(chance, fleet.supervisors())
    elif victim == BACKEND:
        _kill_one(chance, fleet.backends())
    else:
        fleet.kill(victim)


def _kill_one(chance: random.Random, processes: list[psutil.Process]) -> None:
    if processes:
        try:
            chance.choice(processes).kill()
        except psutil.NoSuchProcess:
            return  # it ended by itself
