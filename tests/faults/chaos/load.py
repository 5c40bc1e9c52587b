"""The load: jobs of every kind at random moments, so that all GPUs are busy and some jobs wait."""

import asyncio
import random
from typing import Any

from tests.faults import scenes
from tests.faults.chaos import budgets, growing, lending
from tests.faults.chaos.counting import counting_job
from tests.faults.chaos.scene import Scene

EVERY = 0.7
"""Seconds between two jobs, on average."""
BUYS_EVERY = 15
"""Every so many jobs, one that nothing can hold before something is bought."""
MANY_EVERY = 5
"""Every so many jobs, a DAG, an array, an elastic job or a pair of arrays."""
LENDS_EVERY = 8
"""Every so many jobs, a gang with a spare, with jobs that may borrow it."""
GROWS_EVERY = 32
"""Every so many jobs, one that grows in place, for which the load pauses."""
COUNTS_EVERY = 4
"""Every so many jobs, one that saves, and whose result shows whether anything was lost."""


async def submit_for(scene: Scene, seed: int, seconds: float) -> None:
    """Submit jobs for so long; the seed alone says which."""
    async with asyncio.TaskGroup() as beside:
        beside.create_task(scene.serving.keep_changing(random.Random(seed + 1), seconds))
        await _submit_for(scene, seed, seconds, beside)


async def _submit_for(scene: Scene, seed: int, seconds: float, beside: asyncio.TaskGroup) -> None:
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    number = 0
    while loop.time() < ends:
        number += 1
        wish, runs = _wish(chance), round(chance.uniform(0.1, 2.5), 2)
        if number % BUYS_EVERY == 0:
            runs += round(chance.uniform(2, 10), 2)  # so that something can happen to the machine
            spec = scene.trading.job(f"bought-{number}", runs, chance.choice((1, 2, 8)))
            scene.submitted.append(await scenes.submit(scene.fleet, spec))
        elif number % GROWS_EVERY == 0:
            its_own = random.Random(
                chance.randrange(2**31)
            )  # how often it is asked depends on time
            await growing.grow_and_shrink(scene, its_own, f"grows-{number}")
        elif number % LENDS_EVERY == 0:
            its_own = random.Random(chance.randrange(2**31))
            beside.create_task(lending.lend_and_take_back(scene, its_own, f"lends-{number}"))
        elif number % MANY_EVERY == 0:
            await _submit_many(scene, chance, number)
        elif number % COUNTS_EVERY == 0:
            await _submit_counting(scene, chance, number, wish)
        else:
            spec = scene.fleet.journal.job(f"job-{number}", runs, **wish)
            scene.submitted.append(await scenes.submit(scene.fleet, spec))
        await asyncio.sleep(chance.expovariate(1 / EVERY))  # arrivals come at random


async def _submit_many(scene: Scene, chance: random.Random, number: int) -> None:
    """Submit a DAG, an array, an elastic job or a pair of arrays, in turn."""
    many = scene.many
    kind = (len(many.dags) + len(many.arrays) + len(many.elastic) + len(many.pairs)) % 4
    if kind == 0:
        await many.submit_dag(chance, f"dag-{number}")
    elif kind == 1:
        await many.submit_array(chance, f"array-{number}")
    elif kind == 2:
        await many.submit_pair(chance, f"pair-{number}")
    else:
        scene.submitted.append(await many.submit_elastic(chance, f"elastic-{number}"))


async def _submit_counting(
    scene: Scene, chance: random.Random, number: int, wish: dict[str, Any]
) -> None:
    wish = {key: wish[key] for key in wish if key != "gang"} | {"gpus": 1}
    steps = chance.randint(30, 180)
    spec = counting_job(scene.fleet.journal, f"counts-{number}", steps, **wish)
    job_id = await scenes.submit(scene.fleet, spec)
    scene.counting.add(job_id, steps)
    scene.submitted.append(job_id)


def _wish(chance: random.Random) -> dict[str, Any]:
    """Return what a job wants: a part of a GPU, some, or more than a node has."""
    kind = chance.choices(("some", "part", "gang"), (6, 2, 1))[0]
    wish: dict[str, Any] = {"priority": chance.choice((2, 5, 5, 8)), **budgets.wish(chance)}
    if kind == "part":
        return wish | {"milli": chance.choice((250, 500)), "vram_per_gpu": 20}
    if kind == "gang":
        return wish | {"gpus": chance.randint(5, 8), "gang": {"unlabelled_nodes": True}}
    return wish | {"gpus": chance.randint(1, 3)}
