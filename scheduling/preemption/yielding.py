"""Who yields to whom within a class, in a pool whose order is by attained service.

See `scheduling.rank` for the rule. It says who may be stopped; which of them, and whether buying
is cheaper, is decided as for every preemption.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.preemption import PreemptionPolicy, RunningWork
from longshore.models.text import in_seconds
from longshore.scheduling.guarantee import may_come_first
from longshore.scheduling.order import worth
from longshore.scheduling.preemption.costs import save_time
from longshore.scheduling.rank import (
    AHEAD,
    GUARANTEED_SHARE,
    KEEPS_FOR,
    TIMES_THE_STOP,
    TRIAL,
    gpus_of,
    room_of,
    running,
    standings,
    waiting,
)


class Yielding:
    """Where the jobs of one round of plans stand."""

    def __init__(
        self,
        works: Sequence[RunningWork],
        queue: Iterable[JobRequest],
        nodes: Iterable[Node],
        policy: PreemptionPolicy,
        packing: PackingPolicy,
        now: datetime,
    ) -> None:
        self._policy = policy
        self._now = now
        self._works = {work.id: running(work, now) for work in works}
        shares = [share for work in works for share in work.shares]
        half = gpus_of(nodes := list(nodes)) * GUARANTEED_SHARE
        counts = worth(packing, nodes, now)
        self._standings = standings(self._works.values(), half, counts) | standings(
            (waiting(job, now) for job in queue), room_of(nodes, shares), counts,
            may_come_first(packing, nodes),
        )  # fmt: skip
        self._least = sorted(self._standings[work.id].yields_to() for work in works)
        self._reasons: dict[str, tuple[str, str | None]] = {}
        """Of each running job: why it keeps its GPUs from one that has not twice its rank, and
        from all."""

    def most(self, job: JobRequest) -> int:
        """Return of how many running jobs this one has twice the rank: of two jobs of a class with
        the same answer each may stop the same others."""
        return bisect_left(self._least, self._standings[job.id])

    def place(self, work: RunningWork) -> int:
        """Return of how many running jobs one has to have more than twice the rank at least for
        this one to yield."""
        return bisect_left(self._least, self._standings[work.id].yields_to())

    def is_too_soon(self, work: RunningWork) -> bool:
        """Return whether a job has begun too lately to yield to any of its class."""
        return not work.begun or self._ran(work) < self._least_run(work)

    def why_not(self, work: RunningWork, job: JobRequest) -> str | None:
        """Return why a running job of the same class does not yield to `job`."""
        reasons = self._reasons.get(work.id)
        if reasons is None:
            reasons = self._reasons[work.id] = self._too_high(work), self._too_soon(work)
        too_high, too_soon = reasons
        higher = self._standings[job.id] > self._standings[work.id].yields_to()
        return too_soon if higher else too_high

    def _too_high(self, work: RunningWork) -> str:
        waited = self._standings[work.id].guaranteed
        if waited:
            return (
                f"had waited {in_seconds(waited)} in all: it yields to one that has waited "
                f"{in_seconds(KEEPS_FOR)} longer"
            )
        ran = in_seconds(self._works[work.id].ran)
        return f"has run for {ran} in all: it yields to one of {AHEAD:g} times its rank"

    def _too_soon(self, work: RunningWork) -> str | None:
        if not self.is_too_soon(work):
            return None
        least = in_seconds(self._least_run(work))
        placed = in_seconds(max(self._now - work.started_at, timedelta(0)))
        if not work.begun:
            return (
                f"was placed {placed} ago and has not saved since, so it may not have begun: it "
                f"yields {least} after it has"
            )
        if work.begun_at is not None:
            ran = in_seconds(self._ran(work))
            return f"saved first {ran} ago there, and yields once that is {least} ago"
        return f"was placed {placed} ago, and yields once it has run for {least}"

    def _ran(self, work: RunningWork) -> timedelta:
        """Return for how long its process has run at least: what it needs to begin is no work."""
        since = max(work.started_at, work.begun_at or work.started_at)
        return max(self._now - since, timedelta(0))

    def _least_run(self, work: RunningWork) -> timedelta:
        stop = save_time(work) + self._policy.restart
        return max(self._policy.yields_after, TIMES_THE_STOP * stop)

    def longest_wait(self, job: JobRequest) -> timedelta:
        """Return for how long a job that yields waits at most, before it may have the room back;
        with what its restart takes."""
        return min(job.expected_duration, TRIAL) + self._policy.restart
