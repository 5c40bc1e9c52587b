"""The pipeline of the examples, while kill -9 hits a node's agent and the control worker."""

import asyncio
import io
import sys
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from longshore.client.dag_file import read_dag
from longshore.client.job_view import jobs_table
from longshore.models.dag import DagJob, DagSpec
from longshore.models.dag_view import DagState, StepState
from longshore.models.elements import ElementState
from longshore.workers.stack import agent_process
from tests.faults.fleet import CONTROL, PATIENCE, Fleet
from tests.faults.scenes import until_answered
from tests.support.local_stack import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)


@pytest.mark.exhaustive
async def test_it_does_what_its_picture_says_while_processes_are_killed(fleet: Fleet) -> None:
    dag_id = await _submitted(fleet, _pipeline())
    await _kill_where_runs(fleet, f"{dag_id}.prepare.s1")
    await asyncio.to_thread(fleet.start_what_is_missing)
    train = f"{dag_id}.train"
    await eventually(lambda: _says(fleet, train, "epoch 2:"), timeout=2 * PATIENCE)
    await _kill_where_runs(fleet, train)
    await asyncio.to_thread(fleet.start_what_is_missing)

    async with asyncio.timeout(2 * PATIENCE):
        ended = await until_answered(lambda: fleet.longshore.wait_dag(dag_id))
    assert ended.state is DagState.SUCCEEDED, ended.reason
    assert {step.name: step.step for step in ended.steps} == {
        "prepare": StepState.SUCCEEDED, "train": StepState.SUCCEEDED,
        "evaluate": StepState.SUCCEEDED, "notify": StepState.SKIPPED,
    }  # fmt: skip
    elements = await fleet.longshore.elements(f"{dag_id}.prepare")
    assert {each.index: each.state for each in elements} == dict.fromkeys(
        range(8), ElementState.SUCCEEDED
    )
    assert (await fleet.longshore.wait(train)).attempts > 1
    assert await _says(fleet, train, "resumed from the checkpoint of epoch")
    assert await _says(fleet, f"{dag_id}.evaluate", "unseen digits, after 20 epochs")


async def test_a_failure_is_told_and_fails_it(fleet: Fleet) -> None:
    spec = _pipeline({"train": {"command": "exit 3", "checkpoint": None}})
    dag_id = await _submitted(fleet, spec)
    async with asyncio.timeout(2 * PATIENCE):
        ended = await fleet.longshore.wait_dag(dag_id)
    assert ended.state is DagState.FAILED
    assert {step.name: step.step for step in ended.steps} == {
        "prepare": StepState.SUCCEEDED, "train": StepState.FAILED,
        "evaluate": StepState.SKIPPED, "notify": StepState.SUCCEEDED,
    }  # fmt: skip
    assert await _says(fleet, f"{dag_id}.notify", "the pipeline failed")


async def test_an_array_costs_what_its_slots_do(fleet: Fleet) -> None:
    dag_id = await _submitted(fleet, _pipeline({"train": {"command": "true"}}))
    said: list[str] = []
    async with asyncio.timeout(2 * PATIENCE):
        async for dag in fleet.longshore.watch_dag(dag_id):
            said += [step.reason for step in dag.steps if step.name == "prepare"]
    assert any("of 8 elements" in reason for reason in said)
    ended = {step.name: step for step in (await fleet.longshore.dag(dag_id)).steps}
    held = "SELECT sum(ended_at - started_at) AS sum FROM leases WHERE job_id LIKE %s"
    took = fleet.rows(held, f"{dag_id}.prepare.s%")[0]["sum"]
    assert took >= timedelta(seconds=4)
    assert ended["prepare"].gpu_time == took
    explained = await fleet.longshore.explain(f"{dag_id}.prepare")
    assert explained.cost
    assert explained.cost.gpu_time == took
    listed = {job.id: job for job in await fleet.longshore.list()}[f"{dag_id}.prepare"]
    screen = io.StringIO()
    Console(file=screen, width=200).print(jobs_table([listed], datetime.now(UTC), 200))
    assert "8 elements succeeded" in screen.getvalue()


def _pipeline(changes: dict[str, dict[str, object]] | None = None) -> DagSpec:
    """Return the example with this environment's Python, and with other fields of some jobs."""
    spec = read_dag(str(ROOT / "examples" / "pipeline.yaml"), 1000)
    changed: dict[str, dict[str, object]] = {
        name: {"command": str(spec.jobs[name].command).replace("python ", f"{sys.executable} ")}
        for name in ("train", "evaluate")
    }
    changed |= changes or {}
    # Without its environment: to install and compile what is here takes as long as all else.
    jobs: dict[str, DagJob] = {
        name: job.model_copy(update={"environment": None, **changed.get(name, {})})
        for name, job in spec.jobs.items()
    }
    return spec.model_copy(update={"jobs": jobs})


async def _submitted(fleet: Fleet, spec: DagSpec) -> str:
    key = uuid.uuid4().hex
    submission = await until_answered(lambda: fleet.longshore.submit_dag(spec, key=key))
    return submission.dag_id


async def _kill_where_runs(fleet: Fleet, job_id: str) -> None:
    """Kill -9 the agent of the node where a job runs, and the control worker."""
    live = "SELECT node_id FROM placements WHERE job_id = %s AND ended_at IS NULL"
    await eventually(lambda: bool(fleet.rows(live, job_id)), timeout=PATIENCE)
    node = fleet.rows(live, job_id)[0]["node_id"]
    await asyncio.to_thread(fleet.kill, agent_process(node))
    await asyncio.to_thread(fleet.kill, CONTROL)


async def _says(fleet: Fleet, job_id: str, text: str) -> bool:
    """Return whether any attempt of a job has written this."""
    for row in fleet.rows("SELECT attempt FROM placements WHERE job_id = %s", job_id):
        written = fleet.longshore.logs(job_id, attempt=row["attempt"])
        if text.encode() in b"".join([part async for part in written]):
            return True
    return False
