"""The processes of one node: starting, attaching, stopping, remembering. Knows no Temporal."""

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.failpoints import wall_clock
from longshore.activities.log_context import log_context
from longshore.activities.logstore import LogStore
from longshore.activities.metrics import PROCESSES, SILENT, Metrics
from longshore.activities.node import orphans
from longshore.activities.node.adoption import Adopted, adoptable
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.checkpoint_files import remove_moments
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.element_runner import CANCELLED
from longshore.activities.node.engines import Reports, last_words
from longshore.activities.node.environments import Environments
from longshore.activities.node.fence import Fence
from longshore.activities.node.launch import LOOPBACK, RESIZED, told_of_size
from longshore.activities.node.outcome import CUT_OFF, never_to_start, report_of
from longshore.activities.node.public_files import replace_public
from longshore.activities.node.run import Run, is_indirect
from longshore.activities.node.run_files import RunFiles
from longshore.activities.node.run_lifecycle import Lifecycle, with_elements
from longshore.activities.node.runs import RunRecord, RunStore
from longshore.activities.node.supervision import Supervised
from longshore.models.array_messages import StopElements
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.errors import NotFoundError, RefusedError
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.node_messages import (
    ProcessReport,
    Progress,
    RunProcessRequest,
    StopProcessRequest,
)
from longshore.models.placement import PlacementKey
from longshore.models.resize import SizeNotice
from longshore.models.serving import EngineReport, EngineSpec

SIZE_SIGNAL = signal.SIGWINCH
"""Says that the job has another size. Processes that know nothing of it do not die of it."""
_MOST_LAST_WORDS = 1_000
"""Engines that have ended, of which nobody has heard yet."""
_log = logging.getLogger(__name__)


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
        artifacts = artifacts or ArtifactCache(
            folder / "cache", ArtifactStore((folder / "artifacts").as_uri())
        )
        cache = folder / "cache"
        self.files = RunFiles(
            identity.node_id, inventory, logs, metrics,
            artifacts=artifacts,
            environments=environments or Environments(cache, artifacts, identity.agent_id),
            data=data or DataCache(cache, outputs=OutputStore(artifacts.store_url)),
            checkpoints=checkpoints,
            publish_within=publish_within,
            image_folders=tuple(image_folders),
        )  # fmt: skip
        self._store = RunStore(folder / "runs")
        self._identity = identity
        self._inventory = inventory
        self._runs: dict[PlacementKey, Run] = {}
        self._unstored: dict[PlacementKey, ProcessReport] = {}
        """How runs of an earlier life ended, of which the disk takes no record."""
        self.lifecycle = Lifecycle(
            folder / "jobs", identity, inventory, fence, self._store, self.files, self._runs,
            image_folders=tuple(image_folders),
            engine_address=engine_address,
            engine_fence=engine_fence,
        )  # fmt: skip
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
        return (record.report or self._unstored.get(key)) if record else None

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
            indirect=is_indirect(request.spec),
            in_image=request.spec.image is not None,
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
            self.lifecycle.ask_to_stop(
                run, request.signal, request.grace.total_seconds(), request.reason
            )
            await asyncio.shield(run.done)
        elif self._store.find(request.key) is None:
            self._store.claim(never_to_start(request.key, request.reason, wall_clock()))

    async def stop_elements(self, request: StopElements) -> None:
        """Leave out elements of a batch that runs here, and stop the one that is cancelled. A
        batch that does not run here has ended."""
        key = PlacementKey(
            job_id=f"{request.key.job_id}.b{request.batch}", attempt=request.key.attempt
        )
        run = self._runs.get(key)
        if run is None:
            return
        await asyncio.to_thread(_add_lines, run.folder / CANCELLED, request.indices)
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
            self.lifecycle.ask_to_stop(run, spec.stop_signal, seconds, reason)
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
            self.lifecycle.ask_to_stop(run, "SIGKILL", 0, CUT_OFF)
        if ending:
            await asyncio.wait([run.done for run in ending])

    def adopt(self) -> None:
        """Adopt processes that outlive supervisor and fork server; see `keep_reaping`."""
        self.lifecycle.fork_server.adopt()

    async def keep_reaping(self) -> None:
        """For ever, end and collect what came to this process."""
        await self.lifecycle.fork_server.keep_reaping()

    def close(self) -> None:
        """End the process that forks supervisors; what runs goes on, and nothing starts here."""
        self.lifecycle.fork_server.close()

    async def recover(self) -> None:
        """Go on with the engines that an earlier life of the agent left; kill what else it left,
        and report it. Before anything starts."""
        await asyncio.to_thread(self._store.remove_drafts)
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
        shipper = self.files.shipper_of(record, self._store.folder(record.key))
        await shipper.finish_earlier()
        await asyncio.to_thread(remove_moments, self._store.folder(record.key))
        end = self._store.end(record.key) or {"cause": "both-gone"}
        report = report_of(record, end, self._store.started(record.key), Progress())
        report = report.model_copy(update={"log_error": shipper.error})
        report = with_elements(report, record, self._store.folder(record.key))
        try:
            self._store.save(record.model_copy(update={"report": report}))
        except OSError as error:  # a full disk keeps no agent from coming back, and saying so
            _log.error("the record of %s cannot be stored: %s", record.key, error)
            self._unstored[record.key] = report
        _log.warning("%s attempt %d: %s", record.job_id, record.attempt, report.message)

    async def _carry_out(self, run: Run) -> ProcessReport:
        """Take a claimed run from its start to its stored report."""
        report = await self.lifecycle.carry_out(run)
        if engine := run.request.spec.engine:
            stopped = run.record.stop_reason is not None
            said = last_words(run.progress().engine, report, stopped=stopped)
            if said is not None:
                self._ended_engines.append((run.record.key, engine, said))
        # Where the disk refuses, the run stays here and answers from memory.
        run.record = run.record.model_copy(update={"report": report})
        if await asyncio.to_thread(self.lifecycle.stored, run):
            self._runs.pop(run.record.key, None)
            self._metrics.set(PROCESSES, len(self._runs))
        _log.info("%s attempt %d: %s", run.record.job_id, run.record.attempt, report.message)
        return report

    def _feed(self, sent_at: float) -> None:
        for run in self._runs.values():
            if run.supervised:
                run.supervised.feed(sent_at)


def _add_lines(path: Path, numbers: Iterable[int]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{number}\n" for number in numbers)
