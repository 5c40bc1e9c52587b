"""Whether the markets have a price that FLEX jobs wait for.

It says only when a decision is worth its while: `scheduling.buying.plan.decide` makes it. A price
counts for a job that could use what is sold at it: its type, its memory, whole nodes or a whole
offer, for a window in which the job can run.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from longshore.models.buying import BuyingPolicy, MarketView, PriceReached, UnmetJob
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.market import NoQuote, Window
from longshore.scheduling.buying.costs import hoped_price
from longshore.scheduling.buying.fleet import holds, shape_of
from longshore.scheduling.buying.options import window_lengths
from longshore.scheduling.buying.prices import (
    BlockSource,
    PodSource,
    block_sources,
    is_allowed,
    pod_sources,
    window_from,
)
from longshore.scheduling.node_lifetime import to_finish

MOST_JOBS = 64
"""The first of a queue that something for sale could hold; those behind them have their turn when
these are served."""


def might_reach(
    instance_type: str,
    lowest_ask: int,
    jobs: Sequence[UnmetJob],
    policy: BuyingPolicy,
    now: datetime,
) -> bool:
    """Return whether the lowest ask for a type is as low as one of the jobs that it holds hopes.

    What an order for the job would cost is another question: `reached` answers it.
    """
    shape = shape_of(instance_type)
    if shape is None or not is_allowed(instance_type, policy):
        return False
    held = islice((job for job in jobs if holds(shape, job.request)), MOST_JOBS)
    return any(lowest_ask <= hoped_price(job, policy, now) for job in held)


def reached(
    jobs: Sequence[UnmetJob], markets: Sequence[MarketView], policy: BuyingPolicy, now: datetime
) -> PriceReached | None:
    """Return the first job whose price is there, with the price; None where none is.

    `jobs` are FLEX jobs that wait, in queue order. The price is that of all GPUs that would have
    to be bought for the job alone, for each GPU-hour.
    """
    blocks = list(block_sources(markets, policy))
    pods = pod_sources(markets, Tier.FLEX, policy)
    sources = (*blocks, *pods)
    held = (job for job in jobs if any(source.holds(job.request) for source in sources))
    for job in islice(held, MOST_JOBS):
        hoped = hoped_price(job, policy, now)
        offered = _offered(job.request, blocks, pods, policy, now)
        best = min(offered, key=lambda each: each[0], default=None)
        if best is not None and best[0] <= hoped:
            price, source = best
            return PriceReached(
                job_id=job.request.id, provider=source.market.provider,
                instance_type=_type_of(source), price=price, hoped=hoped,
            )  # fmt: skip
    return None


def _offered(
    job: JobRequest,
    blocks: Iterable[BlockSource],
    pods: Iterable[PodSource],
    policy: BuyingPolicy,
    now: datetime,
) -> Iterator[tuple[int, BlockSource | PodSource]]:
    """Yield what a GPU-hour costs from each source that could hold a job."""
    for source in blocks:
        window = _window_for(job, source, policy, now) if source.holds(job) else None
        if window is None:
            continue
        nodes = -(-job.gpus // source.shape.gpus)
        among = source.places_for_gang()[-1] if job.gang is not None else None
        plan = source.plan(nodes, window, Tier.FLEX, policy, now, among=among)
        if not isinstance(plan, NoQuote):
            yield int(plan.expected_cost / (plan.gpus * window.hours)), source
    for pod in pods:
        of_kind = pod.is_cluster == (job.gang is not None)
        enough = job.gang is None or pod.gpus >= job.gpus
        if of_kind and enough and pod.holds(job):
            yield pod.offer.price, pod


def _window_for(
    job: JobRequest, source: BlockSource, policy: BuyingPolicy, now: datetime
) -> Window | None:
    """Return the window of a book if the job can run in it: the shortest, where any may be had."""
    asked = source.quote.window
    if asked is None:
        lengths = window_lengths(job, [job], policy)
        return window_from(source.market.capabilities.grain, now, lengths[0]) if lengths else None
    ready_at = max(asked.start, now) + policy.usual_startup
    return asked if ready_at + to_finish(job, policy) <= asked.end else None


def _type_of(source: BlockSource | PodSource) -> str:
    if isinstance(source, BlockSource):
        return source.quote.instance_type
    return source.offer.instance_type
