"""Jobs that exclude each other by a mutex: across DAGs, in order, and what ends it."""

import itertools
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.dag_view import DagState, DagView, StepState
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually
from tests.workflows.test_dags import a_dag, begun, comes_to, steps


async def reason_of(longshore: Longshore, dag_id: str, name: str) -> str:
    return next(s.reason for s in (await longshore.known_dag(dag_id)).steps if s.name == name)


async def says(longshore: Longshore, dag_id: str, name: str, reason: str) -> None:
    async def said() -> bool:
        assert await reason_of(longshore, dag_id, name) == reason
        return True

    await eventually(said)


async def test_one_at_a_time_across_dags_in_the_order_of_class_and_readiness(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    def alone(**fields: Any) -> Any:
        return a_dag(pool, {"a": {"mutex": pool, **fields}})

    first = await begun(longshore, alone())
    await node.started(f"{first}.a")
    second = await begun(longshore, alone())
    await says(longshore, second, "a", f"waits for mutex {pool}, which {first}.a holds")
    card = await temporal.get_workflow_handle(dag_workflow_id(second)).query(
        "__temporal_workflow_metadata"
    )
    assert f"a waits for mutex {pool}, which {first}.a holds" in str(card)
    third = await begun(longshore, alone(priority=9))
    await says(longshore, third, "a", f"waits for mutex {pool}, which {first}.a holds")
    told = await longshore.explain(f"{first}.a")
    assert told.headline.endswith(f"; 2 jobs wait for its mutex {pool}")
    await node.end(f"{first}.a", report=USER_ERROR)  # a failure gives it back too
    await node.end(f"{third}.a")
    await node.end(f"{second}.a")
    for dag_id in (second, third):
        assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED
    ids = [job for job, _ in node.runs()]
    assert ids == [f"{each}.a" for each in (first, third, second)]


@pytest.mark.exhaustive
async def test_it_is_not_taken_before_all_else_holds_and_is_kept_over_a_hold(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    jobs = {"slow": {}, "a": {"mutex": [pool], "after": "slow"}, "b": {"singleton": pool}}
    dag_id = await begun(longshore, a_dag(pool, jobs))
    await node.started(f"{dag_id}.b")
    assert await reason_of(longshore, dag_id, "a") == "waits for the success of slow"
    await longshore.hold(f"{dag_id}.b")
    await node.end(f"{dag_id}.slow")
    queued = ", and waits in a queue itself"
    says_so = f"waits for mutex {pool}, which {dag_id}.b holds{queued}"
    await says(longshore, dag_id, "a", says_so)
    await longshore.release(f"{dag_id}.b")
    await node.end(f"{dag_id}.b", attempt=2)
    await node.end(f"{dag_id}.a")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED


@pytest.mark.exhaustive
async def test_a_cancel_gives_it_back_and_one_that_waits_lets_others_pass(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    def of(*mutexes: str) -> Any:
        return a_dag(pool, {"a": {"mutex": [f"{pool}-{each}" for each in mutexes]}})

    first = await begun(longshore, of("x"))
    await node.started(f"{first}.a")
    both = await begun(longshore, of("x", "y"))
    await comes_to(longshore, both, a=StepState.WAITING)
    await says(longshore, both, "a", f"waits for mutex {pool}-x, which {first}.a holds")
    behind = await begun(longshore, of("y"))
    blocked = f"waits for mutex {pool}-y, for which {both}.a waits before it"
    await says(longshore, behind, "a", blocked)
    await longshore.hold_dag(both)  # who is held waits for nothing, and holds nobody up
    await node.end(f"{behind}.a")
    await longshore.release_dag(both)
    await longshore.cancel_dag(first)
    await node.end(f"{both}.a")
    assert (await longshore.wait_dag(both)).state is DagState.SUCCEEDED
    assert (await longshore.wait_dag(first)).state is DagState.CANCELLED


@pytest.mark.exhaustive
async def test_a_dag_that_is_cancelled_while_it_waits_wakes_who_is_behind(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    names = [f"{pool}-{each}" for each in "xy"]
    first = await begun(longshore, a_dag(pool, {"a": {"mutex": names[0]}}))
    await node.started(f"{first}.a")
    both = await begun(longshore, a_dag(pool, {"a": {"mutex": names}}))
    await says(longshore, both, "a", f"waits for mutex {names[0]}, which {first}.a holds")
    behind = await begun(longshore, a_dag(pool, {"a": {"mutex": names[1]}}))
    blocked = f"waits for mutex {names[1]}, for which {both}.a waits before it"
    await says(longshore, behind, "a", blocked)
    await longshore.cancel_dag(both)
    await node.end(f"{behind}.a")
    await node.end(f"{first}.a")
    assert steps(await longshore.wait_dag(both)) == {"a": "WITHDRAWN"}


@pytest.mark.exhaustive
async def test_a_fan_of_jobs_with_one_mutex_runs_one_after_the_other(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    jobs = {f"j{number}": {"mutex": pool} for number in range(4)}
    dag_id = await begun(longshore, a_dag(pool, jobs))
    for name in jobs:
        await node.end(f"{dag_id}.{name}")
        assert {job for job, _ in node.runs()} <= {f"{dag_id}.j{n}" for n in range(4)}
    ended: DagView = await longshore.wait_dag(dag_id)
    assert ended.state is DagState.SUCCEEDED
    times = sorted(
        (step.started_at, step.ended_at)
        for step in ended.steps
        if step.started_at and step.ended_at
    )
    assert len(times) == len(jobs)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(times))


async def test_the_database_refuses_a_second_holder(control: Database, pool: str):
    row = {"tenant": pool}
    async with control.transaction() as connection:
        await connection.execute(
            text("INSERT INTO mutexes VALUES (:tenant, 'm', 'one', clock_timestamp())"), row
        )
    with pytest.raises(IntegrityError, match="is held by job one"):
        async with control.transaction() as connection:
            await connection.execute(
                text("UPDATE mutexes SET job_id = 'two' WHERE tenant = :tenant"), row
            )


@pytest.mark.exhaustive
async def test_one_of_a_job_whose_end_an_older_worker_recorded_is_taken(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    ended = await begun(longshore, a_dag(pool, {"a": {}}))
    await node.end(f"{ended}.a")
    await longshore.wait_dag(ended)
    async with control.transaction() as connection:
        await connection.execute(
            text("INSERT INTO mutexes VALUES ('default', :name, :job, clock_timestamp())"),
            {"name": pool, "job": f"{ended}.a"},
        )
    dag_id = await begun(longshore, a_dag(pool, {"a": {"mutex": pool}}))
    await node.end(f"{dag_id}.a")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED
