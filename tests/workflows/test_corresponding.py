"""Two arrays of a DAG, element to element: live, on a scripted node."""

from typing import Any

import pytest
from temporalio.client import Client

from benchmarks.costs import billed
from longshore.client.api import Longshore
from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagState, StepState
from longshore.models.errors import RefusedError, SpecError
from longshore.models.messages import job_workflow_id
from longshore.models.retry import FailureClass
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually
from tests.workflows.test_dags import comes_to, steps

BEHIND = {"prepare": "corresponding"}


def a_dag(pool: str, **jobs: dict[str, Any]) -> DagSpec:
    filled = {name: {"command": "true", **job} for name, job in jobs.items()}
    return DagSpec.model_validate({"name": "dag", "pool": pool, "jobs": filled})


async def elements(longshore: Longshore, array_id: str) -> dict[int, str]:
    return {each.index: each.state.value for each in await longshore.elements(array_id)}


async def are(longshore: Longshore, array_id: str, states: dict[int, str]) -> None:
    """Wait until the elements of an array are in these states."""

    async def there() -> bool:
        return await elements(longshore, array_id) == states

    await eventually(there)


async def test_elements_follow_their_partners_and_a_retry_runs_what_is_left(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    spec = a_dag(
        pool, prepare={"array": "0-2%1"}, train={"array": "0-3%1", "after": BEHIND},
        use={"array": "0-2%1", "after": {"train": "aftercorr"}},
    )  # fmt: skip
    submission = await longshore.submit_dag(spec)
    assert submission.warnings == (
        "index 3 of train has no partner in prepare: it starts at once",
    )
    dag_id = submission.dag_id
    prepare, train, use = (f"{dag_id}.{name}" for name in ("prepare", "train", "use"))
    assert (await node.end_batch(f"{train}.s1")).elements[0].index == 3
    await comes_to(longshore, dag_id, prepare=StepState.SUBMITTED, use=StepState.WAITING)
    blocks = {0: "BLOCKED", 1: "BLOCKED", 2: "BLOCKED"}
    await are(longshore, train, {**blocks, 3: "SUCCEEDED"})
    blocked = (await longshore.elements(train))[0]
    assert blocked.message == "waits for element 0 of prepare"
    # Its slot has ended: it holds no GPUs while nothing can start.
    await eventually(lambda: _is_over(longshore, f"{train}.s1"))
    await node.end_batch(f"{prepare}.s1")
    assert [each.index for each in (await node.end_batch(f"{train}.s2")).elements] == [0]
    assert [each.index for each in (await node.end_batch(f"{use}.s1")).elements] == [0]
    await node.end_batch(f"{prepare}.s1", failure=FailureClass.USER)
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, ended.reason) == (
        DagState.FAILED, "prepare failed, train failed, use failed",
    )  # fmt: skip
    assert await elements(longshore, train) == {
        0: "SUCCEEDED", 1: "SKIPPED", 2: "SKIPPED", 3: "SUCCEEDED",
    }  # fmt: skip

    with pytest.raises(RefusedError, match=f"`longshore dag retry {dag_id}` runs its elements"):
        await longshore.retry_array(train)
    assert (await longshore.retry_dag(dag_id)).jobs == ("prepare", "train", "use")
    await all_end(node, longshore, dag_id, *(f"{name}.r2" for name in (prepare, train, use)))
    ended = await longshore.wait_dag(dag_id)
    assert (ended.state, ended.reason) == (DagState.SUCCEEDED, "")
    found = {each.index: each for each in await longshore.elements(f"{train}.r2")}
    assert found[0].job_id == f"{train}.s2", "it stays as it ran"
    assert found[1].job_id != found[0].job_id


@pytest.mark.exhaustive
async def test_a_retry_with_a_file_without_the_edge_lets_every_element_run(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    jobs: dict[str, Any] = {"prepare": {"array": "0-1%1"}}
    jobs["train"] = {"array": "0-2%1", "after": BEHIND}
    dag_id = (await longshore.submit_dag(a_dag(pool, **jobs))).dag_id
    prepare, train = f"{dag_id}.prepare", f"{dag_id}.train"
    for _ in range(2):
        await node.end_batch(f"{prepare}.s1", failure=FailureClass.USER)
    await node.end_batch(f"{train}.s1", failure=FailureClass.USER)  # without a partner
    assert (await longshore.wait_dag(dag_id)).state is DagState.FAILED
    jobs["train"]["after"] = "prepare"
    await longshore.retry_dag(dag_id, a_dag(pool, **jobs))
    await all_end(node, longshore, dag_id, f"{prepare}.r2", f"{train}.r2")
    assert set((await elements(longshore, f"{train}.r2")).values()) == {"SUCCEEDED"}


async def _is_over(longshore: Longshore, job_id: str) -> bool:
    return (await longshore.job(job_id)).state.ended


async def all_end(node: ScriptedNode, longshore: Longshore, dag_id: str, *arrays: str) -> None:
    """End batches of these arrays with success until the DAG has succeeded."""

    async def over() -> bool:
        await node.end_batches_here(*arrays)
        return (await longshore.known_dag(dag_id)).state is DagState.SUCCEEDED

    await eventually(over)


@pytest.mark.exhaustive
async def test_many_ends_wake_the_later_array_few_times(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    spec = a_dag(
        pool, prepare={"array": "0-79%4"}, train={"array": "0-79%4", "after": BEHIND}
    )  # fmt: skip
    dag_id = (await longshore.submit_dag(spec)).dag_id
    prepare = [f"{dag_id}.prepare.s{number}" for number in range(1, 5)]
    await node.end_batches(*prepare)
    train = f"{dag_id}.train"

    await all_end(node, longshore, dag_id, train)
    assert set((await elements(longshore, train)).values()) == {"SUCCEEDED"}
    actions = billed(await temporal.get_workflow_handle(job_workflow_id(train)).fetch_history())
    assert actions["signal"] <= 30, "80 elements"


@pytest.mark.exhaustive
async def test_a_dag_is_cancelled_while_elements_are_blocked(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    spec = a_dag(
        pool, prepare={"array": "0-9%1"}, train={"array": "0-10%1", "after": BEHIND},
        clean={"after": {"train": "any"}},
    )  # fmt: skip
    dag_id = (await longshore.submit_dag(spec)).dag_id
    await node.end_batch(f"{dag_id}.train.s1")
    await node.batch_of(f"{dag_id}.prepare.s1")
    await longshore.cancel_dag(dag_id)
    await node.end_batch(f"{dag_id}.prepare.s1", cancelled=True)
    ended = await longshore.wait_dag(dag_id)
    assert ended.state is DagState.CANCELLED
    assert steps(ended)["clean"] == "WITHDRAWN"
    found = await elements(longshore, f"{dag_id}.train")
    assert set(found.values()) <= {"SUCCEEDED", "CANCELLED", "SKIPPED"}
    assert found[10] == "SUCCEEDED"


@pytest.mark.exhaustive
async def test_a_hold_of_the_later_array_keeps_its_elements_from_running(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    spec = a_dag(pool, prepare={"array": "0-1%1"}, train={"array": "0-2%1", "after": BEHIND})
    dag_id = (await longshore.submit_dag(spec)).dag_id
    train = f"{dag_id}.train"
    await node.batch_of(f"{train}.s1")
    await longshore.hold(train)
    await node.end_batch(f"{train}.s1")
    await node.end_batches(f"{dag_id}.prepare.s1")
    await are(longshore, train, {0: "WAITING", 1: "WAITING", 2: "SUCCEEDED"})
    await longshore.release(train)
    await all_end(node, longshore, dag_id, train)


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        (
            {"prepare": {}, "train": {"array": "0-9", "after": BEHIND}},
            "element to element, and prepare is none",
        ),
        (
            {"prepare": {"array": "0-9"}, "train": {"after": BEHIND}},
            "element to element, and train is none",
        ),
        (
            {"prepare": {"array": "0"}, "train": {"array": "0", "after": BEHIND, "mutex": "m"}},
            "train would keep it while its elements wait",
        ),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_starts(
    longshore: Longshore, node: ScriptedNode, pool: str, jobs: dict[str, dict[str, Any]], says: str
):
    with pytest.raises(SpecError, match=says):
        await longshore.submit_dag(a_dag(pool, **jobs))
    assert node.runs() == []
