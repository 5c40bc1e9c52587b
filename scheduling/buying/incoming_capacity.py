"""Jobs that are planned to start on bought machines that are no nodes yet, and when.

A decision about buying finds it with what it looks at: whoever asks for one job reads it there.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from longshore.models.buying import BuyDecision, CapacityUnderWay, Coming, Unmet
from longshore.models.job import Tier
from longshore.scheduling.buying.fleet import Fleet, names_under_way
from longshore.scheduling.order import queue_order

MOST_JOBS = 64
"""Of each tier, in queue order, that are looked at; those behind them when these have started."""


def incoming_starts(
    unmet: Unmet, fleet: Fleet, under_way: Sequence[CapacityUnderWay], now: datetime
) -> Mapping[str, Coming]:
    """Return by job what it is to start on of `under_way`, which is in the fleet."""
    purchases = {name: each.id for each in under_way for name in names_under_way(each)}
    found: dict[str, Coming] = {}
    for tier in Tier if purchases else ():
        waiting = [job.request for job in unmet.jobs if job.request.tier is tier]
        ordered = queue_order(waiting, fleet.packing, now, fleet.nodes, fleet.running)[:MOST_JOBS]
        outlook = fleet.of_tier(tier).outlook(ordered, now)
        for name, uses in outlook.uses.items():
            for use in uses if name in purchases else ():
                known = found.get(use.job_id)
                ids = (*(known.purchases if known else ()), purchases[name])
                # A gang starts when the last of its nodes is there.
                start = max(use.start, known.start) if known else use.start
                found[use.job_id] = Coming(purchases=tuple(dict.fromkeys(ids)), start=start)
    return found


def with_bought(decision: BuyDecision, purchases: Mapping[int, str]) -> Mapping[str, Coming]:
    """Return the same with what was decided now: `purchases` are the ids of its plans that were
    stored, by their place among the plans."""
    found = dict(decision.coming)
    number = 0
    for option in decision.options:
        if not option.chosen:
            continue
        starts = {served.job_id: served.start for served in option.starts}
        here: dict[str, list[str]] = {}
        for plan in option.plans:
            for job_id in plan.serves if number in purchases else ():
                here.setdefault(job_id, []).append(purchases[number])
            number += 1
        for job_id, ids in here.items():
            if (start := starts.get(job_id)) is not None:
                found[job_id] = Coming(purchases=tuple(ids), start=start)
    return found
