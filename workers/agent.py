"""The node agent: one process per machine that runs jobs there. It needs no database."""

import asyncio
import contextlib
import fcntl
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.worker import Worker

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.job_runs import is_job_over
from longshore.activities.logstore import LogStore
from longshore.activities.metrics import FENCES, Metrics
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.caches import Caches
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.engines import Engines
from longshore.activities.node.environments import Environments
from longshore.activities.node.fence import Fence
from longshore.activities.node.full_disk import FullDisk
from longshore.activities.node.holdings import Holdings
from longshore.activities.node.inventory import take_inventory
from longshore.activities.node.outcome import AGENT_STOPPED, CUT_OFF
from longshore.activities.node.preparation import Preparation
from longshore.activities.node.process import NodeActivities
from longshore.activities.node.processes import Processes
from longshore.activities.node.retention import Keeping, Pruner
from longshore.activities.node.system import close_to_others, keep_private
from longshore.activities.node.write_share import WriteShare
from longshore.models.errors import NodeTakenError, SpecError, UnavailableError
from longshore.models.messages import node_task_queue
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.problems import beyond_bounds
from longshore.models.protocol import BUILD
from longshore.models.settings import Settings
from longshore.models.text import count
from longshore.scheduling.node_caches import CacheLimits
from longshore.workers.agent_options import (
    AgentOptions,
    identity_of,
    keep_name,
    names_of,
    own_address,
)
from longshore.workers.health import agent_parts, serving_health
from longshore.workers.notice import pass_on_notices
from longshore.workers.registration import (
    LONGEST_WAIT,
    Registrar,
    Survivors,
    connect_patiently,
)
from longshore.workers.telemetry import start_runtime

FIRST_WATCH = 5.0
"""Seconds that an agent which is stopped waits to be watched, where it never was."""
LAST_WORDS = 10.0
"""Seconds that the reports of the last processes may take to reach the server."""
MAX_ACTIVITIES = 1000
"""What the GPUs can hold is decided by placement: here nothing must wait, least of all a stop."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def run_agent(options: AgentOptions, settings: Settings) -> None:
    """Run the agent of one node until SIGTERM or SIGINT.

    A second signal kills the processes without their grace. Raises NodeTakenError when the
    work folder or the node has an agent already, TokenError for a wrong join token, SpecError
    where the machine says of itself what no node may have, and UnavailableError when there is no
    GPU or the work folder cannot be written.
    """
    keep_private()
    stop = StopSignals()
    with locked(options.work_dir):
        close_to_others(options.work_dir / name for name in ("agent-id", "cache", "jobs", "runs"))
        inventory = await asyncio.to_thread(
            take_inventory, options.simulated, options.cpus, options.ram,
            options.storage_bandwidth, options.power,
        )  # fmt: skip
        address = options.address or await asyncio.to_thread(own_address, settings)
        inventory = inventory.model_copy(update={"address": address})
        identities = [identity_of(options, name) for name in names_of(options)]
        identity = identities[0]
        if problems := (*beyond_bounds(identity), *beyond_bounds(inventory)):
            raise SpecError("longshore agent", problems)
        _announce(identity, inventory)
        fence = Fence()
        runtime = start_runtime(settings)
        metrics = Metrics(runtime.metric_meter)
        logs = LogStore(settings.resolve_log_store())
        caches = caches_of(options.work_dir, settings, lambda: processes.busy)
        environments = Environments(
            cache_folder(options.work_dir, settings), caches.artifacts, identity.agent_id,
            settings.environment_limit,
        )  # fmt: skip

        def processes_of(identity: NodeIdentity) -> Processes:
            return Processes(
                options.work_dir, identity, inventory, logs, fence, metrics,
                checkpoints=CheckpointStore(settings.resolve_checkpoint_store()),
                publish_within=settings.publish_within, image_folders=settings.image_folders,
                artifacts=caches.artifacts, environments=environments, data=caches.data,
                engine_address=settings.engine_address, engine_fence=settings.engine_fence,
            )  # fmt: skip

        # What an earlier agent of this folder left, it left under the name that comes first.
        processes = processes_of(identity)
        await processes.recover()
        async with serving_health(settings.health_address, lambda: agent_parts(fence)):
            with contextlib.suppress(Stopped):
                client = await stop.unless(connect_patiently(settings, runtime, processes))
                registrars = [
                    Registrar(client, each, inventory, options.token) for each in identities
                ]
                registrar = await stop.unless(first_free(registrars, fence, processes))
                if registrar.identity is not identity:
                    identity = registrar.identity
                    processes = processes_of(identity)
                keep_name(options.work_dir, registrar.node_id)
                disk = FullDisk(
                    client, registrar.node_id, options.work_dir, settings.uncordon_after
                )
                disk.closed_for(registrar.drain_reason)
                holdings = Holdings(caches.data, environments.store, inventory.container_runtime)
                engines = Engines(client, registrar.node_id, processes.engines)
                with (
                    _pruning(options.work_dir, settings, client),
                    _beside(caches.keep_evicting(), "the caches are not kept below their bounds"),
                    _passing_on_notices(registrar.node_id, settings, client),
                    _adopting(processes),
                    _beside(disk.keep_lifting(), "the cordon for a full disk is not lifted"),
                    _beside(
                        holdings.keep_telling(client, registrar.node_id, lambda: fence.epoch),
                        "what the node holds is not told",
                    ),
                    _beside(engines.keep_telling(), "how engines are is not told"),
                ):
                    preparation = Preparation(
                        options.work_dir / "preparing", caches.artifacts, environments,
                        caches.data, settings.image_folders,
                    )  # fmt: skip
                    activities = NodeActivities(
                        client, processes, fence, disk, metrics, preparation
                    )
                    await _serve(client, processes, activities, fence, registrar, stop, metrics)
        await environments.end()
    _log.info("agent of node %s stopped", identity.node_id)


def cache_folder(folder: Path, settings: Settings) -> Path:
    return (settings.node_cache or folder / "cache").absolute()


def caches_of(folder: Path, settings: Settings, busy: Callable[[], bool]) -> Caches:
    """Return what an agent with this work folder keeps for jobs to come; `busy` says whether jobs
    run there that write too."""
    cache = cache_folder(folder, settings)
    limits = CacheLimits(
        settings.cache_evict_at, settings.cache_evict_to, settings.cache_keep_free * 1e9
    )
    store = ArtifactStore(settings.resolve_artifact_store())
    share = WriteShare(settings.staging_share, busy)
    stores = (
        settings.resolve_artifact_store(), settings.resolve_checkpoint_store(),
        settings.resolve_log_store(),
    )  # fmt: skip
    data = DataCache(cache, share, stores, OutputStore(settings.resolve_artifact_store()))
    return Caches(cache, ArtifactCache(cache, store), limits, data=data)


class Stopped(Exception):
    """The agent was asked to stop while it was doing something else."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks to stop in order, the second to hurry."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urgent = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive)

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raises Stopped when a signal comes first."""
        task = asyncio.create_task(work)
        asked = asyncio.create_task(self.asked.wait())
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not task.done():
            task.cancel()
            raise Stopped
        return task.result()

    def _receive(self) -> None:
        (self.urgent if self.asked.is_set() else self.asked).set()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a work folder for this process alone.

    Raises NodeTakenError when another has it, UnavailableError when it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / "agent.lock").open("w")
    except OSError as error:
        raise UnavailableError(
            f"the work folder {folder} cannot be written: {error.strerror}. Mend that, or give "
            "the agent another --work-dir."
        ) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NodeTakenError(
                f"another agent is at work in {folder}. Stop it, or give this one another "
                "--node-id or --work-dir."
            ) from None
        yield


@contextlib.contextmanager
def _pruning(folder: Path, settings: Settings, client: Client) -> Iterator[None]:
    """Remove old runs until the end of the block."""
    keeping = Keeping(runs=settings.keep_runs, age=settings.keep_runs_for)
    pruner = Pruner(folder, keeping, partial(is_job_over, client))
    with _beside(pruner.keep_pruning(), "old runs are not removed"):
        yield


@contextlib.contextmanager
def _beside(work: Coroutine[Any, Any, None], lost: str) -> Iterator[None]:
    """Do `work` until the end of the block; where it fails, the log says what is `lost`."""
    task = asyncio.create_task(work)
    task.add_done_callback(partial(_say_if_failed, lost))
    try:
        yield
    finally:
        task.cancel()


@contextlib.contextmanager
def _passing_on_notices(node_id: str, settings: Settings, client: Client) -> Iterator[None]:
    """Say on, until the end of the block, that the machine is about to be taken away."""
    if settings.spot_notice_file is None:
        yield
        return
    notices = pass_on_notices(client, node_id, settings.spot_notice_file)
    with _beside(notices, "that the machine is about to be taken away is not passed on"):
        yield


@contextlib.contextmanager
def _adopting(processes: Processes) -> Iterator[None]:
    """Until the end of the block, end what a job leaves that kills all between it and here."""
    processes.adopt()
    with _beside(processes.keep_reaping(), "what outlives a killed supervisor is not looked for"):
        yield


def _say_if_failed(lost: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("%s any more, until this agent starts anew", lost, exc_info=error)


async def _serve(
    client: Client,
    processes: Processes,
    activities: NodeActivities,
    fence: Fence,
    registrar: Registrar,
    stop: StopSignals,
    metrics: Metrics,
) -> None:
    """Take work until asked to stop; then end the processes and report them."""
    worker = node_worker(client, registrar.node_id, activities)
    work = asyncio.create_task(worker.run())
    staying = _stay_registered(processes, fence, registrar, metrics)
    keeping = asyncio.create_task(stop.unless(staying))
    await asyncio.wait({work, keeping}, return_when=asyncio.FIRST_COMPLETED)
    await _until_watched(activities, work, stop)
    _log.info("stopping: %d processes get their grace", len(processes.running))
    leaving = asyncio.create_task(worker.shutdown())
    await _end_processes(processes, stop)
    activities.leave()
    _, late = await asyncio.wait({leaving, work}, timeout=LAST_WORDS)
    if late:
        _log.warning("the server did not take the last reports within %g s", LAST_WORDS)
    for task in (keeping, work):
        if task.done() and not task.cancelled():
            task.result()  # raises what ended it, a refusal for example


def node_worker(client: Client, node_id: str, activities: NodeActivities) -> Worker:
    """Return the worker that takes the activities of one node; never versioned."""
    return Worker(
        client,
        task_queue=node_task_queue(node_id),
        activities=[
            activities.run_process,
            activities.prepare_job,
            activities.run_elements,
            activities.stop_process,
            activities.stop_elements,
            activities.save_checkpoint,
            activities.resize_process,
            activities.watch_agent,
        ],
        build_id=BUILD,
        max_concurrent_activities=MAX_ACTIVITIES,
        max_concurrent_activity_task_polls=2,
        # Progress is news for seconds, and a heartbeat is how a cancellation comes back.
        max_heartbeat_throttle_interval=timedelta(seconds=2),
        default_heartbeat_throttle_interval=timedelta(seconds=2),
        # Processes have their own, bounded grace; this must only not be shorter.
        graceful_shutdown_timeout=timedelta(hours=6),
    )


async def _stay_registered(
    processes: Processes, fence: Fence, registrar: Registrar, metrics: Metrics
) -> None:
    """Register again whenever the server has been silent for too long."""
    while True:
        await fence.fallen()
        metrics.add(FENCES)
        _log.warning(
            "cut off: no acknowledgement for %.1f s, all processes end but %s",
            *(fence.after, count(len(processes.outliving()), "engine")),
        )
        await processes.stop_all(CUT_OFF, grace=0, but_engines=True)
        await registrar.register(fence, cut_off=True, survivors=processes)


async def _until_watched(
    activities: NodeActivities, work: asyncio.Task[None], stop: StopSignals
) -> None:
    """Give a registration that is new the time to be watched; nobody else hears of the leave."""
    watched = asyncio.create_task(activities.watched())
    urgent = asyncio.create_task(stop.urgent.wait())
    await asyncio.wait(
        {watched, urgent, work}, timeout=FIRST_WATCH, return_when=asyncio.FIRST_COMPLETED
    )
    watched.cancel()
    urgent.cancel()


async def _end_processes(processes: Processes, stop: StopSignals) -> None:
    ending = asyncio.create_task(processes.stop_all(AGENT_STOPPED))
    urgent = asyncio.create_task(stop.urgent.wait())
    await asyncio.wait({ending, urgent}, return_when=asyncio.FIRST_COMPLETED)
    urgent.cancel()
    if not ending.done():
        await processes.stop_all(AGENT_STOPPED, grace=0)
    await ending


async def first_free(
    registrars: Sequence[Registrar], fence: Fence, survivors: Survivors | None = None
) -> Registrar:
    """Return the first registrar that no other live agent keeps out of its node.

    Of several names one becomes free when its agent is declared lost: they are tried until then.
    Raises NodeTakenError for a single name, and TokenError.
    """
    while True:
        for registrar in registrars:
            try:
                await registrar.register(fence, survivors=survivors)
            except NodeTakenError:
                if len(registrars) == 1:
                    raise
                _log.info("node %s has a live agent: the next name", registrar.node_id)
            else:
                return registrar
        await asyncio.sleep(LONGEST_WAIT)


def _announce(identity: NodeIdentity, inventory: Inventory) -> None:
    simulated = "SIMULATED " if inventory.simulated else ""
    _log.info(
        "node %s of pool %s: %d %s%s, %g cores, %.0f GB of memory, containers: %s",
        *(identity.node_id, identity.pool, len(inventory.gpus), simulated, inventory.gpu_type),
        *(inventory.cpus, inventory.ram, inventory.container_runtime or "none"),
    )
