"""One process of a job on its node, while it lives, and what it says of itself."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from longshore.activities.node.adoption import Adopted
from longshore.activities.node.checkpointing import Keeper
from longshore.activities.node.data_sets import Sets
from longshore.activities.node.engines import read_report
from longshore.activities.node.environment_store import HeldEnvironment
from longshore.activities.node.file_times import clamped_time
from longshore.activities.node.journal import batch_report
from longshore.activities.node.log_shipper import Shipper
from longshore.activities.node.progress import read_progress
from longshore.activities.node.runs import RunRecord
from longshore.activities.node.supervision import Supervised
from longshore.models.job import JobSpec
from longshore.models.node_messages import ProcessReport, Progress, RunProcessRequest
from longshore.models.resize import SizeNotice
from longshore.models.serving import EngineReport, EngineStage


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
        if self.data:
            update["data_missing"] = self.data.trouble
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


def is_indirect(spec: JobSpec) -> bool:
    """Return whether something else than the system looks for the command."""
    per_gpu = spec.gang is not None and spec.gang.per_gpu
    return bool(spec.image) or isinstance(spec.command, str) or per_gpu
