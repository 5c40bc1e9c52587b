"""A node whose disk refuses takes no jobs; a full one is lifted once there is room again."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.activities.node import full_disk
from longshore.activities.node.full_disk import FullDisk, has_room
from longshore.client.api import Longshore
from longshore.models.departures import DISK_REFUSES
from longshore.models.node import NodeState
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

FULL = f"{DISK_REFUSES}: No space left on device"


def refusal(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders that are looked at, as they come."""
    seen: list[Path] = []

    def look(folder: Path) -> bool:
        seen.append(folder)
        return has_room(folder)

    monkeypatch.setattr(full_disk, "has_room", look)
    return seen


@asynccontextmanager
async def lifting(disk: FullDisk) -> AsyncIterator[None]:
    task = asyncio.create_task(disk.keep_lifting())
    try:
        yield
    finally:
        task.cancel()


def of(node: ScriptedNode, temporal: Client, folder: Path) -> FullDisk:
    return FullDisk(temporal, node.id, folder, timedelta(milliseconds=300))


async def test_a_full_disk_is_lifted_once_there_is_room(
    longshore: Longshore, node: ScriptedNode, temporal: Client, pool: str, tmp_path: Path,
    looks: list[Path],
):  # fmt: skip
    folder = tmp_path / "work"
    disk = of(node, temporal, folder)
    async with lifting(disk):
        assert await disk.refused(refusal(errno.ENOSPC)) == FULL
        await eventually(lambda: len(looks) > 10)
        assert await _state(longshore, pool) == (NodeState.DRAINING, FULL)
        folder.mkdir()
        await eventually(_is_ready(longshore, pool))
    assert list(folder.iterdir()) == []


async def test_a_broken_disk_stays_with_a_person(
    longshore: Longshore, node: ScriptedNode, temporal: Client, pool: str, tmp_path: Path,
    looks: list[Path],
):  # fmt: skip
    broken, full = tmp_path / "broken", tmp_path / "full"
    of_broken, of_full = of(node, temporal, broken), of(node, temporal, full)
    async with lifting(of_broken), lifting(of_full):
        why = await of_broken.refused(refusal(errno.EIO))
        of_full.closed_for(FULL)
        await eventually(lambda: len(looks) > 10)
    assert set(looks) == {full}
    assert await _state(longshore, pool) == (NodeState.DRAINING, why)


async def test_what_a_person_said_before_stays(
    longshore: Longshore, node: ScriptedNode, temporal: Client, pool: str, tmp_path: Path
):
    await longshore.drain(node.id, "new disks")
    disk = of(node, temporal, tmp_path)
    await disk.refused(refusal(errno.ENOSPC))
    assert await _state(longshore, pool) == (NodeState.DRAINING, "new disks")
    (view,) = await longshore.nodes(pool=pool)
    assert view.clearing


async def test_what_a_person_said_meanwhile_stays(
    longshore: Longshore, node: ScriptedNode, temporal: Client, pool: str, tmp_path: Path
):
    await of(node, temporal, tmp_path).refused(refusal(errno.ENOSPC))
    await longshore.cordon(node.id, "new disks")
    await node.lift(FULL)
    assert await _state(longshore, pool) == (NodeState.DRAINING, "new disks")


async def test_a_workflow_that_does_not_answer_is_told_again(
    longshore: Longshore, node: ScriptedNode, temporal: Client, tmp_path: Path, looks: list[Path]
):
    other = ScriptedNode(temporal, f"other-than-{node.pool}", node.token)
    folder, away = tmp_path / "work", tmp_path / "away"
    folder.mkdir()
    disk = of(other, temporal, folder)
    disk.closed_for(FULL)
    async with lifting(disk), other.serving():
        await eventually(lambda: len(looks) > 20)
        folder.rename(away)  # a lift between the next two lines would find nothing to lift
        before = len(looks)
        await eventually(lambda: len(looks) > before + 1)
        await other.register()
        assert (await longshore.cordon(other.id, FULL)).state == "DRAINING"
        away.rename(folder)
        await eventually(_is_ready(longshore, other.pool))


async def _state(longshore: Longshore, pool: str) -> tuple[NodeState, str]:
    (view,) = await longshore.nodes(pool=pool)
    return view.state, view.state_reason


def _is_ready(longshore: Longshore, pool: str) -> Callable[[], object]:
    async def is_ready() -> bool:
        return (await _state(longshore, pool))[0] is NodeState.READY

    return is_ready
