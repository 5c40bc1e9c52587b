"""Agents that are killed while they build an environment: it is there whole, or built anew."""

from pathlib import Path
from typing import get_args

import pytest

from longshore.activities.failpoints import VARIABLE, EnvironmentPoint
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.waiting import eventually
from tests.support.wheels import make_wheel, settings_of_index

ALWAYS = ("build_environment.before-marker",)
"""Points at which one is killed in every suite."""


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in ALWAYS else pytest.mark.exhaustive)
        for point in get_args(EnvironmentPoint)
    ],
)
async def test_a_job_gets_a_whole_environment_after_its_agent_was_killed(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path, point: EnvironmentPoint
) -> None:
    make_wheel(tmp_path / "wheels", "tool", "1.0")
    index = settings_of_index(tmp_path / "wheels")
    points = tmp_path / "points"
    points.mkdir()
    (points / point).touch()
    agent.start(**index, **{VARIABLE: str(points)})
    spec = a_spec(pool, command="tool", environment=["tool"])
    job_id = (await longshore.submit(spec)).job_id
    await eventually((points / f"{point}.reached").exists)
    agent.kill()
    (points / f"{point}.reached").unlink()
    agent.start(**index)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    said = b"".join([piece async for piece in longshore.logs(job_id)])
    assert said.endswith(b"1.0\n")
    # What the killed build left goes with the next build, or the next look at the caches.
    folder = agent.folder / "work/cache/environments"

    def only_one() -> bool:
        found = [path for path in folder.iterdir() if path.is_dir()]
        return len(found) == len(list(folder.glob("*.json"))) == 1

    await eventually(only_one)
