"""What a node removes of runs that have ended, and what it must keep."""

import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.activities.job_runs import is_job_over
from longshore.activities.node.retention import Keeping, Pruner
from longshore.activities.node.run import Run
from longshore.activities.node.runs import RunStore
from longshore.client.api import Longshore
from longshore.models.errors import StaleError
from longshore.models.job import JobSpec
from longshore.models.placement import PlacementKey
from tests.agent.conftest import LocalNode
from tests.support.agent import AgentProcess
from tests.support.waiting import eventually

WEEK = timedelta(days=7)


class Place:
    """A node that has run something, and what the server says of its jobs."""

    def __init__(self, box: LocalNode) -> None:
        self.box = box
        self.running: set[str] = set()
        self.asked: list[str] = []

    async def ran(self, job: str, attempt: int = 1, **spec: object) -> None:
        await self.box.report("echo hello > result", job=job, attempt=attempt, **spec)

    async def prune(self, runs: int = 1000, later: timedelta = timedelta(0)) -> int:
        keeping = Keeping(runs=runs, age=WEEK)
        return await Pruner(self.box.folder, keeping, self._is_over).prune(
            datetime.now(UTC) + later
        )

    def runs(self) -> list[str]:
        return sorted(path.name for path in (self.box.folder / "runs").iterdir())

    def private(self) -> list[str]:
        return sorted(path.name for path in (self.box.folder / "jobs").iterdir())

    async def _is_over(self, job_id: str) -> bool:
        self.asked.append(job_id)
        return job_id not in self.running


@pytest.fixture
def place(box: LocalNode) -> Place:
    return Place(box)


@pytest.mark.usefixtures("nests_deep")
async def test_a_folder_that_is_nested_deeper_than_python_walks_goes_too(
    place: Place, tmp_path: Path
):
    """Pruning ended with RecursionError, and nothing was removed any more on that node."""
    (tmp_path / "kept").touch()
    nest = (
        "import os\nfor _ in range(2500):\n"
        f"    os.symlink({str(tmp_path)!r}, 'link'); os.mkdir('d'); os.chdir('d')"
    )
    await place.box.report(f'{sys.executable} -c "{nest}"', job="a")
    await place.ran("b")
    assert await place.prune(runs=1) == 1
    assert (place.runs(), place.private()) == (["b-1"], ["b"])
    assert (tmp_path / "kept").exists()


async def test_the_oldest_go_when_there_are_too_many(place: Place):
    for job in ("a", "b", "c"):
        await place.ran(job)
    assert await place.prune(runs=3) == 0
    assert await place.prune(runs=1) == 2
    assert (place.runs(), place.private()) == (["c-1"], ["c"])


async def test_all_go_that_are_too_old(place: Place):
    for job in ("a", "b"):
        await place.ran(job)
    assert await place.prune(later=WEEK - timedelta(minutes=5)) == 0
    assert await place.prune(later=WEEK + timedelta(minutes=5)) == 2
    assert (place.runs(), place.private()) == ([], [])


async def test_a_report_that_may_be_asked_for_stays(place: Place):
    await place.ran("a")
    place.running.add("a")
    assert await place.prune(runs=0) == 0
    assert place.runs() == ["a-1"]
    place.running.clear()
    assert await place.prune(runs=0) == 1


async def test_an_older_attempt_goes_without_asking_and_leaves_the_folder_of_its_job(place: Place):
    await place.ran("a", attempt=1)
    await place.ran("a", attempt=2)
    place.running.add("a")
    assert await place.prune(runs=1) == 1
    assert (place.runs(), place.private(), place.asked) == (["a-2"], ["a"], [])


async def test_a_process_that_runs_stays_whatever_the_server_says(place: Place):
    run: Run = place.box.start("sleep 300", job="a")
    await run.started
    assert await place.prune(runs=0, later=2 * WEEK) == 0
    assert place.runs() == ["a-1"]


async def test_checkpoints_stay(place: Place):
    await place.ran("a", checkpoint={"folder": "saved"})
    assert await place.prune(runs=0) == 1
    assert place.runs() == []
    assert (place.box.folder / "jobs" / "a" / "work" / "saved").is_dir()


async def test_logs_that_reached_no_store_stay_until_they_are_old(place: Place):
    await place.ran("a")
    store = RunStore(place.box.folder / "runs")
    record = store.find(PlacementKey(job_id="a", attempt=1))
    assert record
    assert record.report
    failed = record.report.model_copy(update={"log_error": "OSError: no space"})
    store.save(record.model_copy(update={"report": failed}))
    assert await place.prune(runs=0) == 0
    assert await place.prune(runs=0, later=WEEK + timedelta(minutes=5)) == 1


async def test_a_removal_that_was_cut_off_is_finished_the_next_time(place: Place):
    await place.ran("a")
    shutil.rmtree(place.box.folder / "runs" / "a-1" / "public")
    assert await place.prune(runs=0) == 1
    assert place.runs() == []


async def test_a_job_that_was_pruned_is_not_started_again_for_an_older_attempt(place: Place):
    await place.ran("a", attempt=1)
    await place.ran("a", attempt=2)
    place.running.add("a")
    await place.prune(runs=1)
    with pytest.raises(StaleError, match="attempt 1 of a is over"):
        place.box.start("true", job="a", attempt=1)


@pytest.mark.exhaustive
async def test_an_agent_prunes_what_is_over_at_the_server(
    longshore: Longshore, temporal: Client, agent: AgentProcess, pool: str
):
    agent.start()
    spec = JobSpec(name="short", pool=pool, command=("true",))
    ids = [(await longshore.submit(spec)).job_id for _ in range(3)]
    for job_id in ids:
        await longshore.wait(job_id)
        assert await is_job_over(temporal, job_id)
    assert await is_job_over(temporal, "never-known")
    runs = agent.folder / "work" / "runs"
    agent.kill()
    agent.start(LONGSHORE_KEEP_RUNS="1")  # it prunes as soon as it is registered
    await eventually(lambda: len(_names(runs)) == 1)
    assert set(_names(runs)) <= {f"{job_id}-1" for job_id in ids}


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
