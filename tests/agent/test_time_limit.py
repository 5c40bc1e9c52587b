"""What runs for as long as its time limit allows is asked to save, and ended, by its own node."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from longshore.client.api import Longshore
from longshore.models.elements import ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode
from tests.agent.test_elements import all_of, an_array, begun, ended
from tests.support.agent import AgentProcess

SAVES = "trap 'echo saved; exit 0' TERM; echo on; while :; do sleep 0.02; done"


async def test_a_process_is_asked_to_save_when_its_time_is_over(box: LocalNode) -> None:
    run = box.start(SAVES, max_duration="300ms")
    report = await run.done
    assert (report.failure, report.exit_code) == (FailureClass.TIME_LIMIT, 0)
    assert report.message == "stopped (its time limit of 300ms has passed), exit code 0"
    assert report.started_at
    assert report.ended_at
    assert (report.ended_at - report.started_at).total_seconds() >= 0.25
    assert "saved" in box.output(run.record.key)


async def test_it_gets_the_signal_and_the_grace_of_its_checkpoint_contract(
    box: LocalNode, tmp_path: Path
) -> None:
    contract = {"folder": str(tmp_path), "signal": "SIGUSR1", "grace": "300ms", "store": False}
    command = "trap 'echo asked' USR1; while :; do sleep 0.02; done"
    run = box.start(command, max_duration="200ms", checkpoint=contract)
    report = await run.done
    assert "asked" in box.output(run.record.key)
    assert (report.failure, report.exit_code) == (FailureClass.TIME_LIMIT, 137)
    assert report.message.endswith("exit code 137: it did not save in time and was killed")


async def test_one_that_ends_before_and_one_that_is_stopped_before_are_left_alone(
    box: LocalNode,
) -> None:
    report = await box.report("exit 3", max_duration="1h")
    assert (report.failure, report.exit_code) == (FailureClass.USER, 3)
    ends_late = "trap 'sleep 0.5; exit 0' TERM; echo on; while :; do sleep 0.02; done"
    run = box.start(ends_late, max_duration="400ms")
    await box.says(run, "on")
    box.processes.lifecycle.ask_to_stop(run, "SIGTERM", 10, "held by its user")
    report = await run.done
    assert (report.failure, report.stopped_for) == (None, "held by its user")


async def test_an_agent_that_comes_back_tells_that_the_time_was_over(box: LocalNode) -> None:
    run = box.start(SAVES, max_duration="200ms")
    report = await run.done
    found = box.life().find(run.record.key)
    assert found == report


@pytest.mark.exhaustive
@pytest.mark.timeout(120)
async def test_each_element_has_its_own_time(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    agent.start()
    # Ten of 0.3 s are more than the limit together; one sleeps far longer, once, and is not asked
    # twice: its second attempt ends at once.
    command = (
        "if [ $LONGSHORE_ARRAY_INDEX = 4 ] && [ $LONGSHORE_ELEMENT_ATTEMPT = 1 ];"
        " then sleep 60; fi; [ $LONGSHORE_ARRAY_INDEX != 7 ] || sleep 60; sleep 0.3"
    )
    retry = {"time_limit": {"max_retries": 1, "backoff": 0}}
    spec = an_array(pool, command, "0-9%1", max_duration="1500ms", retry=retry)
    array_id = await begun(longshore, spec)
    result = await ended(longshore, array_id)
    assert result.state is JobState.FAILED
    attempts = await all_of(longshore, array_id, all_attempts=True)
    assert Counter(each.failure for each in attempts) == {None: 9, FailureClass.TIME_LIMIT: 3}
    assert [(each.index, each.attempt, each.failure) for each in attempts if each.failure] == [
        (4, 1, FailureClass.TIME_LIMIT), (7, 1, FailureClass.TIME_LIMIT),
        (7, 2, FailureClass.TIME_LIMIT),
    ]  # fmt: skip
    failed = await all_of(longshore, array_id, states=frozenset({ElementState.FAILED}))
    assert [each.index for each in failed] == [7]
    view = (await longshore.report(array_id)).array
    assert view
    assert "its time limit of 1.5s has passed" in view.errors[0].message


RUNS_ONE = """
import os, sys
from longshore.activities.node import element_runner

folder, seconds, waits = sys.argv[1:]
clock, asked = element_runner.boot_clock, []

def at_the_end():
    asked.append(1)
    if waits == "waits" and len(asked) == 2:  # after a look that found it running
        os.waitid(os.P_PID, runner._pid, os.WEXITED | os.WNOWAIT)
    return clock()

element_runner.boot_clock = at_the_end
runner = element_runner.Runner(folder, {
    "argv": ["sleep", seconds], "env": {}, "grace": 5, "limit": 0.1,
    "elements": [{"index": 0, "attempt": 1, "env": {}}],
})
runner.run()
"""
"""Runs one element, in a process of its own: it kills whatever is below it."""


@pytest.mark.parametrize(
    ("seconds", "waits", "status", "limit"), [("0.3", "waits", 0, None), ("60", "", -15, 0.1)]
)
def test_an_element_that_ends_as_its_time_does_keeps_its_own_end(
    seconds: str, waits: str, status: int, limit: float | None, tmp_path: Path
) -> None:
    subprocess.run(
        [sys.executable, "-c", RUNS_ONE, str(tmp_path), seconds, waits], check=True, timeout=60
    )
    end = json.loads((tmp_path / "journal").read_text().splitlines()[-1])
    assert (end["status"], end.get("time_limit")) == (status, limit)


@pytest.mark.exhaustive
async def test_a_job_on_a_real_node_ends_as_time_limit(
    longshore: Longshore, agent: AgentProcess, pool: str
) -> None:
    agent.start()
    spec = JobSpec(name="long", pool=pool, command=SAVES)
    spec = JobSpec.model_validate({**spec.model_dump(), "max_duration": "1s"})
    job_id = (await longshore.submit(spec)).job_id
    result = await longshore.wait(job_id)
    assert (result.state, result.failure, result.attempts) == (
        JobState.FAILED, FailureClass.TIME_LIMIT, 1,
    )  # fmt: skip
    job = await longshore.job(job_id)
    assert (job.failure, job.ends_by) == (FailureClass.TIME_LIMIT, None)
