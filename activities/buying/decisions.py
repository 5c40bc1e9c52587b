"""Decides what a pool buys now, and stores it: the intents exist before anything is ordered."""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.demand import demand_of_late
from longshore.activities.buying.inputs import (
    PoolNeed,
    last_bought_at,
    look_at,
    read_need,
    under_way,
)
from longshore.activities.buying.market_refusals import closed_markets, refused_offers
from longshore.activities.buying.purchase_looks import note_kept_back
from longshore.activities.buying.stored_documents import unreadable_purchases
from longshore.activities.buying.switch import why_stopped
from longshore.activities.buying.window_reclaim import ReleasedWindow, windows_to_use
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.funding.money import money_left
from longshore.activities.heartbeat import heartbeats
from longshore.activities.providers import registry
from longshore.activities.usage import load_pool_to_plan
from longshore.models.buying import (
    BuyDecision,
    BuyingPolicy,
    Coming,
    MarketView,
    PurchasePlan,
    RefusedOffer,
)
from longshore.models.caps_left import CapLeft, CapOf, CapsLeft
from longshore.models.limit import HeldBy, Limit
from longshore.models.pool import PoolSpec
from longshore.models.purchase import Bought, BuyingRequest, PurchaseOption, PurchaseRequest
from longshore.models.settings import Settings
from longshore.models.text import listed
from longshore.scheduling.buying.caps import DEFAULT_TENANT, split_of, tenant_of
from longshore.scheduling.buying.incoming_capacity import with_bought
from longshore.scheduling.buying.start_below import decide_below, lacks_nothing
from longshore.scheduling.buying.state import BuyingState
from longshore.scheduling.buying.words import WAIT, best_options, line_of
from longshore.scheduling.prices.series import threshold

_SHORTEST = timedelta(minutes=1)
_LATE_ON_PAID_TIME = timedelta(minutes=5)


class BuyingActivities:
    """The activity of `BuyingWorkflow`."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    @activity.defn
    @reports_errors
    async def decide_buying(self, request: BuyingRequest) -> Bought:
        """Decide what the pool lacks, and store an intent for each order of it.

        What is under way counts as capacity. What the database refuses is stored as refused.
        """
        prefix = _prefix(request.decision_id)
        async with heartbeats():
            async with self._database.snapshot() as connection:
                known = await _stored(connection, prefix)
                if known:
                    return Bought(reason="decided before", purchases=known)
                spec = await load_pool_to_plan(connection, request.pool, self._settings.margins)
                need = await read_need(connection, spec)
                coming = await under_way(connection, spec)
                caps = await caps_left(connection, spec, tenants_of(need))
                refused = await refused_offers(connection, spec.buying)
                now = await clock(connection)
                need = await _with_past(connection, spec, need, now)
                closed = await closed_markets(connection, spec, now)
                owned = await windows_to_use(connection, spec, now)
            if not spec.buying.enabled:
                return Bought(reason="buying is off for this pool")
            await note_kept_back(self._database, spec, need, self._settings.buying_every)
            # Most decisions are that nothing lacks: the markets are not asked for those.
            state = BuyingState(
                unmet=need.unmet, packing=spec.packing, under_way=coming,
                releases=need.releases, caps_left=caps,
            )  # fmt: skip
            decision = await _decided(state, spec, now)
            if lacks_nothing(decision):
                await self._note(spec.name, decision, decision.coming)
                return Bought(reason=decision.reason)
            if used := await self._use_first(state, spec, owned, now):
                return used
            views = await self._look(need, spec, now, closed, refused)
            decision = await _decided(replace(state, markets=views), spec, now)
            bought, stored = await self._store(prefix, spec, need, decision)
            noted = decision
            if bought.reason != decision.reason:
                noted = decision.model_copy(update={"reason": bought.reason, "why": ""})
            if decision.plans and not bought.purchases:
                of_budget = rows.OF_BUDGET in bought.reason
                held_by = HeldBy.BUDGET if of_budget else HeldBy.REFUSED
                noted = noted.model_copy(update={"limits": Limit.at(held_by)})
            await self._note(spec.name, noted, with_bought(decision, stored))
            return bought

    async def _use_first(
        self,
        state: BuyingState,
        spec: PoolSpec,
        owned: Sequence[ReleasedWindow],
        now: datetime,
    ) -> Bought | None:
        """Return which windows are used that the pool owns, before anything is ordered; None where
        none of them holds what lacks."""
        if not owned:
            return None
        there = (*state.under_way, *(window.capacity for window in owned))
        decision = await _decided(replace(state, under_way=there), spec, now)
        named = {name for each in decision.coming.values() for name in each.purchases}
        used = [window for window in owned if window.capacity.id in named]
        if not used and lacks_nothing(decision):
            used = list(owned)  # no job lacked them, but the warm target
        if not used:
            return None
        reason = "; ".join(
            f"use {window.block_id}, which was terminated and is paid for until "
            f"{window.ends_at:%H:%M} UTC: its machines are started again"
            for window in used
        )
        # What kept it from buying counts no more: it was decided without the markets.
        update = {"reason": reason, "why": "", "limits": ()}
        decision = decision.model_copy(update=update)
        await self._note(spec.name, decision, decision.coming)
        return Bought(reason=reason, takes_up=tuple(window.block_id for window in used))

    async def _look(
        self,
        need: PoolNeed,
        spec: PoolSpec,
        now: datetime,
        closed: Mapping[str, str],
        refused: Sequence[RefusedOffer],
    ) -> Sequence[MarketView]:
        async with AsyncExitStack() as stack:
            markets = [
                await stack.enter_async_context(aclosing(market))
                for market in registry.connect_all(self._settings).values()
            ]
            return await look_at(markets, need.unmet, spec.purchasing, now, closed, refused)

    async def _store(
        self, prefix: str, spec: PoolSpec, need: PoolNeed, decision: BuyDecision
    ) -> tuple[Bought, Mapping[int, str]]:
        """Store an intent for each plan; return those that were not refused, and the id of each
        by its place among the plans."""
        refusals: list[str] = []
        requests: dict[str, PurchaseRequest] = {}
        stored: dict[int, str] = {}
        for number, plan in enumerate(decision.plans, start=1):
            purchase_id = f"{prefix}-{number}"
            made = _request(spec, need, decision, plan)
            if refused := await rows.store_intent(self._database, purchase_id, made):
                refusals.append(refused)
                continue
            requests[purchase_id] = made
            stored[number - 1] = purchase_id
        reason = decision.reason
        if refusals and not requests:
            reason = f"{WAIT}{refusals[0]}; it was to {reason}"
        elif refusals:
            reason = f"{reason}; refused: {'; '.join(refusals)}"
        lines = *map(line_of, best_options(decision.options)), *decision.left_out
        return Bought(reason=reason, considered=lines, purchases=requests), stored

    async def _note(self, pool: str, decision: BuyDecision, coming: Mapping[str, Coming]) -> None:
        """Keep what was decided last, and what is on its way for which job, for whoever asks why
        a job waits."""
        best = decision.model_copy(update={"options": best_options(decision.options)})
        serves = dict.fromkeys(job_id for plan in decision.plans for job_id in plan.serves)
        waited_for = {job_id: each.model_dump(mode="json") for job_id, each in coming.items()}
        async with self._database.transaction() as connection:
            of_jobs = {
                "why": decision.why, "in_vain": decision.in_vain,
                "held_for": list(decision.held_for), "lacking": list(decision.lacking),
            }  # fmt: skip
            record = {**_record(best, serves), **of_jobs, "coming": waited_for}
            await connection.execute(text(_NOTE), {"pool": pool, "record": json.dumps(record)})


async def _decided(state: BuyingState, spec: PoolSpec, now: datetime) -> BuyDecision:
    # In a thread: with many nodes it takes seconds, and this process has heartbeats to send.
    return await asyncio.to_thread(decide_below, state, spec.first_purchases, now)


def option_of(plan: PurchasePlan, now: datetime, below: int | None = None) -> PurchaseOption:
    """Return how a plan is ordered; its limit may rise as far as its total allows, and not above
    the price `below` which its jobs start."""
    if plan.window is None:
        hours = plan.max_total / max(plan.limit * plan.gpus, 1)
        length = max(timedelta(hours=hours) // _SHORTEST * _SHORTEST, _SHORTEST)
        return PurchaseOption(
            provider=plan.provider, instance_type=plan.instance_type,
            gpus_per_node=plan.gpus_per_node, length=length, limit=plan.limit, offer=plan.offer,
        )  # fmt: skip
    start = plan.window.start if plan.window.start > now else None
    length = max(plan.window.end - (start or now), _SHORTEST)
    most = int(plan.max_total / (plan.gpus * (length / timedelta(hours=1))))
    most = most if below is None else min(most, below)
    return PurchaseOption(
        provider=plan.provider, instance_type=plan.instance_type,
        gpus_per_node=plan.gpus_per_node, length=length, start=start, limit=plan.limit,
        cap=max(most, plan.limit), reprices=1, place=plan.place,
    )  # fmt: skip


def _request(
    spec: PoolSpec, need: PoolNeed, decision: BuyDecision, plan: PurchasePlan
) -> PurchaseRequest:
    served = [job for job in need.unmet.jobs if job.request.id in plan.serves]
    split = split_of(served, plan)
    # A gang that would have to span the nodes of several orders might get none of its domains.
    whole = any(job.request.gang is not None for job in served)
    below = min(
        (each for job in served if (each := job.request.start_below) is not None), default=None
    )
    options = [
        option_of(each, decision.at, threshold(below, spec.start_below)).model_copy(
            update={
                "partial": not whole, "for_gang": whole,
                "fast_fabric": whole and each.fast_fabric, "instead": number > 0,
            }
        )
        for number, each in enumerate((plan, *plan.instead))
    ]  # fmt: skip
    return PurchaseRequest(
        pool=spec.name, tenant=tenant_of(split), tier=plan.tier,
        split=dict(split) if len(split) > 1 else {},
        nodes=plan.nodes, options=tuple(options),
        ready_within=_ready_within(spec.buying, plan),
        decision=_record(decision, plan.serves),
    )  # fmt: skip


def _ready_within(policy: BuyingPolicy, plan: PurchasePlan) -> timedelta:
    """Return how long machines are waited for. One that is billed as it runs, and comes after the
    start-up limit, has too little of its time left for its job; bought time costs the same."""
    return policy.startup_limit + (timedelta(0) if plan.offer else _LATE_ON_PAID_TIME)


def _record(decision: BuyDecision, serves: Iterable[str]) -> dict[str, Any]:
    """Return what is kept of a decision: its options, their costs, why not. A `BuyingRecord`."""
    return {
        "at": decision.at.isoformat(),
        "rule": decision.rule.value,
        "reason": decision.reason,
        "left_out": list(decision.left_out),
        "limits": [limit.model_dump() for limit in decision.limits],
        "serves": list(serves),
        "options": [
            {
                "title": option.title, "job_id": option.job_id,
                "kind": option.kind.value, "tier": option.tier.value,
                "total": option.total, "committed": option.committed, "delay": option.delay,
                "max_total": option.max_total, "chosen": option.chosen, "lost": option.lost,
            }
            for option in decision.options
        ],
    }  # fmt: skip


def _prefix(decision_id: str) -> str:
    return f"p-{hashlib.sha256(decision_id.encode()).hexdigest()[:12]}"


async def _stored(connection: AsyncConnection, prefix: str) -> dict[str, PurchaseRequest]:
    found = await connection.execute(
        text("SELECT id, request, decision FROM purchases"
             " WHERE starts_with(id, :prefix) AND state <> 'REFUSED' ORDER BY id"),
        {"prefix": f"{prefix}-"},
    )  # fmt: skip
    return {
        row.id: PurchaseRequest.model_validate({**row.request, "decision": row.decision})
        for row in found
    }


def tenants_of(need: PoolNeed) -> set[str]:
    """Return who may pay for what is bought: whose jobs lack something, and who pays for what none
    of them uses."""
    return {DEFAULT_TENANT, *(job.tenant for job in need.unmet.jobs)}


async def caps_left(
    connection: AsyncConnection, spec: PoolSpec, tenants: Iterable[str]
) -> CapsLeft:
    """Return what is left today for jobs of these tenants: by the policy's caps, and by those
    that `longshore market caps` sets."""
    names = sorted(set(tenants))
    found = await connection.execute(text(_CAPS), {"pool": spec.name, "tenants": names})
    sums = {(row.scope, row.name): (row.cap, row.committed) for row in found}
    counted = {
        CapOf.DAY: "pool", CapOf.TIER: "pool tier", CapOf.TENANT: "pool tenant",
    }  # fmt: skip
    own = [
        cap.less(sums[scope, f"{spec.name}/{cap.name}" if cap.name else spec.name][1])
        if (scope := counted.get(cap.of))
        else cap
        for cap in CapsLeft.of(spec.buying.caps, names).caps
    ]
    general = [
        CapLeft(
            of=of, name=name if of in (CapOf.TIER, CapOf.TENANT) else "", most=most,
            left=most - used,
            scope=scope if scope in ("purchase", "day") else f"{scope}={name}",
        )
        for (scope, name), (most, used) in sums.items()
        if most is not None and (of := _OF_SCOPE.get(scope)) is not None
    ]  # fmt: skip
    caps = sorted((*own, *general), key=lambda cap: (list(CapOf).index(cap.of), cap.left))
    budgets, above = await money_left(connection, names)
    return CapsLeft(
        caps=tuple(caps),
        budgets=budgets,
        above=above,
        stopped=await why_stopped(connection),
        unreadable=listed([id for id, _ in await unreadable_purchases(connection, spec.name)], 3),
    )


async def _with_past(
    connection: AsyncConnection, spec: PoolSpec, need: PoolNeed, now: datetime
) -> PoolNeed:
    """Return the need with what the pool wanted of late, and when it bought last."""
    pool = spec.name
    demand = await demand_of_late(connection, pool, spec.buying.smoothing, now)
    last = await last_bought_at(connection, pool)
    return need.model_copy(
        update={"unmet": need.unmet.model_copy(update={"last_bought_at": last, "demand": demand})}
    )


_NOTE = "UPDATE pools SET buying_decision = CAST(:record AS jsonb) WHERE name = :pool"

_OF_SCOPE = {
    "purchase": CapOf.PURCHASE, "day": CapOf.DAY, "pool": CapOf.DAY, "tier": CapOf.TIER,
    "tenant": CapOf.TENANT,
}  # fmt: skip

_CAPS = """
    WITH scopes (scope, name) AS (
        VALUES ('purchase', '*'), ('day', 'all'), ('pool', :pool), ('tier', 'FAST'),
               ('tier', 'FLEX'), ('pool tier', :pool || '/FAST'), ('pool tier', :pool || '/FLEX')
        UNION SELECT 'tenant', name FROM unnest(CAST(:tenants AS text[])) AS name
        UNION SELECT 'pool tenant', :pool || '/' || name
                FROM unnest(CAST(:tenants AS text[])) AS name
    )
    SELECT k.scope, k.name, purchase_cap(k.scope, k.name) AS cap,
           coalesce(s.committed, 0) AS committed
      FROM scopes k
      LEFT JOIN purchase_sums s ON s.scope = k.scope AND s.name = k.name
       AND s.day = (clock_timestamp() AT TIME ZONE 'UTC')::date
"""
"""The caps of `longshore market caps`, and what is committed today; as the trigger
`purchase_commits` looks at them."""
