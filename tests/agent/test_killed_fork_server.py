"""A job that kills its supervisor, and what forks the supervisors of its node, under an agent."""

import contextlib
import sys
import uuid

import psutil
import pytest

from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass
from tests.agent.test_stopped_fork_server import FORK_SERVER, STOPPED
from tests.support.agent import AgentProcess
from tests.support.control import a_spec, reaches
from tests.support.marks import running
from tests.support.waiting import eventually

NO_RETRY = {"node": {"max_retries": 0}}
GONE = "while [ -e /proc/$N/fd/0 ]; do :; done; "


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(
    "kills",
    [
        "kill -9 $S",
        pytest.param("kill -9 $S $N", marks=pytest.mark.exhaustive),
        pytest.param("kill -9 $N $S", marks=pytest.mark.exhaustive),
        f"kill -9 $N; {GONE}kill -9 $S",
        pytest.param(
            f"kill -STOP $N; {STOPPED}kill -9 $S; kill -9 $N", marks=pytest.mark.exhaustive
        ),
    ],
    ids=["supervisor", "both", "fork server first", "once it has gone", "stopped"],
)
async def test_nothing_outlives_a_supervisor_and_no_other_job_ends(
    longshore: Longshore, agent: AgentProcess, pool: str, kills: str
) -> None:
    agent.start()
    other = await longshore.submit(a_spec(pool, command="exec sleep 300"))
    await reaches(longshore, other.job_id, JobState.RUNNING)
    seconds = f"300.{uuid.uuid4().int % 10**9}"  # how they are found: they have no environment
    left = f"env -i setsid sh -c '(sleep {seconds} &); (setsid sleep {seconds} &)'; "
    command = f"{FORK_SERVER}{left}{kills}; exec sleep {seconds}"
    job = await longshore.submit(a_spec(pool, command=command, retry=NO_RETRY))
    result = await longshore.wait(job.job_id)
    assert running(seconds) == []
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
    assert result.message == "the supervisor of the process was killed, and the process with it"
    last = await longshore.submit(a_spec(pool, command="exit 0"))
    assert (await longshore.wait(last.job_id)).state is JobState.SUCCEEDED
    assert (await longshore.status(other.job_id)).attempt == 1
    assert (await longshore.status(other.job_id)).state is JobState.RUNNING
    await longshore.cancel(other.job_id, "enough")
    assert (await longshore.wait(other.job_id)).state is JobState.CANCELLED
    await eventually(lambda: _ended_children(agent) == [])


PAIR = """
import os
other = os.fork() or os.getppid()
while True:
    try:
        os.kill(other, 0)
    except ProcessLookupError:
        other = os.fork() or os.getppid()
"""
"""Two processes, each of which starts the other anew when that has gone."""


async def test_what_starts_again_when_its_partner_ends_ends_as_well(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    agent.start()
    seconds = f"300.{uuid.uuid4().int % 10**9}"
    pair = f"env -i setsid {sys.executable} -c '{PAIR}' {seconds} & "
    begun = f"until [ $(pgrep -fc ' {seconds}') -ge 6 ]; do :; done; "
    command = f"{FORK_SERVER}{pair * 3}{begun}kill -9 $S; exec sleep {seconds}"
    job = await longshore.submit(a_spec(pool, command=command, retry=NO_RETRY))
    result = await longshore.wait(job.job_id)
    assert running(seconds) == []
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
    assert result.message == "the supervisor of the process was killed, and the process with it"


@pytest.mark.exhaustive
async def test_what_a_killed_fork_server_had_collected_ends(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    """Its supervisors go on, and are collected when they end: nothing is asked for meanwhile."""
    agent.start()
    job = await longshore.submit(a_spec(pool, command=f"{FORK_SERVER}kill -9 $N; {GONE}sleep 1"))
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    await eventually(lambda: psutil.Process(agent.process.pid).children() == [])


def _ended_children(agent: AgentProcess) -> list[psutil.Process]:
    """Return the children that nobody has collected."""
    found: list[psutil.Process] = []
    for child in psutil.Process(agent.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # collected meanwhile
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found
