"""The life of a process on its node: from its claim to its report, and how it is stopped."""

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from longshore.activities.failpoints import failpoint
from longshore.activities.node import orphans, time_limit
from longshore.activities.node.adoption import ORDERS, Adopted
from longshore.activities.node.checkpointing import Keeper
from longshore.activities.node.code import lies_in
from longshore.activities.node.container_signals import signal_command
from longshore.activities.node.fence import Fence
from longshore.activities.node.full_disk import why_refused
from longshore.activities.node.job_folders import LaunchError, checkpoint_folder, refuse_folders
from longshore.activities.node.journal import as_whole, batch_report
from longshore.activities.node.launch import OUTPUT, Launch, element_env, prepare, removal
from longshore.activities.node.outcome import never_started, report_of, stopped_before_start
from longshore.activities.node.output import read_output
from longshore.activities.node.preparing import NotReadyError
from longshore.activities.node.run import Run
from longshore.activities.node.run_files import RunFiles
from longshore.activities.node.runs import RunRecord, RunStore
from longshore.activities.node.supervision import ForkServer, NotForkedError, Plan, Supervised
from longshore.activities.node.system import signal_number, users_umask
from longshore.activities.storage import GivenUp
from longshore.models.errors import StoreError
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass

SUPERVISOR_PATIENCE = 30.0
"""Seconds after a grace in which a supervisor ends its job: a container may take twenty."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""How the first process ended, where it was killed, or a shell tells so of its child."""
_log = logging.getLogger(__name__)


class Lifecycle:
    """Takes processes of this node from their start to their end."""

    def __init__(
        self,
        jobs: Path,
        identity: NodeIdentity,
        inventory: Inventory,
        fence: Fence,
        store: RunStore,
        files: RunFiles,
        runs: Mapping[PlacementKey, Run],
        *,
        image_folders: Sequence[Path],
        engine_address: str,
        engine_fence: timedelta,
    ) -> None:
        """`jobs` has the folders of jobs; `runs` are those that live, as they come and go."""
        self.fork_server = ForkServer()
        self._jobs = jobs
        self._identity = identity
        self._inventory = inventory
        self._fence = fence
        self._store = store
        self._files = files
        self._runs = runs
        self._image_folders = image_folders
        self._engine_address = engine_address
        self._engine_fence = engine_fence.total_seconds()

    async def carry_out(self, run: Run) -> ProcessReport:
        """Take a claimed run from its start to its report, which is not stored yet."""
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
            run.environment.release()
        if run.data:
            run.data.release()
        if run.shipper:
            await run.shipper.finish()
            report = report.model_copy(update={"log_error": run.shipper.error})
        report = with_elements(report, run.record, run.folder)
        if run.keeper:
            # Of one that never began: what its folder held is published, as of any other.
            await run.keeper.finish(stopped=False, killed=False, succeeded=False)
            last, error = run.keeper.last, run.keeper.error
            report = report.model_copy(update={"checkpoint": last, "checkpoint_error": error})
        if report.failure is None and report.stopped_for is None:
            output = read_output(run.folder / "public" / OUTPUT)
            report = report.model_copy(update={"output": output})
        return report

    async def _supervise(self, run: Run) -> ProcessReport:
        await self._end_older_attempts(run)
        job_folder = self._jobs / run.record.owner
        snapshot = await self._files.bring_code(run, job_folder)
        refuse_folders(run.request, job_folder, self._image_folders)
        resume_variables = await self._files.restore(run, job_folder)
        saves_in = checkpoint_folder(run.request, job_folder)
        replaced = run.keeper is not None and run.keeper.replaced
        if replaced and saves_in and lies_in(snapshot, saves_in, job_folder):
            await self._files.bring_code(run, job_folder)  # another folder took its place
        await self._files.take_environment(run, job_folder)
        await self._files.take_data(run, job_folder)
        launch = prepare(
            run.request, self._identity, self._inventory, run.folder, job_folder, resume_variables,
            self._image_folders, run.environment.folder if run.environment else None, run.data,
            self._engine_address,
        )  # fmt: skip
        if run.record.stop_reason is not None:
            return stopped_before_start(run.record.stop_reason)
        began_in = await asyncio.to_thread(launch.cwd.resolve)
        supervised = await Supervised.start(self.fork_server, run.folder)
        if run.record.stop_reason is not None:  # asked for while the supervisor was being started
            supervised.leave()
            return stopped_before_start(run.record.stop_reason)
        run.supervised = supervised
        supervised.begin(self._plan(run, launch))
        self._files.ship(run)
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
            await self._files.store_outputs(run, began_in, launch.cwd)
        started = self._store.started(run.record.key)
        return report_of(run.record, end, started, run.progress())

    async def _go_on(self, run: Run, supervisor: Adopted) -> ProcessReport:
        """Attend to an engine that an earlier life of the agent started."""
        self._files.ship_on(run)
        holding = asyncio.create_task(self._files.hold_data(run, self._jobs / run.record.owner))
        end = await self._known_end(run, supervisor, await self._end_of(run, supervisor))
        run.unwanted.set()
        await asyncio.wait([holding])
        return report_of(run.record, end, self._store.started(run.record.key), run.progress())

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
            self.stored(run)
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
        signalling = kill_command = None
        engine = run.request.spec.engine is not None
        if launch.container and launch.runtime:
            signalling = signal_command(launch.runtime, launch.container)
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
            signal_command=signalling,
            kill_command=kill_command,
            **_of_batch(run),
        )

    def stored(self, run: Run) -> bool:
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


def with_elements(report: ProcessReport, record: RunRecord, folder: Path) -> ProcessReport:
    """Return the report of a batch with how its elements ended; of one process as it is."""
    if not record.batch:
        return report
    report = as_whole(report)
    elements = batch_report(folder, indirect=record.indirect, over=report)
    return report.model_copy(update={"batch": elements, "last_progress": None})


async def _finish_checkpoints(keeper: Keeper, end: dict[str, Any]) -> None:
    await keeper.finish(
        stopped=end["cause"] == "stopped",
        killed=bool(end.get("killed")) or end.get("status") in _KILLED,
        succeeded=end["cause"] == "exited" and end.get("status") == 0,
    )
