"""The steps of a DAG one at a time, as its workflow would ask for them."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities import dags
from longshore.activities.dag_views import DagViews
from longshore.activities.dags import DagActivities
from longshore.activities.database import Database
from longshore.activities.job_starts import start_job
from longshore.activities.views import Views, set_pool
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import AdvanceDag, OpenDag
from longshore.models.dag_view import StepState
from longshore.models.job_status import JobState
from longshore.models.messages import JobInput, job_workflow_id
from longshore.models.pool import PoolSpec
from tests.support.control import a_spec


async def a_dag(
    control: Database, temporal: Client, pool: str, *names: str, dag_id: str = ""
) -> tuple[str, DagActivities]:
    """Put a DAG of jobs without conditions on record; no workflow follows it."""
    steps = DagActivities(control, temporal, most_jobs=1000)
    dag_id = dag_id or f"d-{uuid.uuid4().hex[:8]}"
    jobs = {name: {"command": "true", "pool": pool} for name in names}
    spec = DagSpec.model_validate({"name": "d", "jobs": jobs})
    opened = await steps.open_dag(
        OpenDag(dag_id=dag_id, spec=spec, submitted_at=datetime.now(UTC))
    )
    assert not opened.refusal
    return dag_id, steps


async def test_a_look_intends_no_more_than_it_submits(
    control: Database, temporal: Client, pool: str, monkeypatch: pytest.MonkeyPatch
):
    """What was intended and not submitted would start after a hold or a cancel."""
    monkeypatch.setattr(dags, "_AT_ONCE", 2)
    dag_id, steps = await a_dag(control, temporal, pool, *"abcde")
    first = await steps.advance_dag(AdvanceDag(dag_id=dag_id))
    assert (first.more, first.counts) == (True, {StepState.SUBMITTED: 2, StepState.WAITING: 3})
    held = await steps.advance_dag(AdvanceDag(dag_id=dag_id, held=True))
    assert held.counts == first.counts
    cancelled = await steps.advance_dag(AdvanceDag(dag_id=dag_id, cancelled="enough"))
    assert cancelled.counts == {StepState.SUBMITTED: 2, StepState.WITHDRAWN: 3}
    for name in "ab":
        await temporal.get_workflow_handle(job_workflow_id(f"{dag_id}.{name}")).describe()


async def test_a_job_that_somebody_else_has_under_its_id_is_not_taken_for_it(
    control: Database, temporal: Client, pool: str
):
    dag_id, steps = await a_dag(control, temporal, pool, "a", "b")
    await start_job(temporal, f"{dag_id}.a", JobInput(spec=a_spec(pool)), "another")
    await steps.advance_dag(AdvanceDag(dag_id=dag_id))
    await steps.advance_dag(AdvanceDag(dag_id=dag_id))
    found = {step.name: step for step in (await DagViews(control).dag(dag_id)).steps}
    assert (found["a"].step, found["a"].reason) == (StepState.FAILED, "another job has its id")
    assert found["b"].step is StepState.SUBMITTED
    await steps.advance_dag(AdvanceDag(dag_id=dag_id, cancelled="the test is over"))


async def test_of_two_dags_that_make_the_same_id_the_first_has_it(
    control: Database, temporal: Client, pool: str
):
    """Job `b.c` of DAG `a`, and job `c` of DAG `a.b`."""
    first, steps = await a_dag(control, temporal, pool, "b.c")
    second, _ = await a_dag(control, temporal, pool, "c", "d", dag_id=f"{first}.b")
    await steps.advance_dag(AdvanceDag(dag_id=first))
    looked = await steps.advance_dag(AdvanceDag(dag_id=second))
    assert looked.more, "an end that nobody else tells of"
    found = {step.name: step for step in (await DagViews(control).dag(second)).steps}
    assert (found["c"].step, found["c"].reason) == (StepState.FAILED, "another job has its id")
    assert found["d"].step is StepState.SUBMITTED
    (own,) = (await DagViews(control).dag(first)).steps
    assert (own.step, own.job_id) == (StepState.SUBMITTED, f"{second}.c")
    for dag_id in (first, second):
        await steps.advance_dag(AdvanceDag(dag_id=dag_id, cancelled="the test is over"))


async def test_a_repeat_knows_its_job_though_it_would_give_it_more_by_now(
    control: Database, temporal: Client, pool: str
):
    """The first of two upstream jobs is enough for it, and the second has ended meanwhile."""
    steps = DagActivities(control, temporal, most_jobs=1000)
    dag_id = f"d-{uuid.uuid4().hex[:8]}"
    stores = {"command": "true", "pool": pool, "outputs": ["r"]}
    after = {"a": "any", "b": "any"}
    last = {"command": "true", "pool": pool, "after": after, "join": "any",
            "data": {"x": "job:a", "y": "job:b"}}  # fmt: skip
    jobs = {"a": stores, "b": stores, "c": last}
    spec = DagSpec.model_validate({"name": "d", "jobs": jobs})
    await steps.open_dag(OpenDag(dag_id=dag_id, spec=spec, submitted_at=datetime.now(UTC)))
    await steps.advance_dag(AdvanceDag(dag_id=dag_id))

    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool))

    async def ended(name: str) -> None:
        values = {"id": f"{dag_id}.{name}", "spec": spec.jobs[name].spec.model_dump_json()}
        async with control.transaction() as connection:
            await connection.execute(text(_ENDED), {**values, "pool": pool})

    await ended("a")
    await steps.advance_dag(AdvanceDag(dag_id=dag_id))
    await ended("b")
    async with control.transaction() as connection:  # as if the step had died before it said so
        await connection.execute(
            text("UPDATE dag_jobs SET state = 'SUBMITTING' WHERE dag_id = :id AND name = 'c'"),
            {"id": dag_id},
        )
    await steps.advance_dag(AdvanceDag(dag_id=dag_id))
    found = {step.name: step for step in (await DagViews(control).dag(dag_id)).steps}
    assert found["c"].step is StepState.SUBMITTED, found["c"].reason
    await steps.advance_dag(AdvanceDag(dag_id=dag_id, cancelled="the test is over"))


async def test_a_job_that_ends_while_its_dag_is_read_has_one_state(
    control: Database, temporal: Client, pool: str, monkeypatch: pytest.MonkeyPatch
):
    dag_id, steps = await a_dag(control, temporal, pool, "a")
    async with control.transaction() as connection:  # else both transactions below would make it
        await set_pool(connection, PoolSpec(name=pool))
    await steps.advance_dag(AdvanceDag(dag_id=dag_id))
    jobs = Views.jobs

    async def ended_meanwhile(views: Views, **asked: Any) -> Any:
        async with control.transaction() as connection:
            spec = a_spec(pool).model_dump_json()
            values = {"id": f"{dag_id}.a", "spec": spec, "pool": pool}
            await connection.execute(text(_ENDED), values)
        return await jobs(views, **asked)

    monkeypatch.setattr(Views, "jobs", ended_meanwhile)
    found = await DagViews(control).dag(dag_id)
    (step,) = found.steps
    assert (step.state, step.step) == (JobState.SUCCEEDED, StepState.SUCCEEDED)
    assert found.counts == {StepState.SUCCEEDED: 1}


_ENDED = """
    INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, ended_at, end_state, attempts,
                      message)
    VALUES (:id, 'j', 'default', :pool, CAST(:spec AS jsonb), now(), now(), 'SUCCEEDED', 1, '')
    ON CONFLICT (id) DO UPDATE SET ended_at = now(), end_state = 'SUCCEEDED', attempts = 1
"""
