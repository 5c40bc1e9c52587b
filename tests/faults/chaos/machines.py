"""Faults of whole machines: the network between them and the server, their disks, their end."""

import asyncio
import random
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from longshore.models.node import NodeState
from longshore.workers.processes import wait_until
from longshore.workers.stack import agent_process
from tests.faults import scenes
from tests.faults.chaos.scene import Scene
from tests.faults.fleet import NODE_LOST_AFTER, PATIENCE
from tests.support.agent import end_engines
from tests.support.waiting import eventually

DISK_MB = 16
_LIVE = (NodeState.READY.value, NodeState.DRAINING.value)


async def drain(scene: Scene, chance: random.Random) -> str:
    return await _for_a_while(scene, chance, scene.fleet.longshore.drain)


async def cordon(scene: Scene, chance: random.Random) -> str:
    return await _for_a_while(scene, chance, scene.fleet.longshore.cordon)


async def cut_off(scene: Scene, chance: random.Random) -> str:
    """Cut the network between a node and the server, in one direction or both; then heal it."""
    node = chance.choice(scene.fleet.nodes)
    silent = chance.choice(({}, {"to_client": False}, {"to_server": False}))
    seconds = NODE_LOST_AFTER.total_seconds() * chance.uniform(0.2, 2)
    scene.fleet.relays[node].fall_silent(**silent)
    await asyncio.sleep(seconds)  # how long the fault lasts
    scene.fleet.relays[node].heal()
    which = "both directions" if not silent else f"not {next(iter(silent)).replace('_', ' ')}"
    return f"{node} for {seconds:.1f} s, {which}"


async def fill_disk(scene: Scene, chance: random.Random) -> str:
    """Leave no byte on the disk of a node for a while."""
    disks = [folder for folder in map(scene.fleet.folder_of, scene.fleet.nodes)
             if folder.is_mount()]  # fmt: skip
    if not disks:
        return ""
    disk = chance.choice(disks)
    filler = disk / "filler"
    if filler.exists():
        return ""  # it is full already
    seconds = chance.uniform(2, 8)
    try:
        await asyncio.to_thread(fill, filler)
        await asyncio.sleep(seconds)  # how long the fault lasts
    finally:
        filler.unlink(missing_ok=True)
    await scene.mend()
    return f"{disk.name} for {seconds:.1f} s"


async def lose(scene: Scene, chance: random.Random) -> str:
    """End every process of a machine at once, and have an empty one take its place."""
    node = chance.choice(scene.fleet.nodes)
    epoch = await asyncio.to_thread(scene.fleet.epoch, node)
    async with scene.mending:
        await asyncio.to_thread(_switch_off, scene, node)

    async def is_back() -> bool:
        # One that comes before the server has given the node up is refused, and ends.
        row = await asyncio.to_thread(scene.fleet.node_row, node)
        if row["epoch"] > epoch and row["state"] in _LIVE:
            return True
        await scene.mend()
        return False

    await eventually(is_back, timeout=PATIENCE, interval=1)
    return node


@contextmanager
def small_disks(folder: Path, nodes: Sequence[str]) -> Iterator[bool]:
    """Give each node a small disk of its own where this account may mount one; yield whether."""
    with ExitStack() as mounted:
        yield all(mounted.enter_context(small_disk(folder / "agents" / node)) for node in nodes)


@contextmanager
def small_disk(folder: Path, megabytes: int = DISK_MB) -> Iterator[bool]:
    """Put a small disk at the folder where this account may mount one; yield whether."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = _mounts(folder, megabytes)
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(file: Path) -> None:
    """Leave no byte on the disk of a file."""
    with file.open("wb", buffering=0) as filling:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while filling.write(bytes(size)) == size:
                    pass
            except OSError:
                continue  # this much does not fit any more


async def _for_a_while(
    scene: Scene, chance: random.Random, close: Callable[[str, str], Awaitable[object]]
) -> str:
    """Have a node take no more jobs, and some seconds later take them again."""
    node = chance.choice(scene.fleet.nodes)
    await scenes.tell(lambda: close(node, "chaos"))
    await asyncio.sleep(chance.uniform(1, 6))  # how long it is closed
    await scenes.until_taken(lambda: scene.fleet.longshore.uncordon(node, "chaos"))
    return node


def _mounts(disk: Path, megabytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "longshore-chaos", str(disk)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _switch_off(scene: Scene, node: str) -> None:
    """Kill all processes of a machine, and empty its disk."""
    running = scene.fleet.stack.processes.running(agent_process(node))
    agent = running.find() if running else None
    family = [agent, *agent.children(recursive=True)] if agent else []
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue  # it ended with its parent
    assert wait_until(lambda: not any(map(_lives, family)), 10), "a process outlived kill -9"
    end_engines(scene.fleet.folder_of(node))  # of an agent before this one
    for path in scene.fleet.folder_of(node).iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
