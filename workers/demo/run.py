"""The demo: jobs on simulated nodes, one of them cancelled, one agent killed, all of it checked.

It is a client like any other: jobs are submitted, watched and cancelled by `client.api`. What it
has done already is kept in the state folder, so that after a crash of everything the next
`longshore demo` goes on where this one was.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, TypeVar

from temporalio.service import RPCError, RPCStatusCode

from longshore.client.api import Longshore
from longshore.client.submission import new_job_id
from longshore.models.errors import NotFoundError, RefusedError, StackError, UnavailableError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import PoolStatus, pool_workflow_id
from longshore.models.node import NodeState
from longshore.models.views import JobView
from longshore.workers.demo.events import Event, events_between
from longshore.workers.demo.jobs import NODE_FLAGS, POOL, demo_jobs
from longshore.workers.demo.keeper import Keeper
from longshore.workers.demo.market import MarketScene
from longshore.workers.demo.report import DemoReport, report_on
from longshore.workers.demo.serving import ServingScene
from longshore.workers.demo.state import DemoState, Snapshot, StateFile, of_batch
from longshore.workers.local import Flags
from longshore.workers.stack import Stack, agent_process
from longshore.workflows.pool import PoolWorkflow

T = TypeVar("T")

POLL_EVERY = 0.3
PATIENCE = 90.0
"""Seconds without any change after which the demo gives up waiting."""
SUBMIT_AT_ONCE = 8
WORTH_IT = timedelta(seconds=1.5)
"""A job that should run for so long yet is still there when it is cancelled or killed."""


class View(Protocol):
    """Whoever shows the demo."""

    def show(self, snapshot: Snapshot) -> None: ...

    def tell(self, event: Event) -> None: ...


class Demo:
    """One demo on a stack that runs."""

    def __init__(
        self, stack: Stack, api: Longshore, state: DemoState, file: StateFile, view: View
    ) -> None:
        self._stack = stack
        self._api = api
        self._state = state
        self._file = file
        self._view = view
        self._specs = demo_jobs(state.jobs, state.nodes, state.seed, checkpoints(stack))
        self._ids = tuple(new_job_id(spec, state.batch) for spec in self._specs)
        self._market = MarketScene(stack, api, self)
        self._keeper = Keeper(stack, demo_nodes(stack, state), self._started_again)
        self._seen = Snapshot(datetime.now(UTC))
        self._changed_at = asyncio.get_running_loop().time()

    @property
    def state(self) -> DemoState:
        return self._state

    async def run(self) -> DemoReport:
        """Take the demo to its end and return its summary.

        Raises StackError when nothing moves any more, and what the client raises.
        """
        if self._state.killed_at and not self._state.declared_lost_at and self._state.killed_node:
            self._keeper.spared.add(self._state.killed_node)
        async with self._keeper.keeping():
            report = await self._run()
            await self._patiently(self._market.close)
            return report

    def remember(self, **changes: object) -> None:
        """Change the state, and store it."""
        self._state = self._state.model_copy(update=changes)
        self._file.save(self._state)

    def tell(self, kind: str, text: str) -> None:
        """Tell of something that happened now."""
        self.show(Event(datetime.now(UTC), kind, text))

    def show(self, event: Event) -> None:
        """Tell of an event: something moves."""
        self._changed_at = asyncio.get_running_loop().time()
        self._view.tell(event)

    async def _run(self) -> DemoReport:
        if self._state.cycles_before is None:
            self.remember(cycles_before=await self._cycles())
        if self._state.interruptions:
            self._seen = await self._snapshot()
            ended, known = len(self._seen.ended), len(self._seen.jobs)
            self.tell("continued", f"{ended} of {known} jobs have ended already")
        await self._submit()
        # It goes on beside the rest: bought time begins with the next minute.
        beginning = asyncio.create_task(self._patiently(self._market.begin))
        await self._cancel_one()
        await self._kill_one_agent()
        await self._until(lambda: not self._seen.open and beginning.done(), "every job to end")
        await beginning
        await self._until(lambda: self._market.over, "what was bought to end")
        served = await ServingScene(self._api, self).play(self._patiently)
        return await self._report(served)

    def _started_again(self, names: Sequence[str]) -> None:
        if set(names) - {agent_process(self._state.killed_node or "")}:
            self.remember(disturbances=self._state.disturbances + 1)
        self.tell("restarted", ", ".join(names))

    async def _submit(self) -> None:
        """Submit every job; those that exist already are only found."""
        longest, widest, *others = self._specs
        created = await self._submit_one(longest) + await self._submit_one(widest)
        if created == 2:
            # Placed before the rest comes: the one takes long, the other much.
            await self._until(lambda: self._are_placed(self._ids[:2]), "the first two to run")
        for start in range(0, len(others), SUBMIT_AT_ONCE):
            batch = others[start : start + SUBMIT_AT_ONCE]
            created += sum(await asyncio.gather(*map(self._submit_one, batch)))
            await self._look()
        found = len(self._specs) - created
        self.tell("submitted", f"{created} jobs" + (f"; {found} were there" if found else ""))
        known = len(self._specs)
        await self._until(lambda: len(self._seen.jobs) == known, "the jobs to be queued")

    def _are_placed(self, job_ids: Sequence[str]) -> bool:
        found = [self._seen.job(job_id) for job_id in job_ids]
        waiting = (JobState.SUBMITTED, JobState.QUEUED)
        return all(job is not None and job.state not in waiting for job in found)

    async def _submit_one(self, spec: JobSpec) -> bool:
        batch = self._state.batch
        return (await self._patiently(lambda: self._api.submit(spec, key=batch))).created

    async def _cancel_one(self) -> None:
        """Cancel the job that has most of its time before it, unless one was cancelled."""
        while not self._in_state(self._state.cancelled_job, JobState.CANCELLED):
            await self._until(
                lambda: bool(self._long_running()) or not self._seen.open, "a job to cancel"
            )
            if not self._seen.open:
                self.remember(cancelled_job=None)
                self.tell("note", "every job had ended: none was left to cancel")
                return
            await self._cancel(max(self._long_running(), key=self._time_left))

    async def _cancel(self, job: JobView) -> None:
        self.remember(cancelled_job=job.id)
        # Refused when it ended in this moment: another one then.
        with contextlib.suppress(NotFoundError, RefusedError):
            await self._patiently(lambda: self._api.cancel(job.id, "cancelled by the demo"))
        ends = (JobState.SUCCEEDED, JobState.CANCELLED, JobState.FAILED)
        await self._until(lambda: self._in_state(job.id, *ends), f"{job.name} to stop")

    async def _kill_one_agent(self) -> None:
        """Kill an agent in the middle of its work, see its node declared lost, start it again."""
        if self._state.killed_at is None:
            await self._until(
                lambda: self._is_time_to_kill() or not self._seen.open, "work on the nodes"
            )
            victim = self._victim()
            if victim is None:
                self.tell("note", "no job was running any more: no agent was killed")
                return
            self._kill(victim)
        killed = self._state.killed_node or ""
        if self._state.declared_lost_at is None:
            await self._until(lambda: self._is_declared_lost(killed), f"{killed} to be given up")
            self.remember(declared_lost_at=datetime.now(UTC))
        await self._start_again(killed)

    def _kill(self, node_id: str) -> None:
        running = self._stack.processes.running(agent_process(node_id))
        if running is None:
            raise StackError(f"the agent of {node_id} has ended by itself.")
        jobs = [job.name for job in self._seen.jobs if self._runs_on(job, node_id)]
        self._keeper.spared.add(node_id)
        self.remember(killed_node=node_id, killed_at=datetime.now(UTC))
        os.kill(running.pid, signal.SIGKILL)
        self.tell(
            "killed",
            f"the agent of {node_id} (kill -9 {running.pid}) with {len(jobs)} jobs: "
            f"{', '.join(jobs[:4])}{', ...' if len(jobs) > 4 else ''}",
        )

    def _is_declared_lost(self, node_id: str) -> bool:
        """Whether what ran there when its agent was killed has been given up."""
        node, killed_at = self._seen.node(node_id), self._state.killed_at
        if node is None or killed_at is None:
            return False
        return node.state in (NodeState.LOST, NodeState.GONE) or node.registered_at > killed_at

    async def _start_again(self, node_id: str) -> None:
        """Have the agent of a node started again, while the others go on."""
        self._keeper.spared.discard(node_id)
        name = agent_process(node_id)
        await self._until(
            lambda: self._stack.processes.running(name) is not None,
            f"the agent of {node_id} to start again",
        )

    def _is_time_to_kill(self) -> bool:
        """When some jobs have ended and the training has a checkpoint to go on from."""
        training = self._seen.job(self._ids[0])
        if training is None or training.state.ended:
            return self._victim() is not None
        saved = (checkpoints(self._stack) / f"{training.id}.joblib").exists()
        enough = len(self._seen.ended) >= len(self._ids) // 5
        return training.state is JobState.RUNNING and saved and enough

    def _victim(self) -> str | None:
        """Return the node of the training while that runs, else that of the longest job."""
        if training := [j for j in self._seen.in_state(JobState.RUNNING) if j.id == self._ids[0]]:
            return training[0].node_id
        longest = max(self._long_running(), key=self._time_left, default=None)
        return longest.node_id if longest else None

    def _long_running(self) -> list[JobView]:
        """Return the jobs beside training and gang that run and have some time before them."""
        return [
            job
            for job in self._seen.in_state(JobState.RUNNING)
            if job.id not in self._ids[:2] and self._time_left(job) > WORTH_IT
        ]

    def _time_left(self, job: JobView) -> timedelta:
        expected = self._specs[self._ids.index(job.id)].likely_duration
        return expected - (self._seen.at - (job.started_at or self._seen.at))

    def _runs_on(self, job: JobView, node_id: str) -> bool:
        return job.state is JobState.RUNNING and job.node_id == node_id

    def _in_state(self, job_id: str | None, *states: JobState) -> bool:
        return any(job.id == job_id for job in self._seen.in_state(*states))

    async def _until(self, ready: Callable[[], bool], what: str) -> None:
        """Look again and again until `ready`. Raises StackError when nothing changes for long."""
        clock = asyncio.get_running_loop().time
        self._changed_at = clock()
        while True:
            await self._look()
            if ready():
                return
            if clock() - self._changed_at > PATIENCE:
                waiting = ", ".join(f"{job.name} ({job.state.value})" for job in self._seen.open)
                raise StackError(
                    f"nothing has changed for {PATIENCE:.0f} s while waiting for {what}. Open: "
                    f"{waiting or 'none'}. `longshore why JOB` explains; the logs are in "
                    f"{self._stack.processes.folder}."
                )
            await asyncio.sleep(POLL_EVERY)

    async def _look(self) -> None:
        now = await self._patiently(self._snapshot)
        for event in events_between(self._seen, now):
            self.show(event)
        self._seen = now
        self._view.show(now)
        await self._patiently(self._market.look)

    async def _snapshot(self) -> Snapshot:
        nodes = await self._api.nodes(pool=POOL) + self._market.nodes
        jobs = await self._api.list(pool=POOL, tenant="demo", limit=2 * len(self._ids))
        return Snapshot(datetime.now(UTC), nodes, of_batch(jobs, self._ids))

    async def _report(self, served: str) -> DemoReport:
        statuses = await asyncio.gather(*map(self._status, self._ids))
        # A job is recorded as ended, and its GPUs free, in the same transaction: no wait here.
        await self._look()
        return report_on(
            self._state, statuses, [n for n in self._seen.nodes if n.pool == POOL],
            cycles=await self._cycles() - (self._state.cycles_before or 0),
            training=await self._last_line(self._ids[0]),
            gang=await self._last_line(self._ids[1]),
            bought=await self._patiently(self._market.report), served=served,
            now=datetime.now(UTC),
        )  # fmt: skip

    async def _status(self, job_id: str) -> JobStatus:
        return await self._patiently(lambda: self._api.status(job_id))

    async def _last_line(self, job_id: str) -> str:
        text = b"".join([data async for data in self._api.logs(job_id)]).decode(errors="replace")
        return (text.strip().splitlines() or [""])[-1]

    async def _cycles(self) -> int:
        return await self._patiently(self._ask_cycles)

    async def _ask_cycles(self) -> int:
        handle = self._api.temporal.get_workflow_handle(pool_workflow_id(POOL))
        try:
            status: PoolStatus = await handle.query(PoolWorkflow.status)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return 0
            raise UnavailableError(f"Temporal does not answer: {error.message}") from error
        return status.cycles

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call again while a server is away: the keeper is starting it."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE
        while True:
            try:
                return await call()
            except UnavailableError:
                if clock() > deadline:
                    raise
                await asyncio.sleep(POLL_EVERY)


def demo_nodes(stack: Stack, state: DemoState) -> dict[str, Flags]:
    """Return the agents that should run: the demo's, and those that ran before."""
    return {**stack.remembered_nodes(), **dict.fromkeys(state.node_ids, NODE_FLAGS)}


def stop_nodes(stack: Stack, state: DemoState) -> None:
    """Stop the demo's agents in order, and have later starts not start them again."""
    for node_id in state.node_ids:
        stack.forget_node(node_id)
        stack.processes.stop(agent_process(node_id), grace=15.0)


def checkpoints(stack: Stack) -> Path:
    """Return the folder of the training's checkpoints: every node of the demo finds them there."""
    return stack.folder / "demo" / "checkpoints"
