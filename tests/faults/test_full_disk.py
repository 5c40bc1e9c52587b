"""A disk is full: that of a node, which takes no jobs meanwhile, or that of all servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from longshore.models.job import JobSpec
from longshore.models.node import NodeState
from longshore.models.retry import FailureClass
from tests.faults import scenes
from tests.faults.chaos.machines import fill, small_disk, small_disks
from tests.faults.fleet import (
    GPUS_PER_NODE,
    NODE_LOST_AFTER,
    PATIENCE,
    Fleet,
    node_names,
    running_fleet,
)
from tests.faults.invariants import check
from tests.faults.journal import Journal
from tests.support.local_stack import temporary_folder
from tests.support.waiting import eventually

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(400)]
NODES = 2
STATE_MB = 400
NO_MOUNT = "this account may mount no small disk: as root it can"
WHY = "the work folder of its agent cannot be written: No space left on device"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Starts a stack and two agents, each with a disk of 16 MB; 7 s."""
    with temporary_folder() as folder, small_disks(folder, node_names(NODES)) as mounted:
        if not mounted:
            pytest.skip(NO_MOUNT)
        async with running_fleet(folder, nodes=NODES) as running:
            yield running


@asynccontextmanager
async def fleet_on_one_disk() -> AsyncIterator[Fleet]:
    """Starts a stack and two agents, all on one disk of their own; 7 s. The journal is not."""
    with (
        temporary_folder() as elsewhere,
        temporary_folder() as folder,
        small_disk(folder, STATE_MB) as mounted,
    ):
        if not mounted:
            pytest.skip(NO_MOUNT)
        async with running_fleet(folder, nodes=NODES) as running:
            running.journal = Journal(elsewhere / "journal")
            yield running


async def test_a_node_whose_disk_a_job_has_filled_takes_no_more_while_it_is_full(
    fleet: Fleet, tmp_path: Path
):
    go = tmp_path / "go"
    longshore = fleet.longshore
    stays = await scenes.submit(fleet, _whole_node(fleet, "stays", _until(go)))
    await eventually(lambda: fleet.journal.running(stays), timeout=PATIENCE)
    fills = await scenes.submit(fleet, _whole_node(fleet, "fills", "head -c 64M /dev/zero"))
    await longshore.wait(fills)
    full = _nodes_of(fleet, fills)[-1]
    after = await scenes.submit(fleet, fleet.journal.job("after"))

    async def is_cordoned() -> bool:
        nodes = {node.id: node for node in await longshore.nodes()}
        assert nodes[full].state is NodeState.DRAINING
        return nodes[full].state_reason == WHY

    await eventually(is_cordoned, timeout=PATIENCE)
    go.touch()
    assert (await longshore.wait(after)).attempts == 2
    first, second = (await longshore.status(after)).attempts
    assert (first.node_id, first.failure) == (full, FailureClass.NODE)
    assert WHY in first.message
    assert second.node_id != full
    for spool in fleet.folder_of(full).glob("runs/*/stdout"):
        spool.unlink()
    await fleet.all_ready()
    wide = [await scenes.submit(fleet, _whole_node(fleet, "wide", "true")) for _ in fleet.nodes]
    await check(fleet, [stays, fills, after, *wide])


async def test_what_ended_while_the_disk_of_the_servers_was_full_does_not_run_again():
    half: dict[str, Any] = {"milli": 500, "vram_per_gpu": 20}
    async with fleet_on_one_disk() as fleet:
        jobs = [
            await scenes.submit(fleet, fleet.journal.job(f"job-{number}", 2.0, **half))
            for number in range(48)
        ]
        await eventually(lambda: len(fleet.journal.lines()) >= 16, timeout=PATIENCE)
        filler = fleet.stack.folder / "filler"
        await asyncio.to_thread(fill, filler)
        # How long the fault lasts: for longer than a silent node is waited for.
        await asyncio.sleep(4 * NODE_LOST_AFTER.total_seconds())
        filler.unlink()
        await asyncio.to_thread(fleet.start_what_is_missing)
        await check(fleet, jobs)
        lines = fleet.journal.by_job()
        again = [job for job in jobs if [line.word for line in lines[job]].count("end") != 1]
        told = [f"{job}: {lines[job]}\n{await _attempts(fleet, job)}" for job in again]
        assert not again, f"{len(again)} jobs that had ended ran again:\n" + "\n".join(told)


async def _attempts(fleet: Fleet, job_id: str) -> str:
    """Return how each attempt of a job ended."""
    attempts = (await fleet.longshore.status(job_id)).attempts
    return "\n".join(f"  {each.attempt} on {each.node_id}: {each.message}" for each in attempts)


def _whole_node(fleet: Fleet, name: str, work: str) -> JobSpec:
    return fleet.journal.job(name, gpus=GPUS_PER_NODE, work=f"\n{work}\n")


def _until(file: Path) -> str:
    return f"until [ -e '{file}' ]; do sleep 0.1; done"


def _nodes_of(fleet: Fleet, job_id: str) -> list[str]:
    """Return the nodes of a job's attempts, in their order."""
    placed = "SELECT node_id FROM placements WHERE job_id = %s ORDER BY attempt"
    return [row["node_id"] for row in fleet.rows(placed, job_id)]
