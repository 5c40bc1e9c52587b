"""What it would probably cost to buy for a job, from prices that were seen of late.

A cycle waits for no market, so it weighs buying by what the memory of markets holds. The order
itself is decided on live books (`scheduling.buying.plan`).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from longshore.models.buying import BuyingPolicy
from longshore.models.job_request import JobRequest
from longshore.models.preemption import BuyQuote, SeenPrice
from longshore.scheduling.buying.fleet import holds, shape_of
from longshore.scheduling.buying.prices import is_allowed, whole_quarters
from longshore.scheduling.node_lifetime import to_finish

_HOUR = timedelta(hours=1)


def rough_quote(
    job: JobRequest, prices: Sequence[SeenPrice], policy: BuyingPolicy, now: datetime
) -> BuyQuote | None:
    """Return the cheapest way to buy whole machines for the job alone; None where there is none.

    None too for a job that has waited for as long as machines may take to come up: if buying
    helped it, they would be there.
    """
    if not policy.enabled or (
        job.submitted_at is not None and now - job.submitted_at > policy.startup_limit
    ):
        return None
    quotes = [quote for seen in prices if (quote := _quote(job, seen, policy, now)) is not None]
    return min(quotes, key=lambda quote: (quote.cost, quote.title), default=None)


def _quote(
    job: JobRequest, seen: SeenPrice, policy: BuyingPolicy, now: datetime
) -> BuyQuote | None:
    shape = shape_of(seen.instance_type)
    if shape is None or not is_allowed(seen.instance_type, policy):
        return None
    if not holds(shape, job, seen.market):
        return None
    nodes = -(-job.gpus // shape.gpus)
    dearest = policy.model_copy(update={"below": job.start_below}).most(job.tier)
    if nodes * shape.gpus > seen.gpus or (dearest is not None and seen.ask > dearest):
        return None
    needed = policy.usual_startup + to_finish(job, policy)
    length = whole_quarters(max(needed, policy.shortest_window))
    if length > policy.longest_window:
        return None
    return BuyQuote(
        cost=round(seen.ask * shape.gpus * nodes * (length / _HOUR)),
        ready_at=now + policy.usual_startup,
        title=f"buy {nodes} x {seen.instance_type}",
    )
