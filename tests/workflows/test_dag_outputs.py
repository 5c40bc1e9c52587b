"""What a job puts out for those that ask for it: variables, and a failure where it is missed."""

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.dag_view import DagState, StepState
from longshore.models.node_messages import ProcessReport
from longshore.models.output import output_of
from tests.support.scripted_node import SUCCESS, USER_ERROR, ScriptedNode
from tests.workflows.test_dags import a_dag, begun, steps

FOUND = '{"rows": 52000, "path": "/data; rm -r /"}'


def putting_out(raw: str) -> ProcessReport:
    return SUCCESS.model_copy(update={"output": output_of(raw.encode())})


LINE = {"a": {}, "b": {"after": "a"}, "c": {"after": "b", "inputs": "a", "env": {"OWN": "1"}}}


async def test_it_becomes_variables_of_the_job_that_asks(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    dag_id = await begun(longshore, a_dag(pool, LINE))
    await node.end(f"{dag_id}.a", report=putting_out(FOUND))
    other = await node.end(f"{dag_id}.b", report=putting_out("no JSON, and nobody minds"))
    asked = await node.end(f"{dag_id}.c")
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED
    assert other.spec.env == {}
    assert asked.spec.env == {
        "OWN": "1", "LONGSHORE_OUTPUT_A": FOUND, "LONGSHORE_OUTPUT_A__ROWS": "52000",
        "LONGSHORE_OUTPUT_A__PATH": "/data; rm -r /",
    }  # fmt: skip
    assert await longshore.output(f"{dag_id}.a") == FOUND
    found = {step.name: step.output_bytes for step in (await longshore.dag(dag_id)).steps}
    assert found == {"a": len(FOUND), "b": None, "c": None}
    history = await temporal.get_workflow_handle(dag_workflow_id(dag_id)).fetch_history()
    assert "rm -r" not in str(history), "the history of the DAG has none of it"


async def test_one_that_is_missed_fails_its_job_and_none_is_given_of_one_that_failed(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    jobs = {"a": {"retry": {"user": {"max_retries": 1}}},
            "b": {"after": {"a": "any"}, "inputs": "a"}}  # fmt: skip
    dag_id = await begun(longshore, a_dag(pool, jobs))
    await node.end(f"{dag_id}.a", report=putting_out("{"))
    await node.end(f"{dag_id}.a", attempt=2)
    assert (await node.end(f"{dag_id}.b")).spec.env == {}
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, steps(ended)) == (DagState.FAILED, {"a": "FAILED", "b": "SUCCEEDED"})
    first = next(step for step in ended.steps if step.name == "a")
    assert "it wrote no output" in first.reason
    tried = (await longshore.report(f"{dag_id}.a")).status
    assert tried is not None
    assert "no JSON document" in tried.attempts[0].message


@pytest.mark.exhaustive
async def test_a_kept_output_that_is_gone_is_made_again(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database
):
    dag_id = await begun(longshore, a_dag(pool, LINE))
    await node.end(f"{dag_id}.a", report=putting_out(FOUND))
    await node.end(f"{dag_id}.b", report=SUCCESS)
    await node.end(f"{dag_id}.c", report=USER_ERROR)
    assert (await longshore.wait_dag(dag_id)).state is DagState.FAILED
    async with control.transaction() as connection:
        await connection.execute(
            text("DELETE FROM outputs WHERE job_id = :id"), {"id": f"{dag_id}.a"}
        )
    assert (await longshore.retry_dag(dag_id)).jobs == ("a", "b", "c")
    await node.end(f"{dag_id}.a.r2", report=putting_out("7"))
    await node.end(f"{dag_id}.b.r2")
    asked = await node.end(f"{dag_id}.c.r2")
    assert asked.spec.env["LONGSHORE_OUTPUT_A"] == "7"
    ended = await longshore.wait_dag(dag_id)
    assert {step.step for step in ended.steps} == {StepState.SUCCEEDED}


@pytest.mark.exhaustive
async def test_files_of_a_job_are_data_of_those_behind_it(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    stores = {"outputs": ["model.pt"]}
    jobs = {
        "a": stores, "skipped": {**stores, "after": {"a": "failure"}}, "b": {"after": "a"},
        "c": {"after": {"b": "success", "skipped": "any"},
              "data": {"model": "job:a", "core": "job:skipped", "own": "1GB"}},
    }  # fmt: skip
    dag_id = await begun(longshore, a_dag(pool, jobs))
    await node.end(f"{dag_id}.a")
    await node.end(f"{dag_id}.b")
    asked = await node.end(f"{dag_id}.c", report=USER_ERROR)
    sources = {name: data.source for name, data in asked.spec.data.items()}
    assert sources == {"model": f"job:{dag_id}.a", "own": None}
    assert (await longshore.wait_dag(dag_id)).state is DagState.FAILED
    # Of a job that stays the files of then are read, and of one that runs again the new ones.
    assert (await longshore.retry_dag(dag_id)).jobs == ("skipped", "c")
    asked = await node.end(f"{dag_id}.c.r2")
    assert asked.spec.data["model"].source == f"job:{dag_id}.a"
    assert (await longshore.wait_dag(dag_id)).state is DagState.SUCCEEDED


@pytest.mark.exhaustive
async def test_of_a_job_that_was_never_placed_there_are_no_files(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    waits = {"gpus": 64, "queue_timeout": "1s", "outputs": ["model.pt"]}
    asks = {"after": {"a": "failure"}, "data": {"model": "job:a", "own": "1GB"}}
    dag_id = await begun(longshore, a_dag(pool, {"a": waits, "b": asks}))
    asked = await node.end(f"{dag_id}.b")
    assert list(asked.spec.data) == ["own"]
    assert steps(await longshore.wait_dag(dag_id)) == {"a": "FAILED", "b": "SUCCEEDED"}
