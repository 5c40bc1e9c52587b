"""Deciding what to buy without buying it: for a pool and the markets now, or for a file."""

from datetime import datetime
from pathlib import Path

from longshore.activities.buying.decisions import caps_left, tenants_of
from longshore.activities.buying.inputs import last_bought_at, look_at, read_need, under_way
from longshore.activities.buying.market_refusals import closed_markets, refused_offers
from longshore.activities.database import Database
from longshore.activities.usage import load_pool_to_plan
from longshore.client.markets import open_markets
from longshore.models.base import Frozen
from longshore.models.buying import BuyDecision, BuyingPolicy, UnmetJob
from longshore.models.buying_document import BuyingDocument
from longshore.models.caps_left import CapsLeft
from longshore.models.document import read_document
from longshore.models.funding import PoolFunding
from longshore.models.settings import Settings
from longshore.scheduling.buying.buying_status import what_helps
from longshore.scheduling.buying.plan import decide, why_not_yet
from longshore.scheduling.buying.start_below import decide_below
from longshore.scheduling.buying.state import BuyingState
from longshore.scheduling.funding.where_paid import as_bought


class DryRun(Frozen):
    """A decision that nothing was done about."""

    source: str
    """The file, or the pool."""
    decision: BuyDecision
    jobs: tuple[UnmetJob, ...]
    switched_on: bool
    """Whether the pool's policy allows it to buy."""
    not_yet: str = ""
    """Why the pool buys nothing for a while all the same: buying is stopped, or a cooldown."""
    helps: str = ""
    """What would let the pool buy, where limits keep it from that: all of it, with commands."""
    left_today_micro_usd: int | None = None
    """What the pool may still commit today; None without a limit."""
    left_of_tenant_micro_usd: int | None = None
    """What of that may be for the tenant of the job that was asked for; None without a limit."""
    simulated: bool = False


def decide_on_file(path: str | Path, now: datetime) -> DryRun:
    """Return what would be bought for a file. Raises SpecError."""
    document = read_document(path, BuyingDocument)
    at = document.now or now
    unmet = document.unmet(at)
    own = document.policy.caps.model_copy(update={"per_day": document.left_today})
    caps = CapsLeft.of(own, (job.tenant for job in unmet.jobs))
    state = BuyingState(
        unmet=unmet, packing=document.packing, under_way=document.under_way,
        releases=[node.release() for node in document.nodes],
        markets=[market.view(at) for market in document.markets], caps_left=caps,
    )  # fmt: skip
    decision = decide(state, _as_if_on(document.policy.beside(document.packing)), at)
    return DryRun(
        source=str(path),
        decision=decision,
        jobs=unmet.jobs,
        switched_on=document.policy.enabled,
        left_today_micro_usd=caps.today,
        simulated=any(book.simulated for market in document.markets for book in market.books),
    )


async def decide_on_pool(
    pool: str,
    now: datetime,
    beside: UnmetJob | None = None,
    settings: Settings | None = None,
    funding: PoolFunding | None = None,
) -> DryRun:
    """Return what would be bought for a pool's queue at the configured markets.

    With `beside` as if that job waited in the queue too; `funding` says who would pay then, where
    a budget or a quota concerns that job. Raises UnavailableError without a
    database, NotFoundError without a market or for no such pool.
    """
    settings = settings or Settings()
    database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    try:
        async with database.transaction() as connection:
            spec = await load_pool_to_plan(connection, pool, settings.margins, known=True)
            if funding is not None:
                packing = spec.packing.model_copy(update={"funding": funding})
                spec = spec.model_copy(update={"packing": packing})
            need = await read_need(connection, spec)
            coming = await under_way(connection, spec)
            tenants = tenants_of(need) | ({beside.tenant} if beside else set())
            caps = await caps_left(connection, spec, tenants)
            closed = await closed_markets(connection, spec, now)
            refused = await refused_offers(connection, spec.buying)
            bought_at = await last_bought_at(connection, pool)
    finally:
        await database.close()
    policy = _as_if_on(spec.first_purchases)
    unmet = need.unmet
    if beside is not None:
        (asked,) = as_bought([beside.request], funding)
        beside = beside.model_copy(update={"request": asked})
        unmet = unmet.model_copy(update={"jobs": (*unmet.jobs, beside)})
    async with open_markets(settings) as markets:
        views = await look_at(markets, unmet, policy, now, closed, refused)
    not_yet = why_not_yet(caps.stopped, bought_at, policy, now)
    caps = caps.model_copy(update={"stopped": ""})  # what would be bought, if it might be
    state = BuyingState(
        unmet=unmet, packing=spec.packing, under_way=coming, releases=need.releases,
        markets=views, caps_left=caps,
    )  # fmt: skip
    decision = decide_below(state, policy, now)
    return DryRun(
        source=f"pool {pool}",
        decision=decision,
        jobs=unmet.jobs,
        switched_on=spec.buying.enabled,
        not_yet=not_yet.why if not_yet else "",
        helps=what_helps(spec, decision.limits) if decision.limits else "",
        left_today_micro_usd=_above_zero(caps.today),
        left_of_tenant_micro_usd=_above_zero(caps.of_tenant(beside.tenant)) if beside else None,
        simulated=settings.market == "simulated",
    )


def _above_zero(left: int | None) -> int | None:
    return None if left is None else max(left, 0)


def _as_if_on(policy: BuyingPolicy) -> BuyingPolicy:
    return policy.model_copy(update={"enabled": True})
