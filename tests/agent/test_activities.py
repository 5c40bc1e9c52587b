"""The agent's activities as a server delivers them: twice, too late, and cancelled."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Worker
from temporalio.workflow import ActivityCancellationType

from longshore.activities.node import process
from longshore.activities.node.full_disk import FullDisk
from longshore.activities.node.process import NodeActivities
from longshore.activities.node.system import boot_clock
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.node import Liveness
from longshore.models.node_messages import (
    ProcessReport,
    RunProcessRequest,
    StopProcessRequest,
    WatchReport,
    WatchRequest,
)
from tests.agent.conftest import LocalNode
from tests.support.marks import marked
from tests.support.waiting import eventually


@workflow.defn(sandboxed=False)
class RunOne:
    """Runs one process, as a job's workflow does, and waits for it when cancelled."""

    @workflow.run
    async def run(self, request: RunProcessRequest) -> ProcessReport:
        return await workflow.execute_activity_method(
            NodeActivities.run_process,
            request,
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )


@workflow.defn(sandboxed=False)
class StopOne:
    @workflow.run
    async def run(self, request: StopProcessRequest) -> None:
        await workflow.execute_activity_method(
            NodeActivities.stop_process, request, start_to_close_timeout=timedelta(minutes=1)
        )


@workflow.defn(sandboxed=False)
class SaveOne:
    @workflow.run
    async def run(self, request: SaveRequest) -> CheckpointInfo:
        return await workflow.execute_activity_method(
            NodeActivities.save_checkpoint,
            request,
            start_to_close_timeout=timedelta(minutes=2),
            heartbeat_timeout=timedelta(seconds=30),
        )


@workflow.defn(sandboxed=False)
class WatchOne:
    @workflow.run
    async def run(self, request: WatchRequest) -> WatchReport:
        return await workflow.execute_activity_method(
            NodeActivities.watch_agent,
            request,
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=request.liveness.heartbeat_timeout,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


@dataclass
class Served:
    """A node's activities behind a worker, and a client to have them called."""

    client: Client
    activities: NodeActivities
    queue: str

    async def start(
        self,
        call: type,
        request: RunProcessRequest | StopProcessRequest | SaveRequest | WatchRequest,
    ) -> WorkflowHandle[object, object]:
        name, id = call.__name__, uuid.uuid4().hex
        return await self.client.start_workflow(name, request, id=id, task_queue=self.queue)

    async def run(self, request: RunProcessRequest) -> ProcessReport:
        handle = await self.start(RunOne, request)
        return ProcessReport.model_validate(await handle.result())


@pytest.fixture
async def served(temporal: Client, box: LocalNode) -> AsyncIterator[Served]:
    """Starts a worker of the activities of a node; 0.1 s."""
    disk = FullDisk(temporal, "no-node", box.folder, timedelta(minutes=1))
    activities = NodeActivities(temporal, box.processes, box.fence, disk)
    queue = f"test-{uuid.uuid4().hex[:8]}"
    async with Worker(
        temporal,
        task_queue=queue,
        workflows=[RunOne, StopOne, SaveOne, WatchOne],
        activities=[
            activities.run_process,
            activities.stop_process,
            activities.save_checkpoint,
            activities.watch_agent,
        ],
        max_heartbeat_throttle_interval=timedelta(milliseconds=200),
    ):
        yield Served(temporal, activities, queue)


async def test_a_second_delivery_attaches_to_the_process(served: Served, box: LocalNode) -> None:
    go = box.folder / "go"
    request = box.request(f"echo once; while [ ! -e {go} ]; do sleep 0.02; done; exit 3")
    deliveries = [asyncio.create_task(served.run(request)) for _ in range(2)]
    await eventually(lambda: _deliveries(box, request) == 2)
    go.touch()
    first, second = await asyncio.gather(*deliveries)
    assert first == second
    assert first.exit_code == 3
    assert box.output(request.placement.key) == "once\n"


async def test_a_delivery_after_the_end_gets_the_stored_report(
    served: Served, box: LocalNode
) -> None:
    request = box.request("echo once")
    first = await served.run(request)
    box.fence.open(2, 60, boot_clock())  # even one of an older registration
    assert await served.run(request) == first
    assert box.output(request.placement.key) == "once\n"


async def test_a_placement_of_another_registration_is_refused(
    served: Served, box: LocalNode
) -> None:
    box.fence.open(2, 60, boot_clock())
    request = box.request("echo never")
    assert await _refusal(await served.start(RunOne, request)) == "StaleError"
    assert box.processes.find(request.placement.key) is None


async def test_a_job_is_asked_to_save_on_its_nodes_queue(served: Served, box: LocalNode) -> None:
    contract = {"folder": "c", "save_file": True}
    command = (
        "until [ -e $LONGSHORE_SAVE_REQUEST ]; do sleep 0.05; done; echo x > c/x; "
        'echo "saved, step 4, took 1.5s" >> $LONGSHORE_SAVED; sleep 300'
    )
    run = box.start(command, checkpoint=contract)
    await asyncio.wait_for(run.started, 60)
    handle = await served.start(SaveOne, SaveRequest(key=run.record.key))
    saved = CheckpointInfo.model_validate(await handle.result())
    assert (saved.step, saved.bytes, saved.write_seconds, saved.whole) == (4, 2, 1.5, True)
    silent = box.start("sleep 300", checkpoint={"folder": "c"})
    await asyncio.wait_for(silent.started, 60)
    request = SaveRequest(key=silent.record.key)
    assert await _refusal(await served.start(SaveOne, request)) == "RefusedError"


async def test_nothing_starts_behind_a_fallen_fence(served: Served, box: LocalNode) -> None:
    box.fence.open(1, 1, boot_clock() - 2)
    request = box.request("echo never")
    assert await _refusal(await served.start(RunOne, request)) == "StaleError"


async def test_a_word_that_comes_after_the_fence_fell_lets_nothing_start(
    served: Served, box: LocalNode
) -> None:
    """As after a cut that has healed: the server gives what this node had to others."""
    watching = await served.start(WatchOne, _watch())
    await eventually(lambda: _heartbeats(watching))
    box.fence.acknowledged_at -= 2 * box.fence_after
    heard = await _heartbeats(watching)

    async def heard_again() -> bool:
        return await _heartbeats(watching) >= heard + 3  # one was on its way, one came late

    await eventually(heard_again)
    request = box.request("echo never")
    assert await _refusal(await served.start(RunOne, request)) == "StaleError"


async def test_a_word_for_an_earlier_registration_counts_for_no_other(box: LocalNode) -> None:
    box.fence.open(2, 60, boot_clock() - 30)
    box.fence.acknowledge(1, boot_clock())
    assert box.fence.seconds_left < 31
    box.fence.acknowledge(2, boot_clock())
    assert box.fence.seconds_left > 31


async def test_an_older_attempt_is_refused(served: Served, box: LocalNode) -> None:
    await served.run(box.request("true", job="job-a", attempt=2))
    request = box.request("true", job="job-a", attempt=1)
    assert await _refusal(await served.start(RunOne, request)) == "StaleError"


async def test_a_placement_may_come_before_the_reply_to_the_registration(
    served: Served, box: LocalNode
) -> None:
    box.fence.epoch = 0
    running = asyncio.create_task(served.run(box.request("true")))
    await eventually(lambda: _is_waiting(served))
    box.fence.open(1, 60, boot_clock())
    assert (await running).exit_code == 0


async def test_a_stop_before_the_process_comes_keeps_it_from_starting(
    served: Served, box: LocalNode
) -> None:
    request = box.request("echo never")
    stop = StopProcessRequest(
        key=request.placement.key, grace=timedelta(seconds=1), reason="changed my mind"
    )
    await (await served.start(StopOne, stop)).result()
    report = await served.run(request)
    assert (report.stopped_for, report.failure) == ("changed my mind", None)
    assert box.output(request.placement.key) == ""


async def test_a_cancelled_activity_stops_its_process_with_its_grace_and_reports(
    served: Served, box: LocalNode
) -> None:
    request = box.request("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    handle = await served.start(RunOne, request)
    await eventually(lambda: box.output(request.placement.key) == "up\n")
    await handle.cancel()
    report = ProcessReport.model_validate(await handle.result())
    assert report.stopped_for == "its activity was cancelled"
    assert box.output(request.placement.key) == "up\nsaved\n"


async def test_a_terminated_workflow_stops_its_process(
    served: Served, box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REDELIVERY_WAIT", 0.2)
    mark = uuid.uuid4().hex
    request = box.request("sleep 300; true", env={"MARK": mark})
    handle = await served.start(RunOne, request)
    await eventually(lambda: marked(mark))
    await handle.terminate()
    await eventually(lambda: not marked(mark))


async def test_a_process_outlives_a_delivery_that_is_followed_by_another(
    served: Served, box: LocalNode
) -> None:
    go = box.folder / "go"
    request = box.request(f"while [ ! -e {go} ]; do sleep 0.02; done; exit 3")
    first = await served.start(RunOne, request)
    await eventually(lambda: _deliveries(box, request) == 1)
    await first.terminate()
    second = asyncio.create_task(served.run(request))
    await eventually(lambda: _deliveries(box, request) == 2)
    await eventually(lambda: _activities_running(served) == 1)
    go.touch()
    assert (await second).exit_code == 3


async def test_a_watch_acknowledges_until_the_agent_leaves(served: Served, box: LocalNode) -> None:
    before = box.fence.acknowledged_at
    handle = await served.start(WatchOne, _watch())
    await eventually(lambda: box.fence.acknowledged_at > before)
    second = box.fence.acknowledged_at
    await eventually(lambda: box.fence.acknowledged_at > second)
    served.activities.leave()
    report = WatchReport.model_validate(await handle.result())
    assert report.reason == "agent stopped"


async def test_a_watch_that_the_server_ended_acknowledges_no_more(
    served: Served, box: LocalNode
) -> None:
    before = box.fence.acknowledged_at
    handle = await served.start(WatchOne, _watch())
    await eventually(lambda: box.fence.acknowledged_at > before)
    await handle.terminate()
    await eventually(lambda: _activities_running(served) == 0)


async def test_a_watch_of_another_registration_is_refused(served: Served, box: LocalNode) -> None:
    box.fence.open(2, 60, boot_clock())
    assert await _refusal(await served.start(WatchOne, _watch())) == "StaleError"


def _watch() -> WatchRequest:
    often = Liveness.within(timedelta(seconds=2))
    # This process may stand still for longer than such an agent may be silent.
    patient = often.model_copy(update={"heartbeat_timeout": timedelta(seconds=60)})
    return WatchRequest(node_id="box", epoch=1, liveness=patient)


async def _heartbeats(watching: WorkflowHandle[object, object]) -> int:
    """Return how many heartbeats of a watch the server has."""
    pending = (await watching.describe()).raw_description.pending_activities
    details = [a.heartbeat_details.payloads for a in pending if a.heartbeat_details.payloads]
    return json.loads(details[0][0].data)["number"] if details else 0


def _deliveries(box: LocalNode, request: RunProcessRequest) -> int:
    run = box.processes.find(request.placement.key)
    return getattr(run, "deliveries", 0)


def _activities_running(served: Served) -> int:
    """Return how many activities of this node are under way in this process."""
    names = ("NodeActivities._attend", "NodeActivities.watch_agent")
    return sum(_awaits(task, names) for task in asyncio.all_tasks())


def _is_waiting(served: Served) -> bool:
    return any(_awaits(task, ("NodeActivities._require_epoch",)) for task in asyncio.all_tasks())


def _awaits(task: asyncio.Task[object], names: tuple[str, ...]) -> bool:
    coroutine = task.get_coro()
    while coroutine is not None:
        if getattr(coroutine, "__qualname__", "") in names:
            return True
        coroutine = getattr(coroutine, "cr_await", None)
    return False


async def _refusal(handle: WorkflowHandle[object, object]) -> str | None:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, ActivityError)
    assert isinstance(caught.value.cause.cause, ApplicationError)
    return caught.value.cause.cause.type
