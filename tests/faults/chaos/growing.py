"""Jobs of the load that grow and shrink in place, in a lull in which there is room for that.

Under the load a GPU that comes free is taken at once, so nothing would ever join. The load pauses
for each of these jobs, and the faults go on.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress

from tests.faults import scenes
from tests.faults.chaos.scene import Scene
from tests.support.waiting import eventually

LASTS = 25
"""Seconds that such a job runs, so that it can change its size a few times."""
LULL = 45.0
"""Seconds for which the load pauses at most."""
SETTLES = 10.0
"""Seconds for which a new size is waited for, which a fault may have prevented."""
_HELD = """
    SELECT node_id, cardinality(gpu_indices) AS gpus FROM placements
     WHERE job_id = %s AND ended_at IS NULL ORDER BY rank
"""
_FREE = """
    SELECT n.id, count(*) AS gpus FROM nodes n JOIN gpus g ON g.node_id = n.id
     WHERE n.pool = 'default' AND n.state = 'READY' AND g.kind IS NULL
     GROUP BY n.id
"""


async def grow_and_shrink(scene: Scene, chance: random.Random, name: str) -> None:
    """Submit a gang that changes its size in place; have it grow twice as soon as there is room,
    shrink, and grow again. What a fault spoils is left as it is."""
    job_id = await scene.many.submit_in_place(name, LASTS, desired=2)
    scene.submitted.append(job_id)
    with suppress(TimeoutError):
        async with asyncio.timeout(LULL):
            await eventually(lambda: _held(scene, job_id), timeout=LULL, interval=0.2)
            for grows in (True, True, False, True):
                await _resize(scene, chance, job_id, grows)


async def _resize(scene: Scene, chance: random.Random, job_id: str, grows: bool) -> None:
    """Ask for another size once that can be in place, and wait until the job has it.

    Raises TimeoutError where the job has ended.
    """

    async def found() -> int | None:
        await _check_open(scene, job_id)
        held = await _held(scene, job_id)
        if grows:
            return await _larger(scene, job_id, held)
        kept = list(held.values())[: chance.randint(1, max(len(held) - 1, 1))]
        return sum(kept)  # rank 0, and perhaps another

    size = await eventually(found, timeout=LULL, interval=0.2)
    assert size
    scene.many.asked_to_grow += grows
    await scenes.tell(lambda: scene.fleet.longshore.resize(job_id, size))

    async def has_it() -> bool:
        await _check_open(scene, job_id)
        return sum((await _held(scene, job_id)).values()) == size

    with suppress(AssertionError):
        await eventually(has_it, timeout=SETTLES, interval=0.2)


async def _larger(scene: Scene, job_id: str, held: Mapping[str, int]) -> int | None:
    """Return the size that it has with another node, which gives as many GPUs as its smallest;
    None while no node has so many free."""
    if not held:
        return None
    least = min(held.values())
    free = {row["id"]: row["gpus"] for row in await asyncio.to_thread(scene.fleet.rows, _FREE)}
    room = any(gpus >= least for node, gpus in free.items() if node not in held)
    size = sum(held.values()) + least
    return size if room and size in scene.many.elastic[job_id] else None


async def _held(scene: Scene, job_id: str) -> Mapping[str, int]:
    """Return its GPUs by node, rank 0's first."""
    rows = await asyncio.to_thread(scene.fleet.rows, _HELD, job_id)
    return {row["node_id"]: row["gpus"] for row in rows}


async def _check_open(scene: Scene, job_id: str) -> None:
    if job_id not in await asyncio.to_thread(scene.unfinished):
        raise TimeoutError
