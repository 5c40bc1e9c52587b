"""What an agent answers that cannot be read, as of one that is broken, or lies: it ends no
workflow and stops none, and holds up no other node or job."""

import inspect
import uuid
from typing import Any, get_type_hints

import pytest
from sqlalchemy import text
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.node.process import NodeActivities
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.client.payloads import data_converter
from longshore.models.base import Answer
from longshore.models.checkpointing import CheckpointPolicy
from longshore.models.dag_view import DagState
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, job_workflow_id, node_workflow_id
from longshore.models.node import NodeState
from longshore.models.pool import PoolSpec
from longshore.models.retry import FailureClass
from longshore.workflows.checkpoints import CheckpointWatchWorkflow
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually
from tests.workflows.test_dags import a_dag, begun

ODD: dict[str, Any] = {
    "nothing": None, "bytes": b"abc", "no encoding": Payload(data=b"abc"), "a list": [1],
    "text": {"exit_code": "abc"}, "exit code": {"exit_code": 2**40}, "class": {"failure": 5},
    "time": {"ended_at": "0001-01-01T00:00:00+14:00"}, "output": {"output": {"bytes": 2**70}},
    "element": {"batch": {"results": [{"index": 0, "attempt": 1, "stdout": {"offset": 2**70}}]}},
}  # fmt: skip
NO_JSON = Payload(data=b"abc")


async def _no_task_failed(temporal: Client, workflow_id: str) -> None:
    async for event in temporal.get_workflow_handle(workflow_id).fetch_history_events():
        assert event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


@pytest.mark.parametrize("name", ODD)
async def test_a_job_whose_end_cannot_be_read_is_tried_again(
    temporal: Client, hasty: Longshore, node: ScriptedNode, pool: str, name: str
) -> None:
    job_id = (await hasty.submit(a_spec(pool))).job_id
    await node.end(job_id, report=ODD[name])
    await node.end(job_id, attempt=2)
    assert (await hasty.wait(job_id)).state is JobState.SUCCEEDED
    first, _ = (await hasty.status(job_id)).attempts
    assert first.failure is FailureClass.NODE
    assert first.message.startswith("how it ended cannot be read of its node: ")
    await _no_task_failed(temporal, job_workflow_id(job_id))


async def test_the_other_nodes_of_a_gang_are_given_up(
    temporal: Client, hasty: Longshore, pool: str, settings: Any, control: Database
) -> None:
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        spec = a_spec(pool, gpus=16, gang={}, retry={"node": {"max_retries": 0}})
        job_id = (await hasty.submit(spec)).job_id
        await nodes[0].started(job_id)
        await nodes[1].end(job_id, report=NO_JSON)  # pyright: ignore[reportArgumentType]
        result = await hasty.wait(job_id)
        assert (result.state, result.failure) == (JobState.FAILED, FailureClass.NODE)
        assert "cannot be read" in result.message
        async with control.transaction() as connection:
            query = text("SELECT count(*) FROM leases WHERE job_id = :id AND ended_at IS NULL")
            assert await connection.scalar(query, {"id": job_id}) == 0


@pytest.mark.parametrize("content", ["no JSON", "[" * 40_000, "a\0b"])
async def test_an_output_that_nobody_can_read_fails_its_job_and_stops_no_dag(
    longshore: Longshore, node: ScriptedNode, pool: str, content: str
) -> None:
    dag_id = await begun(longshore, a_dag(pool, {"a": {}, "b": {"after": "a", "inputs": "a"}}))
    report: Any = {"output": {"content": content, "bytes": 1, "digest": "x"}}
    await node.end(f"{dag_id}.a", report=report)
    assert (await longshore.wait_dag(dag_id)).state is DagState.FAILED


async def test_a_node_whose_agent_leaves_without_a_word_is_gone(
    temporal: Client, longshore: Longshore, node: ScriptedNode
) -> None:
    node.babble = NO_JSON
    node.leave()

    async def gone() -> bool:
        every = await longshore.nodes(with_gone=True)
        (found,) = [each for each in every if each.id == node.id]
        return found.state is NodeState.GONE

    await eventually(gone)
    await _no_task_failed(temporal, node_workflow_id(node.id))


async def test_one_node_does_not_keep_the_saves_of_others_from_the_record(
    temporal: Client, longshore: Longshore, pool: str, settings: Any, control: Database
) -> None:
    always = CheckpointPolicy(min_interval="0s", max_interval="0s")  # pyright: ignore[reportArgumentType]
    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool, checkpoints=always))
    saves = {"folder": "saves", "save_file": True, "store": False}
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        jobs = [
            (await longshore.submit(a_spec(pool, gpus=8, checkpoint=saves))).job_id for _ in nodes
        ]
        await eventually(lambda: sum(len(node.runs()) for node in nodes) == 2)
        where = {job: node for node in nodes for job, _ in node.runs()}
        where[jobs[0]].babble = NO_JSON
        where[jobs[1]].publishes = False
        look = await temporal.execute_workflow(
            CheckpointWatchWorkflow.run, id=f"look-{uuid.uuid4().hex}",
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip
        assert "cannot be read" in look.failed[jobs[0]]
        async with control.transaction() as connection:
            query = text("SELECT job_id FROM job_checkpoints WHERE job_id = ANY(:ids)")
            assert set(await connection.scalars(query, {"ids": jobs})) == {jobs[1]}
        for job, node in where.items():
            node.babble = None
            await node.end(job)
            await longshore.wait(job)


def test_whatever_an_agent_answers_can_be_told() -> None:
    found = set[type[Answer]]()
    for name, call in inspect.getmembers(NodeActivities, inspect.isfunction):
        if activity._Definition.from_callable(call) is None:  # pyright: ignore[reportPrivateUsage]
            continue
        answer = get_type_hints(call)["return"]
        assert answer is type(None) or issubclass(answer, Answer), name
        found |= {answer} - {type(None)}
    assert len(found) == 4
    converter = data_converter.payload_converter
    for answer in found:
        for payload in (NO_JSON, *converter.to_payloads([b"abc", None, [1], {"attempt": "x"}])):
            (read,) = converter.from_payloads([payload], [answer])
            assert isinstance(read, answer)
            converter.to_payloads([read])
