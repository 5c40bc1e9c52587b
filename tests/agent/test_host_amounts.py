"""What an agent is told of storage bandwidth and power counts when jobs are placed there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longshore.client.api import Longshore
from longshore.models.errors import SpecError
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.waiting import eventually


async def test_a_job_waits_for_storage_bandwidth_that_another_has(
    longshore: Longshore, settings: Settings, pool: str, tmp_path: Path
) -> None:
    limits = ("--storage-bandwidth", "4GB/s", "--power", "2kW", "--gpu-power", "700W")
    agent = AgentProcess(settings, tmp_path / "agent", pool, *limits)
    agent.start()
    try:
        until = tmp_path / "go on"
        command = f"until [ -e '{until}' ]; do sleep 0.05; done"
        first = await longshore.submit(a_spec(pool, storage_bandwidth=3, command=command))
        await eventually(lambda: _is(longshore, first.job_id, JobState.RUNNING))
        second = await longshore.submit(a_spec(pool, storage_bandwidth=2, command="true"))
        await eventually(lambda: _waits_for_storage(longshore, second.job_id))
        (node,) = await longshore.nodes(pool=pool)
        assert (node.storage_bandwidth, node.storage_used) == (4, 3)
        assert (node.power, node.power_used) == (2000, 700)
        until.touch()
        assert (await longshore.wait(second.job_id)).state is JobState.SUCCEEDED
    finally:
        agent.end()


def test_a_limit_that_cannot_be_read_is_named() -> None:
    for option, value, hint in (
        ("--storage-bandwidth", "fast", "expected a bandwidth such as 10GB/s"),
        ("--power", "5.6kV", "expected a power such as 700W"),
        ("--gpu-power", "700W", "--gpu-power is for simulated GPUs"),
    ):
        run = _agent(option, value)
        assert run.returncode != 0
        assert hint in run.stderr


def test_labels_beyond_their_bounds_are_refused_before_the_agent_starts() -> None:
    many = [word for number in range(101) for word in ("--label", f"label-{number}=")]
    for options, problem in (
        (many, "--label: has 101 entries; 100 is the most"),
        (
            ["--label", f"rack={'x' * 1_001}"],
            "--label 'rack': has 1,001 characters; 1,000 is the most",
        ),
    ):
        run = _agent(*options)
        assert run.returncode == SpecError.exit_code
        assert run.stderr == f"longshore agent: {problem}\n"


@pytest.mark.exhaustive
def test_an_amount_that_is_too_large_is_refused_before_the_agent_starts() -> None:
    for option, value, problem in (
        ("--cpus", "1e18", "expected 1,000,000 cores at most, not 1e+18"),
        ("--ram", "1001PB", "expected 1,000,000,000 GB at most, not '1001PB'"),
        ("--storage-bandwidth", "1001PB/s", "expected 1,000,000,000 GB/s at most, not '1001PB/s'"),
        ("--power", "1001MW", "expected 1,000,000,000 W at most, not '1001MW'"),
        (
            "--simulate", "8xH100-99999999999999GB",
            "vram: must be at most 1000000000, got 99999999999999.0",
        ),
        ("--address", "a" * 254, "has 254 characters; 253 is the most"),
        ("--provider", "a" * 201, "has 201 characters; 200 is the most"),
    ):  # fmt: skip
        run = _agent(option, value)
        assert run.returncode == SpecError.exit_code
        assert run.stderr == f"longshore agent: {option}: {problem}\n"


def _agent(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longshore.client.cli", "agent", *options],
        capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "LONGSHORE_AGENT_TOKEN": "a token of no use"},
    )  # fmt: skip


async def _is(longshore: Longshore, job_id: str, state: JobState) -> bool:
    return (await longshore.status(job_id)).state is state


async def _waits_for_storage(longshore: Longshore, job_id: str) -> bool:
    return "not-enough-storage-bandwidth" in (await longshore.status(job_id)).reason
