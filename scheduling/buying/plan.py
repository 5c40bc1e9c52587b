"""What to buy now: from a queue, what is coming and what the markets show, to orders or a wait.

`decide` is the whole way. It is pure: the same arguments give the same decision, with every option
that was looked at and its price. docs/buying.md tells the rules.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from longshore.models.buying import (
    BuyDecision,
    BuyingPolicy,
    BuyingRule,
    Coming,
    MarketView,
    Option,
    OptionKind,
    Unmet,
    UnmetJob,
)
from longshore.models.caps_left import CapsLeft
from longshore.models.job import Tier
from longshore.models.limit import HeldBy, Limit
from longshore.models.spending import WARM
from longshore.models.text import format_duration
from longshore.scheduling.buying.all_limits import with_all_limits
from longshore.scheduling.buying.costs import (
    Candidate,
    Scene,
    after,
    costed,
    usual_demand,
    waiting,
)
from longshore.scheduling.buying.exclusions import counted, excluded_books
from longshore.scheduling.buying.fleet import Fleet, fleet_of
from longshore.scheduling.buying.incoming_capacity import MOST_JOBS, incoming_starts
from longshore.scheduling.buying.limits import below_the_next
from longshore.scheduling.buying.low_scores import without_low_scores
from longshore.scheduling.buying.options import MOST_EXTENDED, candidates, extended
from longshore.scheduling.buying.oversized_jobs import oversized_jobs, unheld_jobs
from longshore.scheduling.buying.policy_blockers import policy_blockers
from longshore.scheduling.buying.prices import (
    BlockSource,
    PodSource,
    Taken,
    away,
    block_sources,
    pod_sources,
    pods_in_reach,
)
from longshore.scheduling.buying.repeat_guard import blocked_repeats
from longshore.scheduling.buying.runtime_estimate import estimate_runtime
from longshore.scheduling.buying.seed_rule import seed_options, shortfall
from longshore.scheduling.buying.state import BuyingState
from longshore.scheduling.buying.substitutes import with_substitutes
from longshore.scheduling.buying.unverifiable_constraints import unverifiable
from longshore.scheduling.buying.warm_target import (
    bought_for,
    lacking_of,
    with_warm,
    without_the_last,
)
from longshore.scheduling.buying.window_trimming import trimmed
from longshore.scheduling.buying.words import (
    NO_MARKET,
    NOT_LOST,
    NOTHING_LEFT,
    NOTHING_SERVES,
    Lost,
    cost_of_difference,
    nothing_lacks,
    sentence,
    why_not,
)

MOST_ROUNDS = 8


def decide(state: BuyingState, policy: BuyingPolicy, now: datetime) -> BuyDecision:
    """Return what to buy for the jobs that neither the nodes nor what is coming can hold.

    Nothing is bought while buying is off or stopped, within the cooldown, or over a cap.
    """

    def with_policy(policy: BuyingPolicy) -> BuyDecision:
        return _decided(state, policy, now)

    return with_all_limits(with_policy(policy), policy, with_policy)


def _decided(state: BuyingState, policy: BuyingPolicy, now: datetime) -> BuyDecision:
    unmet, markets, caps_left = state.unmet, state.markets, state.caps_left
    fleet = fleet_of(state.releases, state.under_way, state.packing, unmet.recent)
    coming = dict(incoming_starts(unmet, fleet, state.under_way, now))
    hindrance = _hindrance(unmet, policy, caps_left, now)
    if hindrance is not None:
        return _nothing(policy, markets, now, hindrance.why, coming).model_copy(
            update={"limits": hindrance.limits}
        )
    unmet, low = without_low_scores(unmet, fleet, now)
    options = [
        *low, *unverifiable(unmet.jobs, state.packing.funding),
        *oversized_jobs(unmet.jobs, markets), *blocked_repeats(unmet.jobs, policy, now),
    ]  # fmt: skip
    taken: Taken = {}
    in_vain = unheld_jobs(unmet.jobs, markets)
    lacks: list[str] = []
    for tier in (Tier.FAST, Tier.FLEX):
        scene = _scene(tier, unmet, fleet, policy, caps_left, now, taken, in_vain)
        lacking = _lacking(scene)
        lacks += [job.request.id for job in lacking if not job.request.id.startswith(WARM)]
        seed = policy.rule is BuyingRule.SEED
        if not lacking and not (seed and shortfall(scene, lacking) > 0):
            continue
        if seed:
            found, scene = seed_options(scene, lacking, unmet, markets)
        else:
            found, scene = _least_cost(scene, markets)
        options += found
        caps_left, taken = scene.caps, scene.taken
    if not options:
        return _nothing(policy, markets, now, nothing_lacks(coming), coming)
    plans = tuple(plan for option in options if option.chosen for plan in option.plans)
    missing = away(markets)
    left_out = _left_out(options, unmet, markets, policy)
    nothing = _why_nothing(options, replace(state, unmet=unmet), policy, left_out, now)
    by_size = policy.rule is BuyingRule.SEED
    lost = NOT_LOST if plans else why_not(options, nothing, policy.flex_price, by_size=by_size)
    lasts = {job.request.id: job.request.expected_duration for job in unmet.jobs}
    likely = estimate_runtime(unmet.ended).mean
    in_vain |= {option.job_id: option.lost for option in options if option.kind.is_in_vain}
    others = [option for option in options if not option.kind.is_in_vain]
    why = sentence(others, missing, lost, lasts, likely) if others else nothing_lacks(coming)
    return BuyDecision(
        at=now,
        rule=policy.rule,
        plans=plans,
        options=tuple(options),
        reason=sentence(options, missing, lost, lasts, likely),
        why=why if in_vain else "",
        in_vain=in_vain,
        held_for=lost.serves if lost.limits else (),
        lacking=tuple(lacks),
        left_out=left_out,
        limits=lost.limits,
        waits_for=missing,
        coming=coming,
    )


def _why_nothing(
    options: Sequence[Option],
    state: BuyingState,
    policy: BuyingPolicy,
    left_out: Sequence[str],
    now: datetime,
) -> Lost:
    """Return why there would be nothing to choose from: no market, or what a limit keeps out."""
    markets = state.markets
    if not markets:
        return NO_MARKET
    requests = [job.request for job in state.unmet.jobs]
    tiers = dict.fromkeys(option.tier for option in options)
    dear = (policy_blockers(markets, tier, policy, requests, now) for tier in tiers)
    unserved = NOTHING_LEFT if left_out else NOTHING_SERVES
    unserved = unserved._replace(limits=Limit.at(HeldBy.MARKET_AWAY) if away(markets) else ())
    return next(filter(None, dear), unserved)


def _left_out(
    options: Sequence[Option], unmet: Unmet, markets: Sequence[MarketView], policy: BuyingPolicy
) -> tuple[str, ...]:
    """Return what would have served jobs of these tiers, and was left out for what it is."""
    tiers = {option.tier for option in options}
    jobs = [job.request for job in unmet.jobs if job.request.tier in tiers]
    by_id = {
        (source.offer.provider, source.offer.id): source.offer
        for tier in tiers
        for source in pods_in_reach(markets, tier, policy)
        if not source.is_cluster
        and (not jobs or any(job.gang is None and source.holds(job) for job in jobs))
    }
    said = counted(by_id.values(), policy), excluded_books(markets, policy)
    return tuple(filter(None, said))


def _hindrance(
    unmet: Unmet, policy: BuyingPolicy, caps_left: CapsLeft, now: datetime
) -> Lost | None:
    if not policy.enabled:
        return Lost("buying is off for this pool")
    if caps_left.unreadable:
        return Lost(
            f"it cannot be read what comes of {caps_left.unreadable}", Limit.at(HeldBy.UNREADABLE)
        )
    return why_not_yet(caps_left.stopped, unmet.last_bought_at, policy, now)


def why_not_yet(
    stopped: str, bought_at: datetime | None, policy: BuyingPolicy, now: datetime
) -> Lost | None:
    """Return why nothing is bought for a while, whatever is lacking: buying is `stopped`, or the
    pool last bought something within its cooldown."""
    if stopped:
        return Lost(f"buying is stopped: {stopped}", Limit.at(HeldBy.STOPPED))
    if bought_at is not None and now < bought_at + policy.cooldown:
        until = f"{bought_at + policy.cooldown:%H:%M:%S} UTC"
        says = f"within the cooldown: the next purchase may be at {until}"
        passed = max((now - bought_at) // timedelta(seconds=1), 0)
        needs = format_duration(timedelta(seconds=passed))
        return Lost(says, Limit.at(HeldBy.COOLDOWN, needs))
    return None


def _scene(
    tier: Tier,
    unmet: Unmet,
    fleet: Fleet,
    policy: BuyingPolicy,
    caps_left: CapsLeft,
    now: datetime,
    taken: Taken,
    in_vain: Collection[str],
) -> Scene:
    fleet = fleet.of_tier(tier)
    ordered = bought_for(unmet.jobs, tier, fleet, policy, now)
    if len(ordered) > MOST_JOBS:  # those that nothing for sale could hold are in nobody's way
        ordered = [job for job in ordered if job.request.id not in in_vain]
    demand = usual_demand(unmet.demand, tier, now)
    scene = Scene(
        tier,
        tuple(ordered[:MOST_JOBS]),
        fleet,
        policy,
        caps_left,
        demand,
        now,
        taken=taken,
        lasting=estimate_runtime(unmet.ended),
    )
    if policy.rule is not BuyingRule.LEAST_COST or tier is not Tier.FAST:
        return scene
    jobs = with_warm(ordered, fleet, policy, demand, now)
    return replace(scene, jobs=without_the_last(jobs, fleet, policy, now))


def _lacking(scene: Scene) -> list[UnmetJob]:
    """Return the jobs that nothing holds in time."""
    return lacking_of(scene.jobs, scene.fleet, scene.policy, scene.now)


def _least_cost(scene: Scene, markets: Sequence[MarketView]) -> tuple[list[Option], Scene]:
    """Choose in rounds: each adds what lowers the cost of all most, until nothing does."""
    blocks = list(block_sources(markets, scene.policy))
    pods = pod_sources(markets, scene.tier, scene.policy)
    options: list[Option] = []
    while True:
        lacking = _lacking(scene)
        best = waiting(scene)
        looked_at = [best]
        if lacking and scene.round < MOST_ROUNDS:
            looked_at += _compared(scene, lacking, blocks, pods)
            best = cheapest(looked_at)
            others = [option for option in looked_at if option is not best]
            bounded = below_the_next(best, looked_at)
            bounded = with_substitutes(scene, bounded, others, pods, blocks)
            looked_at = [bounded if option is best else option for option in looked_at]
            best = bounded
        options += marked(looked_at, best)
        if best.kind is OptionKind.WAIT:
            return options, scene
        scene = after(scene, best)
        if not _lacking(scene):
            return options, scene


def _compared(
    scene: Scene,
    lacking: Sequence[UnmetJob],
    blocks: Sequence[BlockSource],
    pods: Sequence[PodSource],
) -> list[Option]:
    """Return what might be bought with its costs: what stands alone, then what goes together."""
    found = [(c, costed(scene, c)) for c in candidates(scene, lacking, blocks, pods)]
    trimmed_one = [(c, costed(scene, c)) for c in trimmed(scene, found)]
    options = [option for _, option in (*found, *trimmed_one)]
    partial = _partial(scene, lacking, found)
    of_pods = [pair for pair in partial if not pair[0].blocks][: MOST_EXTENDED // 2]
    of_blocks = [pair for pair in partial if pair[0].blocks][: MOST_EXTENDED // 2]
    of_shorter = _partial(scene, lacking, trimmed_one)[: MOST_EXTENDED // 3]
    for first, rest in (*of_pods, *of_blocks, *of_shorter):
        options += [costed(scene, c) for c in extended(scene, first, rest, blocks, pods)]
    by_title: dict[tuple[str, ...], Option] = {}
    for option in options:
        places = (plan.place or "" for plan in option.plans)
        by_title.setdefault((option.title, *places), option)
    return list(by_title.values())


def _partial(
    scene: Scene, lacking: Sequence[UnmetJob], found: Iterable[tuple[Candidate, Option]]
) -> list[tuple[Candidate, list[UnmetJob]]]:
    """Return the candidates that leave jobs without a machine, the cheapest first, with these."""
    return [
        (candidate, rest)
        for candidate, option in sorted(found, key=lambda pair: pair[1].total)
        if not option.lost and (rest := _left(lacking, option, scene))
    ]


def _left(lacking: Sequence[UnmetJob], option: Option, scene: Scene) -> list[UnmetJob]:
    """Return the jobs that an option does not start within the start-up limit."""
    starts = {served.job_id: served.start for served in option.starts}
    soon = scene.now + scene.policy.startup_limit
    return [job for job in lacking if (start := starts[job.request.id]) is None or start > soon]


def cheapest(options: Iterable[Option]) -> Option:
    """Return the option with the least cost that no cap forbids; of equal ones, the first."""
    return min((option for option in options if not option.lost), key=lambda o: o.total)


def marked(options: Iterable[Option], best: Option) -> list[Option]:
    """Return the options with the chosen one marked, and why the others were not."""
    found: list[Option] = []
    for option in options:
        if option is best:
            found.append(option.model_copy(update={"chosen": True}))
        elif option.lost:
            found.append(option)
        else:
            lost = cost_of_difference(option.total - best.total)
            found.append(option.model_copy(update={"lost": lost}))
    return found


def _nothing(
    policy: BuyingPolicy,
    markets: Sequence[MarketView],
    now: datetime,
    why: str,
    coming: dict[str, Coming],
) -> BuyDecision:
    return BuyDecision(
        at=now, rule=policy.rule, reason=why, waits_for=away(markets), coming=coming
    )
