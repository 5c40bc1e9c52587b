"""Elements of arrays as real processes on a real agent, with a control worker."""

import asyncio
from pathlib import Path

from longshore.client.api import Longshore
from longshore.models.job import JobSpec, JobState
from tests.support.agent import AgentProcess


def an_array(pool: str, command: str, array: object, **fields: object) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "sweep", "pool": pool, "command": command, "array": array, **fields}
    )


async def test_each_element_runs_once_with_its_index(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    seen = tmp_path / "seen"
    command = f"echo $LONGSHORE_ARRAY_INDEX $SLURM_ARRAY_TASK_ID $LONGSHORE_ARRAY_COUNT >> {seen}"
    array_id = (await longshore.submit(an_array(pool, command, "0-19%3"))).job_id
    async with asyncio.timeout(60):
        result = await longshore.wait(array_id)
    assert (result.state, result.message) == (JobState.SUCCEEDED, "20 elements succeeded")
    lines = sorted(seen.read_text().splitlines(), key=lambda line: int(line.split()[0]))
    assert lines == [f"{index} {index} 20" for index in range(20)]
