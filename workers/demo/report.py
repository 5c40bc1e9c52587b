"""What the demo says in the end: did all end as it should, and how long did it take."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from longshore.models.base import Wire
from longshore.models.job_status import AttemptRecord, JobState, JobStatus
from longshore.models.retry import FailureClass
from longshore.models.spending import Account
from longshore.models.views import NodeView
from longshore.workers.demo.state import DemoState


class Spread(Wire):
    """Times of many jobs, in seconds."""

    p50: float
    p95: float
    max: float


class Bought(Account):
    """What was bought at a simulated market, and what became of it."""

    purchase: str
    decided: str
    """The decision in a sentence."""
    options: int
    """That were looked at."""
    what: str
    nodes: tuple[str, ...]
    price_micro_usd: int
    """Of a GPU-hour."""
    market_says_micro_usd: int
    """What the market says that it was paid."""
    job: str
    """The last line of the job's log."""
    problems: tuple[str, ...] = ()


class DemoReport(Wire):
    """The summary; all times in seconds."""

    batch: str
    problems: tuple[str, ...] = ()
    """What is not as it should be; none when all is well."""
    jobs: int
    succeeded: int
    cancelled: int
    failed: int
    wait: Spread
    """From submission to the first placement."""
    run: Spread
    """Of the attempts that succeeded, from placement to the end."""
    placements: int
    cycles: int
    retries: int
    """Placements that followed the loss of a node."""
    gpus: int
    gpu_seconds_leased: float
    gpu_seconds_available: float
    """All GPUs of the demo from the first placement to the last end, whether their node lived."""
    killed_node: str | None = None
    declared_lost_after: float | None = None
    training: str = ""
    """The last line of its log."""
    gang: str = ""
    """The last line of the log of its rank 0."""
    bought: Bought | None = None
    not_bought: str = ""
    """Why nothing was bought."""
    served: str = ""
    """Which engines answered."""
    interruptions: int = 0
    disturbances: int = 0
    """How often parts had to be started again that the demo had not ended itself."""
    took: float

    @property
    def utilization(self) -> float:
        available = self.gpu_seconds_available
        return self.gpu_seconds_leased / available if available else 0.0


def report_on(
    state: DemoState,
    jobs: Sequence[JobStatus],
    nodes: Sequence[NodeView],
    *,
    cycles: int,
    training: str,
    gang: str,
    bought: Bought | None = None,
    served: str = "",
    now: datetime,
) -> DemoReport:
    """Return the summary of a demo whose jobs have all ended; `nodes` are those of its pool."""
    attempts = [attempt for job in jobs for attempt in job.attempts]
    by_state = [job.state for job in jobs]
    gpus = sum(len(node.gpus) for node in nodes)
    lost_after = None
    if state.killed_at and state.declared_lost_at:
        lost_after = _seconds(state.declared_lost_at - state.killed_at)
    return DemoReport(
        batch=state.batch,
        problems=(*_problems(state, jobs, nodes), *(bought.problems if bought else ())),
        jobs=len(jobs),
        succeeded=by_state.count(JobState.SUCCEEDED),
        cancelled=by_state.count(JobState.CANCELLED),
        failed=by_state.count(JobState.FAILED),
        wait=_spread(job.attempts[0].placed_at - job.submitted_at for job in jobs if job.attempts),
        run=_spread(_held(attempt) for attempt in attempts if attempt.failure is None),
        placements=len(attempts),
        cycles=cycles,
        retries=sum(_was_lost(attempt) for job in jobs for attempt in job.attempts[:-1]),
        gpus=gpus,
        gpu_seconds_leased=round(
            sum(_seconds(_held(attempt)) * len(attempt.gpu_indices) for attempt in attempts), 1
        ),
        gpu_seconds_available=round(_span(attempts) * gpus, 1),
        killed_node=state.killed_node,
        declared_lost_after=lost_after,
        training=training,
        gang=gang,
        bought=bought,
        not_bought=state.not_bought,
        served=served,
        interruptions=state.interruptions,
        disturbances=state.disturbances,
        took=_seconds(now - state.began_at),
    )


def _problems(
    state: DemoState, jobs: Sequence[JobStatus], nodes: Iterable[NodeView]
) -> Iterable[str]:
    if len(jobs) != state.jobs:
        yield f"{len(jobs)} jobs were found, {state.jobs} were submitted"
    for job in jobs:
        wanted = JobState.CANCELLED if job.job_id == state.cancelled_job else JobState.SUCCEEDED
        if job.state is not wanted:
            yield f"{job.job_id} is {job.state.value} and not {wanted.value}: {job.reason}"
        if job.attempts and _was_lost(job.attempts[-1]) and job.job_id != state.cancelled_job:
            yield f"{job.job_id} lost its node in attempt {job.attempts[-1].attempt}, its last"
    if not state.interruptions and not state.disturbances:
        # Else the jobs may have ended while nobody could look.
        yield from _steps_left_out(state, jobs)
    for node in nodes:
        for gpu in node.gpus:
            if gpu.job_id is not None:
                yield f"{node.id} GPU {gpu.index} is still leased to {gpu.job_id}"
            for part in gpu.parts:
                yield f"{node.id} GPU {gpu.index} is still leased to {part.job_id}"


def _steps_left_out(state: DemoState, jobs: Sequence[JobStatus]) -> Iterable[str]:
    if state.cancelled_job is None:
        yield "no job was cancelled"
    if state.killed_node is None:
        yield "no agent was killed"
    elif not any(_was_lost(attempt) for job in jobs for attempt in job.attempts):
        yield f"the agent of {state.killed_node} was killed, and no job noticed"


def _was_lost(attempt: AttemptRecord) -> bool:
    return attempt.failure is FailureClass.NODE


def _held(attempt: AttemptRecord) -> timedelta:
    """Return for how long an attempt held its GPUs."""
    return (attempt.ended_at or attempt.placed_at) - attempt.placed_at


def _span(attempts: Sequence[AttemptRecord]) -> float:
    if not attempts:
        return 0.0
    last = max(attempt.ended_at or attempt.placed_at for attempt in attempts)
    return _seconds(last - min(attempt.placed_at for attempt in attempts))


def _spread(durations: Iterable[timedelta]) -> Spread:
    """Return percentiles by the nearest rank."""
    ordered = sorted(_seconds(duration) for duration in durations) or [0.0]
    last = len(ordered) - 1
    return Spread(p50=ordered[round(last * 0.5)], p95=ordered[round(last * 0.95)], max=ordered[-1])


def _seconds(duration: timedelta) -> float:
    return round(duration.total_seconds(), 2)
