"""The first job of one's own: a script of a folder elsewhere with its packages, on a machine that
the pool bought for it, preempted once; its results come back."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.buying.buyer import SOON, Buyer
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec, reaches
from tests.support.home import PROGRAM
from tests.support.waiting import eventually
from tests.support.wheels import be_the_only_index, make_wheel

SCRIPT = """\
import os, pathlib, signal, time
import tool

saved = pathlib.Path("saved/epoch")
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
done = int(saved.read_text()) if saved.exists() else 0
results = pathlib.Path("results")
results.mkdir(exist_ok=True)
print(f"begins after epoch {done}, with tool {tool.version}", flush=True)
with open("results/epochs.txt", "a") as epochs:
    epochs.write(f"attempt {os.environ['LONGSHORE_ATTEMPT']} began after {done}\\n")
while not (done and os.environ["LONGSHORE_ATTEMPT"] != "1"):
    time.sleep(0.1)  # a step of its work
    done += 1
    saved.parent.mkdir(exist_ok=True)
    saved.with_suffix(".new").write_text(str(done))
    saved.with_suffix(".new").rename(saved)
    pathlib.Path(os.environ["LONGSHORE_PROGRESS_FILE"]).write_text(f"{done}/1000 epochs")
    if stopped:
        raise SystemExit(0)
pathlib.Path("results/model.txt").write_text(f"tool {tool.version}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder elsewhere, with a script and what it needs."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.py").write_text(SCRIPT)
    (mine / "requirements.txt").write_text("tool==2.0\n")
    return mine


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of wheels as the only index, also for machines that start; 0 s."""
    make_wheel(tmp_path / "wheels", "tool", "2.0")
    be_the_only_index(tmp_path / "wheels", monkeypatch)


async def longshore_in(folder: Path, settings: Settings, *words: str) -> str:
    """Run a command in a folder, in a thread; return what it prints."""
    env = {**os.environ, "LONGSHORE_STATE_DIR": str(settings.state_dir), "COLUMNS": "200"}
    done = await asyncio.to_thread(
        subprocess.run, [PROGRAM, *words],
        cwd=folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_script_runs_on_a_machine_that_is_bought_and_its_results_come_back(
    buyer: Buyer, longshore: Longshore, settings: Settings, folder: Path
):
    buyer.market.fault("empty_availability", times=-1)
    await may_buy(buyer)
    said = await longshore_in(
        folder, settings, "run", "train.py", "--gpus", "8", "--output", "results", "--detach",
        "--set", "checkpoint.folder=saved", "--pool", buyer.pool, "--yes", "--json",
    )  # fmt: skip
    job_id = json.loads(said)["job_id"]
    await reaches(longshore, job_id, JobState.RUNNING, within=SOON)
    (purchase,) = await bought(buyer)
    assert purchase["decision"]["serves"] == [job_id]

    async def has_saved() -> bool:
        progress = await longshore.progress(job_id)
        return progress is not None and (progress.fraction or 0) > 0.002

    await eventually(has_saved, SOON)
    buyer.market.book()  # nothing is for sale for the one that takes its place
    urgent = await longshore.submit(
        a_spec(buyer.pool, gpus=8, priority=10, command="true", expected_duration="1m")
    )
    assert (await longshore.wait(urgent.job_id)).state is JobState.SUCCEEDED
    result = await longshore.wait(job_id)
    assert result.state is JobState.SUCCEEDED, result
    status = await longshore.status(job_id)
    assert [each.failure for each in status.attempts] == ["preempted", None]

    told = json.loads(await longshore_in(folder, settings, "pull", job_id, "--to", ".", "--json"))
    assert (told["attempt"], told["files"]) == (2, 2)
    assert (folder / "results/model.txt").read_text() == "tool 2.0"
    first, second = (folder / "results/epochs.txt").read_text().splitlines()[-2:]
    assert (first, second[:22]) == ("attempt 1 began after 0", "attempt 2 began after ")
    assert int(second[22:]) > 2
    assert len(await bought(buyer)) == 1
