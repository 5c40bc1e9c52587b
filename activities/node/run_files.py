"""What a process of a job needs before it starts, and what it leaves behind: code, environment,
data and checkpoint; outputs and logs."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.logstore import LogStore
from longshore.activities.metrics import Metrics
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.checkpointing import Keeper
from longshore.activities.node.code import bring_code
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_sets import take_sets
from longshore.activities.node.environments import Environments
from longshore.activities.node.job_folders import checkpoint_folder, making_checkpoints
from longshore.activities.node.job_outputs import store_outputs
from longshore.activities.node.log_shipper import Shipper
from longshore.activities.node.run import Run
from longshore.activities.node.runs import RunRecord
from longshore.activities.storage import GivenUp
from longshore.models.node import Inventory
from longshore.models.snapshot import Snapshot

_log = logging.getLogger(__name__)


class RunFiles:
    """Brings to this node what processes need, and takes from it what they leave."""

    def __init__(
        self,
        node_id: str,
        inventory: Inventory,
        logs: LogStore,
        metrics: Metrics,
        *,
        artifacts: ArtifactCache,
        environments: Environments,
        data: DataCache,
        checkpoints: CheckpointStore,
        publish_within: timedelta,
        image_folders: Sequence[Path],
    ) -> None:
        self.artifacts = artifacts
        self.environments = environments
        self.data = data
        self._node_id = node_id
        self._inventory = inventory
        self._logs = logs
        self._metrics = metrics
        self._checkpoints = checkpoints
        self._publish_within = publish_within
        self._image_folders = image_folders

    async def bring_code(self, run: Run, job_folder: Path) -> Snapshot | None:
        def say(what: str) -> None:
            run.preparing = what

        return await bring_code(self.artifacts, run.request, job_folder, run.unwanted, say)

    async def take_environment(self, run: Run, job_folder: Path) -> None:
        """Have the job's environment be there; what a build writes goes to its logs."""

        def say(what: str) -> None:
            run.preparing = what
            self.ship(run)

        def log(data: bytes) -> None:
            with (run.folder / "stderr").open("ab") as spool:
                spool.write(data)

        run.environment = await self.environments.take(
            run.request.spec, job_folder, run.unwanted, say, log
        )
        run.preparing = ""

    async def take_data(self, run: Run, job_folder: Path) -> None:
        def say(what: str) -> None:
            run.preparing = what

        run.data = await take_sets(
            self.data, run.request.spec, job_folder / "data", run.unwanted, say,
            self._image_folders,
        )  # fmt: skip
        if run.data:
            run.data.tell(partial(_write, run))

    async def hold_data(self, run: Run, job_folder: Path) -> None:
        """Keep what an engine serves in the cache while it runs. It has it open in any case."""
        try:
            await self.take_data(run, job_folder)
        except Exception as error:  # whatever it is, the engine runs
            _log.warning("%s: what it reads is not held: %s", run.record.key, error)
        run.preparing = ""

    async def restore(self, run: Run, job_folder: Path) -> dict[str, str]:
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
            resume_variables = await run.keeper.begin()
        if said := run.keeper.restore_error:
            with contextlib.suppress(OSError), (run.folder / "stderr").open("ab") as spool:
                spool.write(f"longshore: {said}\n".encode(errors="surrogateescape"))
        return resume_variables

    async def store_outputs(self, run: Run, folder: Path, now: Path) -> None:
        """Store what the job gives back. Where something of it lacks, its logs say so."""
        store = OutputStore(self.artifacts.store_url)
        if await asyncio.to_thread(now.resolve) != folder:  # else a link shows the node
            _log.warning("%s: its folder has become a link: no outputs", run.record.key)
            return
        said = await store_outputs(
            store, run.request, self._inventory, folder, self._publish_within
        )
        if said:
            _log.warning("%s: %s", run.record.key, said)
            _write(run, [said])

    def ship(self, run: Run) -> None:
        """Begin to ship the logs of a run, soon at first."""
        if run.shipper is not None:
            run.shipper.begin_anew()
        else:
            run.shipper = self.shipper_of(run.record, run.folder)
            run.shipper.start()

    def ship_on(self, run: Run) -> None:
        """Go on with the logs of a run that an earlier life of the agent started."""
        run.shipper = self.shipper_of(run.record, run.folder)
        run.shipper.go_on()

    def shipper_of(self, record: RunRecord, folder: Path) -> Shipper:
        return Shipper(self._logs, record.key, self._node_id, folder, self._metrics)


def _write(run: Run, lines: Sequence[str]) -> None:
    """Tell a job in its stderr, as far as the disk takes it."""
    told = "".join(f"longshore: {line}\n" for line in lines)
    with contextlib.suppress(OSError), (run.folder / "stderr").open("ab") as spool:
        spool.write(told.encode(errors="surrogateescape"))
