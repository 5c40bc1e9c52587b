"""Which running jobs may be stopped, for which jobs: the rules of `scheduling.preemption.costs`
and `scheduling.preemption.yielding` for a whole round of plans, without a word said.

What does not depend on who asks is worked out once.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from longshore.models.funding import ITSELF, Payer, PoolFunding
from longshore.models.job_request import EngineKey, JobRequest
from longshore.models.preemption import PreemptionPolicy, RejectedVictim, RunningWork
from longshore.scheduling.preemption.costs import (
    is_lower,
    is_sure_to_save,
    right_of,
    same_class,
    stays,
    why_not,
    why_spared,
)
from longshore.scheduling.preemption.due import why_it_keeps
from longshore.scheduling.preemption.payers import Right, right_over
from longshore.scheduling.preemption.yielding import Yielding

_Engine = tuple[EngineKey | None, bool]
Asks = tuple[int, int, Payer, bool, _Engine, bool]
"""The class of a job, of how many running jobs it has twice the rank, who pays for it, whether it
only fills what is free, of an engine what it serves and whether it has its turn, and whether its
start is due: of two jobs that agree in these each may stop the same others."""
_NEVER = np.iinfo(np.int64).max


class Stoppable:
    """The running jobs of one round of plans. They are told by their places in `works`."""

    def __init__(
        self,
        works: Sequence[RunningWork],
        policy: PreemptionPolicy,
        now: datetime,
        yielding: Yielding | None = None,
        funding: PoolFunding | None = None,
        due: Collection[str] = (),
    ) -> None:
        """`yielding` has who yields to whom within a class, where anybody does; `funding` who pays
        for whom, where a tenant has a budget; `due` are jobs whose start is due."""
        self._due = due
        self._funding = funding
        self._works = works
        self._policy = policy
        self._now = now
        self._yielding = yielding
        self._of_class: dict[tuple[int, Payer, _Engine], NDArray[np.int64]] = {}
        """By class, payer and engine: for each, more running jobs than how many one that asks has
        to outrank."""
        self._whom: dict[Asks, Sequence[int]] = {}
        self._spared: list[bool] | None = None

    def asks(self, job: JobRequest) -> Asks:
        """Return what two jobs agree in that may stop the same others."""
        most = self._yielding.most(job) if self._yielding else 0
        engine = job.engine, job.turn is not None
        return job.priority, most, self._payer(job), job.fills, engine, job.id in self._due

    def _payer(self, job: JobRequest) -> Payer:
        return self._funding.of(job.id) if self._funding else ITSELF

    def whom(self, job: JobRequest) -> Sequence[int]:
        """Return who may be stopped for the job, in order."""
        if job.fills:
            return ()
        asks = self.asks(job)
        if asks not in self._whom:
            places = np.flatnonzero(self._least(job) < asks[1])
            self._whom[asks] = [int(place) for place in places]
        return self._whom[asks]

    def why_not(self, place: int, job: JobRequest) -> RejectedVictim | None:
        """Return why one keeps its GPUs; None where it may be stopped for `job`."""
        work = self._works[place]
        if self._funding is not None and job.id in self._due:
            kept = why_it_keeps(work, job, self._funding, self._policy, self._now)
            if kept is not None:
                return kept
        return why_not(work, job, self._policy, self._now, self._yielding, self._funding)

    def by_payer(self, victims: Iterable[str], job: JobRequest) -> frozenset[str]:
        """Return which of these running jobs are stopped for `job` whatever that costs: a budget
        pays for it before them."""
        right = partial(right_over, asking=job.id, funding=self._funding)
        return frozenset(each for each in victims if right(each) is Right.FIRST)

    def comes_later(self, work_id: str, job: JobRequest) -> bool:
        """Return whether somebody pays for a running job, while those that nobody pays for are to
        be stopped for `job` before it."""
        if self._funding is None or not self._funding.of(job.id).funded:
            return False
        return right_over(work_id, job.id, self._funding) is not Right.FIRST

    def _least(self, job: JobRequest) -> NDArray[np.int64]:
        kind = job.priority, self._payer(job), (job.engine, job.turn is not None)
        found = self._of_class.get(kind)
        if found is None:
            least = self._least_of(job)
            found = np.fromiter(map(least, range(len(self._works))), np.int64, len(self._works))
            self._of_class[kind] = found
        return found

    def _least_of(self, job: JobRequest) -> Callable[[int], int]:
        if self._spared is None:
            self._spared = [
                why_spared(work, self._policy, self._now) is not None for work in self._works
            ]
        spared, yielding = self._spared, self._yielding

        def least(place: int) -> int:
            work = self._works[place]
            right = right_of(work, job, self._policy, self._now, self._funding)
            if right is not Right.CLASS:
                may = right is Right.FIRST and stays(work, self._policy, self._now) is None
                return -1 if may else _NEVER
            if spared[place]:
                return _NEVER
            if is_lower(work, job, self._policy, self._now):
                return -1
            if yielding is None or not (same_class(work, job) and is_sure_to_save(work)):
                return _NEVER
            return _NEVER if yielding.is_too_soon(work) else yielding.place(work)

        return least
