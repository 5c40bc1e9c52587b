"""A node whose processes a test ends by hand: the agent's activities under their real names.

For tests of workflows. What an agent really does is tested with real agents (tests/agent).
"""

import asyncio
import contextlib
import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import (
    AsyncActivityCancelledError,
    AsyncActivityHandle,
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from longshore.models import proof
from longshore.models.array_messages import StopElements
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.data import HeldData, HeldReport
from longshore.models.departures import ExpiryChange, NodeDrain, SpotNotice
from longshore.models.elements import Batch, BatchReport, ElementResult
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    CommandReason,
    job_workflow_id,
    node_task_queue,
    node_workflow_id,
)
from longshore.models.node import GPUInventory, Inventory, NodeIdentity
from longshore.models.node_messages import (
    NodeInput,
    NodeStatus,
    Prepared,
    PrepareRequest,
    ProcessReport,
    Progress,
    Registered,
    Registration,
    RunProcessRequest,
    StopProcessRequest,
    WatchReport,
    WatchRequest,
)
from longshore.models.protocol import PROTOCOL
from longshore.models.resize import SizeNotice
from longshore.models.retry import FailureClass
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL
from longshore.workflows.node import NodeWorkflow
from tests.support.waiting import eventually

SUCCESS = ProcessReport(exit_code=0)
CUT_OFF = ProcessReport(
    failure=FailureClass.NETWORK, exit_code=137, message="it was cut off from the server"
)
DIED = ProcessReport(failure=FailureClass.NODE, message="agent died")
USER_ERROR = ProcessReport(exit_code=3, failure=FailureClass.USER, message="exit code 3")
FABRIC = {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: "a"}
"""Labels of nodes that are one domain."""


class ScriptedNode:
    """One node; a test decides what becomes of the processes placed on it.

    Its activities answer later and from outside, so that a node can fall silent as a machine does
    that loses its power: nothing is reported, nothing is answered.
    """

    def __init__(
        self,
        temporal: Client,
        pool: str,
        token: str,
        *,
        gpus: int = 8,
        node_id: str | None = None,
        labels: dict[str, str] | None = None,
        task_queue: str = CONTROL_TASK_QUEUE,
        expires_at: datetime | None = None,
    ) -> None:
        """Describe a node; `task_queue` is where the workflow that watches it runs."""
        self.id = node_id or f"scripted-{uuid.uuid4().hex[:8]}"
        self.pool = pool
        self.registered: Registered | None = None
        self.protocol = PROTOCOL
        self.taken: Counter[tuple[str, int]] = Counter()
        """How often each (job, attempt) has come here; of a rank that joined (job.rN, attempt)."""
        self.stops: list[StopProcessRequest] = []
        self.saves: list[SaveRequest] = []
        self.saves_nothing = False
        self.publishes = True
        self.number: int | None = None
        """Of its saves, where that is not how many there were."""
        """Do not answer when a job is asked to save, as where that takes too long."""
        self.step: int | None = None
        """That it names when a job is asked to save."""
        self.slow_to_save = False
        """Answer a job's save when `let_save` says so."""
        self._may_save = asyncio.Event()
        self.sizes: list[SizeNotice] = []
        self.knows_no_sizes = False
        """Refuse to tell a process of its size, as an agent of an older version."""
        self.stopped_elements: list[StopElements] = []
        self.prepares: list[PrepareRequest] = []
        self.gave_up: list[str] = []
        """Jobs that were no more to be prepared here."""
        self.cannot_prepare = False
        """Fail each preparation, as a node whose store is away."""
        self._prepared = asyncio.Event()
        self.refusal: str | None = None
        """Refuse every process for this reason, as an agent that is fenced off."""
        self.hangs = False
        """Take calls and answer none, as an agent in a file system that is away."""
        self.says: Progress | None = None
        """What each process that starts here says of itself."""
        self.loses_reports = False
        """Have the reports of processes that end not arrive, as where the server is away."""
        self.lost_reports = 0
        self.babble: object = None
        """What it answers to a save and to its watch in place of what is asked for."""
        self.slow_to_stop = False
        """Let a process go on when it is asked to stop, until the test ends it."""
        self._temporal = temporal
        self.token = token
        self._task_queue = task_queue
        self._identity = NodeIdentity(
            node_id=self.id, agent_id=f"agent-of-{self.id}", boot_id=f"boot-1-of-{self.id}",
            pool=pool, labels=labels or {}, expires_at=expires_at,
        )  # fmt: skip
        self._inventory = Inventory(
            gpu_type="H100", simulated=True, cpus=64, ram=512, hostname="scripted",
            address=f"{self.id}.test",
            gpus=tuple(GPUInventory(index=i, model="H100", vram=80) for i in range(gpus)),
        )  # fmt: skip
        self._runs: dict[tuple[str, int], asyncio.Future[ProcessReport]] = {}
        self._requests: dict[tuple[str, int], RunProcessRequest] = {}
        self._lives = 1
        self._leaving = asyncio.Event()
        self._silent = False
        self._answers: set[asyncio.Task[None]] = set()

    async def register(
        self,
        *,
        boot_id: str | None = None,
        agent_id: str | None = None,
        token: str | None = None,
        cut_off: bool = False,
        through: str | None = None,
    ) -> Registered:
        """Register as the agent does, in this or in another guise, or `through` another node."""
        update = {"boot_id": boot_id, "agent_id": agent_id}
        identity = self._identity.model_copy(update={k: v for k, v in update.items() if v})
        claim = Registration(
            identity=identity, inventory=self._inventory, issued_at=datetime.now(UTC),
            cut_off=cut_off, counts_heartbeats=True, protocol=self.protocol,
        )  # fmt: skip
        registration = proof.sign(token or self.token, claim)
        anew = boot_id is not None and not cut_off
        self._lives += anew  # what an agent had not said when it died it does not say afterwards
        registered = await self._temporal.execute_update_with_start_workflow(
            NodeWorkflow.register,
            registration,
            start_workflow_operation=WithStartWorkflowOperation(
                NodeWorkflow.run,
                NodeInput(node_id=through or self.id),
                id=node_workflow_id(through or self.id),
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                task_queue=self._task_queue,
            ),
        )
        self.registered = registered
        for run in self._runs.values():
            if (cut_off or anew) and not run.done():  # such an agent has ended them
                run.set_result(CUT_OFF if cut_off else DIED)
        return registered

    async def drain(self, reason: str, **how: Any) -> NodeStatus:
        return await self._workflow().execute_update(
            NodeWorkflow.drain, NodeDrain(reason=reason, **how)
        )

    async def cordon(self, reason: str) -> NodeStatus:
        return await self._workflow().execute_update(
            NodeWorkflow.cordon, CommandReason(reason=reason)
        )

    async def uncordon(self) -> NodeStatus:
        return await self._workflow().execute_update(NodeWorkflow.uncordon, CommandReason())

    async def status(self) -> NodeStatus:
        return await self._workflow().query(NodeWorkflow.status)

    async def ends_at(self, expires_at: datetime | None) -> NodeStatus:
        return await self._workflow().execute_update(
            NodeWorkflow.expiry_changed, ExpiryChange(expires_at=expires_at)
        )

    async def is_taken_away(self, at: datetime | None, reason: str = "") -> None:
        await self._workflow().signal(NodeWorkflow.spot_notice, SpotNotice(at=at, reason=reason))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Take the node's activities until the end of the block; then leave, unless silent."""
        worker = Worker(
            self._temporal,
            task_queue=node_task_queue(self.id),
            activities=[
                self.run_process,
                self.run_elements,
                self.stop_process,
                self.stop_elements,
                self.watch_agent,
                self.save_checkpoint,
                self.resize_process,
                self.prepare_job,
            ],
        )
        async with worker:
            yield
            if not self._silent:
                self.leave()
        for answer in list(self._answers):
            if self._silent:
                answer.cancel()
        self._may_save.set()
        self._prepared.set()
        for run in self._runs.values():
            run.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    async def lift(self, reason: str) -> NodeStatus:
        return await self._workflow().execute_update(
            NodeWorkflow.lift, CommandReason(reason=reason)
        )

    async def started(self, job_id: str, attempt: int = 1) -> RunProcessRequest:
        """Wait until the attempt has come here, and return its request."""
        await eventually(lambda: (job_id, attempt) in self._requests)
        return self._requests[job_id, attempt]

    async def end(
        self, job_id: str, attempt: int = 1, report: ProcessReport = SUCCESS
    ) -> RunProcessRequest:
        """End the attempt's process with this report."""
        request = await self.started(job_id, attempt)
        if not self._run(job_id, attempt).done():
            self._run(job_id, attempt).set_result(report)
        return request

    def runs(self) -> list[tuple[str, int]]:
        """Return every (job, attempt) that has come here, in order."""
        return list(self._requests)

    def leave(self) -> None:
        """Say that the agent leaves in order."""
        self._leaving.set()

    def let_save(self) -> None:
        """Let a save that waits be answered."""
        self._may_save.set()

    def fall_silent(self) -> None:
        """Report nothing any more; leave `serving` to answer nothing either."""
        self._silent = True

    @activity.defn
    async def run_process(self, request: RunProcessRequest) -> None:
        if self.refusal is not None:
            raise ApplicationError(self.refusal, type="StaleError", non_retryable=True)
        key = (request.key.job_id, request.key.attempt)
        self._requests[key] = request
        self.taken[key] += 1
        if self.says is not None:
            await self._handle().heartbeat(self.says)
        self._answer_later(self._report_run(key, self._handle()))

    @activity.defn
    async def stop_process(self, request: StopProcessRequest) -> None:
        self.stops.append(request)
        run = self._run(request.key.job_id, request.key.attempt)
        if not run.done() and not self.slow_to_stop:
            run.set_result(ProcessReport(exit_code=143, stopped_for=request.reason))

    @activity.defn
    async def run_elements(self, request: RunProcessRequest) -> None:
        key = (request.key.job_id, request.key.attempt)
        self._requests[key] = request
        self._answer_later(self._report_run(key, self._handle()))

    @activity.defn
    async def stop_elements(self, request: StopElements) -> None:
        self.stopped_elements.append(request)

    async def batch_of(self, slot: str, attempt: int = 1) -> Batch:
        """Wait until a slot has a batch here that has not ended, and return it."""

        async def there() -> Batch:
            for (job_id, its), request in self._requests.items():
                runs = its == attempt and not self._run(job_id, its).done()
                if runs and request.batch and job_id.startswith(f"{slot}.b"):
                    return request.batch
            raise AssertionError(f"{slot} has no batch")

        return await eventually(there)

    async def end_batch(
        self,
        slot: str,
        attempt: int = 1,
        *,
        failure: FailureClass | None = None,
        cancelled: bool = False,
    ) -> Batch:
        """End the batch of a slot: all of its elements, in the same way."""
        batch, now = await self.batch_of(slot, attempt), datetime.now(UTC)
        results = tuple(
            ElementResult(
                index=each.index, attempt=each.attempt, exit_code=3 if failure else 0,
                failure=failure, stopped=cancelled, cancelled=cancelled, started_at=now,
                ended_at=now,
            )
            for each in batch.elements
        )  # fmt: skip
        report = ProcessReport(batch=BatchReport(results=results))
        self._run(f"{slot}.b{batch.number}", attempt).set_result(report)
        return batch

    async def end_batches_here(self, *arrays: str) -> None:
        """End the batches with success that slots of these arrays have here now."""
        for key, request in list(self._requests.items()):
            slot = key[0].rpartition(".b")[0]
            if (
                slot.startswith(tuple(f"{array}.s" for array in arrays))
                and request.batch
                and not self._run(*key).done()
            ):
                await self.end_batch(slot, key[1])

    async def end_batches(self, *slots: str) -> None:
        """End the batches of slots with success, until the slots are over."""

        async def is_over(slot: str) -> bool:
            handle = self._temporal.get_workflow_handle(job_workflow_id(slot))
            with contextlib.suppress(RPCError):  # it may not have begun
                return (await handle.describe()).close_time is not None
            return False

        async def one_ends() -> bool:
            for key, request in list(self._requests.items()):
                name = key[0].rpartition(".b")[0]
                if name in slots and request.batch and not self._run(*key).done():
                    await self.end_batch(name, key[1])
            return all([await is_over(slot) for slot in slots])

        await eventually(one_ends)

    @activity.defn
    async def save_checkpoint(self, request: SaveRequest) -> CheckpointInfo:
        if self.refusal is not None:
            raise ApplicationError(self.refusal, type="StaleError", non_retryable=True)
        self.saves.append(request)
        if self.saves_nothing:
            raise ApplicationError("it did not say so", type="UnavailableError")
        if self.slow_to_save:
            await self._may_save.wait()
        if self.babble is not None:
            return self.babble  # pyright: ignore[reportReturnType]
        return CheckpointInfo(
            job_id=request.key.job_id, attempt=request.key.attempt,
            number=self.number or len(self.saves), step=self.step, bytes=1,
            saved_at=datetime.now(UTC), published=self.publishes,
        )  # fmt: skip

    @activity.defn
    async def resize_process(self, notice: SizeNotice) -> None:
        if self.knows_no_sizes:
            raise ApplicationError("no such activity", type="NotFoundError")
        self.sizes.append(notice)

    @activity.defn
    async def prepare_job(self, request: PrepareRequest) -> None:
        self.prepares.append(request)
        if self.cannot_prepare:
            raise ApplicationError("the store is away", type="UnavailableError")
        self._answer_later(self._report_prepared(request, self._handle()))

    async def holds(self, *held: HeldData) -> None:
        """Say what the node has, as the agent does."""
        await self._workflow().signal(NodeWorkflow.holds, HeldReport(held=held))

    def let_prepare(self) -> None:
        """Have what waits here brought."""
        self._prepared.set()

    @activity.defn
    async def watch_agent(self, request: WatchRequest) -> None:
        # The watch may come before the reply to the registration has.
        await eventually(lambda: self.registered and self.registered.epoch >= request.epoch)
        if self.registered is None or request.epoch != self.registered.epoch:
            raise ApplicationError("another epoch", type="StaleError", non_retryable=True)
        self._answer_later(self._heartbeat(self._handle()))

    def _workflow(self) -> WorkflowHandle[NodeWorkflow, NodeStatus]:
        return self._temporal.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(self.id))

    def _handle(self) -> AsyncActivityHandle:
        task_token = activity.info().task_token
        return self._temporal.get_async_activity_handle(task_token=task_token)

    def _answer_later(self, answer: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(answer)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        activity.raise_complete_async()

    async def _report_run(self, key: tuple[str, int], handle: AsyncActivityHandle) -> None:
        life = self._lives
        report = await asyncio.shield(self._run(*key))
        if life != self._lives:
            return
        if self.loses_reports:
            self.lost_reports += 1
            return
        with contextlib.suppress(RPCError):  # nobody waits for it any more
            await handle.complete(report)

    async def _report_prepared(self, request: PrepareRequest, handle: AsyncActivityHandle) -> None:
        so_far = Prepared(job_id=request.job_id, node_id=self.id)
        try:
            while not self._prepared.is_set():
                await handle.heartbeat(so_far)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await self._prepared.wait()
            await handle.complete(so_far)
        except AsyncActivityCancelledError:
            self.gave_up.append(request.job_id)
            with contextlib.suppress(RPCError):
                await handle.report_cancellation()
        except RPCError:  # its workflow is over
            self.gave_up.append(request.job_id)

    async def _heartbeat(self, handle: AsyncActivityHandle) -> None:
        with contextlib.suppress(RPCError, AsyncActivityCancelledError):
            for number in itertools.count(1):
                if self._silent or self.hangs:
                    return
                if self._leaving.is_set():
                    break
                await handle.heartbeat(number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await self._leaving.wait()
            await handle.complete(self.babble or WatchReport(reason="agent stopped"))

    def _run(self, job_id: str, attempt: int) -> "asyncio.Future[ProcessReport]":
        return self._runs.setdefault((job_id, attempt), asyncio.get_running_loop().create_future())


@asynccontextmanager
async def serving_one_fabric(
    temporal: Client, pool: str, token: str, names: str
) -> AsyncIterator[list[ScriptedNode]]:
    """Serve registered nodes of 8 GPUs in one fabric domain, a letter of `names` for each."""
    nodes = [
        ScriptedNode(temporal, pool, token, node_id=f"{name}-of-{pool}", labels=FABRIC)
        for name in names
    ]
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.serving())
            await node.register()
        yield nodes
