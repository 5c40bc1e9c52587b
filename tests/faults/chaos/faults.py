"""The faults: each does one bad thing, waits while it lasts, and mends it.

What waits here waits for a span of time on purpose: how long a fault lasts is a part of it. Here
are those of processes and of jobs, and the list of all.
"""

import asyncio
import random
import signal

import psutil

from longshore.workers.stack import agent_process
from tests.faults import scenes
from tests.faults.chaos import blocks, budgets, machines, store
from tests.faults.chaos.many import MOST_ELEMENTS
from tests.faults.chaos.scene import Fault, Scene
from tests.faults.fleet import CONTROL, NODE_LOST_AFTER, POSTGRES, TEMPORAL
from tests.faults.kills import kill_one


async def kill_control(scene: Scene, chance: random.Random) -> str:
    return await _kill(scene, CONTROL)


async def kill_temporal(scene: Scene, chance: random.Random) -> str:
    return await _kill(scene, TEMPORAL)


async def kill_postgres(scene: Scene, chance: random.Random) -> str:
    return await _kill(scene, POSTGRES)


async def kill_agent(scene: Scene, chance: random.Random) -> str:
    return await _kill(scene, agent_process(chance.choice(scene.fleet.nodes)))


async def kill_supervisor(scene: Scene, chance: random.Random) -> str:
    return kill_one(chance, scene.fleet.supervisors())


async def kill_database_session(scene: Scene, chance: random.Random) -> str:
    return kill_one(chance, scene.fleet.backends())


async def freeze_agent(scene: Scene, chance: random.Random) -> str:
    """For longer than a node may be silent: it is lost, and comes back."""
    lasts = NODE_LOST_AFTER.total_seconds() * chance.uniform(1.2, 2)
    return await _freeze(scene, agent_process(chance.choice(scene.fleet.nodes)), lasts)


async def pause_agent(scene: Scene, chance: random.Random) -> str:
    """For less than a node may be silent: nothing is lost."""
    lasts = NODE_LOST_AFTER.total_seconds() * chance.uniform(0.1, 0.4)
    return await _freeze(scene, agent_process(chance.choice(scene.fleet.nodes)), lasts)


async def freeze_control(scene: Scene, chance: random.Random) -> str:
    return await _freeze(scene, CONTROL, chance.uniform(1, 6))


async def freeze_postgres(scene: Scene, chance: random.Random) -> str:
    return await _freeze(scene, POSTGRES, chance.uniform(0.5, 3))


async def jump_clock(scene: Scene, chance: random.Random) -> str:
    """Have the wall clock of an agent or of the control worker jump, and set it right later."""
    name = chance.choice((CONTROL, *map(agent_process, scene.fleet.nodes)))
    jump = chance.choice((-1, 1)) * chance.uniform(60, 2 * 3600)
    seconds = chance.uniform(2, 12)
    running = scene.fleet.stack.processes.running(name)
    if not running:
        return ""
    scene.fleet.set_clock_of(running.pid, jump)
    try:
        await asyncio.sleep(seconds)  # how long the fault lasts
    finally:
        scene.fleet.set_clock_of(running.pid, 0)
    await scene.mend()
    return f"{name} by {jump:+.0f} s for {seconds:.1f} s"


async def hold_and_release(scene: Scene, chance: random.Random) -> str:
    job_id = await _any_job(scene, chance)
    if not job_id:
        return ""
    await scenes.tell(lambda: scene.fleet.longshore.hold(job_id, "chaos"))
    await asyncio.sleep(chance.uniform(0, 2))  # a random moment
    await scenes.tell(lambda: scene.fleet.longshore.release(job_id))
    return job_id


async def cancel(scene: Scene, chance: random.Random) -> str:
    job_id = await _any_job(scene, chance)
    if not job_id:
        return ""
    scene.submitted.remove(job_id)
    scene.cancelled.append(job_id)
    await scenes.tell(lambda: scene.fleet.longshore.cancel(job_id))
    return job_id


async def requeue(scene: Scene, chance: random.Random) -> str:
    job_id = await _any_job(scene, chance)
    if not job_id:
        return ""
    await scenes.tell(lambda: scene.fleet.longshore.requeue(job_id, "chaos"))
    return job_id


async def resize(scene: Scene, chance: random.Random) -> str:
    """Give an elastic job another size: one that runs changes in place, or is stopped for it."""
    there = set(await asyncio.to_thread(scene.unfinished))
    jobs = [job_id for job_id in scene.many.elastic if job_id in there]
    if not jobs:
        return ""
    job_id = chance.choice(jobs)
    gpus = chance.choice(scene.many.elastic[job_id])
    await scenes.tell(lambda: scene.fleet.longshore.resize(job_id, gpus, from_start=True))
    return f"{job_id} to {gpus} GPUs"


async def cancel_elements(scene: Scene, chance: random.Random) -> str:
    arrays = await asyncio.to_thread(scene.many.open_arrays)
    if not arrays:
        return ""
    array_id, index = chance.choice(arrays), chance.randrange(MOST_ELEMENTS)
    scene.many.cancelled[array_id].add(index)
    await scenes.tell(lambda: scene.fleet.longshore.cancel_elements(array_id, str(index)))
    return f"{index} of {array_id}"


async def requeue_slot(scene: Scene, chance: random.Random) -> str:
    """Stop a slot and what it runs: its elements go on in it, or in another."""
    live = (
        "SELECT s.job_id FROM array_slots s JOIN placements p ON p.job_id = s.job_id"
        " WHERE p.ended_at IS NULL ORDER BY s.job_id"
    )
    slots = await asyncio.to_thread(scene.fleet.rows, live)
    if not slots:
        return ""
    job_id = str(chance.choice(slots)["job_id"])
    await scenes.tell(lambda: scene.fleet.longshore.requeue(job_id, "chaos"))
    return job_id


FAULTS: dict[str, Fault] = {
    "kill -9 the control worker": kill_control,
    "kill -9 the Temporal server": kill_temporal,
    "kill -9 PostgreSQL": kill_postgres,
    "kill -9 a database session": kill_database_session,
    "kill -9 an agent": kill_agent,
    "kill -9 a supervisor": kill_supervisor,
    "freeze an agent until its node is lost": freeze_agent,
    "freeze an agent for a moment": pause_agent,
    "freeze the control worker": freeze_control,
    "freeze PostgreSQL": freeze_postgres,
    "have a clock jump": jump_clock,
    "hold and release a job": hold_and_release,
    "cancel a job": cancel,
    "requeue a job": requeue,
    "resize an elastic job": resize,
    "edit a budget": budgets.edit,
    "cancel an element": cancel_elements,
    "requeue a slot": requeue_slot,
    "drain a node for a while": machines.drain,
    "cordon a node for a while": machines.cordon,
    "cut a node off": machines.cut_off,
    "fill the disk of a node": machines.fill_disk,
    "lose a machine with its disk": machines.lose,
    "take the checkpoint store away": store.take_away,
    "damage a stored checkpoint": store.damage,
    "trouble at the market": blocks.trouble,
    "take a bought machine away": blocks.take_away,
    "take a bought machine away after a notice": blocks.take_away_after_notice,
    "end a block early": blocks.end_early,
}


async def _any_job(scene: Scene, chance: random.Random) -> str:
    """Return a job that has not ended; nothing where there is none."""
    jobs = await asyncio.to_thread(scene.unfinished)
    return chance.choice(jobs) if jobs else ""


async def _kill(scene: Scene, name: str) -> str:
    await asyncio.to_thread(scene.fleet.kill, name)
    await scene.mend()
    return name


async def _freeze(scene: Scene, name: str, seconds: float) -> str:
    """Stop every process of a part for so long."""
    frozen = _family(scene, name)
    if not frozen:
        return ""
    for process in frozen:
        _send(process, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)  # how long the fault lasts
    finally:
        for process in frozen:
            _send(process, signal.SIGCONT)
    await scene.mend()
    return f"{name} for {seconds:.1f} s"


def _family(scene: Scene, name: str) -> list[psutil.Process]:
    running = scene.fleet.stack.processes.running(name)
    process = running.find() if running else None
    if process is None:
        return []
    try:
        # An agent that freezes leaves its supervisors and jobs running, as the kernel would.
        children = process.children(recursive=True) if name == POSTGRES else []
    except psutil.NoSuchProcess:
        return []
    return [process, *children]


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # another fault has killed it meanwhile
