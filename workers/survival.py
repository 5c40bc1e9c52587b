"""One training through all that can happen to it, beside a twin that nobody disturbs.

It is preempted twice by jobs of a higher class, moved off a node whose time ends, and loses its
agent to `kill -9`. In the end both must have the same weights, to the last bit.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from longshore.client.api import Longshore
from longshore.models.base import Frozen, Wire
from longshore.models.document import read_document
from longshore.models.errors import LongshoreError, StackError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.job_status import AttemptRecord, JobState, JobStatus
from longshore.models.margins import Margins
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.preemption import PreemptionPolicy
from longshore.models.retry import FailureClass
from longshore.models.text import format_duration
from longshore.scheduling.node_lifetime import must_last
from longshore.workers.demo.jobs import EXAMPLES
from longshore.workers.local import Flags, start_agents
from longshore.workers.stack import Stack, agent_process

POOL, CALM_POOL = "survive", "survive-calm"
FIRST, EXPIRING, LAST, CALM = "survive-1", "survive-2", "survive-3", "survive-calm-1"
NODES = (FIRST, EXPIRING, LAST, CALM)

POLL_EVERY = 0.3
PATIENCE = 120.0
"""Seconds without any change after which this gives up."""


class Pace(Frozen):
    """How long the scene takes."""

    epochs: int = 140
    epoch_seconds: float = 0.4
    between: int = 5
    """Epochs that the training gets on with between two disturbances."""
    expected: timedelta = timedelta(seconds=10)
    """How long the training says that it takes. Too little, so that a node that ends soon will do:
    there it is asked to leave after this time and what is left of the slack."""
    slack: timedelta = timedelta(seconds=20)
    """The second node's time beyond what the training needs of it: its agent has to start, and the
    training to be stopped where it is and placed there. Without it the node would end too soon
    for the training by the time it is there."""


USUAL_PACE = Pace()
Tell = Callable[[str, str], None]
"""Hears of each thing that happened: a word, and a sentence."""


class AttemptSteps(Wire):
    """One attempt of the training, with the epochs that it did."""

    attempt: int
    node_id: str
    resumed_at: int
    """Epochs that were done when it began."""
    reached: int
    """The last epoch in its output."""
    end: str


class Trained(Wire):
    """What came out of one training."""

    job_id: str
    state: JobState
    digest: str
    """SHA-256 of weights, optimizer and generator, as the training printed it; or empty."""
    accuracy: str
    """Its last line."""
    attempts: tuple[AttemptSteps, ...]
    seconds: float


class SurvivalReport(Wire):
    """Both trainings, side by side."""

    disturbed: Trained
    undisturbed: Trained
    problems: tuple[str, ...]


class Survival:
    """The scene, on a stack that runs."""

    def __init__(self, stack: Stack, api: Longshore, tell: Tell) -> None:
        self._stack = stack
        self._api = api
        self._tell = tell
        self._status: JobStatus | None = None
        self._steps: AttemptSteps | None = None
        """Of its newest attempt."""
        self._told: set[tuple[int, bool]] = set()
        self._jobs: list[str] = []

    async def run(self) -> SurvivalReport:
        """Return both results. Raises StackError when nothing moves any more."""
        await self._begin()
        pace = USUAL_PACE
        training = await self._submit(training_spec(POOL, pace))
        twin = await self._submit(training_spec(CALM_POOL, pace))
        self._tell("submitted", f"{training} and its twin {twin}, {pace.epochs} epochs each")
        await self._until(training, "it to train", lambda: self._has_done(1, pace.between))

        await self._urge("urgent-1", seconds=2)
        await self._until(training, "it to go on", lambda: self._has_done(2, pace.between))

        ends_in = format_duration(ending_in(pace, self._stack.settings.margins))
        await self._start_node(EXPIRING, POOL, "--expires-in", ends_in)
        self._tell("joined", f"{EXPIRING}, whose time ends in {ends_in}")
        await self._urge("urgent-2", seconds=8)
        await self._until(training, "it to leave the node that ends", lambda: self._has_ended(3))
        await self._until(training, "it to go on", lambda: self._has_done(4, pace.between))

        await self._kill_agent()
        await self._until(training, "its end", lambda: self._now().state.ended)
        await self._api.wait(twin)
        return await self._report(training, twin)

    async def close(self) -> None:
        """End what is left of the jobs, and stop the nodes in order."""
        for job_id in self._jobs:
            with contextlib.suppress(LongshoreError):
                await self._api.cancel(job_id, "the scene is over")
        for node_id in NODES:
            self._stack.forget_node(node_id)
        agents = [agent_process(node_id) for node_id in NODES]
        await asyncio.to_thread(self._stack.processes.stop, *agents, grace=15.0)

    async def _begin(self) -> None:
        for left in await self._api.list(tenant=POOL, states=_OPEN):
            with contextlib.suppress(LongshoreError):
                await self._api.cancel(left.id, "an earlier scene was interrupted")
        for pool in (POOL, CALM_POOL):
            await self._api.set_pool(pool_spec(pool))
        await self._start_node(CALM, CALM_POOL)
        await self._start_node(FIRST, POOL)

    async def _start_node(self, node_id: str, pool: str, *more: str) -> None:
        flags: Flags = ("--simulate", "1xH100-80GB", "--cpus", "8", "--ram", "32GB")
        nodes = self._stack.remembered_nodes() | {node_id: (*flags, "--pool", pool, *more)}
        # One environment for all: on a slow machine another takes longer than a node's last time.
        cache = {"LONGSHORE_NODE_CACHE": str(self._stack.folder / "survive-cache")}
        await asyncio.to_thread(start_agents, self._stack, nodes, lambda line: None, more=cache)

    async def _submit(self, spec: JobSpec) -> str:
        job_id = (await self._api.submit(spec, key=uuid4().hex)).job_id
        self._jobs.append(job_id)
        return job_id

    async def _urge(self, name: str, *, seconds: int) -> None:
        """Submit a job of a high class while the training has the only GPU that suits it."""
        spec = urgent_spec(name, seconds)
        job_id = await self._submit(spec)
        self._tell("submitted", f"{job_id} of class {spec.priority}, for {seconds} s on one GPU")

    async def _kill_agent(self) -> None:
        node_id = self._now().attempts[-1].node_id
        running = self._stack.processes.running(agent_process(node_id))
        if running is None:
            raise StackError(f"the agent of {node_id} has ended by itself.")
        self._stack.forget_node(node_id)
        os.kill(running.pid, signal.SIGKILL)
        self._tell(
            "killed", f"the agent of {node_id} (kill -9 {running.pid}), at epoch {self._reached}"
        )
        await self._start_node(LAST, POOL)
        self._tell("joined", f"{LAST}, which has nothing of it")

    # --- looking ------------------------------------------------------------------------

    async def _until(self, job_id: str, what: str, ready: Callable[[], bool]) -> None:
        """Look again and again until `ready`. Raises StackError when nothing changes for long."""
        clock = asyncio.get_running_loop().time
        changed_at = clock()
        while True:
            before = self._steps
            await self._look(job_id)
            if ready():
                return
            if self._now().state.ended:
                raise StackError(
                    f"{job_id} has ended while waiting for {what}: {self._now().reason}"
                )
            if self._steps != before:
                changed_at = clock()
            if clock() - changed_at > PATIENCE:
                raise StackError(
                    f"nothing has changed for {PATIENCE:.0f} s while waiting for {what}. "
                    f"`longshore why {job_id}` explains; the logs are in "
                    f"{self._stack.processes.folder}."
                )
            await asyncio.sleep(POLL_EVERY)

    async def _look(self, job_id: str) -> None:
        self._status = await self._api.status(job_id)
        for record in self._status.attempts:
            self._tell_of(record)
        if self._status.attempts:
            newest = self._status.attempts[-1]
            self._steps = _steps_of(newest, await self._output(job_id, newest.attempt))

    def _tell_of(self, record: AttemptRecord) -> None:
        if (record.attempt, False) not in self._told:
            self._told.add((record.attempt, False))
            self._tell("placed", f"the training on {record.node_id}, attempt {record.attempt}")
        if record.ended_at is not None and (record.attempt, True) not in self._told:
            self._told.add((record.attempt, True))
            self._tell(*_end_of(record))

    @property
    def _reached(self) -> int:
        return self._steps.reached if self._steps else 0

    def _now(self) -> JobStatus:
        assert self._status is not None
        return self._status

    def _has_done(self, attempt: int, epochs: int) -> bool:
        """Whether this attempt, or a later one, runs and has got on by so many epochs."""
        now = self._steps
        return (
            now is not None
            and self._now().state is JobState.RUNNING
            and now.attempt >= attempt
            and now.reached >= now.resumed_at + epochs
        )

    def _has_ended(self, attempt: int) -> bool:
        return any(r.attempt == attempt and r.ended_at for r in self._now().attempts)

    # --- the end ------------------------------------------------------------------------

    async def _report(self, training: str, twin: str) -> SurvivalReport:
        disturbed, undisturbed = await self._trained(training), await self._trained(twin)
        return SurvivalReport(
            disturbed=disturbed,
            undisturbed=undisturbed,
            problems=tuple(problems_of(disturbed, undisturbed)),
        )

    async def _trained(self, job_id: str) -> Trained:
        status = await self._api.status(job_id)
        said = [await self._output(job_id, record.attempt) for record in status.attempts]
        last = said[-1].strip().splitlines() if said else []
        digests = re.findall(r"^sha256 (\w+)$", said[-1], re.MULTILINE) if said else []
        took = (status.attempts[-1].ended_at or status.since) - status.attempts[0].placed_at
        return Trained(
            job_id=job_id,
            state=status.state,
            digest=digests[-1] if digests else "",
            accuracy=last[-1] if last else "",
            attempts=tuple(
                _steps_of(record, output)
                for record, output in zip(status.attempts, said, strict=True)
            ),
            seconds=round(took.total_seconds(), 1),
        )

    async def _output(self, job_id: str, attempt: int) -> str:
        pieces = [data async for data in self._api.logs(job_id, attempt=attempt)]
        return b"".join(pieces).decode(errors="replace")


def problems_of(disturbed: Trained, undisturbed: Trained) -> list[str]:
    """Return what is not as it should be, in sentences; nothing where the training survived."""
    problems: list[str] = []
    for each in (disturbed, undisturbed):
        if each.state is not JobState.SUCCEEDED:
            problems.append(f"{each.job_id} is {each.state.value}, and should have succeeded")
        if not each.digest:
            problems.append(f"{each.job_id} printed no digest of its weights")
    if disturbed.digest != undisturbed.digest:
        problems.append("the weights differ")
    ends = [attempt.end.partition(":")[0] for attempt in disturbed.attempts]
    if ends != EXPECTED_ENDS:
        problems.append(f"its attempts ended as {ends}, and not as {EXPECTED_ENDS}")
    if len(undisturbed.attempts) != 1:
        problems.append(f"the twin had {len(undisturbed.attempts)} attempts, and should have one")
    anew = [attempt.attempt for attempt in disturbed.attempts[1:] if not attempt.resumed_at]
    if anew:
        problems.append(f"attempts {anew} began anew and not at a checkpoint")
    return problems


def ending_in(pace: Pace, margins: Margins) -> timedelta:
    """Return the second node's time: what the training needs of a node, and some slack.

    It is asked to leave when its grace, the time to publish and the margin are left, and it is
    placed only where it can do its work before that.
    """
    training = JobRequest.of("training", training_spec(POOL, pace), datetime.now(UTC), 1)
    return must_last(training, pool_spec(POOL).within(margins).packing) + pace.slack


def training_spec(pool: str, pace: Pace) -> JobSpec:
    """Return the job of `examples/train.yaml`, longer, and without a folder that nodes share."""
    spec = read_document(EXAMPLES / "train.yaml", JobSpec)
    return spec.model_copy(
        update={
            "tenant": POOL,
            "pool": pool,
            "priority": 1,
            "command": (
                sys.executable, str(EXAMPLES / "train.py"), "--epochs", str(pace.epochs),
                "--epoch-seconds", str(pace.epoch_seconds),
            ),
            "workdir": None,
            "expected_duration": pace.expected,
        }
    )  # fmt: skip


def urgent_spec(name: str, seconds: int) -> JobSpec:
    """Return a job of a high class. What it expects does not fit on the node that ends."""
    return JobSpec(
        name=name, tenant=POOL, pool=POOL, priority=9, gpus=1, cpus=1,
        command=("sleep", str(seconds)), expected_duration=timedelta(minutes=10),
    )  # fmt: skip


def pool_spec(name: str) -> PoolSpec:
    """Return a pool that preempts the same job again and again, and at once."""
    at_once = timedelta(0)
    return PoolSpec(
        name=name,
        packing=PoolPacking(safety_margin=timedelta(seconds=5)),
        preemption=PreemptionPolicy(near_end=at_once, min_run=at_once, cooldown=at_once),
    )


PREEMPTED, MOVED, LOST, SUCCEEDED = "preempted", "moved", "node lost", "success"
EXPECTED_ENDS = [PREEMPTED, PREEMPTED, MOVED, LOST, SUCCEEDED]
_OPEN = frozenset(state for state in JobState if not state.ended)


def _end_of(record: AttemptRecord) -> tuple[str, str]:
    """Return how an attempt ended: in a word or two, and in a sentence."""
    if record.moved:
        return MOVED, record.message
    if record.failure is FailureClass.PREEMPTED:
        return PREEMPTED, record.message
    if record.failure is FailureClass.NODE:
        return LOST, record.message
    return (SUCCEEDED, "") if record.failure is None else (record.failure.value, record.message)


def _steps_of(record: AttemptRecord, output: str) -> AttemptSteps:
    begun = re.search(r"^epoch (\d+) of ", output, re.MULTILINE)
    done = re.findall(r"^epoch (\d+): ", output, re.MULTILINE)
    resumed_at = int(begun[1]) if begun else 0
    kind, message = _end_of(record)
    return AttemptSteps(
        attempt=record.attempt,
        node_id=record.node_id,
        resumed_at=resumed_at,
        reached=int(done[-1]) if done else resumed_at,
        end=f"{kind}: {message}" if message else kind,
    )
