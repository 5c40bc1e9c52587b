"""Agents as processes, with a real server, a real control worker and real jobs."""

import signal
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.client.api import Longshore
from longshore.models.errors import UnavailableError
from longshore.models.job_status import JobState
from longshore.models.messages import node_workflow_id
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeStatus
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.workers.agent import locked
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.marks import has_ended, marked, names_of_marked
from tests.support.waiting import eventually

NO_RETRY = {"node": {"max_retries": 0}}


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


async def test_a_job_runs_on_an_agent_and_its_log_arrives(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    agent.start()
    submitted = await longshore.submit(
        a_spec(pool, gpus=2, command='echo "$LONGSHORE_NODE_ID has $CUDA_VISIBLE_DEVICES"')
    )
    result = await longshore.wait(submitted.job_id)
    assert (result.state, result.exit_code) == (JobState.SUCCEEDED, 0)
    pieces = [piece async for piece in longshore.logs(submitted.job_id, follow=True)]
    assert b"".join(pieces) == f"{agent.node_id} has 0,1\n".encode()


async def test_files_of_an_agent_are_for_its_user_and_a_job_has_the_users_own_umask(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    earlier = agent.folder / "work" / "runs"  # as an earlier version made it
    earlier.mkdir(parents=True)
    earlier.chmod(0o755)
    agent.start()
    job = await longshore.submit(a_spec(pool, command="umask; touch made; stat -c %a made"))
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    said = b"".join([piece async for piece in longshore.logs(job.job_id, follow=True)])
    assert said.split() == [b"0022", b"644"]
    runs = [path for path in (agent.folder / "work" / "runs").rglob("*") if not path.is_symlink()]
    assert {path.name for path in runs} >= {"record.json", "stdout", "end.json"}
    assert [path for path in (earlier, *runs) if path.stat().st_mode & 0o077] == []


async def test_a_failing_job_tells_its_exit_code(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    agent.start()
    submitted = await longshore.submit(a_spec(pool, command="exit 3"))
    result = await longshore.wait(submitted.job_id)
    assert (result.state, result.exit_code, result.failure) == (
        JobState.FAILED,
        3,
        FailureClass.USER,
    )


async def test_a_cancelled_job_may_save_first(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
) -> None:
    agent.start()
    command = f"trap 'echo saved > {tmp_path}/saved; exit' TERM; touch {tmp_path}/up; " + _loop()
    submitted = await longshore.submit(a_spec(pool, command=command, stop_grace=20))
    await eventually((tmp_path / "up").exists)
    await longshore.cancel(submitted.job_id, "enough")
    assert (await longshore.wait(submitted.job_id)).state is JobState.CANCELLED
    assert (tmp_path / "saved").read_text() == "saved\n"


async def test_killing_the_agent_ends_its_processes(
    longshore: Longshore, agent: AgentProcess, pool: str, mark: str
) -> None:
    agent.start()
    await _submit_endless(longshore, pool, mark)
    agent.kill()
    await eventually(lambda: not marked(mark))  # the job itself would run for five minutes


async def test_a_restarted_agent_ends_orphans_before_it_registers(
    longshore: Longshore, agent: AgentProcess, pool: str, mark: str
) -> None:
    agent.start()
    job = await _submit_endless(longshore, pool, mark, "setsid -f sleep 300; ", retry=NO_RETRY)
    supervisors = agent.supervisors()
    assert len(supervisors) == 1
    fork_server = supervisors[0].parent()
    assert fork_server
    # Stopped first, so that none can clean up after another.
    supervisors[0].suspend()
    agent.kill()
    await eventually(lambda: has_ended(fork_server))
    supervisors[0].kill()
    # The kernel ended the shell, but not what it had started.
    await eventually(lambda: names_of_marked(mark) == ["sleep", "sleep"])
    agent.start()
    await eventually(lambda: agent.says("epoch 2"))
    assert not marked(mark)
    result = await longshore.wait(job)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
    assert agent.says("processes that outlived their agent")


async def test_an_agent_that_is_asked_to_stop_stops_its_jobs_in_order(
    longshore: Longshore, temporal: Client, agent: AgentProcess, pool: str, tmp_path: Path
) -> None:
    agent.start()
    command = f"trap 'sleep 0.2; touch {tmp_path}/saved; exit' TERM; touch {tmp_path}/up; "
    job = await longshore.submit(a_spec(pool, command=command + _loop(), retry=NO_RETRY))
    await eventually((tmp_path / "up").exists)
    agent.send(signal.SIGTERM)
    await eventually(lambda: agent.process.poll() is not None)
    assert agent.process.returncode == 0
    assert (tmp_path / "saved").exists()
    result = await longshore.wait(job.job_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
    assert "the agent stopped" in result.message
    node = temporal.get_workflow_handle(node_workflow_id(agent.node_id), result_type=NodeStatus)
    assert (await node.result()).state == NodeState.GONE


async def test_an_agent_that_is_stopped_as_soon_as_it_has_registered_is_gone_and_not_lost(
    temporal: Client, agent: AgentProcess, longshore: Longshore
) -> None:
    agent.start()
    await eventually(lambda: agent.says("registered as node"), interval=0.001)
    agent.send(signal.SIGTERM)
    await eventually(lambda: agent.process.poll() is not None)
    assert agent.process.returncode == 0
    node = temporal.get_workflow_handle(node_workflow_id(agent.node_id), result_type=NodeStatus)
    ended = await node.result()
    assert (ended.state, ended.reason) == (NodeState.GONE, "agent stopped")


@pytest.mark.exhaustive
async def test_a_second_signal_does_not_wait_for_the_grace(
    longshore: Longshore, agent: AgentProcess, pool: str, mark: str
) -> None:
    agent.start()
    await _submit_endless(longshore, pool, mark, "trap '' TERM; ", stop_grace="10m")
    agent.send(signal.SIGTERM)
    await eventually(lambda: agent.says("get their grace"))
    agent.send(signal.SIGTERM)
    await eventually(lambda: agent.process.poll() is not None)
    assert agent.process.returncode == 0
    assert not marked(mark)


@pytest.mark.exhaustive
async def test_an_agent_that_nobody_watches_ends_its_processes_and_registers_again(
    longshore: Longshore, temporal: Client, agent: AgentProcess, pool: str, mark: str
) -> None:
    agent.start()
    await _submit_endless(longshore, pool, mark)
    first = marked(mark)
    await temporal.get_workflow_handle(node_workflow_id(agent.node_id)).terminate("by hand")
    await eventually(lambda: agent.says("cut off"))
    await eventually(lambda: not any(process.is_running() for process in first))
    await eventually(lambda: agent.says("epoch 2"))


async def test_the_processes_of_a_frozen_agent_end_before_its_node_is_lost(
    longshore: Longshore, temporal: Client, agent: AgentProcess, pool: str, mark: str
) -> None:
    agent.start()
    job = await _submit_endless(longshore, pool, mark, retry=NO_RETRY)
    agent.send(signal.SIGSTOP)
    result = await longshore.wait(job)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
    assert not marked(mark)
    agent.send(signal.SIGCONT)
    await eventually(lambda: agent.says("epoch 2"))


async def test_a_wrong_token_ends_the_agent_with_77(agent: AgentProcess, longshore: Longshore):
    agent.start(LONGSHORE_AGENT_TOKEN="wrong")
    assert await _exit_code(agent) == 77
    assert agent.says("wrong join token")


async def test_a_taken_node_id_ends_the_agent_with_77(
    agent: AgentProcess, longshore: Longshore, settings: Settings, tmp_path: Path, pool: str
) -> None:
    agent.start()
    await eventually(lambda: agent.says("registered as node"))
    other = AgentProcess(settings, tmp_path / "other", pool, node_id=agent.node_id)
    other.start()
    assert await _exit_code(other) == 77
    assert other.says("already has a live agent")


async def test_a_second_agent_in_one_folder_is_refused(
    agent: AgentProcess, longshore: Longshore, settings: Settings, pool: str
) -> None:
    agent.start()
    await eventually(lambda: agent.says("registered as node"))
    other = AgentProcess(settings, agent.folder, pool)
    other.start()
    assert await _exit_code(other) == 77
    assert other.says("another agent is at work in")


async def test_an_agent_without_a_server_waits_for_it_and_can_be_stopped(
    agent: AgentProcess, settings: Settings
) -> None:
    agent.start(TEMPORAL_ADDRESS="127.0.0.1:1", LONGSHORE_AGENT_TOKEN="any")
    await eventually(lambda: agent.says("Trying again in 1 s"))
    agent.send(signal.SIGINT)
    assert await _exit_code(agent) == 0


def _loop() -> str:
    return "while :; do sleep 0.05; done"


async def _submit_endless(
    longshore: Longshore, pool: str, mark: str, before: str = "", **spec: object
) -> str:
    """Submit a job that never ends, and wait until its process runs."""
    command = f"{before}sleep 300; true"
    submitted = await longshore.submit(a_spec(pool, command=command, env={"MARK": mark}, **spec))
    wanted = 2 + before.count("sleep")
    await eventually(lambda: len(marked(mark)) >= wanted)
    return submitted.job_id


async def _exit_code(agent: AgentProcess) -> int | None:
    await eventually(lambda: agent.process.poll() is not None)
    return agent.process.returncode


def test_a_work_folder_that_cannot_be_written_is_named(tmp_path: Path):
    """As one on a disk that became read-only; this one cannot even be made."""
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "work"
    with pytest.raises(UnavailableError) as refused, locked(folder):
        pass
    assert str(refused.value) == (
        f"the work folder {folder} cannot be written: Not a directory. Mend that, or give the "
        "agent another --work-dir."
    )
