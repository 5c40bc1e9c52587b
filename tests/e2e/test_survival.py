"""Everything is killed at once, in the middle of work, and started again: nothing is lost."""

import asyncio
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.client.api import Longshore
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.support.home import Home, new_home
from tests.support.waiting import eventually

JOBS = 8


@pytest.fixture
def home() -> Iterator[Home]:
    """An empty state folder; the test starts a stack in it (5 s), which ends with it."""
    with new_home() as home:
        yield home


@pytest.mark.exhaustive
async def test_queued_and_running_jobs_survive_the_end_of_every_process(home: Home):
    before = await asyncio.to_thread(home.up, "--nodes", "1")
    journal = home.folder / "journal"
    journal.touch()
    longshore = await Longshore.connect(Settings(state_dir=home.folder))
    jobs = [
        (await longshore.submit(a_long_job(f"job-{number}", journal))).job_id
        for number in range(JOBS)
    ]
    await eventually(lambda: len(processes_in(journal)) >= 2)
    await longshore.close()

    home.kill_everything()
    for pid in processes_in(journal):
        await eventually(lambda pid=pid: not psutil.pid_exists(pid))
    after = await asyncio.to_thread(home.up)
    go_of(journal).touch()

    assert after["nodes"] == ["local-1"]
    assert {part["name"] for part in after["parts"]} == {part["name"] for part in before["parts"]}
    assert not pids(after) & pids(before)
    longshore = await Longshore.connect(Settings(state_dir=home.folder))
    async with asyncio.timeout(150):
        results = await asyncio.gather(*(longshore.wait(job) for job in jobs))
    assert {result.state for result in results} == {JobState.SUCCEEDED}
    assert max(result.attempts for result in results) == 2
    assert ended_once(journal) == {f"job-{number}" for number in range(JOBS)}
    assert all(not node.ram_used for node in await longshore.nodes())
    await longshore.close()


def pids(summary: dict[str, Any]) -> set[int]:
    return {part["pid"] for part in summary["parts"]}


def a_long_job(name: str, journal: Path) -> JobSpec:
    """A job on four GPUs, so that two run and the others wait; it ends when it may."""
    note = f'echo "$LONGSHORE_JOB_NAME {{}} $$" >> {journal}'
    wait = f"until [ -e {go_of(journal)} ]; do sleep 0.1; done"
    command = f"{note.format('start')}; {wait}; {note.format('end')}"
    return JobSpec(name=name, gpus=4, command=command)


def go_of(journal: Path) -> Path:
    return journal.with_name("go")


def processes_in(journal: Path) -> list[int]:
    return [int(line.split()[2]) for line in journal.read_text().splitlines() if " start " in line]


def ended_once(journal: Path) -> set[str]:
    """Return the names of jobs whose process came to its end exactly once."""
    ends = sorted(line.split()[0] for line in journal.read_text().splitlines() if " end " in line)
    return {name for name, lines in groupby(ends) if len(list(lines)) == 1}
