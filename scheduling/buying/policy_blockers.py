"""Options that would serve waiting jobs if a limit of the policy did not exclude them."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from longshore.models.buying import BuyingPolicy, BuyingRule, MarketView
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.limit import Limit
from longshore.models.market import OrderBook
from longshore.models.text import at_most, format_dollars, format_duration
from longshore.scheduling.buying.lowest_ask import price_of_nodes
from longshore.scheduling.buying.options import shortest_window
from longshore.scheduling.buying.prices import BlockSource, PodSource, block_sources, pod_sources
from longshore.scheduling.buying.words import Lost

_FOR_EVER, _SECOND = timedelta(days=3650), timedelta(seconds=1)


def policy_blockers(
    markets: Sequence[MarketView],
    tier: Tier,
    policy: BuyingPolicy,
    jobs: Iterable[JobRequest],
    now: datetime,
) -> Lost | None:
    """Return what the limit on prices, or on start-up, alone keeps from the jobs of a tier; where
    only both together do, the limit on prices."""
    wanted = [job for job in jobs if job.tier is tier]
    patient = policy.model_copy(update={"startup_limit": _FOR_EVER})
    return (
        _over_cap(markets, tier, policy, wanted, now)
        or _too_slow(markets, tier, policy, patient, wanted)
        or _too_long(markets, tier, policy, wanted, now)
        or _over_cap(markets, tier, patient, wanted, now)
    )


def _over_cap(
    markets: Sequence[MarketView],
    tier: Tier,
    policy: BuyingPolicy,
    wanted: Sequence[JobRequest],
    now: datetime,
) -> Lost | None:
    """Return the cheapest that only the cap on a tier's price keeps from its jobs."""
    cap = policy.most(tier)
    if cap is None:
        return None
    uncapped = policy.model_copy(update={"max_price": {}, "below": None})
    found = [
        (source.offer.price, source.offer.instance_type)
        for source in pod_sources(markets, tier, uncapped)
        if _serves(source, wanted)
    ]
    for source in block_sources(markets, policy):
        last = price_of_nodes(source, _fewest_nodes(source, wanted), tier, uncapped, now)
        if last is not None and _serves(source, wanted):
            found.append((last, source.quote.instance_type))
    price, kind = min((each for each in found if each[0] > cap), default=(0, ""))
    if not kind:
        return None
    if cap == policy.below:
        costs = f"{kind} costs {format_dollars(price)} a GPU-hour"
        return Lost(f"over their price: {costs}, and start_below is {format_dollars(cap)}")
    return Lost(
        f"over the price limit: {kind} costs {format_dollars(price)} a GPU-hour, and "
        f"max_price.{tier} is {format_dollars(cap)}",
        Limit.at(f"max_price.{tier}", at_most(price)),
    )


def _too_slow(
    markets: Sequence[MarketView],
    tier: Tier,
    policy: BuyingPolicy,
    patient: BuyingPolicy,
    wanted: Sequence[JobRequest],
) -> Lost | None:
    """Return the first to come up of those that only `startup_limit` keeps from its jobs."""
    found = [
        (source.startup(policy), source.offer.instance_type)
        for source in pod_sources(markets, tier, patient)
        if _serves(source, wanted)
    ]
    found += [
        (policy.usual_startup, source.quote.instance_type)
        for source in block_sources(markets, patient)
        if _serves(source, wanted) and isinstance(source.quote.answer, OrderBook)
    ]
    takes, kind = min(found, default=(timedelta(0), ""))
    if takes <= policy.startup_limit:
        return None
    return Lost(
        f"over the start-up limit: {kind} takes {format_duration(takes)} to come up, and "
        f"startup_limit is {format_duration(policy.startup_limit)}",
        Limit.at("startup_limit", format_duration(-(-takes // _SECOND) * _SECOND)),
    )


def _too_long(
    markets: Sequence[MarketView],
    tier: Tier,
    policy: BuyingPolicy,
    wanted: Sequence[JobRequest],
    now: datetime,
) -> Lost | None:
    """Return the shortest of the jobs that only the longest window keeps from a book."""
    seed = policy.rule is BuyingRule.SEED
    name, longest = (
        ("seed_window", policy.seed_window) if seed else ("longest_window", policy.longest_window)
    )
    found = [
        (shortest_window(job, policy), job.id)
        for source in block_sources(markets, policy)
        for job in wanted
        if source.holds(job)
        if price_of_nodes(source, _fewest_nodes(source, [job]), tier, policy, now) is not None
    ]
    needs, job_id = min(found, default=(timedelta(0), ""))
    if needs <= longest:
        return None
    return Lost(
        f"over the longest window: {job_id} needs {format_duration(needs)}, with its start-up and "
        f"margin, and {name} is {format_duration(longest)}",
        Limit.at(name, format_duration(needs)),
    )


def _fewest_nodes(source: BlockSource, wanted: Sequence[JobRequest]) -> int:
    """Return the fewest nodes of a book that could hold one of these jobs."""
    gpus = (job.gpus for job in wanted if source.holds(job))
    return max(-(-min(gpus, default=1) // source.shape.gpus), 1)


def _serves(source: BlockSource | PodSource, wanted: Sequence[JobRequest]) -> bool:
    return any(source.holds(job) for job in wanted) or not wanted
