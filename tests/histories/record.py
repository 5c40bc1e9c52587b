"""Records the histories that tests/workflows/test_replay.py replays: `make histories`.

Each scenario runs the real workflows on a local stack of its own. A file is named after its
workflow's id; where a workflow continued as new, its later runs have a number.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text
from temporalio.client import Client, WorkflowFailureError

from longshore.activities.migrations import upgrade
from longshore.activities.views import set_pool
from longshore.client.payloads import data_converter
from longshore.client.process import leave
from longshore.models.checkpointing import CheckpointPolicy
from longshore.models.departures import DISK_REFUSES
from longshore.models.growth import Growing
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    CommandReason,
    InterruptRequest,
    PoolInput,
    node_workflow_id,
    pool_workflow_id,
)
from longshore.models.node_messages import NodeInput
from longshore.models.pool import Growth, PoolSpec
from longshore.models.price_messages import price_workflow_id
from longshore.models.resize import Resize
from longshore.models.retry import FailureClass
from longshore.models.service_messages import service_workflow_id
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL
from longshore.simulation.market.background import Profile
from longshore.workflows.checkpoints import CheckpointWatchWorkflow
from longshore.workflows.job import JobWorkflow
from longshore.workflows.market import MarketWatchWorkflow
from longshore.workflows.node import NodeWorkflow
from longshore.workflows.ping import PingWorkflow
from longshore.workflows.pool import PoolWorkflow
from tests.histories import (
    array_scene,
    begin_scene,
    dag_scene,
    ended_machine_scene,
    given_up_scene,
    going_on_scene,
    in_place_scene,
    paid_scene,
    preparing_scene,
    price_scene,
    schedule_scene,
    service_scene,
    spares_scene,
)
from tests.histories.buying_scenes import BuyingScenes
from tests.histories.recorder import AT_ONCE, LOST_AFTER, Job
from tests.support.control import serving_control
from tests.support.histories import runs, scrubbed
from tests.support.local_stack import running_stack, settings_in, temporary_folder
from tests.support.market import running_market
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

FOLDER = Path(__file__).parent

SCENES = (
    "reconciled", "jobs_on_a_node", "jobs_that_give_way", "jobs_without_a_node", "gangs",
    "start_failures", "pools", "nodes", "market_watched", "checkpoints_watched", "bought",
    "spares", "going_on", "ended_machine", "given_up", "cut_off", "started_anew", "pinged",
    "arrays", "dags", "schedules", "resized", "grown", "in_place", "grown_in_place",
    "time_limits", "prepared", "begun", "priced", "paid", "served",
)  # fmt: skip


class Scenarios(BuyingScenes):
    """Runs workflows through every path."""

    async def reconciled(self) -> None:
        """Terminate a job while it runs, and reconcile until nothing is left to do."""
        async with self._node("reconciled") as node:
            job = await self._start_job("reconciled", pool="reconciled", recorded=False)
            await node.started("reconciled")
            await job.terminate()
            await eventually(self._has_findings)
            assert await self._reconcile("mended") == 1
            assert await self._reconcile("settled") == 0

    async def jobs_on_a_node(self) -> None:
        async with self._node("jobs") as node:
            await self._start_job("success", gpus=2)
            await node.end("success")
            await self._start_job("user-failure")
            await node.end("user-failure", report=USER_ERROR)
            await self._start_job("retry", retry=_user(max_retries=1, backoff="50ms"))
            await node.end("retry", 1, USER_ERROR)
            await node.end("retry", 2)
            cancelled = await self._start_job("cancelled-running")
            await node.started("cancelled-running")
            await cancelled.cancel(reason="no longer needed")
            again = _user(max_retries=2)
            await self._start_job("continued-as-new", max_attempts_per_run=1, retry=again)
            await node.end("continued-as-new", 1, USER_ERROR)
            await node.end("continued-as-new", 2)
            await self._start_job("node-lost", retry={"node": {"max_retries": 0}})
            await node.started("node-lost")
            await self._held_jobs(node)

    async def jobs_that_give_way(self) -> None:
        """Preempt one, move one, and drain, end and take away the nodes of others."""
        save = {"folder": "c", "grace": "1s"}
        async with self._node("giving-way", pool="gives") as node:
            for name, signal in (("preempted", JobWorkflow.preempt), ("moved", JobWorkflow.move)):
                job = await self._start_job(name, pool="gives")
                await node.started(name)
                await job.signal(signal, InterruptRequest(attempt=1, reason="make way"))
                await node.end(name, 2)
                await job.result()
            early = await self._start_job("displaced-early", pool="gives", held=True)
            await _reaches(early, JobState.HELD)
            await early.signal(JobWorkflow.preempt, InterruptRequest(attempt=1, reason="make way"))
            await early.signal(JobWorkflow.release, CommandReason())
            await node.end("displaced-early", 2)
            await early.result()
        async with self._node("left", pool="left", recorded=True) as node:
            await self._start_job("leaving", pool="left", recorded=False, checkpoint=save)
            for attempt, leave in enumerate(
                (
                    lambda: node.drain("new disk", move=True),
                    lambda: node.is_taken_away(datetime.now(UTC) + timedelta(minutes=2)),
                    lambda: node.ends_at(datetime.now(UTC) + timedelta(minutes=1)),
                ),
                start=1,
            ):
                await node.started("leaving", attempt)
                await leave()
                await eventually(lambda attempt=attempt: len(node.stops) == attempt)
                await node.ends_at(None)
                await node.uncordon()
            await node.cordon("for the record")
            await node.uncordon()
            await node.end("leaving", 4)

    async def resized(self) -> None:
        """Resize a job while it is held, then while it runs, down and up."""
        sizes = {"malleable": {"min": 2, "max": 8, "step": 2}, "checkpoint": {"folder": "c"}}
        async with self._node("sizes", pool="sizes") as node:
            job = await self._start_job("resized", pool="sizes", held=True, **sizes)
            await _reaches(job, JobState.HELD)
            await job.execute_update(JobWorkflow.resize, Resize(gpus=6))
            await job.signal(JobWorkflow.release, CommandReason())
            for attempt, gpus in enumerate((2, 8), start=1):
                await node.started("resized", attempt)
                await job.execute_update(JobWorkflow.resize, Resize(gpus=gpus))
            await node.end("resized", 3)
            await job.result()

    async def grown(self) -> None:
        """Tell a job to grow, twice for the same attempt, when others have left it room."""
        sizes = {"malleable": {"min": 2, "max": 8, "step": 2}, "checkpoint": {"folder": "c"}}
        async with self._node("grown", pool="grown") as node:
            await self._start_job("beside", pool="grown", recorded=False, gpus=4)
            await node.started("beside")
            job = await self._start_job("grown", pool="grown", **sizes)
            await node.started("grown")
            await node.end("beside")
            grown = Growing(attempt=1, gpus_before=4, gpus=8, reason="grown from 4 to 8 GPUs")
            for _ in range(2):
                await job.signal(JobWorkflow.grow, grown)
            await node.started("grown", 2)
            await job.signal(JobWorkflow.grow, grown)
            await node.end("grown", 2)
            await job.result()

    async def jobs_without_a_node(self) -> None:
        cancelled = await self._start_job("cancelled-queued", pool="empty")
        await _reaches(cancelled, JobState.QUEUED)
        await cancelled.cancel(reason="changed my mind")
        async with self._database.transaction() as connection:  # so the queue does not answer
            await connection.execute(text("LOCK TABLE jobs IN EXCLUSIVE MODE"))
            unanswered = await self._start_job("cancelled-unanswered", pool="empty")
            await eventually(lambda: _has(unanswered, "ACTIVITY_TASK_SCHEDULED"))
            await unanswered.cancel(reason="nobody answers")
            await eventually(lambda: _has(unanswered, "ACTIVITY_TASK_CANCEL_REQUESTED"))
        await self._start_job("queue-timeout", pool="empty", queue_timeout="100ms")
        async with self._database.transaction() as connection:
            await set_pool(connection, PoolSpec(name="fixed", growth=Growth.FIXED))
        await self._start_job("unsatisfiable", pool="fixed")

    async def gangs(self) -> None:
        fabric = {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: "a"}
        wide: dict[str, Any] = {"gpus": 16, "gang": {}, "pool": "gangs"}
        async with (
            self._node("gang-a", pool="gangs", labels=fabric) as first,
            self._node("gang-b", pool="gangs", labels=fabric) as second,
        ):
            await self._start_job("gang-success", **wide)
            await first.end("gang-success")
            await second.end("gang-success")
            await self._start_job("gang-rank-failed", **wide)
            await first.started("gang-rank-failed")
            await second.end("gang-rank-failed", report=USER_ERROR)
            cancelled = await self._start_job("gang-cancelled", **wide)
            await first.started("gang-cancelled")
            await second.started("gang-cancelled")
            await cancelled.cancel(reason="no longer needed")
            await self._start_job("gang-node-lost", retry={"node": {"max_retries": 0}}, **wide)
            await first.started("gang-node-lost")
            await second.started("gang-node-lost")
            second.leave()
            await eventually(lambda: first.stops[-1].key.job_id == "gang-node-lost")

    async def spares(self) -> None:
        await spares_scene.play(self._start_job, self._node)

    async def prepared(self) -> None:
        await preparing_scene.play(self._start_job, self._node)

    async def begun(self) -> None:
        await begin_scene.play(self._start_job, self._node)

    async def priced(self) -> None:
        self._record(price_workflow_id(price_scene.POOL))
        await price_scene.play(self._temporal, self._database, self._start_job, self._node)

    async def paid(self) -> None:
        await paid_scene.play(self._temporal, self._database, self._start_job, self._node)

    async def served(self) -> None:
        self._record(service_workflow_id(service_scene.NAME))
        await service_scene.play(self._temporal, self._database, self._node)

    async def in_place(self) -> None:
        await in_place_scene.play(self._start_job, self._node)

    async def grown_in_place(self) -> None:
        await in_place_scene.play_growth(self._start_job, self._node)

    async def going_on(self) -> None:
        await going_on_scene.play(
            self._market, self._bought_node, self._start_job, self._may_trade, self._change,
            self._has,
        )  # fmt: skip

    async def ended_machine(self) -> None:
        await ended_machine_scene.play(
            self._market, self._bought_node, self._node, self._is_asked_for, self._has
        )

    async def given_up(self) -> None:
        await given_up_scene.play(self._market, self._bought_node, self._may_trade)

    async def arrays(self) -> None:
        await array_scene.play(self._temporal, self._node, self._record)

    async def dags(self) -> None:
        await dag_scene.play(self._temporal, self._node, self._record)

    async def schedules(self) -> None:
        await schedule_scene.play(self._temporal, self._node, self._record)

    async def start_failures(self) -> None:
        """What two nodes cannot start is not tried on a third."""
        missing = USER_ERROR.model_copy(update={"failure": FailureClass.START})
        name, retry = "start-failures", {"start": {"max_retries": 5, "backoff": 0}}
        job = await self._start_job(name, pool="bare", retry=retry)
        for attempt, after in ((1, JobState.QUEUED), (2, JobState.FAILED)):
            async with self._node(f"bare-{attempt}", pool="bare") as node:
                await node.started(name, attempt)
                await node.cordon("for the next one")
                await node.end(name, attempt, missing)
                await _reaches(job, after)

    async def time_limits(self) -> None:
        """A job gets its pool's limit, has its time twice, and goes on with it as another run."""
        over = USER_ERROR.model_copy(
            update={"failure": FailureClass.TIME_LIMIT, "stopped_for": "its time is over"}
        )
        async with self._database.transaction() as connection:
            await set_pool(connection, PoolSpec(name="limited", max_duration=timedelta(hours=1)))
        name, retry = "time-limit", {"time_limit": {"max_retries": 1, "backoff": 0}}
        async with self._node("limited") as node:
            job = await self._start_job(name, pool="limited", retry=retry, max_attempts_per_run=1)
            for attempt in (1, 2):
                await node.end(name, attempt, over)
            await _reaches(job, JobState.FAILED)

    async def pools(self) -> None:
        for pool, cycles in (("cycles", 500), ("continued-as-new", 2)):
            await self._temporal.start_workflow(
                PoolWorkflow.run,
                PoolInput(pool=pool, max_cycles_per_run=cycles),
                id=self._record(pool_workflow_id(pool)),
                task_queue=CONTROL_TASK_QUEUE,
            )
            async with self._node(f"of-{pool}", pool=pool) as node:
                for number in (1, 2, 3):
                    name = f"{pool}-{number}"
                    job = await self._start_job(name, pool=pool, recorded=False)
                    await node.end(name)
                    await job.result()

    async def nodes(self) -> None:
        async with self._node("registered-drained-left", recorded=True) as node:
            await node.drain("new driver")
            await node.uncordon()
        async with self._node("disk-refused", recorded=True) as node:
            await node.drain("new driver")
            await node.cordon(DISK_REFUSES)
            await node.uncordon()
            await node.cordon(DISK_REFUSES)
            await node.lift(DISK_REFUSES)
        async with self._node("lost", recorded=True) as node:
            node.fall_silent()
        async with self._node("re-registered", recorded=True) as node:
            await node.drain("new driver")
            await node.register(boot_id="boot-2")
        await self._temporal.start_workflow(
            NodeWorkflow.run,
            NodeInput(node_id="continued-as-new", max_watches_per_run=1),
            id=node_workflow_id("continued-as-new"),
            task_queue=CONTROL_TASK_QUEUE,
        )
        async with self._node("continued-as-new", recorded=True) as node:
            await node.register(boot_id="boot-2")

    async def cut_off(self) -> None:
        """Have a job end by itself while its node is cut off, and the node come back."""
        async with self._node("cut-off", pool="cut-off") as node:
            job = await self._start_job("ended-while-cut-off", pool="cut-off")
            await node.started("ended-while-cut-off")
            node.loses_reports = True
            await node.end("ended-while-cut-off")
            await eventually(lambda: node.lost_reports == 1)
            node.loses_reports = False
            await node.register(boot_id="boot-2", cut_off=True)
            await job.result()

    async def started_anew(self) -> None:
        """Have a job succeed unheard before its agent dies, and one that ran then fail."""
        async with self._node("started-anew", pool="started-anew") as node:
            unheard = await self._start_job("succeeded-unheard", pool="started-anew")
            died = await self._start_job(
                "died-with-its-agent", pool="started-anew", retry={"node": {"max_retries": 0}}
            )
            await node.started("died-with-its-agent")
            await node.started("succeeded-unheard")
            node.loses_reports = True
            await node.end("succeeded-unheard")
            await eventually(lambda: node.lost_reports == 1)
            node.loses_reports = False
            await node.register(boot_id="boot-2")
            await unheard.result()
            with contextlib.suppress(WorkflowFailureError):
                await died.result()

    async def pinged(self) -> None:
        await self._temporal.execute_workflow(
            PingWorkflow.run, id=self._record("ping"), task_queue=CONTROL_TASK_QUEUE
        )

    async def market_watched(self) -> None:
        await self._temporal.execute_workflow(
            MarketWatchWorkflow.run, id=self._record("market-watch"), task_queue=CONTROL_TASK_QUEUE
        )

    async def checkpoints_watched(self) -> None:
        """Have a job save, to the store and elsewhere, and have its node refuse."""
        always = CheckpointPolicy(min_interval=timedelta(0), max_interval=timedelta(0))
        async with self._database.transaction() as connection:
            await set_pool(connection, PoolSpec(name="saves", checkpoints=always))
        async with self._node("saves", pool="saves") as node:
            save = {"folder": "saves", "save_file": True, "store": False}
            await self._start_job("saving", pool="saves", recorded=False, checkpoint=save)
            await node.started("saving")
            for name, refusal, publishes in (
                ("asked", None, True), ("refused", "it is fenced off", True),
                ("unstored", None, False),
            ):  # fmt: skip
                node.refusal, node.publishes = refusal, publishes
                await self._temporal.execute_workflow(
                    CheckpointWatchWorkflow.run,
                    id=self._record(f"checkpoint-watch-{name}"),
                    task_queue=CONTROL_TASK_QUEUE,
                )
            node.refusal = None
            await node.end("saving")

    async def _held_jobs(self, node: ScriptedNode) -> None:
        held = await self._start_job("held")
        await node.started("held")
        await held.signal(JobWorkflow.hold, CommandReason(reason="make room"))
        queued = await self._start_job("held-queued", held=True)
        for job in (held, queued):
            await _reaches(job, JobState.HELD)
            await job.signal(JobWorkflow.release, CommandReason())
        await node.end("held", 2)
        await node.end("held-queued")
        await held.result()
        await queued.result()


async def record(scenes: Sequence[str], *, anew: bool = False) -> list[str]:
    """Run these scenarios, or all, and write their histories; return the names of the files.

    A file that is there stays as it is, for that is what a later version has to replay, unless
    all are to be made `anew`.
    """
    with (
        temporary_folder() as folder,
        running_stack(settings_in(folder), migrate=upgrade) as stack,
        running_market(Profile.CALM) as market,
    ):
        market.book(worked_example=True)
        temporal = await Client.connect(
            stack.temporal.address, data_converter=data_converter, identity="recorder"
        )
        settings = market.settings(
            state_dir=folder, node_lost_after=LOST_AFTER, market_list_lag=AT_ONCE
        )
        async with serving_control(temporal, settings) as database:
            scenarios = Scenarios(temporal, settings, database, market)
            for scene in scenes or SCENES:
                await getattr(scenarios, scene)()
            await scenarios.ended()
        if anew:
            for old in FOLDER.glob("*.json"):
                old.unlink()
        return [file for name in scenarios.recorded for file in await _write(temporal, name)]


async def _write(temporal: Client, workflow_id: str) -> list[str]:
    """Write one file for each run of a workflow that has none."""
    names: list[str] = []
    for number, run_id in enumerate(await runs(temporal, workflow_id), start=1):
        stem = workflow_id.replace(":", "")  # some systems take none in the name of a file
        file = FOLDER / f"{stem}.{number}.json"
        if number == 1:
            file = FOLDER / f"{stem}.json"
        if file.exists():
            continue
        history = await temporal.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        content = scrubbed(json.loads(history.to_json()))
        file.write_text(json.dumps(content, indent=1) + "\n")
        names.append(file.name)
    return names


async def _reaches(job: Job, state: JobState) -> None:
    async def there() -> bool:
        return (await job.query(JobWorkflow.status)).state is state

    await eventually(there)


async def _has(job: Job, event: str) -> bool:
    history = json.loads((await job.fetch_history()).to_json())
    return any(each["eventType"] == f"EVENT_TYPE_{event}" for each in history["events"])


def _user(**rule: Any) -> dict[str, Any]:
    return {"user": {"backoff": 0, **rule}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scene", nargs="*", metavar="SCENE", help="all without")
    parser.add_argument("--anew", action="store_true", help="replace what was recorded before")
    arguments = parser.parse_args()
    if unknown := set(arguments.scene) - set(SCENES):
        parser.error(f"no scene {', '.join(sorted(unknown))}: there are {', '.join(SCENES)}")
    if arguments.anew and arguments.scene:
        parser.error("--anew replaces all histories: name no scene")
    for name in [name for name in os.environ if name.startswith(("LONGSHORE_", "TEMPORAL_"))]:
        del os.environ[name]
    os.environ["TEMPORAL_CONFIG_FILE"] = os.devnull
    files = asyncio.run(record(arguments.scene, anew=arguments.anew))
    sys.stdout.write(f"{len(files)} new histories in {FOLDER}\n")
    leave(0)


if __name__ == "__main__":
    main()
