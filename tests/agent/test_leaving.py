"""Real agents whose nodes are drained, end, or are about to be taken away."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.departures import DISK_REFUSES, ExpiryChange
from longshore.models.job_status import JobState
from longshore.models.messages import node_workflow_id
from longshore.models.node import NodeState
from longshore.models.settings import Settings
from longshore.workers.notice import read_notice
from tests.support.agent import AgentProcess
from tests.support.control import a_spec, lease_ends, reaches, serving_control
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
async def control(temporal: Client, settings: Settings) -> AsyncIterator[Database]:
    """Starts a control worker by which nodes are left 4 s before their end, killed at 2; 0.3 s."""
    short = {
        "node_end_margin": timedelta(seconds=4), "publish_allowance": timedelta(seconds=1),
        "node_lost_after": timedelta(seconds=8),
    }  # fmt: skip
    async with serving_control(temporal, settings.model_copy(update=short)) as database:
        yield database


async def test_a_drained_job_saves_and_goes_on_elsewhere(
    longshore: Longshore, agent: AgentProcess, settings: Settings, tmp_path: Path, pool: str,
    control: Database,
) -> None:  # fmt: skip
    agent.start()
    job_id = await _saving_job(longshore, pool, tmp_path)
    other = AgentProcess(settings, tmp_path / "other", pool)
    try:
        other.start()
        await eventually(lambda: other.says("registered as node"))
        await longshore.drain(agent.node_id, "new disk")
        result = await longshore.wait(job_id)
        status = await longshore.status(job_id)
    finally:
        other.end()
    assert (result.state, result.attempts, status.moves) == (JobState.SUCCEEDED, 2, 1)
    first, second = status.attempts
    assert (first.node_id, first.moved, first.exit_code) == (agent.node_id, True, 0)
    assert second.node_id == other.node_id
    assert await lease_ends(control, job_id) == ["moved", "finished"]


async def test_a_job_leaves_before_the_end_of_its_node(
    longshore: Longshore, settings: Settings, temporal: Client, tmp_path: Path, pool: str,
    control: Database,
) -> None:  # fmt: skip
    agent = AgentProcess(settings, tmp_path, pool, "--expires-in", "10m")
    began = datetime.now(UTC)
    try:
        agent.start()
        job_id = await _saving_job(longshore, pool, tmp_path, expected_duration="1m")
        told = datetime.fromisoformat((tmp_path / "ends-at").read_text().strip())
        assert timedelta(minutes=9) < told - began < timedelta(minutes=12)
        node = temporal.get_workflow_handle(node_workflow_id(agent.node_id))
        ends_at = datetime.now(UTC) + timedelta(seconds=12)
        await node.execute_update("expiry_changed", ExpiryChange(expires_at=ends_at))
        await reaches(longshore, job_id, JobState.QUEUED)
    finally:
        agent.end()
    ended = (await longshore.status(job_id)).attempts[0]
    assert ended.moved
    assert ended.ended_at is not None
    assert ended.ended_at < ends_at
    assert "its node ends at" in ended.message
    assert (tmp_path / "saved").exists()
    assert await lease_ends(control, job_id) == ["moved"]
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


@pytest.mark.exhaustive
async def test_what_does_not_end_in_time_is_killed(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
) -> None:
    agent.start()
    command = f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    job_id = (await longshore.submit(a_spec(pool, command=command, stop_grace="1s"))).job_id
    await eventually((tmp_path / "up").exists)
    await longshore.drain(agent.node_id, "fire", now=True)
    await reaches(longshore, job_id, JobState.QUEUED)
    first = (await longshore.status(job_id)).attempts[0]
    assert (first.moved, first.failure, first.exit_code) == (True, None, 137)
    assert first.message.endswith("it did not end in time and was killed")
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


async def test_a_notice_makes_the_jobs_leave(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
) -> None:
    notice = tmp_path / "machine-ends"
    agent.start(LONGSHORE_SPOT_NOTICE_FILE=str(notice))
    job_id = await _saving_job(longshore, pool, tmp_path)
    notice.touch()
    await reaches(longshore, job_id, JobState.QUEUED)
    first = (await longshore.status(job_id)).attempts[0]
    assert (first.moved, first.failure) == (True, None)
    assert "about to be taken away" in first.message
    assert await _drains(longshore, pool)
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


@pytest.mark.exhaustive
async def test_an_agent_lifts_what_the_one_before_it_said_of_a_full_disk(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    agent.start()
    await eventually(lambda: agent.says("registered as node"))
    await longshore.cordon(agent.node_id, f"{DISK_REFUSES}: No space left on device")
    agent.kill()
    agent.start(LONGSHORE_UNCORDON_AFTER="0.5s")

    async def takes_jobs() -> bool:
        (node,) = await longshore.nodes(pool=pool)
        return node.state is NodeState.READY

    await eventually(takes_jobs)
    await eventually(lambda: agent.says("its work folder has room again"))  # said once it is so


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-20T12:00:00Z\n", datetime(2026, 11, 20, 12, tzinfo=UTC)),
        ("", None),
        ("2026-11-20T12:00:00", None),
        ("soon", None),
    ],
)
def test_a_notice_says_when_or_that_it_may_be_any_moment(text: str, at: datetime | None) -> None:
    assert read_notice(text).at == at


async def _saving_job(longshore: Longshore, pool: str, folder: Path, **spec: object) -> str:
    """Submit a job that ends by itself in its second attempt, and wait until the first runs."""
    command = (
        f'echo "$LONGSHORE_NODE_EXPIRES_AT" > {folder}/ends-at; '
        f"test -e {folder}/saved && exit 0; "
        f"trap 'touch {folder}/saved; exit 0' USR1; touch {folder}/up; "
        "while :; do sleep 0.05; done"
    )
    checkpoint = {"folder": "c", "signal": "SIGUSR1", "grace": "5s"}
    wanted = a_spec(pool, command=command, checkpoint=checkpoint, **spec)
    job_id = (await longshore.submit(wanted)).job_id
    await eventually((folder / "up").exists)
    return job_id


async def _drains(longshore: Longshore, pool: str) -> bool:
    return all(node.clearing for node in await longshore.nodes(pool=pool))
