"""Data that a real agent fetches: while its job waits, and though it is killed at each step."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import text

from longshore.activities.failpoints import VARIABLE, DataPoint
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from tests.support.agent import AgentProcess
from tests.support.control import a_spec, reaches
from tests.support.served import Served, serving
from tests.support.waiting import eventually

SHOW = "cd $LONGSHORE_DATA_DIGITS && cat $(find . -type f | sort)"
ALWAYS = ("fetch_data.before-file",)
"""Points at which one is killed in every suite."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A data set of three files behind HTTP; 0.01 s."""
    folder = tmp_path / "source"
    (folder / "val").mkdir(parents=True)
    for name in ("one", "two", "val/three"):
        (folder / name).write_text(f"{name}\n")
    with serving(folder) as served:
        yield served


async def test_data_comes_while_its_job_waits(
    longshore: Longshore, agent: AgentProcess, pool: str, served: Served, tmp_path: Path
) -> None:
    agent.start()
    go = tmp_path / "go"
    holds = f"until [ -e {go} ]; do sleep 0.05; done"
    first = await longshore.submit(a_spec(pool, gpus=4, command=holds, expected_duration="1m"))
    await reaches(longshore, first.job_id, JobState.RUNNING)
    data = {"digits": {"from": served.url}}
    waits = await longshore.submit(
        a_spec(pool, gpus=4, command=SHOW, data=data, expected_duration="1m")
    )

    async def held() -> list[tuple[str, int, int]]:
        async with longshore.database().transaction() as connection:
            rows = await connection.execute(
                text("SELECT name, bytes, total FROM node_data WHERE node_id = :node AND held"),
                {"node": agent.node_id},
            )
            return [(row.name, row.bytes, row.total) for row in rows]

    await eventually(lambda: {"one", "two", "three"} <= set(served.asked))
    assert (await longshore.status(waits.job_id)).state is JobState.QUEUED

    async def is_told() -> bool:
        found = await held()
        names = [name for name, _, _ in found]
        python = any(name.startswith(f"python3 {platform.python_version()} ") for name in names)
        return python and ("digits", 18, 18) in found

    # The next report of the agent says so, a minute after the one at its registration.
    await eventually(is_told, timeout=90, interval=1)
    go.touch()
    assert (await longshore.wait(waits.job_id)).state is JobState.SUCCEEDED
    said = b"".join([piece async for piece in longshore.logs(waits.job_id)])
    assert said == b"one\ntwo\nval/three\n"
    assert sorted(name for name in served.asked if name in ("one", "two", "three")) == [
        "one", "three", "two",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in ALWAYS else pytest.mark.exhaustive)
        for point in get_args(DataPoint)
    ],
)
async def test_a_job_gets_all_of_its_data_after_its_agent_was_killed(
    longshore: Longshore,
    agent: AgentProcess,
    pool: str,
    served: Served,
    tmp_path: Path,
    point: DataPoint,
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    (points / point).touch()
    agent.start(**{VARIABLE: str(points)})
    data = {"digits": {"from": served.url, "start_at": "100%"}}
    job_id = (await longshore.submit(a_spec(pool, command=SHOW, data=data))).job_id
    await eventually((points / f"{point}.reached").exists)
    agent.kill()
    (points / f"{point}.reached").unlink()
    agent.start()
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    said = b"".join([piece async for piece in longshore.logs(job_id)])
    assert said == b"one\ntwo\nval/three\n"
    (state,) = (agent.folder / "work/cache/data/default").glob("*.set")
    assert (state / "complete").exists()
    assert not list((state / "parts").iterdir())
