"""When a gang that cannot start now could start, and on which GPUs, by what is known of holds."""

from bisect import bisect_left
from datetime import datetime

from longshore.models.gang import GangPlan
from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import Answers
from longshore.scheduling.gangs.plan import fits_gang, plan_gang

Shares = tuple[tuple[str, tuple[int, ...]], ...]
"""Nodes, each once, with the GPUs there."""

_LOOKS = 32
"""Times that are looked at one by one where a search does not find any."""


def first_gang_start(
    job: JobRequest, nodes: GangNodes, policy: PackingPolicy, now: datetime
) -> tuple[datetime, Shares] | None:
    """Return when the whole gang can start, and its nodes then; None when that is not known.

    More is free at every later end of a hold, until reservations or the ends of nodes come in
    between: so the search halves the times, and what it finds holds, though an earlier time may
    too.
    """
    ends = {hold.end for view in nodes.views for hold in (*view.holds, *view.reserved)}
    times = sorted(end for end in ends if end > now)
    if not times:
        return None

    answers = Answers()

    def fits(start: datetime) -> bool:
        return fits_gang(job, nodes, policy, start, later=answers)

    position = bisect_left(times, True, key=fits)
    if position == len(times):
        step = -(-len(times) // _LOOKS)
        found = next((time for time in times[::step] if fits(time)), None)
        if found is None:
            return None
        start = found
    else:
        start = times[position]
    return start, _shares(plan_gang(job, nodes, policy, start, later=answers)[0])


def _shares(plan: GangPlan) -> Shares:
    nodes: dict[str, list[int]] = {}
    for group in plan.groups:
        for share in (*group.nodes, *group.spares):
            nodes.setdefault(share.node_id, []).extend(share.gpu_indices)
    return tuple((node_id, tuple(sorted(gpus))) for node_id, gpus in nodes.items())
