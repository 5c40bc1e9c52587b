"""The control worker: runs the workflows, and the activities on the capacity database."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import pydantic
from temporalio.client import Client
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from longshore.activities.arrays import ArrayActivities
from longshore.activities.artifacts.rows import keep_sweeping
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.buying.block_decisions import BlockDecisionActivities
from longshore.activities.buying.block_drain import BlockDrainActivities
from longshore.activities.buying.blocks import BlockActivities
from longshore.activities.buying.decisions import BuyingActivities
from longshore.activities.buying.machine_extension import MachineExtensionActivities
from longshore.activities.buying.machines import MachineActivities
from longshore.activities.buying.orders import OrderActivities
from longshore.activities.buying.purchasing import PurchasingActivities
from longshore.activities.buying.window_reclaim import WindowReclaimActivities
from longshore.activities.checkpoints.rows import CheckpointActivities, keep_observing
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.checkpoints.watch import CheckpointWatchActivities, CheckpointWatches
from longshore.activities.cycle import CycleActivities
from longshore.activities.dags import DagActivities
from longshore.activities.database import Database
from longshore.activities.departures import DepartureActivities, NodeLooks
from longshore.activities.elements import ElementActivities
from longshore.activities.holdings import HoldingActivities
from longshore.activities.joins import JoinActivities
from longshore.activities.markets.watch import MarketWatchActivities
from longshore.activities.metrics import SILENT, Metrics
from longshore.activities.migrations import current_revision
from longshore.activities.node.system import keep_private
from longshore.activities.prices.reading import PriceActivities
from longshore.activities.queue import QueueActivities
from longshore.activities.reconcile import ReconcileActivities
from longshore.activities.registry import RegistryActivities
from longshore.activities.resizes import ResizeActivities
from longshore.activities.revisions import mismatch
from longshore.activities.schedule_runs import ScheduleRunActivities
from longshore.activities.schedules import Schedules
from longshore.activities.serving.services import ServiceActivities
from longshore.activities.signals import Signals
from longshore.activities.spares import SpareActivities
from longshore.client.connection import connect
from longshore.client.process import leave
from longshore.client.process import run as run_loop
from longshore.models.deployment import BUILD_VARIABLE, DEPLOYMENT_VARIABLE, WorkerVersion
from longshore.models.errors import LongshoreError, RefusedError, SpecError, UnavailableError
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.protocol import BUILD
from longshore.models.settings import Settings
from longshore.workers import logs
from longshore.workers.control_health import ControlHealth
from longshore.workers.deadlock_guard import UninterruptedRunner
from longshore.workers.health import serving_health
from longshore.workers.sampling import keep_sampling
from longshore.workers.schedules import keep_watches_awake
from longshore.workers.stopping import stop_on_signals
from longshore.workers.telemetry import start_runtime
from longshore.workers.versioning import deployment_config, look_after, workflows_of
from longshore.workflows.arguments import FittingArguments

GRACE = timedelta(seconds=10)
"""What is under way at the end has so long to finish."""
_BOUND = GRACE + timedelta(seconds=3)
"""A worker has ended after this, whatever hangs; whoever stopped it waits for longer."""
_NO_VERSION = (
    f"--set-current: this worker is no version; set {DEPLOYMENT_VARIABLE} and {BUILD_VARIABLE}"
)

logger = logging.getLogger("longshore.workers.control")  # also where it runs as __main__


def workflow_runner(*, strict: bool = False) -> WorkflowRunner:
    """Return what runs workflow code.

    Importing it again for every run, as the SDK's sandbox does, takes longer than the run. So
    that is for tests, where `strict` lets a call with another result at the next replay (the
    clock, randomness, a file) fail.
    """
    if not strict:
        return UninterruptedRunner()
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            "longshore.models", "longshore.scheduling", "longshore.activities"
        )
    )


def control_worker(
    temporal: Client,
    database: Database,
    settings: Settings,
    *,
    task_queue: str = CONTROL_TASK_QUEUE,
    max_cached_workflows: int = 1000,
    metrics: Metrics = SILENT,
    version: WorkerVersion | None = None,
    strict: bool = False,
) -> Worker:
    """Return a worker for every workflow and every database activity.

    With a `version` it gets no work until that is current, or ramping. `strict` is for tests (see
    `workflow_runner`).
    """
    signals = Signals(temporal, settings.buying_every)
    queue = QueueActivities(database, signals, metrics)
    dags = DagActivities(database, temporal, settings.most_dag_jobs)
    schedule_runs = ScheduleRunActivities(database, temporal)
    arrays = ArrayActivities(
        database, temporal, signals, settings.most_array_elements, settings.most_array_slots,
        metrics,
    )  # fmt: skip
    elements = ElementActivities(database, temporal, signals)
    services = ServiceActivities(database, temporal)
    registry = RegistryActivities(
        database, signals, settings.resolve_agent_token(), settings.liveness
    )
    looks = NodeLooks(database, signals, settings.margins)
    spares = SpareActivities(database, signals)
    resizes = ResizeActivities(database, signals, settings.margins)
    joins = JoinActivities(database, looks, settings.margins)
    departures = DepartureActivities(database, signals, settings.margins)
    holdings = HoldingActivities(database)
    reconcile = ReconcileActivities(
        database, temporal, signals, registry, settings.liveness, metrics, settings
    )
    schedules = Schedules(temporal)
    watches = CheckpointWatches(database, schedules)
    watch = MarketWatchActivities(database, settings, metrics, signals, schedules)
    purchasing = PurchasingActivities(database, temporal)
    machines = MachineActivities(database, temporal, settings)
    blocks = BlockActivities(database, temporal, settings)
    clearing = BlockDrainActivities(database, temporal, settings.margins)
    endings = BlockDecisionActivities(database, temporal, settings)
    extensions = MachineExtensionActivities(database, temporal)
    orders = OrderActivities(database, temporal, settings)
    taking_up = WindowReclaimActivities(database)
    buying = BuyingActivities(database, settings)
    prices = PriceActivities(database, settings, signals)
    store = CheckpointStore(settings.resolve_checkpoint_store())
    checkpoints = CheckpointActivities(database, store)
    cycle = CycleActivities(
        database, signals, metrics, checkpoints, looks, watches, settings.margins
    )
    unsaved = CheckpointWatchActivities(database, checkpoints, watches)
    return Worker(
        temporal,
        task_queue=task_queue,
        workflows=workflows_of(version),
        activities=[
            queue.enqueue, queue.set_hold, queue.release, queue.finish,
            dags.open_dag, dags.advance_dag,
            schedule_runs.find_run, schedule_runs.look_at_run, schedule_runs.cancel_run,
            arrays.open_array, arrays.advance_array, arrays.cancel_elements,
            elements.claim_elements, elements.known_of_batch, services.advance_service,
            cycle.run_cycle, spares.swap, resizes.resize,
            resizes.room_in_place, resizes.leave_ranks, joins.join_ranks,
            checkpoints.observe_checkpoints,
            registry.register_node, registry.drain_node, registry.end_node,
            departures.see_off, departures.set_expiry, holdings.store_holdings,
            reconcile.find_differences, reconcile.mend_difference,
            watch.watch_markets,
            purchasing.open_purchase, purchasing.leave_orders, purchasing.mark_purchase,
            purchasing.settle_purchase,
            orders.intend_order, orders.place_order, orders.look_at_order, orders.cancel_order,
            orders.requote,
            orders.intend_sale, orders.place_sale, orders.look_at_sale, orders.cancel_sale,
            orders.settle_sale,
            machines.start_machine, machines.await_agents,
            buying.decide_buying, prices.read_price,
            unsaved.decide_saves, unsaved.record_saves,
            blocks.look_at_block, blocks.drain_block, blocks.stop_machines, blocks.close_block,
            clearing.clear_block, clearing.await_empty,
            endings.decide_block, endings.extend_machines, extensions.go_on,
            taking_up.take_up_block,
        ],
        interceptors=[FittingArguments()],
        workflow_runner=workflow_runner(strict=strict),
        # A bad input is the sender's error; without these its workflow would hang for ever.
        workflow_failure_exception_types=[pydantic.ValidationError, SpecError],
        max_cached_workflows=max_cached_workflows,
        graceful_shutdown_timeout=GRACE,
        build_id=BUILD if version is None else None,
        deployment_config=deployment_config(version),
    )  # fmt: skip


async def run(
    settings: Settings, version: WorkerVersion | None = None, *, set_current: bool = False
) -> None:
    """Work until SIGTERM or SIGINT, then finish what is under way within `GRACE`.

    A second signal ends the process at once. With `set_current` the `version` is made current.
    """
    await _refuse_another_schema(settings)
    stopped = stop_on_signals(_BOUND)
    runtime = start_runtime(settings)
    metrics = Metrics(runtime.metric_meter)
    temporal = await connect(settings, runtime=runtime, service="longshore-control")
    database = Database(settings.resolve_database_url())
    worker = control_worker(temporal, database, settings, metrics=metrics, version=version)
    async with _watched(temporal, database, metrics, settings):
        as_what = f" as version {version.build_id} of {version.deployment}" if version else ""
        logger.info("control worker takes work from task queue %s%s", CONTROL_TASK_QUEUE, as_what)
        work = asyncio.create_task(worker.run())
        stop = asyncio.create_task(stopped.wait())
        if version:
            care = asyncio.create_task(look_after(temporal, version, set_current=set_current))
            work.add_done_callback(lambda _: care.cancel())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work  # raises what ended it
        logger.info("stopping: what is under way has %s s", GRACE.total_seconds())
        await worker.shutdown()
        await work
    await database.close()
    logger.info("stopped")


async def _refuse_another_schema(settings: Settings) -> None:
    """Raise RefusedError for a database that this version cannot work on; one that is away is
    waited for later."""
    with contextlib.suppress(UnavailableError):
        found = await asyncio.to_thread(current_revision, settings.resolve_database_url())
        if why := mismatch(found):
            raise RefusedError(why)


@contextlib.asynccontextmanager
async def _watched(
    temporal: Client, database: Database, metrics: Metrics, settings: Settings
) -> AsyncIterator[None]:
    """Look after checkpoints; serve /healthz and keep the gauges, where the settings want them."""
    health = ControlHealth(temporal, database)
    store = CheckpointStore(settings.resolve_checkpoint_store())
    observing = keep_observing(database, store, settings.keep_checkpoints_for)
    watching = keep_watches_awake(temporal, settings)
    artifacts = ArtifactStore(settings.resolve_artifact_store())
    sweeping = keep_sweeping(
        database, artifacts, settings.keep_code_for, settings.keep_outputs_for
    )
    tasks = [asyncio.create_task(each) for each in (observing, watching, sweeping)]
    if settings.metrics_address:
        tasks.append(asyncio.create_task(keep_sampling(database, metrics)))
    if settings.health_address:
        tasks.append(asyncio.create_task(health.keep_checking()))
    try:
        async with serving_health(settings.health_address, health.parts):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main(*, set_current: bool = False) -> None:
    """Run the control worker in the foreground: `python -m longshore.workers.control`.

    It is a version of a worker deployment where the environment names one.
    """
    keep_private()
    try:
        settings = Settings()
        version = WorkerVersion.of_environment()
        if set_current and version is None:
            raise SpecError("--set-current", (_NO_VERSION,))
        logs.set_up(settings)
        run_loop(run(settings, version, set_current=set_current))
    except LongshoreError as error:
        sys.stderr.write(f"error: {error}\n")
        leave(error.exit_code)
    leave(0)


if __name__ == "__main__":
    main()
