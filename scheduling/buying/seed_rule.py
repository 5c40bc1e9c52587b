"""The seeds' rule: where to buy follows from how many GPUs are short.

Fewer than 8 come from a list of offers, when one is within price cap and start-up limit; else, and
from 8 on, whole nodes from an order book. Demand that was there for the whole smoothing window
counts as sustained, and is consolidated on whole nodes too.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from longshore.models.buying import MarketView, Option, OptionKind, Unmet, UnmetJob
from longshore.models.job import Tier
from longshore.models.market import NoQuote, Window
from longshore.models.purchase import MOST_NODES
from longshore.models.text import count
from longshore.scheduling.buying.costs import (
    Candidate,
    Scene,
    after,
    costed,
    foreseen,
    name_in,
    waiting,
    within_caps,
)
from longshore.scheduling.buying.fleet import names_of
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
from longshore.scheduling.buying.warm_target import short_of_warm, wants_warm
from longshore.scheduling.buying.words import UNUSED
from longshore.scheduling.node_lifetime import to_finish

WHOLE_NODE = 8
"""GPUs."""


@dataclass(frozen=True, slots=True)
class _Way:
    """What a market has for a shortfall, with what runs there."""

    candidate: Candidate
    serves: bool
    """Whether a job that lacks runs there; or the warm target wants it for itself."""


def seed_options(
    scene: Scene, lacking: Sequence[UnmetJob], unmet: Unmet, markets: Sequence[MarketView]
) -> tuple[list[Option], Scene]:
    """Return the ways that the rule knows, with the one that it takes, and what then is."""
    offers = list(_offers(scene, markets))
    books = list(block_sources(markets, scene.policy))
    scene, lacking = _of_use(
        scene, lacking, [j for j in lacking if _held(scene, j, offers, books)]
    )
    short = shortfall(scene, lacking)
    large = short >= WHOLE_NODE or sustained(scene, unmet)
    pods = [_whole(scene, way) for way in _pods(scene, lacking, offers)]
    found = (way for book in books for way in _blocks(scene, book, lacking))
    found = sorted(found, key=lambda way: way.candidate.blocks[0][1].expected_cost)
    blocks = [_whole(scene, way) for way in found]
    order = blocks if large else [*pods, *blocks]
    options = [waiting(scene), *pods, *blocks]
    choice = next((option for option in order if not option.lost), options[0])
    why = f"the rule takes {choice.title} for {count(short, 'GPU')}"
    # Costs decide between books alone: so only another book bounds what this one may cost.
    near = below_the_next(choice, blocks) if choice in blocks else choice
    wider = with_substitutes(scene, near, (), [o for o in offers if _suits(scene, o, lacking)])
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
    of_jobs = sum(job.request.gpus_held for job in lacking)
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


def _held(
    scene: Scene, job: UnmetJob, offers: Sequence[PodSource], books: Sequence[BlockSource]
) -> bool:
    """Return whether anything that the rule may take could hold a job to its end."""
    if any(source.holds(job.request) for source in offers):
        return True
    needs = scene.policy.usual_startup + to_finish(job.request, scene.policy)
    windows = (_window(scene, source) for source in books if source.holds(job.request))
    return any(w is not None and max(w.start, scene.now) + needs <= w.end for w in windows)


def _of_use(
    scene: Scene, lacking: Sequence[UnmetJob], served: Sequence[UnmetJob]
) -> tuple[Scene, list[UnmetJob]]:
    """Return the scene without the lacking jobs that nothing serves. They count for no shortfall:
    it would be bought for them again and again."""
    left = {job.request.id for job in lacking} - {job.request.id for job in served}
    if left:
        scene = replace(scene, jobs=tuple(j for j in scene.jobs if j.request.id not in left))
    return scene, list(served)


def _way(
    scene: Scene,
    lacking: Sequence[UnmetJob],
    held: Sequence[UnmetJob],
    made: Callable[[int, Sequence[UnmetJob]], Candidate | None],
) -> Iterator[_Way]:
    """Yield what is `made` for the jobs that may be `held` there, and for the warm target, without
    the nodes that no job uses; that no job runs there where none does."""
    warm = scene.tier is Tier.FAST and scene.policy.keeps_warm
    if held or warm:
        scene, lacking = _of_use(scene, lacking, held)
    last, nodes, short = None, sys.maxsize, shortfall(scene, lacking)
    while short and (candidate := made(short, lacking)) is not None:
        ((_, plan),), outlook, _ = foreseen(scene, candidate)
        if plan.nodes >= nodes:
            break
        names = names_of(plan, name_in(scene, 0))
        used = sum(bool(outlook.uses.get(name)) for name in names)
        runs = bool(outlook.jobs_on(names)) and (bool(held) or not lacking)
        last, nodes = _Way(candidate, serves=runs or warm), plan.nodes
        if warm or not 0 < used < len(names):
            break
        # Jobs that do not pack to the GPU leave some to the next decision: no used node goes.
        short = used * plan.gpus_per_node
    if last is not None:
        yield last


def _pods(
    scene: Scene, lacking: Sequence[UnmetJob], offers: Sequence[PodSource]
) -> Iterator[_Way]:
    """Yield the cheapest offer with the fewest GPUs that are enough."""
    suiting = [offer for offer in offers if _suits(scene, offer, lacking)]
    held = [job for job in lacking if _held(scene, job, suiting, ())]

    def made(short: int, jobs: Sequence[UnmetJob]) -> Candidate | None:
        if short > scene.policy.prime_max_gpus or short >= WHOLE_NODE:
            return None
        enough = [o for o in offers if o.shape.gpus >= short and _suits(scene, o, jobs)]
        if not enough:
            return None
        best = min(enough, key=lambda source: (source.shape.gpus, source.offer.price))
        return Candidate(OptionKind.PODS, pods=(best,))

    yield from _way(scene, lacking, held, made)


def _offers(scene: Scene, markets: Sequence[MarketView]) -> Iterator[PodSource]:
    """Yield the offers that the rule may take, cheapest first."""
    policy, cap = scene.policy, scene.policy.prime_max_price
    for source in pod_sources(markets, scene.tier, policy):
        within = cap is None or source.offer.price <= cap
        if within and not source.is_cluster and source.shape.gpus <= policy.prime_max_gpus:
            yield source


def _blocks(scene: Scene, source: BlockSource, lacking: Sequence[UnmetJob]) -> Iterator[_Way]:
    """Yield whole nodes for the rule's window from a book."""
    window = _window(scene, source)
    held = [job for job in lacking if _held(scene, job, (), [source])]

    def made(short: int, jobs: Sequence[UnmetJob]) -> Candidate | None:
        if window is None or not _suits(scene, source, jobs):
            return None
        gang = any(job.request.gang is not None for job in jobs)
        nodes = min(-(-short // source.shape.gpus), MOST_NODES)
        plan = source.plan(
            nodes, window, scene.tier, scene.policy, scene.now, scene.taken,
            for_gang=gang, among=source.places_for_gang()[0] if gang else None,
        )  # fmt: skip
        return None if isinstance(plan, NoQuote) else Candidate(
            OptionKind.BLOCK, blocks=((source, plan),)
        )  # fmt: skip

    yield from _way(scene, lacking, held, made)


def _window(scene: Scene, source: BlockSource) -> Window | None:
    """Return the rule's window at a book; None where it was asked for another one."""
    length, asked = scene.policy.seed_window, source.quote.window
    if asked is not None:
        return asked if asked.length == length else None
    return window_from(source.market.capabilities.grain, scene.now, length)


def _suits(scene: Scene, source: BlockSource | PodSource, lacking: Sequence[UnmetJob]) -> bool:
    """Return whether its type is that of the first job that waits, and so is its market; of the
    warm target where none waits."""
    if not lacking:
        return wants_warm(source.shape.gpu_type, scene.policy)
    if not suits_market(lacking[0].request, source.market.provider):
        return False
    wanted = next((job.request for job in lacking if job.request.types), None)
    return wanted is None or wanted.takes(source.shape.gpu_type)


def _whole(scene: Scene, way: _Way) -> Option:
    """Return a way with its costs. The rule counts GPUs: for the warm target it buys what no job
    uses yet too."""
    option = costed(scene, way.candidate)
    if option.plans or not way.serves:
        return option if way.serves else option.model_copy(update={"lost": option.lost or UNUSED})
    plans = tuple(
        source.plan(scene.now + scene.policy.shortest_window, scene.tier, scene.policy, scene.now)
        for source in way.candidate.pods
    ) or tuple(plan for _, plan in way.candidate.blocks)
    option = option.model_copy(
        update={
            "plans": plans,
            "committed": sum(plan.expected_cost for plan in plans),
            "max_total": sum(plan.max_total for plan in plans),
        }
    )
    return within_caps(scene, option)
