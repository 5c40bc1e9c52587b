"""The seeds' rule: where to buy follows from how many GPUs are short.

Fewer than 8 come from a list of offers, when one is within price cap and start-up limit; else, and
from 8 on, whole nodes from an order book. Demand that was there for the whole smoothing window
counts as sustained, and is consolidated on whole nodes too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.models.buying import MarketView, Option, OptionKind, Unmet, UnmetJob
from longshore.models.job import Tier
from longshore.models.market import NoQuote
from longshore.scheduling.buying.costs import (
    Candidate,
    Scene,
    after,
    costed,
    waiting,
    within_caps,
)
from longshore.scheduling.buying.limits import below_the_next
from longshore.scheduling.buying.prices import (
    BlockSource,
    PodSource,
    block_sources,
    pod_sources,
    window_from,
)
from longshore.scheduling.buying.substitutes import with_substitutes
from longshore.scheduling.buying.unverifiable_constraints import suits_market
from longshore.scheduling.buying.warm_target import short_of_warm

WHOLE_NODE = 8
"""GPUs."""


@dataclass(frozen=True, slots=True)
class _Ways:
    """What the markets have for a shortfall."""

    pod: Candidate | None
    blocks: tuple[Candidate, ...]
    """Of each book one, the cheapest first."""


def seed_options(
    scene: Scene, lacking: Sequence[UnmetJob], unmet: Unmet, markets: Sequence[MarketView]
) -> tuple[list[Option], Scene]:
    """Return the ways that the rule knows, with the one that it takes, and what then is."""
    short = shortfall(scene, lacking)
    ways = _Ways(_pod(scene, short, lacking, markets), _blocks(scene, short, lacking, markets))
    large = short >= WHOLE_NODE or sustained(scene, unmet)
    pods = [_whole(scene, ways.pod)] if ways.pod else []
    blocks = [_whole(scene, way) for way in ways.blocks]
    order = blocks if large else [*pods, *blocks]
    options = [waiting(scene), *pods, *blocks]
    choice = next((option for option in order if not option.lost), options[0])
    why = f"the rule takes {choice.title} for {short} GPUs"
    # Costs decide between books alone: so only another book bounds what this one may cost.
    near = below_the_next(choice, blocks) if choice in blocks else choice
    wider = with_substitutes(scene, near, (), _within(scene, lacking, markets))
    options = [
        wider.model_copy(update={"chosen": True})
        if option is choice
        else option.model_copy(update={"lost": option.lost or why})
        for option in options
    ]
    return options, after(scene, wider) if wider.plans else scene


def shortfall(scene: Scene, lacking: Sequence[UnmetJob]) -> int:
    """Return the GPUs that are short of the warm target, and at least those of jobs that wait.

    FLEX has no such target.
    """
    of_jobs = sum(job.request.gpus for job in lacking)
    if scene.tier is not Tier.FAST:
        return of_jobs
    short = short_of_warm(scene.jobs, scene.fleet, scene.policy, scene.usual_demand, scene.now)
    return max(short, of_jobs)


def sustained(scene: Scene, unmet: Unmet) -> bool:
    """Return whether a whole node's worth was queued all through the smoothing window."""
    since = scene.now - scene.policy.smoothing
    known = [s for s in unmet.demand if s.tier is scene.tier and s.at <= scene.now]
    before = [sample for sample in known if sample.at <= since]
    within = [sample for sample in known if sample.at > since]
    return bool(before) and all(s.queued >= WHOLE_NODE for s in (before[-1], *within))


def _pod(
    scene: Scene, short: int, lacking: Sequence[UnmetJob], markets: Sequence[MarketView]
) -> Candidate | None:
    """Return the cheapest offer with the fewest GPUs that are enough."""
    policy = scene.policy
    if short > policy.prime_max_gpus or short >= WHOLE_NODE:
        return None
    found = _within(scene, lacking, markets)
    enough = [source for source in found if source.shape.gpus >= short]
    if not enough:
        return None
    best = min(enough, key=lambda source: (source.shape.gpus, source.offer.price))
    return Candidate(OptionKind.PODS, pods=(best,))


def _within(
    scene: Scene, lacking: Sequence[UnmetJob], markets: Sequence[MarketView]
) -> list[PodSource]:
    """Return the offers that the rule may take, cheapest first."""
    policy, cap = scene.policy, scene.policy.prime_max_price
    return [
        source
        for source in pod_sources(markets, scene.tier, policy)
        if not source.is_cluster
        and source.shape.gpus <= policy.prime_max_gpus
        and (cap is None or source.offer.price <= cap)
        and _suits(source, lacking)
    ]


def _blocks(
    scene: Scene, short: int, lacking: Sequence[UnmetJob], markets: Sequence[MarketView]
) -> tuple[Candidate, ...]:
    """Return whole nodes for the rule's window from each book, the cheapest first."""
    found: list[Candidate] = []
    for source in block_sources(markets, scene.policy):
        if not _suits(source, lacking):
            continue
        asked = source.quote.window
        length = scene.policy.seed_window
        if asked is not None and asked.length != length:
            continue
        window = asked or window_from(source.market.capabilities.grain, scene.now, length)
        nodes = -(-short // source.shape.gpus)
        gang = any(job.request.gang is not None for job in lacking)
        plan = source.plan(
            nodes, window, scene.tier, scene.policy, scene.now, scene.taken, for_gang=gang,
            among=source.places_for_gang()[0] if gang else None,
        )  # fmt: skip
        if not isinstance(plan, NoQuote):
            found.append(Candidate(OptionKind.BLOCK, blocks=((source, plan),)))
    return tuple(sorted(found, key=lambda c: c.blocks[0][1].expected_cost))


def _suits(source: BlockSource | PodSource, lacking: Sequence[UnmetJob]) -> bool:
    """Return whether its type is that of the first job that waits, and so is its market."""
    if lacking and not suits_market(lacking[0].request, source.market.provider):
        return False
    wanted = next((job.request for job in lacking if job.request.types), None)
    return wanted is None or wanted.takes(source.shape.gpu_type)


def _whole(scene: Scene, candidate: Candidate) -> Option:
    """Return a candidate with its costs. The rule counts GPUs: it buys what no job uses too."""
    option = costed(scene, candidate)
    if option.plans:
        return option
    plans = tuple(
        source.plan(scene.now + scene.policy.shortest_window, scene.tier, scene.policy, scene.now)
        for source in candidate.pods
    ) or tuple(plan for _, plan in candidate.blocks)
    option = option.model_copy(
        update={
            "plans": plans,
            "committed": sum(plan.expected_cost for plan in plans),
            "max_total": sum(plan.max_total for plan in plans),
        }
    )
    return within_caps(scene, option)
