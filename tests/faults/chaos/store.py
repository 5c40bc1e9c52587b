"""Faults of the checkpoint store."""

import asyncio
import random
from pathlib import Path

from tests.faults.chaos.scene import Scene


async def take_away(scene: Scene, chance: random.Random) -> str:
    """Put something else where the checkpoints are, and put them back."""
    folder = _store_folder(scene)
    if not folder.is_dir():
        return ""  # another such fault is under way, or nothing was saved yet
    aside = folder.with_name("checkpoints-away")
    folder.rename(aside)
    folder.write_text("not a folder")
    seconds = chance.uniform(2, 12)
    await asyncio.sleep(seconds)  # how long the fault lasts
    folder.unlink()
    aside.rename(folder)
    return f"for {seconds:.1f} s"


async def damage(scene: Scene, chance: random.Random) -> str:
    """Change a byte of something that is stored of a job that still runs.

    Once of a job, and where another checkpoint stays: a job of which all is damaged may fail.
    """
    open_jobs = set(await asyncio.to_thread(scene.unfinished)) - scene.counting.damaged
    jobs = [job_id for job_id in scene.counting.jobs() if job_id in open_jobs]
    jobs = [job_id for job_id in jobs if scene.counting.whole_ones(job_id) > 1]
    chance.shuffle(jobs)
    for job_id in jobs:
        files = sorted(path for path in (_store_folder(scene) / job_id).rglob("*"))
        for path in chance.sample(files, len(files)):
            scene.counting.damaged.add(job_id)
            if _flip_a_byte(path, chance):
                return f"{path.relative_to(_store_folder(scene))}"
    return ""


def _store_folder(scene: Scene) -> Path:
    return scene.fleet.stack.folder / "checkpoints"


def _flip_a_byte(path: Path, chance: random.Random) -> bool:
    try:
        content = bytearray(path.read_bytes())
        if not content:
            return False
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    except OSError:
        return False  # a folder, or replaced meanwhile
    return True
