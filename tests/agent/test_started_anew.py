"""Agents that are killed when a process has ended and nobody has heard of it, and start anew."""

import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.support.agent import AgentProcess
from tests.support.control import a_spec, lease_ends, serving_control
from tests.support.waiting import eventually

AT_ONCE = {"node": {"max_retries": 3, "backoff": 0}}


@pytest.fixture(scope="module")
async def control(temporal: Client, settings: Settings) -> AsyncIterator[Database]:
    """Starts a control worker that gives a silent agent a minute to start anew; 0.3 s."""
    slow = settings.model_copy(update={"node_lost_after": timedelta(minutes=1)})
    async with serving_control(temporal, slow) as database:
        yield database


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """The folder of failpoints."""
    folder = tmp_path / "points"
    folder.mkdir()
    return folder


async def test_a_success_that_was_stored_and_not_reported_counts(
    longshore: Longshore, agent: AgentProcess, pool: str, points: Path, control: Database
) -> None:
    (points / "run_process.before-report").touch()
    agent.start(LONGSHORE_FAILPOINTS=str(points))
    job_id = await _submit(longshore, pool, f"echo >> {points}/began; exit 0")
    await eventually((points / "run_process.before-report.reached").exists)
    await _dies_and_starts_anew(agent)
    await _succeeded_once(longshore, job_id, points, control)


@pytest.mark.exhaustive
async def test_a_success_that_only_its_supervisor_has_seen_counts(
    longshore: Longshore, agent: AgentProcess, pool: str, points: Path, control: Database
) -> None:
    agent.start()
    command = f"echo >> {points}/began; until [ -e {points}/end ]; do sleep 0.1; done"
    job_id = await _submit(longshore, pool, command)
    await eventually((points / "began").exists)
    agent.send(signal.SIGSTOP)
    (points / "end").touch()
    await eventually((agent.folder / "work" / "runs" / f"{job_id}-1" / "end.json").exists)
    await _dies_and_starts_anew(agent)
    await _succeeded_once(longshore, job_id, points, control)


@pytest.mark.exhaustive
async def test_what_failed_or_ran_when_its_agent_died_runs_again(
    longshore: Longshore, agent: AgentProcess, pool: str, points: Path, control: Database
) -> None:
    """A failure may be of what killed the agent, such as a machine that goes down."""
    (points / "run_process.before-report").touch()
    agent.start(LONGSHORE_FAILPOINTS=str(points))
    command = 'echo >> {}; [ "$LONGSHORE_ATTEMPT" = 2 ] || {}'
    failed = await _submit(longshore, pool, command.format(points / "failed", "exit 3"))
    ran = await _submit(longshore, pool, command.format(points / "ran", "sleep 300"))
    await eventually((points / "run_process.before-report.reached").exists)
    await eventually((points / "ran").exists)
    await _dies_and_starts_anew(agent)
    for job_id, said in ((failed, points / "failed"), (ran, points / "ran")):
        result = await longshore.wait(job_id)
        assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
        assert said.read_text() == "\n" * 2
        assert await lease_ends(control, job_id) == ["node-lost", "finished"]
        first = (await longshore.status(job_id)).attempts[0]
        assert first.message == f"node {agent.node_id} was lost: its agent started anew"


async def _submit(longshore: Longshore, pool: str, command: str) -> str:
    return (await longshore.submit(a_spec(pool, command=command, retry=AT_ONCE))).job_id


async def _dies_and_starts_anew(agent: AgentProcess) -> None:
    agent.kill()
    agent.start()
    await eventually(lambda: agent.says("epoch 2"))


async def _succeeded_once(
    longshore: Longshore, job_id: str, points: Path, control: Database
) -> None:
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts, result.exit_code) == (JobState.SUCCEEDED, 1, 0)
    assert (points / "began").read_text() == "\n"
    assert await lease_ends(control, job_id) == ["node-lost"]
