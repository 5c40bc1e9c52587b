"""Checkpoints through agents that are drained, or killed at every step of publishing."""

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import text

from longshore.activities.checkpoints.rows import CheckpointActivities, sweep_checkpoints
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.database import Database
from longshore.activities.failpoints import VARIABLE, CheckpointPoint
from longshore.client.api import Longshore
from longshore.models.checkpoint import CheckpointsRequest
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.agent.test_checkpoints import COUNT, IDLE
from tests.support.agent import AgentProcess
from tests.support.checkpoints import tree_of
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually

ALWAYS = ("publish.after-first-file", "publish.after-manifest")
STORED = ("publish.after-manifest", "publish.after-prune")
"""Points at which the second checkpoint counts already."""


@pytest.fixture
def other(settings: Settings, tmp_path: Path, pool: str) -> Iterator[AgentProcess]:
    """A second agent of the pool, which the test starts; gone at the end; 1 s."""
    other = AgentProcess(settings, tmp_path / "other", pool)
    yield other
    other.end()


@pytest.fixture
def store(settings: Settings) -> CheckpointStore:
    """The store of the agents, as they find it."""
    return CheckpointStore(settings.resolve_checkpoint_store())


@pytest.mark.exhaustive
async def test_a_job_is_held_on_one_node_and_goes_on_on_another(
    longshore: Longshore,
    agent: AgentProcess,
    other: AgentProcess,
    control: Database,
    store: CheckpointStore,
    pool: str,
) -> None:
    agent.start()
    counts = f"{COUNT} step=$((step + 3)); trap 'save; exit 143' TERM"
    command = f"{counts}; if [ $step = 3 ]; then {IDLE}; fi"
    spec = a_spec(pool, command=command, checkpoint={"folder": "c"})
    job_id = (await longshore.submit(spec)).job_id
    await eventually(lambda: _says(longshore, job_id, "ready"))
    await longshore.hold(job_id, "make room")
    await reaches(longshore, job_id, JobState.HELD)
    await _is_observed(control, store, pool, job_id)
    await longshore.drain(agent.node_id)
    other.start()
    await longshore.release(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    assert await _says(longshore, job_id, "begins at 3, resume 1, told 3")
    attempts = (await longshore.status(job_id)).attempts
    assert [record.node_id for record in attempts] == [agent.node_id, other.node_id]
    assert await sweep_checkpoints(control, store, timedelta(days=1)) == 0
    assert [each.step for each in (await longshore.checkpoints(job_id)).checkpoints] == [3]
    assert await sweep_checkpoints(control, store, timedelta(0)) > 0
    assert (await longshore.checkpoints(job_id)).checkpoints == ()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in ALWAYS else pytest.mark.exhaustive)
        for point in get_args(CheckpointPoint)
    ],
)
async def test_an_agent_that_is_killed_while_it_publishes_leaves_only_whole_checkpoints(
    longshore: Longshore,
    agent: AgentProcess,
    store: CheckpointStore,
    pool: str,
    tmp_path: Path,
    point: CheckpointPoint,
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    os.mkfifo(tmp_path / "go")
    (points / "publish.after-prune").touch()
    agent.start(**{VARIABLE: str(points)})
    command = f"{COUNT} step=1; save; read -r _ < {tmp_path}/go; echo b > b; step=2; save; {IDLE}"
    spec = a_spec(pool, command=command, checkpoint={"folder": "c"})
    job_id = (await longshore.submit(spec)).job_id
    # The first checkpoint is behind its last point before the next one is to stop at any.
    last = points / "publish.after-prune.reached"
    await eventually(last.exists)
    last.unlink()
    (points / point).touch()
    with (tmp_path / "go").open("w") as go:
        go.write("on\n")
    await eventually((points / f"{point}.reached").exists)
    agent.kill()
    newest = store.newest(job_id)
    assert newest
    assert newest.step == (2 if point in STORED else 1)
    expected = {"step": b"2\n", "b": b"b\n"} if point in STORED else {"step": b"1\n"}
    restored = store.restore(job_id, 0, tmp_path / "back", threading.Event())
    assert restored
    assert (tree_of(tmp_path / "back"), restored.damaged) == (expected, ())
    await longshore.cancel(job_id)


async def _is_observed(control: Database, store: CheckpointStore, pool: str, job_id: str) -> None:
    """The database hears of the checkpoint, once, and remembers it while the store is away."""
    there = CheckpointActivities(control, store)
    seen = await there.observe_checkpoints(CheckpointsRequest(pool=pool))
    assert [(info.job_id, info.step, info.bytes) for info in seen.newest] == [(job_id, 3, 2)]
    assert seen.away_since is None
    assert await there.observe_checkpoints(CheckpointsRequest(pool=pool)) == seen
    away = CheckpointActivities(control, CheckpointStore("nowhere://x"))
    first = await away.observe_checkpoints(CheckpointsRequest(pool=pool))
    again = await away.observe_checkpoints(CheckpointsRequest(pool=pool))
    assert first.newest == again.newest == seen.newest
    assert "the store nowhere://x cannot be opened" in first.reason
    assert first.away_since == again.away_since is not None
    async with control.transaction() as connection:
        rows = await connection.execute(
            text("SELECT attempt, step, ranks FROM job_checkpoints WHERE job_id = :id"),
            {"id": job_id},
        )
        assert [tuple(row) for row in rows] == [(1, 3, 1)]


async def _says(longshore: Longshore, job_id: str, words: str) -> bool:
    pieces = [piece async for piece in longshore.logs(job_id)]
    return words.encode() in b"".join(pieces)
