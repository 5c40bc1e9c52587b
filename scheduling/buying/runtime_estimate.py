"""Estimates how long jobs run, from those that ended lately.

An expected duration is the most that its user allows for: what is bought must last that long. But
what is billed as it runs costs only what is used, and what is paid whole is free from then on. So
costs are those of likely ends, and ends of nodes those of expected ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.models.buying import JobEnd
from longshore.scheduling.buying.outlook import Use

_IN_FULL = 4
"""So many jobs are taken to have run in full, besides those that are known: a few say little."""
_PARTS = 24
"""Into which time is cut to find when the last of several jobs ends."""


@dataclass(frozen=True, slots=True)
class RuntimeEstimate:
    """Which share of their expected duration jobs run, ascending; none above 1."""

    shares: tuple[float, ...] = (1.0,)
    typical: timedelta = timedelta(0)
    """How long jobs that ended lately were expected to run, on average; 0 where none is known."""

    @property
    def mean(self) -> float:
        return sum(self.shares) / len(self.shares)

    @property
    def too_short(self) -> timedelta:
        """How much of the end of a node's time is no use to jobs to come, on average.

        None is placed where it may not end. The last that is runs from at most as long before the
        end as it may last, and ends anywhere between then and as early as jobs do.
        """
        return self.typical * (1 - self.mean / 2)

    def likely_end(self, uses: Sequence[Use], since: datetime) -> datetime:
        """Return when the last of some jobs ends on average, if each ends by itself.

        Those that follow others on a node are taken to start when they would at the latest.
        """
        last = max(use.end for use in uses)
        if self.mean == 1.0 or last <= since:
            return last
        # The mean of what is never below `since`: the sum of the chances that it is later.
        step = (last - since) / _PARTS
        moments = (since + (number + 0.5) * step for number in range(_PARTS))
        return since + step * sum(1 - self._all_over(uses, moment) for moment in moments)

    def _all_over(self, uses: Iterable[Use], at: datetime) -> float:
        chance = 1.0
        for use in uses:
            length = use.end - use.start
            chance *= self._below((at - use.start) / length) if length > timedelta(0) else 1.0
        return chance

    def _below(self, share: float) -> float:
        """Return the part of all jobs that run no more than a share of what was expected."""
        if share < self.shares[0]:
            return 0.0
        return sum(each <= share for each in self.shares) / len(self.shares)


def estimate_runtime(ended: Iterable[JobEnd]) -> RuntimeEstimate:
    """Return what jobs that ended lately say of the next ones."""
    known = [job for job in ended if job.expected > timedelta(0)]
    if not known:
        return RuntimeEstimate()
    shares = [min(job.ran / job.expected, 1.0) for job in known]
    typical = sum((job.expected for job in known), timedelta(0)) / len(known)
    return RuntimeEstimate(tuple(sorted([*shares, *[1.0] * _IN_FULL])), typical)
