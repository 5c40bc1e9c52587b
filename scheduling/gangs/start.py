"""When a gang that cannot start now could start, and on which GPUs, by what is known of holds."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import Answers, begins_within
from longshore.scheduling.gangs.plan import Shares, gang_of, shares_from
from longshore.scheduling.gangs.rooms import most_in
from longshore.scheduling.placement.given_back import GivenBack
from longshore.scheduling.placement.reservations import gpus_empty_from
from longshore.scheduling.placement.state import Need

_LOOKS = 32
"""Times that are looked at one by one where a search does not find any."""
_TICK = timedelta(microseconds=1)


def first_gang_start(
    job: JobRequest,
    nodes: GangNodes,
    policy: PackingPolicy,
    now: datetime,
    given_back: GivenBack,
    note: Callable[[int], None] = lambda _: None,
) -> tuple[datetime, Shares] | None:
    """Return when the whole gang can start, and its nodes then; None when that is not known.

    `given_back` says of the same nodes, in the same order, when their GPUs are empty. Before that
    gives enough of them to the gang nothing is asked; from then on the nodes that have any. More
    is free at every later end of a hold, until reservations or the ends of nodes come in between:
    so the search goes on in ever longer steps and halves the last one, and what it finds holds,
    though an earlier time may too. Of each look it is to `note` how many nodes are asked.
    """
    ends = {hold.end for view in nodes.views for hold in (*view.holds, *view.reserved)}
    times = sorted(end for end in ends if end > now)
    bounds = _Bounds(job, nodes, policy, now, given_back)
    answers = Answers()
    found: dict[datetime, Shares | None] = {}

    def fits(start: datetime) -> bool:
        if start not in found:
            places = bounds.places_at(start)
            some = None if places is None else nodes.at(places)
            note(len(places or ()))
            found[start] = some and shares_from(job, some, policy, start, answers)
        return found[start] is not None

    first = bisect_left(times, True, key=bounds.may_fit_at)
    start = _first(times[first:], fits)
    if start is None:
        step = -(-len(times) // _LOOKS) or 1
        start = next((time for time in times[::step] if fits(time)), None)
    shares = None if start is None else found[start]
    return None if start is None or shares is None else (start, shares)


def _first(times: Sequence[datetime], fits: Callable[[datetime], bool]) -> datetime | None:
    """Return the first of the times that fits, if all later ones do."""
    known, at, step = -1, 0, 1
    """The last one that does not fit, and the next one to look at."""
    while at < len(times):
        if fits(times[at]):
            return times[bisect_left(times, True, known + 1, at, key=fits)]
        known, at, step = at, min(at + step, max(len(times) - 1, at + 1)), 2 * step
    return None


class _Bounds:
    """How many GPUs nodes give to a gang at most, by when what they hold is given back."""

    def __init__(
        self,
        job: JobRequest,
        nodes: GangNodes,
        policy: PackingPolicy,
        now: datetime,
        given_back: GivenBack,
    ) -> None:
        self._gang = gang = gang_of(job)
        self._whole = Need.of(job, policy)
        self._nodes = nodes
        self._now = now
        self._given_back = given_back
        self._wanted = job.gpus
        self._with_spares = job.gpus + (gang.spares_of(job.gpus) if gang.spares_required else 0)
        within = begins_within(self._whole, gang, nodes, now)
        self._until = np.array([span / _TICK for span in within])
        """Microseconds from now until which each node can begin the gang; below 0 where it never
        can."""
        self._domains = nodes.domain_numbers
        self._kept = [
            place for place, view in enumerate(nodes.views)
            if view.reserved and self._until[place] >= 0
        ]  # fmt: skip
        """Nodes where something is kept for others, which is not given back at one time."""

    def may_fit_at(self, start: datetime) -> bool:
        """Return whether enough is given back by then, whenever nodes end: if so, by all later
        times too."""
        return self._suffice(self._gpus_at(start, 0.0))

    def places_at(self, start: datetime) -> list[int] | None:
        """Return the nodes that may have GPUs for the gang from a time on, beside what is kept for
        others; None where these are too few for it."""
        gpus = self._gpus_at(start, (start - self._now) / _TICK)
        for place in self._kept:
            if gpus[place]:
                empty = gpus_empty_from(self._nodes.views[place], self._whole, start)
                gpus[place] = empty.bit_count()
        return np.flatnonzero(gpus).tolist() if self._suffice(gpus) else None

    def _gpus_at(self, start: datetime, lasting: float) -> NDArray[np.intp]:
        """Return what nodes give back by then that can begin the gang for so many microseconds."""
        empty = self._given_back.empty_by((start - self._now) / _TICK)
        return np.where(self._until >= lasting, empty, 0)

    def _suffice(self, gpus: NDArray[np.intp]) -> bool:
        if gpus.sum() < self._with_spares:
            return False
        room = np.bincount(self._domains, gpus).astype(np.int64)
        return most_in(room, self._gang) >= self._wanted
