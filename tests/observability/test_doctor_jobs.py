"""What `longshore doctor` says of jobs and of workflows that somebody has spoilt by hand."""

import json
import uuid
from typing import Any

import psycopg
import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.workers.doctor import temporal as temporal_checks
from longshore.workers.doctor.findings import Finding, Level
from tests.support.plant import POOL, Plant
from tests.support.waiting import eventually


@pytest.mark.exhaustive
async def test_a_job_whose_stored_spec_cannot_be_read_is_named_until_it_is_cancelled(
    plant: Plant,
):
    submitted = plant.longshore("submit", "--pool", POOL, "--hold", "--quiet", "--", "true")
    job_id = submitted.stdout.split()[0]
    spoil = """UPDATE jobs SET spec = spec || '{"priority": "high"}' WHERE id = %s"""

    def is_spoilt() -> bool:
        with psycopg.connect(plant.stack.postgres.url(), autocommit=True) as connection:
            return connection.execute(spoil, (job_id,)).rowcount == 1

    await eventually(is_spoilt)
    (found,) = _jobs(plant)
    assert found["level"] == "warn"
    assert f"job {job_id}: priority: must be a whole number" in found["says"]
    assert "`longshore cancel JOB`" in found["mend"]
    assert not plant.longshore("doctor").stdout.endswith("All is well.\n")
    assert plant.longshore("cancel", job_id).returncode == 0
    await eventually(lambda: _jobs(plant)[0]["level"] == "ok")


@workflow.defn(sandboxed=False)
class Broken:
    """Of no control worker."""

    @workflow.run
    async def run(self) -> None:
        raise RuntimeError("this fails the task and not the workflow")


@pytest.mark.exhaustive  # the server tells after five tasks, a minute
async def test_a_workflow_whose_tasks_fail_is_named(plant: Plant):
    temporal = await Client.connect(plant.stack.temporal.address)
    check = temporal_checks.checks(temporal)["workflows"]
    own = f"broken-{uuid.uuid4().hex[:8]}"
    async with Worker(temporal, task_queue=own, workflows=[Broken]):
        stuck = await temporal.start_workflow(Broken.run, id=own, task_queue=own)

        async def named() -> bool:
            says = [each.says for each in await check() if each.level is Level.FAIL]
            return says == [f"tasks of {own} fail again and again: they hear nothing"]

        try:
            await eventually(named, timeout=180)
        finally:
            await stuck.terminate()


async def test_a_workflow_of_a_type_that_no_worker_knows_is_named_by_its_first_failure(
    plant: Plant,
):
    """The server itself says so after five failures, a minute."""
    temporal = await Client.connect(plant.stack.temporal.address)
    check = temporal_checks.checks(temporal)["workflows"]
    own = f"wrong-{uuid.uuid4().hex[:8]}"
    stuck = await temporal.start_workflow("JobWorkfow", id=own, task_queue=CONTROL_TASK_QUEUE)

    async def finding() -> Finding | None:
        return next((each for each in await check() if own in each.says), None)

    try:
        found = await eventually(finding)
        assert found
        assert found.level is Level.FAIL
        assert f"no control worker knows the type of {own}" in found.says
        task = (await stuck.describe()).raw_description.pending_workflow_task
        assert task.attempt <= 4, "the server says so itself by now"
    finally:
        await stuck.terminate()


def _jobs(plant: Plant) -> list[dict[str, Any]]:
    found = json.loads(plant.longshore("doctor", "--json").stdout)["findings"]
    return [each for each in found if each["check"] == "jobs"]
