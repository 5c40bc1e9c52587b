"""The load: jobs of every kind at random moments, so that all GPUs are busy and some jobs wait."""

import asyncio
import random
from typing import Any

from tests.faults import scenes
from tests.faults.chaos.scene import Scene

EVERY = 0.7
"""Seconds between two jobs, on average."""


async def submit_for(scene: Scene, seed: int, seconds: float) -> None:
    """Submit jobs for so long; the seed alone says which."""
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    number = 0
    while loop.time() < ends:
        number += 1
        wish, runs = _wish(chance), round(chance.uniform(0.1, 2.5), 2)
        spec = scene.fleet.journal.job(f"job-{number}", runs, **wish)
        scene.submitted.append(await scenes.submit(scene.fleet, spec))
        await asyncio.sleep(chance.expovariate(1 / EVERY))


def _wish(chance: random.Random) -> dict[str, Any]:
    """Return what a job wants: a part of a GPU, some, or more than a node has."""
    kind = chance.choices(("some", "part", "gang"), (6, 2, 1))[0]
    wish: dict[str, Any] = {"priority": chance.choice((2, 5, 5, 8))}
    if kind == "part":
        return wish | {"milli": chance.choice((250, 500)), "vram_per_gpu": 20}
    if kind == "gang":
        return wish | {"gpus": chance.randint(5, 8), "gang": {"unlabelled_nodes": True}}
    return wish | {"gpus": chance.randint(1, 3)}
