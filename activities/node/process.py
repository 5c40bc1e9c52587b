"""The activities of a node agent: run a process, stop one, and show that the node lives."""

import asyncio
import itertools
import threading
from datetime import timedelta

from temporalio import activity
from temporalio.client import (
    AsyncActivityCancelledError,
    AsyncActivityHandle,
    Client,
)
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint, wall_clock
from longshore.activities.log_context import log_context
from longshore.activities.metrics import HEARTBEAT_SECONDS, HEARTBEATS_MISSED, SILENT, Metrics
from longshore.activities.node.fence import Fence
from longshore.activities.node.full_disk import FullDisk
from longshore.activities.node.outcome import never_started
from longshore.activities.node.preparation import Preparation
from longshore.activities.node.processes import Processes
from longshore.activities.node.run import Run
from longshore.activities.node.system import boot_clock
from longshore.models.array_messages import StopElements
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.errors import NotFoundError, RefusedError, StaleError
from longshore.models.messages import PREPARE_ACTIVITY
from longshore.models.node_messages import (
    Heartbeat,
    Prepared,
    PrepareRequest,
    ProcessReport,
    RunProcessRequest,
    StopProcessRequest,
    WatchReport,
    WatchRequest,
)
from longshore.models.resize import SizeNotice
from longshore.models.retry import FailureClass

PROGRESS_INTERVAL = 1.0
"""Seconds between two heartbeats of a process; the worker sends on what is new every two."""
ELEMENTS_INTERVAL = 20.0
"""Seconds between two heartbeats of a batch of elements."""
REDELIVERY_WAIT = 6.0
"""Seconds that a process outlives a delivery that the server has forgotten: another may come."""
ENGINE_REDELIVERY_WAIT = 60.0
"""The same of an engine: an outage of the server is longer than its delivery is remembered, and a
slot may run twice."""
REGISTRATION_WAIT = 5.0
"""Seconds that a message for a newer registration waits for the agent to hear of it."""


class NodeActivities:
    """Activities of one node agent. None of them touches the database."""

    def __init__(
        self,
        client: Client,
        processes: Processes,
        fence: Fence,
        disk: FullDisk,
        metrics: Metrics = SILENT,
        preparation: Preparation | None = None,
    ) -> None:
        self._metrics = metrics
        self._preparation = preparation
        self._client = client
        self._processes = processes
        self._fence = fence
        self._disk = disk
        self._leaving = asyncio.Event()
        self._watched_epoch = 0
        self._watch_began = asyncio.Event()

    @activity.defn
    @reports_errors
    async def run_process(self, request: RunProcessRequest) -> ProcessReport:
        """Run a job's process on this node until it ends, and say how it ended.

        Delivered again, it attaches to the process or returns its stored report: an attempt is
        started at most once. Raises StaleError for an attempt or a registration that is over.
        """
        return await self._run(request, PROGRESS_INTERVAL)

    @activity.defn(name=PREPARE_ACTIVITY)
    @reports_errors
    async def prepare_job(self, request: PrepareRequest) -> Prepared:
        """Bring what a job needs that waits for its turn on this node: code, packages, data.

        May run twice: what is here is found. Heartbeats say how far its data is.
        """
        if self._preparation is None:
            raise NotFoundError("this agent prepares no jobs")
        unwanted = threading.Event()
        said = Prepared(job_id=request.job_id, node_id=request.node_id)

        def told(so_far: Prepared) -> None:
            nonlocal said
            said = so_far

        work = asyncio.create_task(self._preparation.bring(request, unwanted, told))
        try:
            while not work.done() and not activity.is_worker_shutdown():
                activity.heartbeat(said)
                await asyncio.wait({work}, timeout=PROGRESS_INTERVAL)
            if not work.done():
                raise StaleError(f"the agent of node {request.node_id} stops")
            return work.result()
        finally:
            unwanted.set()
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # looked at: it was told, or nobody wants it

    @activity.defn
    @reports_errors
    async def run_elements(self, request: RunProcessRequest) -> ProcessReport:
        """Run a batch of elements of an array one after another, as `run_process` does a process.

        Its report says how each ended. It heartbeats seldom, as each is billed.
        """
        if request.batch is None:
            raise RefusedError("run_elements was given no elements")
        return await self._run(request, ELEMENTS_INTERVAL)

    @activity.defn
    @reports_errors
    async def stop_elements(self, request: StopElements) -> None:
        """Stop and leave out elements of a batch. A repeat changes nothing."""
        await self._processes.stop_elements(request)

    async def _run(self, request: RunProcessRequest, every: float) -> ProcessReport:
        placement = request.placement
        with log_context(job=placement.job_id, attempt=placement.attempt):
            found = self._processes.find(request.key)
            if found is None:
                await self._require_epoch(placement.epoch)
                try:
                    # Looked for again: another delivery may have come while this one waited.
                    found = self._processes.find(request.key) or self._processes.start(request)
                except OSError as error:
                    why = f"it could not be started: {await self._disk.refused(error)}"
                    return never_started(FailureClass.NODE, why)
            return found if isinstance(found, ProcessReport) else await self._attend(found, every)

    @activity.defn
    @reports_errors
    async def stop_process(self, request: StopProcessRequest) -> None:
        """Stop a process: signal, grace, SIGKILL. Returns when nothing of it is left.

        An attempt that never came here is remembered and will not start.
        """
        await failpoint("stop_process.before-signal")
        stopping = asyncio.create_task(self._processes.stop(request))
        while not stopping.done():
            activity.heartbeat()
            await asyncio.wait({stopping}, timeout=PROGRESS_INTERVAL)
        await stopping
        await failpoint("stop_process.after-end")

    @activity.defn
    @reports_errors
    async def save_checkpoint(self, request: SaveRequest) -> CheckpointInfo:
        """Have a job save and go on, and return what it saved: bytes, time, whether published.

        Delivered again it has the job save again, which harms nothing. Raises NotFoundError where
        the attempt does not run here, RefusedError for a job that cannot be asked, and
        UnavailableError when it does not answer in time.
        """
        saving = asyncio.create_task(self._processes.save(request))
        try:
            while not saving.done():
                activity.heartbeat()
                await asyncio.wait({saving}, timeout=PROGRESS_INTERVAL)
        finally:
            saving.cancel()
        return saving.result()

    @activity.defn
    @reports_errors
    async def resize_process(self, notice: SizeNotice) -> None:
        """Tell a process that its job has another size, by a file and a signal. A repeat tells it
        again. Raises NotFoundError where the attempt does not run here, or is being stopped."""
        await failpoint("resize_process.before-file")
        await self._processes.resize(notice)

    @activity.defn
    @reports_errors
    async def watch_agent(self, request: WatchRequest) -> WatchReport:
        """Heartbeat as long as the agent lives; returns when it leaves in order.

        Every heartbeat is a call that is awaited: its success means that the server knew that we
        were alive when we sent it. That, and nothing else, keeps the supervisors' fences up.
        Raises StaleError for another registration than the current one.
        """
        await self._require_epoch(request.epoch)
        self._watched_epoch = request.epoch
        self._watch_began.set()
        handle = self._client.get_async_activity_handle(task_token=activity.info().task_token)
        interval = request.liveness.heartbeat_interval
        for number in itertools.count(1):
            if self._leaving.is_set():
                break
            await failpoint("watch_agent.before-heartbeat")
            heartbeat = Heartbeat(number=number, sent_at=wall_clock())
            if await self._heartbeat(handle, request.epoch, heartbeat, interval) is False:
                return WatchReport(reason="the server has ended this watch")
            await failpoint("watch_agent.after-heartbeat")
            await _wait_for(self._leaving, interval.total_seconds())
        return WatchReport(reason="agent stopped")

    async def watched(self) -> None:
        """Wait until the current registration is watched: only a watch can tell of a leave."""
        while self._watched_epoch != self._fence.epoch:
            self._watch_began.clear()
            await self._watch_began.wait()

    def leave(self) -> None:
        """Let `watch_agent` report that the agent leaves. To be called when no process is left."""
        self._leaving.set()

    async def _heartbeat(
        self, handle: AsyncActivityHandle, epoch: int, heartbeat: Heartbeat, interval: timedelta
    ) -> bool | None:
        """Return True when the server acknowledged, False when it knows no such watch."""
        sent_at = boot_clock()
        try:
            await handle.heartbeat(heartbeat, rpc_timeout=interval)
        except AsyncActivityCancelledError:
            raise asyncio.CancelledError from None
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            self._metrics.add(HEARTBEATS_MISSED)
            activity.logger.warning("heartbeat not acknowledged: %s", error.message)
            return None
        self._metrics.observe(HEARTBEAT_SECONDS, boot_clock() - sent_at)
        self._fence.acknowledge(epoch, sent_at)
        # The SDK gives up an activity that is silent towards it, and learns of cancellation so.
        activity.heartbeat(heartbeat)
        return True

    async def _attend(self, run: Run, every: float) -> ProcessReport:
        """Heartbeat the progress of a process until it ends; stop it when nobody wants it."""
        run.deliveries += 1
        delivery, abandoned_at = run.deliveries, None
        heard_at = boot_clock()
        while not run.done.done():
            try:
                # First a wait: a heartbeat of a process that is over by then is spared.
                await asyncio.wait({run.done}, timeout=PROGRESS_INTERVAL)
            except asyncio.CancelledError:
                abandoned_at = abandoned_at or self._abandoned_at(run)
            if not run.done.done() and boot_clock() - heard_at >= 0.9 * every:
                activity.heartbeat(run.progress())
                heard_at = boot_clock()
            if run.deliveries > delivery and abandoned_at is not None:
                raise asyncio.CancelledError  # another delivery speaks for the process now
            if abandoned_at is not None and boot_clock() >= abandoned_at:
                spec = run.request.spec
                reason = "its activity was cancelled"
                grace = spec.grace.total_seconds()
                self._processes.lifecycle.ask_to_stop(run, spec.stop_signal, grace, reason)
                abandoned_at = float("inf")
        await failpoint("run_process.before-report")
        return run.done.result()

    def _abandoned_at(self, run: Run) -> float | None:
        """Return when a cancelled delivery may stop its process; None for not at all.

        A delivery that the server does not know any more may have been given up for another one
        that is on its way: a process is not worth less for a lost heartbeat.
        """
        details = activity.cancellation_details()
        if details is None or details.worker_shutdown or details.paused:
            return None
        if details.cancel_requested:
            return boot_clock()
        return boot_clock() + (ENGINE_REDELIVERY_WAIT if run.outlives else REDELIVERY_WAIT)

    async def _require_epoch(self, epoch: int) -> None:
        """Raise StaleError unless `epoch` is the current registration and its fence stands."""
        deadline = boot_clock() + REGISTRATION_WAIT
        # The server may speak of a registration before its reply has reached us.
        while epoch > self._fence.epoch and boot_clock() < deadline:  # noqa: ASYNC110 (a clock)
            await asyncio.sleep(0.02)
        if epoch != self._fence.epoch:
            raise StaleError(
                f"registration {epoch} of this node is not the current one, {self._fence.epoch}."
            )
        if self._fence.seconds_left <= 0:
            raise StaleError(f"registration {epoch} of this node is over: it was cut off.")


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    await asyncio.wait({waiting := asyncio.create_task(event.wait())}, timeout=seconds)
    waiting.cancel()
