"""Substitutes for an offer, or for node time, that its seller refuses.

It is decided with it, so that one purchase tries all in turn, within the same caps. In place of
an offer: offers like it in what counts, of other sellers, so cheap that its option still costs no
more than the next best. In place of node time: the next best option itself, of another market.
Where node time is ordered beside other things, each order has its own next best: what would be
chosen for its jobs if the others come, and this one does not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from longshore.models.buying import Option, OptionKind, PurchasePlan, UnmetJob
from longshore.models.market import Offer
from longshore.scheduling.buying.caps import over_a_cap
from longshore.scheduling.buying.costs import Scene, after, costed, waiting
from longshore.scheduling.buying.options import candidates
from longshore.scheduling.buying.prices import BlockSource, PodSource

MOST_INSTEAD = 2
_NEVER = datetime.max.replace(tzinfo=UTC)


def with_substitutes(
    scene: Scene,
    best: Option,
    options: Iterable[Option],
    pods: Sequence[PodSource],
    blocks: Sequence[BlockSource] = (),
) -> Option:
    """Return an option with what each of its offers may be replaced by, cheapest first.

    `options` are those that it was compared with, `pods` the offers that may be taken, cheapest
    first, `blocks` the books. What it may cost more than it does is spread evenly over its offers.
    Node time, whose limits use that (`limits.py`), and what is ordered beside it, is replaced by
    what would have been chosen without it.
    """
    if any(plan.window is not None for plan in best.plans):
        if len(best.plans) == 1:
            return _with_next_best(scene, best, options, pods)
        return _each_with_next_best(scene, best, pods, blocks)
    others = [option.total for option in options if option is not best and not option.lost]
    room = (min(others) - best.total) // max(len(best.plans), 1) if others else None
    found = best
    for number, plan in enumerate(best.plans):
        for other in _others(scene, plan, pods):
            instead = found.plans[number].instead
            dear = room is not None and other.expected_cost - plan.expected_cost > room
            if dear or len(instead) == MOST_INSTEAD:
                break
            wider = _replaced(found, number, (*instead, other))
            if over_a_cap(scene.caps, scene.jobs, wider):
                break
            found = wider
    return found


def _each_with_next_best(
    scene: Scene, best: Option, pods: Sequence[PodSource], blocks: Sequence[BlockSource]
) -> Option:
    """Return an option of several orders, each with what would be chosen for its jobs without its
    market, or its seller, when the others are there."""
    found = best
    for number, plan in enumerate(best.plans):
        others = (*best.plans[:number], *best.plans[number + 1 :])
        most = sum(each.most for each in others)
        beside = after(scene, best.model_copy(update={"plans": others, "max_total": most}))
        # Its jobs alone: what else is ordered holds those of its own.
        jobs = tuple(job for job in scene.jobs if job.request.id in plan.serves)
        apart = replace(beside, jobs=jobs, fleet=scene.fleet)
        # An offer that is taken once is in no place of another order.
        used = {each.offer.id for one in found.plans for each in (one, *one.instead) if each.offer}
        free = [
            source for source in pods
            if not (source.once and source.offer.id in used)
            if not _is_sold_by(plan, source.offer.provider, source.offer)
        ]  # fmt: skip
        books = [book for book in blocks if not _is_sold_by(plan, book.market.provider)]
        ways = (
            way for way in candidates(apart, jobs, books, free)
            if len(way.blocks) + len(way.pods) == 1
        )  # fmt: skip
        options = [_waiting_for(beside, jobs), *(costed(apart, way) for way in ways)]
        alone = best.model_copy(update={"plans": (plan,), "max_total": plan.most})
        instead = _with_next_best(apart, alone, options, free).plans[0].instead
        while instead:
            wider = _replaced(found, number, instead)
            if not over_a_cap(scene.caps, scene.jobs, wider):
                found = wider
                break
            instead = instead[:-1]
    return found


def _waiting_for(scene: Scene, jobs: Sequence[UnmetJob]) -> Option:
    """Return the option to buy nothing for some jobs, of which the others are not delayed."""
    rest = tuple(job for job in scene.jobs if job not in jobs)
    wait = waiting(scene)
    return wait.model_copy(
        update={"delay": max(wait.delay - waiting(replace(scene, jobs=rest)).delay, 0)}
    )


def _with_next_best(
    scene: Scene, best: Option, options: Iterable[Option], pods: Sequence[PodSource]
) -> Option:
    """Return an option of one order with what would be chosen without its market, or its seller
    where it is of an offer."""
    (plan,) = best.plans
    rest = [
        option for option in options
        if not option.lost
        if not any(_is_sold_by(plan, each.provider, each.offer) for each in option.plans)
    ]  # fmt: skip
    for option in sorted(rest, key=lambda each: each.total):
        if option.kind is OptionKind.WAIT:
            break  # what costs more than to wait is not bought
        if not _is_like(scene, option, best):
            continue
        beside = [each for each in rest if each is not option]
        (other,) = with_substitutes(scene, option, beside, pods).plans
        found = best
        for each in (other.model_copy(update={"instead": ()}), *other.instead):
            instead = found.plans[0].instead
            wider = _replaced(found, 0, (*instead, each))
            if len(instead) == MOST_INSTEAD or over_a_cap(scene.caps, scene.jobs, wider):
                break
            found = wider
        if found is not best:
            return found
    return best


def _is_like(scene: Scene, option: Option, best: Option) -> bool:
    """Return whether an option is one order for the same jobs and as many nodes, and starts each
    job as early or within the start-up limit."""
    (plan,), others = best.plans, option.plans
    if len(others) != 1 or others[0].nodes != plan.nodes:
        return False
    soon = scene.now + scene.policy.startup_limit
    starts, first = (
        {served.job_id: served.start or _NEVER for served in each.starts}
        for each in (option, best)
    )
    same = set(others[0].serves) == set(plan.serves)
    return same and all(starts[name] <= max(first[name], soon) for name in plan.serves)


def _is_sold_by(plan: PurchasePlan, provider: str, offer: Offer | None = None) -> bool:
    """Return whether a plan is asked of a market, or of the seller of an offer there."""
    if plan.offer is None or offer is None:
        return plan.provider == provider
    return _seller(plan.offer) == _seller(offer)


def _replaced(option: Option, number: int, instead: tuple[PurchasePlan, ...]) -> Option:
    plan = option.plans[number].model_copy(update={"instead": instead})
    plans = (*option.plans[:number], plan, *option.plans[number + 1 :])
    return option.model_copy(
        update={"plans": plans, "max_total": sum(each.most for each in plans)}
    )


def _others(scene: Scene, plan: PurchasePlan, pods: Sequence[PodSource]) -> Iterator[PurchasePlan]:
    """Yield the plan with the cheapest like offer of each other seller; none for a cluster."""
    if plan.offer is None or plan.nodes > 1:
        return
    served = [job.request for job in scene.jobs if job.request.id in plan.serves]
    cpus = min(plan.shape.cpus, sum(job.cpus for job in served))
    ram = min(plan.shape.ram, sum(job.ram for job in served))
    startup = plan.ready_at - scene.now
    minutes, most_minutes = (_minutes(plan, of) for of in (plan.expected_cost, plan.max_total))
    sellers = {_seller(plan.offer)}
    for source in pods:
        offer, shape = source.offer, source.shape
        same = (shape.gpus, shape.gpu_type) == (plan.shape.gpus, plan.shape.gpu_type)
        enough = shape.vram >= plan.shape.vram and shape.cpus >= cpus and shape.ram >= ram
        no_later = source.startup(scene.policy) <= startup
        as_steady = not (offer.spot or offer.variable) or plan.offer.spot or plan.offer.variable
        if source.is_cluster or not (same and enough and no_later and as_steady):
            continue
        if not all(source.holds(job) for job in served):
            continue
        if offer.prepaid > plan.offer.prepaid or _seller(offer) in sellers:
            continue
        sellers.add(_seller(offer))
        yield plan.model_copy(
            update={
                "provider": offer.provider,
                "instance_type": offer.instance_type,
                "limit": offer.price,
                "max_total": _cost(offer, most_minutes),
                "expected_cost": _cost(offer, minutes),
                "shape": shape,
                "offer": offer,
            }
        )


def _seller(offer: Offer) -> tuple[str, str]:
    return offer.provider, offer.seller


def _minutes(plan: PurchasePlan, cost: int) -> int:
    """Return the minutes that a machine runs for that cost: `PodSource.cost` rounds up."""
    return cost * 60 // max(plan.limit * plan.gpus, 1)


def _cost(offer: Offer, minutes: int) -> int:
    return -(-offer.price * offer.gpus * minutes // 60)
