"""The control worker and the servers are killed at each step of a DAG: each job runs once.

One case runs always, the others with `make faults`.
"""

import asyncio
import uuid
from typing import get_args

import pytest

from longshore.activities.failpoints import DagPoint
from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagState, DagView, StepState
from tests.faults.cases import cases_of
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.faults.invariants import check
from tests.faults.scenes import until_answered

pytestmark = pytest.mark.timeout(240)

ALWAYS = {
    ("advance_dag.after-first-start", CONTROL),
}


def _cases() -> list[object]:
    victims = (CONTROL, TEMPORAL, POSTGRES)
    return cases_of([(point, each) for point in get_args(DagPoint) for each in victims], ALWAYS)


@pytest.mark.parametrize(("point", "victim"), _cases())
async def test_each_job_of_a_dag_runs_once(fleet: Fleet, point: DagPoint, victim: str) -> None:
    fleet.arm(point)
    running = asyncio.create_task(_run(fleet))
    try:
        await fleet.reached(point)
        await asyncio.to_thread(fleet.kill, victim)
        fleet.let_go(point)
        await asyncio.to_thread(fleet.start_what_is_missing)
        async with asyncio.timeout(PATIENCE):
            ended = await running
    finally:
        fleet.let_go(point)
        running.cancel()
        await asyncio.to_thread(fleet.start_what_is_missing)
    assert ended.state is DagState.SUCCEEDED, ended.reason
    states = {step.name: step.step for step in ended.steps}
    assert states.pop("mend") is StepState.SKIPPED
    assert set(states.values()) == {StepState.SUCCEEDED}
    await check(fleet, [step.job_id for step in ended.steps if step.job_id])


async def _run(fleet: Fleet) -> DagView:
    """Submit a DAG once, however often that takes, and wait for its end."""
    after = {"root": {}, "left": "root", "right": "root", "end": ["left", "right"],
             "mend": {"end": "failure"}}  # fmt: skip
    jobs = {
        name: {**fleet.journal.job(name).model_dump(mode="json", exclude_unset=True), "after": ups}
        for name, ups in after.items()
    }
    for name in ("left", "right"):
        jobs[name]["mutex"] = "one"
    pool = fleet.journal.job("any").pool
    spec = DagSpec.model_validate({"name": "line", "pool": pool, "jobs": jobs})
    key = uuid.uuid4().hex
    submission = await until_answered(lambda: fleet.longshore.submit_dag(spec, key=key))
    return await until_answered(lambda: fleet.longshore.wait_dag(submission.dag_id))
