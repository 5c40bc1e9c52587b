"""A training of two days yields to a burst of short jobs, while kill -9 hits the agent and the
control worker, and ends with the same bits as a twin that nobody stopped."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.packing import QueueOrder
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.preemption import PreemptionPolicy
from longshore.models.retry import FailureClass
from longshore.workers.stack import agent_process
from tests.faults.fleet import CONTROL, GPUS_PER_NODE, PATIENCE, Fleet, running_fleet
from tests.faults.scenes import submit, until_answered
from tests.support.local_stack import ROOT, temporary_folder
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

TRAIN = ROOT / "examples" / "train.py"
EPOCHS = 50
BURST = 15
_STARTS = "SELECT min(placed_at) AS first, max(placed_at) AS last FROM placements WHERE job_id "


@pytest.fixture
async def one_node() -> AsyncIterator[Fleet]:
    """Starts a stack with one agent, whose pool goes by attained service without a minimum run;
    5 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=1) as fleet:
            await fleet.longshore.set_pool(
                PoolSpec(
                    name="default",
                    packing=PoolPacking(order=QueueOrder.ATTAINED_SERVICE),
                    preemption=PreemptionPolicy(yields_after=timedelta(0), restart=timedelta(0)),
                )
            )
            yield fleet


@pytest.mark.exhaustive  # workflows/test_yielding.py yields, test_pipeline.py kills
async def test_it_ends_as_its_twin_that_nobody_stopped(one_node: Fleet) -> None:
    fleet = one_node
    long = await submit(fleet, _training())
    await eventually(lambda: _says(fleet, long, "epoch 2:"), timeout=PATIENCE)
    await asyncio.to_thread(_has_run, fleet, long, "2 days")
    burst = [
        await submit(fleet, JobSpec.model_validate({"name": f"short-{n}", "command": "sleep 0.2"}))
        for n in range(BURST)
    ]
    stops = "SELECT 1 FROM preemptions WHERE job_id = %s"
    await eventually(lambda: bool(fleet.rows(stops, long)), timeout=PATIENCE, interval=0.01)
    await _killed(fleet)  # while it saves, or has just stopped

    async def killed_where_it_goes_on() -> None:
        # Beside the wait for the burst: on a busy machine it may have ended before all are told.
        again = "SELECT 1 FROM placements WHERE job_id = %s AND attempt > 1 AND ended_at IS NULL"
        await eventually(lambda: bool(fleet.rows(again, long)), timeout=2 * PATIENCE)
        await _killed(fleet)

    goes_on = asyncio.create_task(killed_where_it_goes_on())
    for job_id in burst:
        async with asyncio.timeout(2 * PATIENCE):
            ended = await until_answered(lambda job_id=job_id: fleet.longshore.wait(job_id))
        assert ended.state is JobState.SUCCEEDED, ended
    await goes_on

    async with asyncio.timeout(2 * PATIENCE):
        result = await until_answered(lambda: fleet.longshore.wait(long))
    status = await until_answered(lambda: fleet.longshore.status(long))
    assert result.state is JobState.SUCCEEDED, status
    first, *others = (attempt.failure for attempt in status.attempts[:-1])
    assert (status.preemptions, first) == (1, FailureClass.PREEMPTED)
    # It may be that the agent comes too late to find again what ran when it was killed.
    assert set(others) <= {FailureClass.NODE}, status
    output = await _output(fleet, long)
    assert "resumed from the checkpoint of epoch" in output
    assert _digest(output) == _digest(await asyncio.to_thread(_twin))
    (short,) = fleet.rows(_STARTS + "LIKE 'short-%%'")
    (train,) = fleet.rows(_STARTS + "= %s", long)
    assert train["first"] < short["first"]
    assert train["last"] > short["last"], "it goes on once nobody of the burst waits"


def _training() -> JobSpec:
    command = [sys.executable, str(TRAIN), "--epochs", str(EPOCHS), "--epoch-seconds", "0.2"]
    contract: dict[str, Any] = {"folder": "saved", "signal": "SIGTERM", "grace": "10s"}
    fields = {"name": "train", "gpus": GPUS_PER_NODE, "command": command, "checkpoint": contract}
    return JobSpec.model_validate(fields)


def _twin() -> str:
    """Return what the training prints that nobody stops."""
    command = [sys.executable, str(TRAIN), "--epochs", str(EPOCHS), "--epoch-seconds", "0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _digest(output: str) -> str:
    return re.findall(r"^sha256 (\w{64})$", output, re.MULTILINE)[-1]


async def _killed(fleet: Fleet) -> None:
    """Kill -9 the agent and the control worker, and start them again."""
    await asyncio.to_thread(fleet.kill, agent_process(fleet.nodes[0]))
    await asyncio.to_thread(fleet.kill, CONTROL)
    await asyncio.to_thread(fleet.start_what_is_missing)


def _has_run(fleet: Fleet, job_id: str, time: str) -> None:
    """Let a job have begun so long ago. The database rewrites no placement, and a test may not
    wait."""
    with psycopg.connect(fleet.stack.postgres.url()) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(
            "UPDATE placements SET placed_at = placed_at - CAST(%s AS interval) WHERE job_id = %s",
            (time, job_id),
        )


async def _says(fleet: Fleet, job_id: str, words: str) -> bool:
    return words in await _output(fleet, job_id)


async def _output(fleet: Fleet, job_id: str) -> str:
    parts: list[bytes] = []
    for row in fleet.rows("SELECT attempt FROM placements WHERE job_id = %s", job_id):
        parts += [part async for part in fleet.longshore.logs(job_id, attempt=row["attempt"])]
    return b"".join(parts).decode()
