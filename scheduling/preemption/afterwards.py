"""For how long those wait that are stopped for a job, once it has its GPUs. Pure.

A search looks at each of them alone, where the job is not there yet: one may seem to have room
elsewhere at once that the job takes, or another of them. So what was found is looked at with all
in their places, and where some have no room then, something cheaper is looked for.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from longshore.models.job_request import JobRequest
from longshore.models.preemption import RunningWork
from longshore.scheduling.preemption.candidates import Candidate, Candidates
from longshore.scheduling.preemption.costs import cost_of
from longshore.scheduling.preemption.what_if import Out, WhatIfCluster, gains_of

_SEARCHES = 4
Chosen = tuple[Candidate, ...]
Waits = Mapping[str, timedelta]
"""By id: of those that seem to have room elsewhere at once."""


def cheapest_afterwards(
    search: Callable[[], Chosen], waits_of: Callable[[Chosen], Waits], candidates: Candidates
) -> tuple[Chosen, Waits]:
    """Return what `search` finds that costs least with the waits that `waits_of` says of it: it is
    asked again, a few times at most, with those as they are known by then."""
    best: Chosen = ()
    waits: Waits = {}
    least: float | None = None
    with candidates.raising() as raised:
        for _ in range(_SEARCHES):
            found = search()
            if not found or (least is not None and sum(one.cost for one in found) >= least):
                break
            longer = waits_of(found)
            cost = sum(_cost(one, longer) for one in found)
            if least is None or cost < least:
                best, waits, least = found, longer, cost
            if not any(longer.values()):
                break
            raised |= longer
    return best, waits


def waits_after(
    cluster: WhatIfCluster, job: JobRequest, out: Out, stopped: Iterable[RunningWork]
) -> dict[str, timedelta]:
    """Return how long those of `stopped` wait with the job where it goes once all of `out` are
    gone, and with each other."""
    waits: dict[str, timedelta] = {}
    with cluster.tried():
        gains = gains_of(cluster.decide(job, out))
        cluster.remove(out)
        cluster.put(job, gains)
        for one in sorted(stopped, key=_turn):
            request = one.request
            if cluster.fits(request):
                cluster.put(request, gains_of(cluster.decide(request)))
                waits[one.id] = timedelta(0)
                continue
            start = cluster.first_start(request)
            waits[one.id] = start - cluster.now if start else timedelta.max
    return waits


def _cost(one: Candidate, waits: Waits) -> int:
    """Return what stopping a job costs: `one.cost` has its wait as it was searched with."""
    if one.id not in waits:
        return one.cost
    return (
        one.cost
        + cost_of(waits[one.id], one.gpus, one.price)
        - cost_of(one.wait, one.gpus, one.price)
    )


def _turn(one: RunningWork) -> tuple[int, float, str]:
    submitted = (one.request.submitted_at or one.started_at).timestamp()
    return -one.request.priority, submitted, one.id
