"""The processes of one node: starting, attaching, stopping, remembering. Knows no Temporal."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections import deque
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.failpoints import failpoint, wall_clock
from longshore.activities.log_context import log_context
from longshore.activities.logstore import LogStore
from longshore.activities.metrics import PROCESSES, SILENT, Metrics
from longshore.activities.node import orphans, time_limit
from longshore.activities.node.adoption import ORDERS, Adopted, adoptable
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.checkpoint_files import remove_moments
from longshore.activities.node.checkpointing import Keeper, signal_number
from longshore.activities.node.code import bring_code, lies_in
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_sets import Sets, take_sets
from longshore.activities.node.element_runner import CANCELLED
from longshore.activities.node.engines import Reports, read_report
from longshore.activities.node.environment_store import HeldEnvironment
from longshore.activities.node.environments import Environments
from longshore.activities.node.fence import Fence
from longshore.activities.node.file_times import clamped_time
from longshore.activities.node.full_disk import why_refused
from longshore.activities.node.job_outputs import store_outputs
from longshore.activities.node.journal import as_whole, batch_report
from longshore.activities.node.launch import (
    LOOPBACK,
    OUTPUT,
    RESIZED,
    Launch,
    LaunchError,
    checkpoint_folder,
    element_env,
    making_checkpoints,
    prepare,
    refuse_folders,
    removal,
    told_of_size,
)
from longshore.activities.node.log_shipper import Shipper
from longshore.activities.node.outcome import (
    CUT_OFF,
    never_started,
    never_to_start,
    report_of,
    stopped_before_start,
)
from longshore.activities.node.output import read_output
from longshore.activities.node.preparing import NotReadyError
from longshore.activities.node.progress import read_progress
from longshore.activities.node.public_files import replace_public
from longshore.activities.node.runs import RunRecord, RunStore
from longshore.activities.node.supervision import ForkServer, NotForkedError, Plan, Supervised
from longshore.activities.node.system import users_umask
from longshore.activities.storage import GivenUp
from longshore.models.array_messages import StopElements
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.errors import NotFoundError, RefusedError, StoreError
from longshore.models.job import FailureClass, JobSpec
from longshore.models.messages import (
    ProcessReport,
    Progress,
    RunProcessRequest,
    StopProcessRequest,
)
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.placement import PlacementKey
from longshore.models.resize import SizeNotice
from longshore.models.serving import EngineReport, EngineSpec, EngineStage
from longshore.models.snapshot import Snapshot

SIZE_SIGNAL = signal.SIGWINCH
"""Says that the job has another size. Processes that know nothing of it do not die of it."""
SUPERVISOR_PATIENCE = 30.0
"""Seconds after a grace in which a supervisor ends its job: a container may take twenty."""
_MOST_LAST_WORDS = 1_000
"""Engines that have ended, of which nobody has heard yet."""
_log = logging.getLogger(__name__)


class Run:
    """One process while it lives. `done` resolves with its report and is never cancelled."""

    def __init__(self, request: RunProcessRequest, record: RunRecord, folder: Path) -> None:
        self.request = request
        self.record = record
        self.folder = folder
        self.deliveries = 0
        """How often `run_process` was delivered for it: the latest one speaks for it."""
        self.supervised: Supervised | Adopted | None = None
        self.shipper: Shipper | None = None
        self.keeper: Keeper | None = None
        self.unwanted = threading.Event()
        """Set once it is to stop, or never to start."""
        self.environment: HeldEnvironment | None = None
        """What it uses while it lives, so that nobody removes it."""
        self.data: Sets | None = None
        """The data sets that nodes fetch for it, which stay and are fetched on while it lives."""
        self.preparing = ""
        """What is being done before it starts."""
        self.insisting: asyncio.Task[None] | None = None
        self.started: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Task[ProcessReport]
        self.told: SizeNotice | None = None
        """The last size of its job that it was told of."""
        self._progress = Progress()
        self._engine: EngineReport | None = None

    @property
    def outlives(self) -> bool:
        """Whether it is an engine that runs, and has a fence of its own."""
        ending = self.record.stop_reason is not None or self.done.done()
        return self.request.spec.engine is not None and self.started.done() and not ending

    def progress(self) -> Progress:
        """Return what the job last said of itself."""
        self._progress = read_progress(self.folder / "public" / "progress", self._progress)
        update: dict[str, object] = {"log_error": self.shipper.error if self.shipper else ""}
        if self.preparing:
            update["message"] = self.preparing
        if self.keeper:
            update["checkpoint"] = self.keeper.last
            update["checkpoint_error"] = self.keeper.error
        if self.started.done() and not self.started.cancelled():
            update["started_at"] = clamped_time(self.started.result()["at"])
        if self.request.spec.engine:
            self._engine = read_report(self.folder / "public", self._engine)
            update["engine"] = self._engine
            if self._engine and self._engine.stage is EngineStage.LOADING:
                update["message"] = self._engine.message
        if self.record.batch:
            update["batch"] = batch_report(self.folder, indirect=self.record.indirect)
        return self._progress.model_copy(update=update)


class Processes:
    """All processes of this node. To be used from one event loop."""

    def __init__(
        self,
        folder: Path,
        identity: NodeIdentity,
        inventory: Inventory,
        logs: LogStore,
        fence: Fence,
        metrics: Metrics = SILENT,
        *,
        checkpoints: CheckpointStore,
        publish_within: timedelta = timedelta(minutes=10),
        image_folders: Sequence[Path] = (),
        artifacts: ArtifactCache | None = None,
        environments: Environments | None = None,
        data: DataCache | None = None,
        engine_address: str = LOOPBACK,
        engine_fence: timedelta = timedelta(0),
    ) -> None:
        """`artifacts` is what jobs bring their code from; without one the folder `artifacts`
        below the node's own is the store. `environments` has their Python environments, `data`
        what nodes fetch for them, `engine_address` where engines listen, `engine_fence` for how
        long they run without a word of the server; at least for as long as other jobs."""
        self._metrics = metrics
        self._engine_fence = engine_fence.total_seconds()
        self._engine_address = engine_address
        self._image_folders = tuple(image_folders)
        self._checkpoints = checkpoints
        self._artifacts = artifacts or ArtifactCache(
            folder / "cache", ArtifactStore((folder / "artifacts").as_uri())
        )
        self._publish_within = publish_within
        self._jobs = folder / "jobs"
        self._store = RunStore(folder / "runs")
        self._environments = environments or Environments(
            folder / "cache", self._artifacts, identity.agent_id
        )
        self._data = data or DataCache(
            folder / "cache", outputs=OutputStore(self._artifacts.store_url)
        )
        self._identity = identity
        self._inventory = inventory
        self._logs = logs
        self._fence = fence
        self._fork_server = ForkServer()
        self._runs: dict[PlacementKey, Run] = {}
        self._ended_engines: deque[tuple[PlacementKey, EngineSpec, EngineReport]] = deque(
            maxlen=_MOST_LAST_WORDS
        )
        fence.on_acknowledged = self._feed

    @property
    def running(self) -> list[PlacementKey]:
        return list(self._runs)

    @property
    def busy(self) -> bool:
        """Whether a process of a job runs, and not only what one needs is being brought."""
        return any(run.started.done() for run in self._runs.values())

    def engines(self) -> Reports:
        """Yield what the engines that run here say of themselves; and once, last, what each said
        that has ended since this was asked."""
        while self._ended_engines:
            yield self._ended_engines.popleft()
        for run in self._runs.values():
            spec = run.request.spec.engine
            if spec is not None and (said := run.progress().engine) is not None:
                yield run.record.key, spec, said

    def find(self, key: PlacementKey) -> Run | ProcessReport | None:
        """Return the process of an attempt, or how it ended, or None when it was never here."""
        if run := self._runs.get(key):
            return run
        record = self._store.find(key)
        return record.report if record else None

    def start(self, request: RunProcessRequest) -> Run:
        """Claim the attempt, or a rank that joins it, and start its process. To be called when
        `find` found nothing.

        Raises StaleError when the attempt or a newer one was here before, OSError when the
        claim cannot be stored.
        """
        placement, key = request.placement, request.key
        if placement.joined:
            self._store.refuse_older(placement.key)
        record = RunRecord(
            job_id=key.job_id,
            attempt=key.attempt,
            epoch=placement.epoch,
            claimed_at=wall_clock(),
            indirect=_is_indirect(request.spec),
            checkpoints=request.spec.checkpoint is not None,
            batch=request.batch is not None,
            code=request.spec.code is not None,
            folder=placement.job_id if request.batch else None,
        )
        folder = self._store.claim(record, request if request.spec.engine else None)
        run = self._runs[key] = Run(request, record, folder)
        self._metrics.set(PROCESSES, len(self._runs))
        run.done = asyncio.create_task(self._carry_out(run))
        return run

    async def stop(self, request: StopProcessRequest) -> None:
        """Stop a process and return when nothing of it is left.

        An attempt that was never here is remembered, and will never start.
        """
        run = self._runs.get(request.key)
        if run:
            self.ask_to_stop(run, request.signal, request.grace.total_seconds(), request.reason)
            await asyncio.shield(run.done)
        elif self._store.find(request.key) is None:
            self._store.claim(never_to_start(request.key, request.reason, wall_clock()))

    def ask_to_stop(
        self,
        run: Run,
        signal_name: str,
        grace: float,
        reason: str,
        failure: FailureClass | None = None,
    ) -> None:
        """Send the stop signal now; what is left after `grace` seconds is killed. `failure` is
        what it is stopped for, where that is one of the job."""
        if run.record.stop_reason is None and run.record.report is None:
            stop = {"stop_reason": reason, "stopped_as": failure}
            run.record = run.record.model_copy(update=stop)
            self._stored(run)
        run.unwanted.set()
        if run.keeper:
            run.keeper.asked_to_stop(grace)
        if run.supervised:
            run.supervised.stop(signal_number(signal_name), grace)
            run.insisting = asyncio.create_task(self._insist(run, grace))

    def _stop_for_time(self, run: Run, limit: timedelta) -> None:
        """Stop a process that has run for so long; one that is being stopped has its own grace."""
        if run.record.stop_reason is None:
            spec = run.request.spec
            self.ask_to_stop(
                run, spec.stop_signal, spec.grace.total_seconds(), time_limit.passed(limit),
                FailureClass.TIME_LIMIT,
            )  # fmt: skip

    def stop_elements(self, request: StopElements) -> None:
        """Leave out elements of a batch that runs here, and stop the one that is cancelled. A
        batch that does not run here has ended."""
        key = PlacementKey(
            job_id=f"{request.key.job_id}.b{request.batch}", attempt=request.key.attempt
        )
        run = self._runs.get(key)
        if run is None:
            return
        with (run.folder / CANCELLED).open("a", encoding="utf-8") as file:
            file.writelines(f"{index}\n" for index in request.indices)
        if run.supervised:
            run.supervised.signal(signal.SIGUSR1)

    async def save(self, request: SaveRequest) -> CheckpointInfo:
        """Have a job save and go on; return what it saved.

        Raises NotFoundError when it does not run here, RefusedError when it cannot be asked,
        UnavailableError when it does not answer in time.
        """
        run, supervised = self._running_now(request.key)
        if run.keeper is None:
            raise RefusedError(
                f"{request.key.job_id} keeps no checkpoints: its job file names none"
            )
        return await run.keeper.save(supervised.signal, request.within)

    async def resize(self, notice: SizeNotice) -> None:
        """Tell a process that its job has another size: by the file, then by the signal.

        One that is being started finds the file. Raises NotFoundError where it does not run here,
        OSError where the file cannot be written.
        """
        run = self._wanted_now(notice.key)
        run.told = notice
        await asyncio.to_thread(
            replace_public, run.folder / "public" / RESIZED, told_of_size(notice)
        )
        if run.keeper:
            run.keeper.has_ranks([rank.rank for rank in notice.ranks])
        if run.supervised:
            run.supervised.signal(SIZE_SIGNAL)

    def _running_now(self, key: PlacementKey) -> tuple[Run, Supervised | Adopted]:
        """Return what runs of an attempt, and is not being stopped. Raises NotFoundError."""
        run = self._wanted_now(key)
        if run.supervised is None:
            raise self._not_here(key)
        return run, run.supervised

    def _wanted_now(self, key: PlacementKey) -> Run:
        """Return what was started of an attempt, under whatever rank, and is not being stopped.
        Raises NotFoundError."""
        for run in self._runs.values():
            if run.request.placement.key == key and run.record.stop_reason is None:
                return run
        raise self._not_here(key)

    def _not_here(self, key: PlacementKey) -> NotFoundError:
        return NotFoundError(
            f"attempt {key.attempt} of {key.job_id} does not run on {self._identity.node_id}"
        )

    async def stop_all(
        self, reason: str, *, grace: float | None = None, but_engines: bool = False
    ) -> None:
        """Stop every process with its own signal and grace (or SIGKILL after `grace` seconds);
        `but_engines` those that outlive the fence of the others."""
        runs = [run for run in self._runs.values() if not (but_engines and run.outlives)]
        for run in runs:
            spec = run.request.spec
            seconds = spec.grace.total_seconds() if grace is None else grace
            self.ask_to_stop(run, spec.stop_signal, seconds, reason)
        if runs:
            await asyncio.wait([run.done for run in runs])

    def outliving(self) -> list[PlacementKey]:
        """Return the engines that go on under another registration, if the server has it so."""
        return [run.record.key for run in self._runs.values() if run.outlives]

    async def keep_only(self, adopted: Collection[PlacementKey]) -> None:
        """Kill the engines that do not go on, and wait until nothing of them is left: from then
        on their memory is free."""
        ending = [run for run in self._runs.values() if run.record.key not in adopted]
        for run in ending:
            self.ask_to_stop(run, "SIGKILL", 0, CUT_OFF)
        if ending:
            await asyncio.wait([run.done for run in ending])

    def adopt(self) -> None:
        """Adopt processes that outlive supervisor and fork server; see `keep_reaping`."""
        self._fork_server.adopt()

    async def keep_reaping(self) -> None:
        """For ever, end and collect what came to this process."""
        await self._fork_server.keep_reaping()

    def close(self) -> None:
        """End the process that forks supervisors; what runs goes on, and nothing starts here."""
        self._fork_server.close()

    async def recover(self) -> None:
        """Go on with the engines that an earlier life of the agent left; kill what else it left,
        and report it. Before anything starts."""
        left = [record for record in self._store.all() if record.report is None]
        found = {record.key: await adoptable(self._store, record) for record in left}
        adopted = {key: each for key, each in found.items() if each is not None}
        others = [record for record in left if record.key not in adopted]
        await orphans.end_orphans(
            self._identity.agent_id,
            [started for each in others if (started := self._store.started(each.key))],
            self._inventory.container_runtime,
            adopted,
        )
        for record in others:
            with log_context(job=record.job_id, attempt=record.attempt):
                await self._recover_one(record)
        for record in left:
            if record.key in adopted:
                self._take_over(record, *adopted[record.key])
        self._metrics.set(PROCESSES, len(self._runs))

    def _take_over(
        self,
        record: RunRecord,
        request: RunProcessRequest,
        started: dict[str, Any],
        supervisor: Adopted,
    ) -> None:
        """Go on with an engine that an earlier life of the agent started."""
        run = self._runs[record.key] = Run(request, record, self._store.folder(record.key))
        run.supervised = supervisor
        run.started.set_result(started)
        run.done = asyncio.create_task(self._carry_out(run))
        _log.info("%s attempt %d runs on", record.job_id, record.attempt)

    async def _recover_one(self, record: RunRecord) -> None:
        shipper = Shipper(
            self._logs, record.key, self._identity.node_id, self._store.folder(record.key),
            self._metrics,
        )  # fmt: skip
        await shipper.finish_earlier()
        await asyncio.to_thread(remove_moments, self._store.folder(record.key))
        end = self._store.end(record.key) or {"cause": "both-gone"}
        report = report_of(record, end, self._store.started(record.key), Progress())
        report = report.model_copy(update={"log_error": shipper.error})
        report = _with_elements(report, record, self._store.folder(record.key))
        self._store.save(record.model_copy(update={"report": report}))
        _log.warning("%s attempt %d: %s", record.job_id, record.attempt, report.message)

    async def _carry_out(self, run: Run) -> ProcessReport:
        """Take a claimed run from its start to its stored report."""
        try:
            if isinstance(run.supervised, Adopted):
                report = await self._go_on(run, run.supervised)
            else:
                await failpoint("run_process.after-claim")
                report = await self._supervise(run)
        except LaunchError as error:
            report = never_started(FailureClass.START, str(error), error.exit_code)
        except GivenUp:
            report = stopped_before_start(run.record.stop_reason or "not wanted any more")
        except NotReadyError as error:
            report = never_started(error.failure, str(error))
        except NotForkedError as error:
            report = never_started(FailureClass.NODE, str(error))
        except StoreError as error:
            report = never_started(
                FailureClass.NODE, f"its checkpoint cannot be restored: {error}"
            )
        except Exception as error:  # the job must get an answer, whatever went wrong on its node
            _log.exception("%s could not be run", run.record.key)
            if run.supervised:
                run.supervised.stop(signal.SIGKILL, 0)
            disk = None if run.supervised else why_refused(error)
            why = f"it could not be started: {disk}" if disk else f"the agent failed: {error}"
            report = never_started(FailureClass.NODE, why)
        if run.environment:
            run.environment.let_go()
        if run.data:
            run.data.let_go()
        if run.shipper:
            await run.shipper.finish()
            report = report.model_copy(update={"log_error": run.shipper.error})
        report = _with_elements(report, run.record, run.folder)
        if run.keeper:
            last, error = run.keeper.last, run.keeper.error
            report = report.model_copy(update={"checkpoint": last, "checkpoint_error": error})
        if report.failure is None and report.stopped_for is None:
            output = read_output(run.folder / "public" / OUTPUT)
            report = report.model_copy(update={"output": output})
        if (engine := run.request.spec.engine) and (said := run.progress().engine):
            self._ended_engines.append((run.record.key, engine, said))
        # Where the disk refuses, the run stays here and answers from memory.
        run.record = run.record.model_copy(update={"report": report})
        if await asyncio.to_thread(self._stored, run):
            self._runs.pop(run.record.key, None)
            self._metrics.set(PROCESSES, len(self._runs))
        _log.info("%s attempt %d: %s", run.record.job_id, run.record.attempt, report.message)
        return report

    async def _supervise(self, run: Run) -> ProcessReport:
        await self._end_older_attempts(run)
        job_folder = self._jobs / run.record.owner
        snapshot = await self._bring_code(run, job_folder)
        refuse_folders(run.request, job_folder, self._image_folders)
        resume_variables = await self._restore(run, job_folder)
        saves_in = checkpoint_folder(run.request, job_folder)
        if resume_variables and saves_in and lies_in(snapshot, saves_in, job_folder):
            await self._bring_code(run, job_folder)  # what was restored took the place of all
        await self._take_environment(run, job_folder)
        await self._take_data(run, job_folder)
        launch = prepare(
            run.request, self._identity, self._inventory, run.folder, job_folder, resume_variables,
            self._image_folders, run.environment.folder if run.environment else None, run.data,
            self._engine_address,
        )  # fmt: skip
        if run.record.stop_reason is not None:
            return stopped_before_start(run.record.stop_reason)
        began_in = await asyncio.to_thread(launch.cwd.resolve)
        supervised = await Supervised.start(self._fork_server, run.folder)
        if run.record.stop_reason is not None:  # asked for while the supervisor was being started
            supervised.leave()
            return stopped_before_start(run.record.stop_reason)
        run.supervised = supervised
        supervised.begin(self._plan(run, launch))
        self._ship(run)
        if run.keeper:
            run.keeper.start()
        await failpoint("run_process.after-spawn")
        end = await self._end_of(run, supervised)
        if launch.container and launch.runtime and (end is None or end["cause"] != "exited"):
            # Its supervisor has killed what was to remove it, or was killed itself.
            await orphans.remove_container(launch.runtime, launch.container)
        end = await self._known_end(run, supervised, end)
        if run.keeper:
            await _finish_checkpoints(run.keeper, end)
        if run.request.spec.outputs:
            await self._store_outputs(run, began_in, launch.cwd)
        started = self._store.started(run.record.key)
        return report_of(run.record, end, started, run.progress())

    async def _go_on(self, run: Run, supervisor: Adopted) -> ProcessReport:
        """Attend to an engine that an earlier life of the agent started."""
        run.shipper = Shipper(
            self._logs, run.record.key, self._identity.node_id, run.folder, self._metrics
        )
        run.shipper.go_on()
        holding = asyncio.create_task(self._hold_data(run))
        end = await self._known_end(run, supervisor, await self._end_of(run, supervisor))
        run.unwanted.set()
        await asyncio.wait([holding])
        return report_of(run.record, end, self._store.started(run.record.key), run.progress())

    async def _hold_data(self, run: Run) -> None:
        """Keep what an engine serves in the cache while it runs. It has it open in any case."""
        try:
            await self._take_data(run, self._jobs / run.record.owner)
        except Exception as error:  # whatever it is, the engine runs
            _log.warning("%s: what it reads is not held: %s", run.record.key, error)
        run.preparing = ""

    async def _known_end(
        self, run: Run, supervised: Supervised | Adopted, end: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return how a process ended, once nothing of it is left: also of one whose supervisor was
        killed, and said nothing."""
        if end is not None:
            return end
        await orphans.end_marked(self._identity.agent_id, run.request.placement.key)
        return {"cause": "supervisor-gone", "left": sum(map(orphans.runs, supervised.left))}

    async def _end_of(self, run: Run, supervised: Supervised | Adopted) -> dict[str, Any] | None:
        """Return the supervisor's last word, at the latest when the job's time is over."""
        limit = run.request.spec.max_duration
        if limit is None or run.request.batch is not None:  # elements have a limit each
            return await supervised.end(run.started)
        stop = partial(self._stop_for_time, run, limit)
        keeping = asyncio.create_task(time_limit.keep(run.started, limit, stop))
        try:
            return await supervised.end(run.started)
        finally:
            keeping.cancel()

    async def _bring_code(self, run: Run, job_folder: Path) -> Snapshot | None:
        def say(what: str) -> None:
            run.preparing = what

        return await bring_code(self._artifacts, run.request, job_folder, run.unwanted, say)

    async def _take_environment(self, run: Run, job_folder: Path) -> None:
        """Have the job's environment be there; what a build writes goes to its logs."""

        def say(what: str) -> None:
            run.preparing = what
            self._ship(run)

        def log(data: bytes) -> None:
            with (run.folder / "stderr").open("ab") as spool:
                spool.write(data)

        run.environment = await self._environments.take(
            run.request.spec, job_folder, run.unwanted, say, log
        )
        run.preparing = ""

    async def _take_data(self, run: Run, job_folder: Path) -> None:
        def say(what: str) -> None:
            run.preparing = what

        run.data = await take_sets(
            self._data, run.request.spec, job_folder / "data", run.unwanted, say,
            self._image_folders,
        )  # fmt: skip
        if run.data and (lacking := run.data.lacking):
            lines = (
                f"longshore: it starts without {each}: {why}" for each, why in lacking.items()
            )
            told = "\n".join(lines)
            with (run.folder / "stderr").open("ab") as spool:
                spool.write(f"{told}\n".encode(errors="surrogateescape"))

    async def _store_outputs(self, run: Run, folder: Path, now: Path) -> None:
        """Store what the job gives back. Where something of it lacks, its logs say so."""
        store = OutputStore(self._artifacts.store_url)
        if await asyncio.to_thread(now.resolve) != folder:  # else a link shows the node
            _log.warning("%s: its folder has become a link: no outputs", run.record.key)
            return
        said = await store_outputs(
            store, run.request, self._inventory, folder, self._publish_within
        )
        if said:
            _log.warning("%s: %s", run.record.key, said)
            with contextlib.suppress(OSError), (run.folder / "stderr").open("ab") as spool:
                spool.write(f"longshore: {said}\n".encode())

    def _ship(self, run: Run) -> None:
        """Begin to ship the logs of a run, soon at first."""
        if run.shipper is not None:
            run.shipper.begin_anew()
        else:
            run.shipper = Shipper(
                self._logs, run.record.key, self._identity.node_id, run.folder, self._metrics
            )
            run.shipper.start()

    async def _restore(self, run: Run, job_folder: Path) -> dict[str, str]:
        """Have the job's checkpoint where it looks for it; return the variables that say so."""
        contract = run.request.spec.checkpoint
        folder = checkpoint_folder(run.request, job_folder)
        if contract is None or folder is None:
            return {}
        run.keeper = Keeper(
            self._checkpoints, run.request, contract, folder, run.folder,
            simulated=self._inventory.simulated, publish_within=self._publish_within,
        )  # fmt: skip
        if run.told:
            run.keeper.has_ranks([rank.rank for rank in run.told.ranks])
        if run.record.stop_reason is not None:
            raise GivenUp
        with making_checkpoints(run.request, folder, job_folder):
            return await run.keeper.begin()

    async def _end_older_attempts(self, run: Run) -> None:
        """Two attempts of a job never run at a time: they share a folder for checkpoints."""
        here = run.request.placement
        for older in list(self._runs.values()):
            its = older.request.placement
            if its.job_id == here.job_id and its.attempt < here.attempt:
                self.ask_to_stop(older, "SIGKILL", 0, f"attempt {run.record.attempt} came")
                await asyncio.wait([older.done])

    async def _insist(self, run: Run, grace: float) -> None:
        """Kill a supervisor that does not end its job in time, as one that the job has stopped:
        what is left of the job goes with it."""
        await asyncio.wait({run.done}, timeout=grace + SUPERVISOR_PATIENCE)
        if not run.done.done() and run.supervised and run.supervised.kill():
            _log.warning("%s: its supervisor did not answer and was killed", run.record.key)

    def _plan(self, run: Run, launch: Launch) -> Plan:
        signal_command = kill_command = None
        engine = run.request.spec.engine is not None
        if launch.container and launch.runtime:
            signal_command = (launch.runtime, "kill", "--signal", launch.container)
            kill_command = removal(launch.runtime, launch.container)
        return Plan(
            argv=launch.argv,
            env=launch.env,
            cwd=str(launch.cwd),
            stdout=str(run.folder / "stdout"),
            stderr=str(run.folder / "stderr"),
            umask=users_umask(),
            fed=self._fence.acknowledged_at,
            fence_after=max(self._fence.after, self._engine_fence if engine else 0.0),
            orders=str(run.folder / ORDERS) if engine else None,
            signal_command=signal_command,
            kill_command=kill_command,
            **_of_batch(run),
        )

    def _feed(self, sent_at: float) -> None:
        for run in self._runs.values():
            if run.supervised:
                run.supervised.feed(sent_at)

    def _stored(self, run: Run) -> bool:
        """Store the record of a run; return whether the disk took it."""
        try:
            self._store.save(run.record)
        except OSError as error:
            _log.error("the record of %s cannot be stored: %s", run.record.key, error)
            return False
        return True


def _of_batch(run: Run) -> dict[str, Any]:
    """Return what a supervisor has to know of a batch; nothing of one process."""
    batch, spec = run.request.batch, run.request.spec
    if batch is None:
        return {}
    return {
        "elements": tuple(
            {
                "index": each.index, "attempt": each.attempt,
                "env": element_env(batch.slot, each),
            }
            for each in batch.elements
        ),
        "folder": str(run.folder), "grace": spec.grace.total_seconds(),
        "limit": None if spec.max_duration is None else spec.max_duration.total_seconds(),
    }  # fmt: skip


def _with_elements(report: ProcessReport, record: RunRecord, folder: Path) -> ProcessReport:
    """Return the report of a batch with how its elements ended; of one process as it is."""
    if not record.batch:
        return report
    report = as_whole(report)
    elements = batch_report(folder, indirect=record.indirect, over=report)
    return report.model_copy(update={"batch": elements, "last_progress": None})


async def _finish_checkpoints(keeper: Keeper, end: dict[str, Any]) -> None:
    await keeper.finish(
        stopped=end["cause"] == "stopped",
        killed=end.get("status") in (-signal.SIGKILL, 128 + signal.SIGKILL),
        succeeded=end["cause"] == "exited" and end.get("status") == 0,
    )


def _is_indirect(spec: JobSpec) -> bool:
    """Return whether something else than the system looks for the command."""
    per_gpu = spec.gang is not None and spec.gang.per_gpu
    return bool(spec.image) or isinstance(spec.command, str) or per_gpu
