"""What is killed with -9 while jobs run, and when: at random moments of the work."""

import asyncio
import random
from collections.abc import Iterable
from itertools import pairwise

import psutil

from longshore.models.messages import pool_workflow_id
from longshore.workers.stack import agent_process
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.support.waiting import eventually

BACKEND, SUPERVISOR, AGENT = "backend", "supervisor", "agent"
PARTS = (CONTROL, POSTGRES, TEMPORAL, AGENT)


async def kill_now_and_then(
    fleet: Fleet, chance: random.Random, kills: Iterable[tuple[int, str]]
) -> None:
    """Kill each of these once the journal has so many lines, and start it again."""
    for progress, victim in kills:
        await eventually(
            lambda progress=progress: len(fleet.journal.lines()) >= progress, timeout=PATIENCE
        )
        await asyncio.sleep(chance.uniform(0, 0.3))  # no wait for anything: a random moment
        print(f"after {progress} lines: kill -9 {victim}")
        await asyncio.to_thread(_kill, fleet, chance, victim)
        await asyncio.to_thread(fleet.start_what_is_missing)


def _kill(fleet: Fleet, chance: random.Random, victim: str) -> None:
    if victim == AGENT:
        fleet.kill(agent_process(chance.choice(fleet.nodes)))
    elif victim == CONTROL:
        fleet.kill(chance.choice(fleet.controls))
    elif victim == SUPERVISOR:
        kill_one(chance, fleet.supervisors())
    elif victim == BACKEND:
        kill_one(chance, fleet.backends())
    else:
        fleet.kill(victim)


def kill_one(chance: random.Random, processes: list[psutil.Process]) -> str:
    """Kill one of these; return which, or nothing where none was left."""
    if not processes:
        return ""
    process = chance.choice(processes)
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return ""  # it ended by itself
    return f"process {process.pid}"


async def planned_in_turn(fleet: Fleet, pool: str) -> bool:
    """Return whether a control worker planned for a pool again after another one had."""
    planners: list[str] = []
    temporal = fleet.longshore.temporal
    found = temporal.list_workflows(f"WorkflowId = '{pool_workflow_id(pool)}'")
    for run in sorted([run async for run in found], key=lambda run: run.start_time):
        handle = temporal.get_workflow_handle(run.id, run_id=run.run_id)
        cycles: set[int] = set()
        async for event in handle.fetch_history_events():
            scheduled = event.activity_task_scheduled_event_attributes
            started = event.activity_task_started_event_attributes
            if scheduled.activity_type.name == "run_cycle":
                cycles.add(event.event_id)
            elif started.scheduled_event_id in cycles:
                planners.append(started.identity)
    turns = [worker for worker, before in pairwise(planners) if worker != before]
    return len(turns) >= len(set(planners))
