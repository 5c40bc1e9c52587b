"""Agents that are killed at each step of bringing a job its code: none is half there after it."""

import os
import threading
from pathlib import Path
from typing import get_args

import pytest

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.failpoints import VARIABLE, CodePoint
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.snapshots import code_of, put_on_record, store_snapshot
from tests.support.waiting import eventually

ALWAYS = ("bring_code.after-first-file",)
"""Points at which one is killed in every suite."""
SUM = "sha256sum $(find . -type f | sort) | sha256sum; wc -c < big"


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in ALWAYS else pytest.mark.exhaustive)
        for point in get_args(CodePoint)
    ],
)
async def test_a_job_gets_all_of_its_code_after_its_agent_was_killed(
    longshore: Longshore,
    agent: AgentProcess,
    settings: Settings,
    pool: str,
    tmp_path: Path,
    point: CodePoint,
) -> None:
    store = ArtifactStore(settings.resolve_artifact_store())
    tree = {"big": os.urandom(300_000), "a/one.py": "1", "a/two.py": "2"}
    snapshot = store_snapshot(store, tree, chunk=100_000)
    await put_on_record(longshore.database(), store, snapshot)
    points = tmp_path / "points"
    points.mkdir()
    (points / point).touch()
    agent.start(**{VARIABLE: str(points)})
    spec = a_spec(pool, command=SUM, code=code_of(snapshot))
    job_id = (await longshore.submit(spec)).job_id
    await eventually((points / f"{point}.reached").exists)
    agent.kill()
    (points / f"{point}.reached").unlink()
    agent.start()
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    # Another job on the node sees the same, whatever of it the first one had.
    other = (await longshore.submit(spec)).job_id
    assert (await longshore.wait(other)).state is JobState.SUCCEEDED
    said = [await _said(longshore, job) for job in (job_id, other)]
    assert said[0] == said[1]
    assert said[0].endswith("300000\n")
    cache = ArtifactCache(agent.folder / "work/cache", store)
    held = cache.hold("default", snapshot.digest, threading.Event())
    held.release()
    for name in snapshot.objects:
        assert cache.path_of("default", name).read_bytes() == store.get("default", name)
    assert not list((agent.folder / "work/cache/objects").rglob("*.part"))


async def _said(longshore: Longshore, job_id: str) -> str:
    pieces = [piece async for piece in longshore.logs(job_id)]
    return b"".join(pieces).decode()
