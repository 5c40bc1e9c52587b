"""What becomes of a block: kept, gone on with, followed by another, sold in part, or terminated.

`decide_block` is pure: the same scene gives the same decision, with every option in micro-dollars
against leaving the block as it is. docs/buying.md tells the rules.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from longshore.models.block_end import (
    BlockDecision,
    BlockJob,
    BlockOption,
    BlockOptionKind,
    BlockScene,
    NodeSale,
    Renewal,
)
from longshore.models.buying import MarketView, PurchasePlan
from longshore.models.job_request import JobRequest
from longshore.models.market import Capabilities, Level, NoQuote, NoQuoteReason, OrderBook, Window
from longshore.models.text import count, dollars, format_duration
from longshore.scheduling.buying.caps import gpu_time
from longshore.scheduling.buying.costs import SHORTEST_RESALE
from longshore.scheduling.buying.fleet import shape_of
from longshore.scheduling.buying.limits import bounded
from longshore.scheduling.buying.machine_extension import go_on
from longshore.scheduling.buying.migration_cost import migration_cost
from longshore.scheduling.buying.present_policy import why_no_time
from longshore.scheduling.buying.prices import BlockSource, round_up, whole_quarters
from longshore.scheduling.buying.scale_down import (
    MOST_QUEUED,
    fleet_of_scene,
    is_cancellable,
    is_removable,
    may_be_sold,
    why_retained,
)
from longshore.scheduling.departures import lead_of
from longshore.scheduling.prices.price import in_place

LEAD = timedelta(minutes=10)
"""Time is sold from this far ahead at least: its machine has ended by then."""
TRY_AGAIN = timedelta(minutes=15)
"""After a sale or a renewal was tried, bought or not, nothing is tried for so long."""
MOST_SALES = 8
"""Nodes of one block that are sold at a time."""
_HOUR = timedelta(hours=1)
_NO_BOOK = NoQuote(reason=NoQuoteReason.EMPTY, detail="nobody sells the time after it there")


def decide_block(scene: BlockScene) -> BlockDecision:
    """Return what to do with a block now: what gains most against leaving it as it is.

    Time that a running or a reserved job needs is never sold, nothing is bought over the policy's
    price cap, and a machine of the warm target is kept.
    """
    sales = _sales(scene)
    plan, renewed = _renewal(scene)
    longer = go_on(scene)
    others = (renewed, longer.option, _sale(scene, sales), _let_go(scene))
    options = [BlockOption(kind=BlockOptionKind.KEEP, title="leave it as it is")]
    options += [option for option in others if option]
    best = max((each for each in options if not each.lost), key=lambda each: each.gain)
    next_best = max(
        (each.gain for each in options if each is not best and not each.lost), default=0
    )
    marked = tuple(_marked(each, best) for each in options)
    chosen = next(each for each in marked if each.chosen)
    return BlockDecision(
        block_id=scene.block.id, at=scene.now, kind=chosen.kind,
        reason=_sentence(chosen, marked), options=marked,
        sales=sales if chosen.kind is BlockOptionKind.SELL else (),
        renewal=_ordered(scene, plan, best.gain - next_best) if plan and best is renewed else None,
        until=longer.until if chosen.kind is BlockOptionKind.GO_ON else None,
        uses=longer.uses if chosen.kind is BlockOptionKind.GO_ON else None,
    )  # fmt: skip


def kept(decision: BlockDecision, kind: BlockOptionKind, why: str) -> BlockDecision:
    """Return the decision to leave a block as it is, where what was chosen may not be done."""
    options = tuple(
        option.model_copy(update={"chosen": False, "lost": why}) if option.kind is kind
        else option.model_copy(update={"chosen": True, "lost": ""})
        if option.kind is BlockOptionKind.KEEP else option
        for option in decision.options
    )  # fmt: skip
    chosen = next(each for each in options if each.chosen)
    return decision.model_copy(
        update={
            "kind": chosen.kind, "options": options, "sales": (), "renewal": None,
            "until": None, "uses": None, "reason": _sentence(chosen, options),
        }
    )  # fmt: skip


def lines_of(decision: BlockDecision) -> tuple[str, ...]:
    """Return each option in a line: ``leave it as it is: gains $0.00 (chosen)``."""
    return tuple(
        f"{each.title}: gains {dollars(each.gain)} ({'chosen' if each.chosen else each.lost})"
        for each in decision.options
    )


def resale_window(ends_at: datetime, now: datetime) -> Window | None:
    """Return what is left of a block in whole hours, as markets trade it; None for too little."""
    start = round_up(now + LEAD, _HOUR)
    end = round_up(ends_at - _HOUR + timedelta(microseconds=1), _HOUR)
    return Window(start=start, end=end) if end - start >= SHORTEST_RESALE else None


def renewal_window(scene: BlockScene) -> Window | None:
    """Return the time after a block that its jobs and the queue need; None where nothing does."""
    jobs = _beyond(scene)
    if not jobs:
        return None
    ends_at, policy = scene.block.ends_at, scene.policy
    last = max(job.ends_unasked(policy.safety_margin) for job in jobs)
    length = whole_quarters(max(last - ends_at, timedelta(minutes=1)))
    return Window(start=ends_at, end=ends_at + min(length, policy.longest_window))


def may_renew(scene: BlockScene) -> bool:
    """Return whether it is time to think of the time after a block."""
    block, policy = scene.block, scene.policy
    ahead = min(2 * policy.startup_limit, (block.ends_at - block.starts_at) / 2)
    return (
        policy.enabled and policy.renew and block.renewable
        and not block.renewed and not block.given_up
        and block.ends_at - ahead <= scene.now < block.ends_at and not _tried_of_late(scene)
    )  # fmt: skip


# --- selling ------------------------------------------------------------------------------


def _sales(scene: BlockScene) -> tuple[NodeSale, ...]:
    """Return the nodes whose rest is worth more to others, each with the bid that takes it."""
    block, policy = scene.block, scene.policy
    window = resale_window(block.ends_at, scene.now)
    allowed = scene.may_leave and policy.resell and block.resellable
    later = not block.given_up and (block.renewed or _tried_of_late(scene))
    if not allowed or window is None or later:
        return ()
    found: list[NodeSale] = []
    free = may_be_sold(scene)[:MOST_SALES]
    for machine, price in zip(free, _bids(scene, window), strict=False):
        kept = _kept_value(scene, machine)
        proceeds = price * block.gpus_per_node * (window.length // timedelta(seconds=1)) // 3600
        fee = scene.terms.fee(proceeds, window.length)
        if proceeds - fee <= kept:
            break  # bids only get lower
        found.append(
            NodeSale(machine=machine, window=window, limit=price, proceeds=proceeds, fee=fee)
        )
    return tuple(found)


def _sale(scene: BlockScene, sales: Sequence[NodeSale]) -> BlockOption | None:
    if not sales:
        return _unsold(scene) if scene.unstarted else None
    window = sales[0].window
    terms = {
        "proceeds": sum(sale.proceeds for sale in sales),
        "fee": -sum(sale.fee for sale in sales),
        "use by jobs to come": -sum(_kept_value(scene, sale.machine) for sale in sales),
    }
    return BlockOption(
        kind=BlockOptionKind.SELL,
        title=f"sell {count(len(sales), 'node')} for the {format_duration(window.length)} from "
        f"{window.start:%H:%M} UTC",
        gain=sum(terms.values()),
        terms=terms,
    )


def _unsold(scene: BlockScene) -> BlockOption:
    """Return the sale of time that is of no use, with what it cost and why it is none."""
    block, nodes = scene.block, len(scene.unstarted)
    left = max(block.ends_at - scene.now, timedelta(0)) / _HOUR
    paid = int(block.price * block.gpus_per_node * left) * nodes
    if not block.resellable:
        why = f"{block.provider} takes no time back from here"
    elif not scene.policy.resell:
        why = "the policy sells nothing (`resell`)"
    elif resale_window(block.ends_at, scene.now) is None:
        why = "it is less than markets trade"
    else:
        why = "nobody bids for it, or it was tried just now"
    which = "of a terminated block" if block.given_up else "on which nothing starts"
    title = f"sell {count(nodes, 'node')} {which}, {dollars(paid)} of paid time"
    return BlockOption(kind=BlockOptionKind.SELL, title=title, lost=why)


def _bids(scene: BlockScene, window: Window) -> list[int]:
    """Return what each node would bring for a GPU-hour, the dearest first: whole nodes only."""
    book = scene.rest.answer if scene.rest else None
    if book is None or isinstance(book, NoQuote):
        return []
    prices: list[int] = []
    for bid in sorted(in_place(book, scene.place).bids, key=lambda level: -level.price):
        if bid.price and _holds(bid, book, window):
            prices += [bid.price] * (bid.gpus // scene.block.gpus_per_node)
    return prices


def _holds(bid: Level, book: OrderBook, window: Window) -> bool:
    if bid.start is None and bid.ends_at is None:
        return book.window is None or book.window.covers(window)
    starts = bid.start is None or bid.start <= window.start
    return starts and (bid.ends_at is None or bid.ends_at >= window.end)


def _kept_value(scene: BlockScene, machine: str) -> int:
    """Return what the rest of one node is worth to jobs to come, by the demand of late: all until
    its end, since it stops when it is sold; nothing where it is not started, or is terminated."""
    if machine in scene.unstarted:
        return 0
    likely = min(scene.demand / max(fleet_of_scene(scene).gpus_of(scene.block.tier), 1), 1.0)
    whole = scene.block.price * scene.block.gpus_per_node
    left = (scene.block.ends_at - scene.now) / _HOUR
    return int(whole * left * scene.policy.reuse_share * likely)


# --- buying the time after it -------------------------------------------------------------


def _renewal(scene: BlockScene) -> tuple[PurchasePlan | None, BlockOption | None]:
    """Return the time after the block with what it gains against buying elsewhere later."""
    window = renewal_window(scene) if may_renew(scene) else None
    if window is None:
        return None, None
    block, policy = scene.block, scene.policy
    jobs = _beyond(scene)
    nodes = len({job.node_id for job in jobs})
    title = f"buy the {format_duration(window.length)} after it for {count(nodes, 'node')}"
    if lost := scene.closed or why_no_time(block.provider, block.instance_type, policy):
        return None, BlockOption(kind=BlockOptionKind.RENEW, title=title, lost=lost)
    plan = _plan(scene, nodes, window)
    if isinstance(plan, NoQuote):
        lost = plan.detail or plan.reason.value
        return None, BlockOption(kind=BlockOptionKind.RENEW, title=title, lost=lost)
    terms = {
        "price": -plan.expected_cost,
        **migration_cost(scene, jobs),
        "left over": _left_over(scene, plan, jobs, window),
    }
    option = BlockOption(
        kind=BlockOptionKind.RENEW, title=title, gain=sum(terms.values()), terms=terms
    )
    return plan, _within_caps(scene, option, plan)


def _ordered(scene: BlockScene, plan: PurchasePlan, more: int) -> Renewal:
    """Return the order of a renewal that may cost so many micro-dollars more than expected."""
    (within,) = bounded((plan,), more)
    assert within.window is not None  # the time after a block has an end
    return Renewal(
        nodes=within.nodes, window=within.window, place=scene.place, limit=within.limit,
        cap=within.limit, cost=within.expected_cost, uses=gpu_time(_beyond(scene), within.window),
    )  # fmt: skip


def _plan(scene: BlockScene, nodes: int, window: Window) -> PurchasePlan | NoQuote:
    block, quote = scene.block, scene.following
    shape = shape_of(block.instance_type)
    if quote is None or shape is None or isinstance(quote.answer, NoQuote):
        answer = quote.answer if quote is not None else None
        return answer if isinstance(answer, NoQuote) else _NO_BOOK
    if why := quote.answer.refused.get(scene.place or ""):
        return NoQuote(reason=NoQuoteReason.LEFT_OUT, detail=why)
    there = quote.model_copy(update={"answer": in_place(quote.answer, scene.place)})
    market = MarketView(
        provider=block.provider, quotes=(there,), observed_at=scene.now,
        capabilities=Capabilities(
            order_book=True, fixed_window=True, lot_gpus=block.gpus_per_node
        ),
    )  # fmt: skip
    source = BlockSource(market, there, shape)
    if not source.places:
        return _NO_BOOK
    return source.plan(nodes, window, block.tier, scene.policy, scene.now)


def _within_caps(scene: BlockScene, option: BlockOption, plan: PurchasePlan) -> BlockOption:
    cap = scene.policy.caps.per_purchase
    if cap is not None and plan.max_total > cap:
        return option.model_copy(update={"lost": "it is over the cap of a purchase"})
    return option


def _left_over(
    scene: BlockScene, plan: PurchasePlan, jobs: Sequence[BlockJob], window: Window
) -> int:
    """Return what the rest of the bought time is worth to the queue and to jobs to come."""
    used = sum((min(j.expected_end, window.end) - window.start) / _HOUR * j.gpus for j in jobs)
    whole = window.length / _HOUR * plan.gpus
    queued = sum(job.request.gpus for job in scene.queue if job.request.tier is scene.block.tier)
    total = max(fleet_of_scene(scene).gpus_of(scene.block.tier), 1)
    likely = min(max(scene.demand, float(queued)) / total, 1.0)
    paid = plan.expected_cost / max(whole, 1e-9)
    return int(max(whole - used, 0.0) * paid * scene.policy.reuse_share * likely)


def _beyond(scene: BlockScene) -> list[BlockJob]:
    """Return the jobs that need the block's nodes beyond its end: running, then queued ones.

    Queued are those that would start there before that end if it came later, and that nothing
    else the pool has, or has bought, holds.
    """
    ends_at, margin = scene.block.ends_at, scene.policy.safety_margin
    paid = scene.packing.is_paid_for
    running = [job for job in scene.jobs if job.ends_unasked(margin) > ends_at and paid(job.id)]
    wanted = {
        job.request.id: job.request for job in scene.queue[:MOST_QUEUED] if paid(job.request.id)
    }
    if not wanted:
        return running
    fleet, now = fleet_of_scene(scene), scene.now
    starts = fleet.outlook(wanted.values(), now).starts
    lacking = [wanted[name] for name, start in starts.items() if start is None]
    mine = {machine.name for machine in scene.machines if machine.takes_work}
    longer = tuple(
        node.model_copy(update={"expires_at": None}) if node.id in mine else node
        for node in fleet.nodes
    )
    uses = replace(fleet, nodes=longer).outlook(lacking, now).uses
    queued = [
        BlockJob(
            id=use.job_id, node_id=name, gpus=use.gpus, tier=wanted[use.job_id].tier,
            expected_end=use.end, lost=timedelta(0), whole=use.end - use.start,
            lead=_lead(wanted[use.job_id], scene),
        )
        for name in sorted(mine)
        for use in uses.get(name, ())
        if use.start < ends_at
    ]  # fmt: skip
    return running + [job for job in queued if ends_at < job.ends_unasked(margin)]


def _lead(job: JobRequest, scene: BlockScene) -> timedelta:
    return lead_of(job.grace, job.saves, scene.policy.margins)


# --- termination ---------------------------------------------------------------------------


def _let_go(scene: BlockScene) -> BlockOption | None:
    """Return the end of a machine that is billed as it runs and has been idle for long enough."""
    why = _of_no_use(scene)
    if not why:
        return None
    block = scene.block
    hourly = block.price * block.gpus_per_node * max(len(scene.machines), 1)
    option = BlockOption(
        kind=BlockOptionKind.LET_GO, title=f"terminate it: {why}", gain=hourly,
        terms={"an hour of it": hourly},
    )  # fmt: skip
    if is_removable(scene) or is_cancellable(scene):
        return option
    return option.model_copy(update={"lost": why_retained(scene)})


def _of_no_use(scene: BlockScene) -> str:
    """Return why a machine that is billed as it runs might end now; empty where it may not."""
    block, policy = scene.block, scene.policy
    if not block.by_use or not scene.may_leave:
        return ""
    if block.coming is not None:
        return "it is not up yet, and nothing that it was bought for wants it any more"
    since = block.idle_since
    if since is None or scene.now < since + policy.idle_after:
        return ""
    idle = timedelta(seconds=round((scene.now - since).total_seconds()))
    return f"nothing has run there for {format_duration(idle)}"


# --- all ----------------------------------------------------------------------------------


def _tried_of_late(scene: BlockScene) -> bool:
    tried = scene.block.tried_at
    return tried is not None and scene.now < tried + TRY_AGAIN


def _marked(option: BlockOption, best: BlockOption) -> BlockOption:
    if option is best:
        return option.model_copy(update={"chosen": True})
    if option.lost:
        return option
    return option.model_copy(update={"lost": f"gains {dollars(best.gain - option.gain)} less"})


def _sentence(chosen: BlockOption, options: Iterable[BlockOption]) -> str:
    if chosen.kind is BlockOptionKind.KEEP:
        others = [f"not “{each.title}”: {each.lost}" for each in options if each is not chosen]
        return "; ".join([chosen.title, *others])
    terms = ", ".join(f"{name} {dollars(amount)}" for name, amount in chosen.terms.items())
    return f"{chosen.title}: gains {dollars(chosen.gain)} ({terms})"
