"""What a decision about buying is made from: the pool's queue and nodes, and the markets now."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.job_runtimes import recent_runtimes
from longshore.activities.buying.machine_restarts import least_use, silent_until
from longshore.activities.buying.purchase_rows import FAST_FABRIC
from longshore.activities.buying.startup_failures import SILENT, fails_again
from longshore.activities.buying.stored_documents import stored_request
from longshore.activities.database import clock
from longshore.activities.deadlines import DURATION_COLUMNS, duration_of
from longshore.activities.locality import with_locality
from longshore.activities.providers.base import Provider
from longshore.activities.snapshot import load_nodes, load_queue, load_recent, load_running
from longshore.models.base import Frozen
from longshore.models.buying import (
    BookQuote,
    BoughtFor,
    BuyingPolicy,
    CapacityUnderWay,
    MarketView,
    RefusedOffer,
    Release,
    UnderWayState,
    Unmet,
    UnmetJob,
)
from longshore.models.errors import LongshoreError
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.market import InstanceType, NoQuote, NoQuoteReason, OrderBook, Window
from longshore.models.placement import RunningJob
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseOption, order_key
from longshore.scheduling.buying.exclusions import with_refusal, with_refused
from longshore.scheduling.buying.fleet import holds, shape_of, shape_of_offer
from longshore.scheduling.buying.options import windows_to_ask
from longshore.scheduling.buying.types_to_ask import types_to_ask
from longshore.scheduling.buying.unverifiable_constraints import why_unverifiable
from longshore.scheduling.deadline import LikelyDuration, start_by
from longshore.scheduling.funding.where_paid import as_bought

_log = logging.getLogger(__name__)
ANSWER_WITHIN = 30.0
"""Seconds that a market has for all of its answers."""
NONE_CLOSED: Mapping[str, str] = MappingProxyType({})


class PoolNeed(Frozen):
    """What a pool's queue wants, and what the pool has."""

    unmet: Unmet
    releases: tuple[Release, ...]


async def last_bought_at(connection: AsyncConnection, pool: str) -> datetime | None:
    """Return when a pool last bought something; None where it never did."""
    return await connection.scalar(
        text(
            "SELECT max(created_at) FROM purchases WHERE pool = :pool AND state <> 'REFUSED'"
            " AND created_at < '9999-01-01'"
        ),
        {"pool": pool},
    )


async def read_need(connection: AsyncConnection, spec: PoolSpec) -> PoolNeed:
    """Return the pool's queue, without jobs that are held, and its nodes with what runs there:
    all that its cycle packs by."""
    pool = spec.name
    tenants = await connection.execute(
        text(
            f"SELECT j.id, j.tenant, j.deadline_at, q.learnt, {DURATION_COLUMNS}"
            " FROM jobs j JOIN queue q ON q.job_id = j.id WHERE q.pool = :pool"
        ),
        {"pool": pool},
    )
    now = await clock(connection)
    known = {
        row["id"]: (row["tenant"], row["deadline_at"], duration_of(row))
        for row in tenants.mappings()
    }
    nobody = "default", None, LikelyDuration()
    bought = await _bought_for(connection, pool)
    queue = [entry.request for entry in await load_queue(connection, pool) if not entry.held]
    funding = spec.packing.funding
    queue = as_bought(queue, funding)
    nodes = await load_nodes(connection, pool)
    requests, nodes = await with_locality(connection, pool, spec.packing, queue, nodes)
    jobs = tuple(
        UnmetJob(
            request=request,
            tenant=tenant,
            start_by=start_by(request, deadline_at, duration, spec.buying, now),
            bought=tuple(bought.get(request.id, ())),
        )
        for request in requests
        for tenant, deadline_at, duration in [known.get(request.id, nobody)]
    )
    running: dict[str, list[RunningJob]] = {}
    for job in await load_running(connection, pool):
        running.setdefault(job.node_id, []).append(job)
    releases = tuple(Release(node=node, running=tuple(running.get(node.id, ()))) for node in nodes)
    recent = await load_recent(connection, pool) if spec.packing.rule.learns else ()
    ended = await recent_runtimes(connection, pool)
    return PoolNeed(unmet=Unmet(jobs=jobs, recent=recent, ended=ended), releases=releases)


async def _bought_for(connection: AsyncConnection, pool: str) -> dict[str, list[BoughtFor]]:
    """Return what was bought for each job of the queue since it was queued, by job."""
    found: dict[str, list[BoughtFor]] = {}
    rows = await connection.execute(text(_BOUGHT_FOR), {"pool": pool})
    for row in rows:
        found.setdefault(row.job_id, []).append(
            BoughtFor(
                purchase_id=row.id,
                by_use=row.by_use,
                ready=row.ready,
                shared=row.shared,
                came=row.came,
                kept_back=row.kept_back,
                bought_at=row.created_at,
                ended_at=row.ended_at,
            )
        )
    return found


async def under_way(connection: AsyncConnection, spec: PoolSpec) -> tuple[CapacityUnderWay, ...]:
    """Return what was bought, or is being bought, and is no node yet."""
    found = await connection.execute(text(_UNDER_WAY), {"pool": spec.name})
    now = await clock(connection)
    coming: list[CapacityUnderWay] = []
    for row in found.mappings():
        request = stored_request(row["id"], row["request"], row["option"])
        if request is None:
            continue
        option = request.options[row["option"] or 0]
        missing = request.nodes - row["ready"]
        late = row["starts_at"] is not None and now > row["starts_at"] + request.ready_within
        if missing <= 0 or late:
            continue  # time that is paid for is tried on, and other jobs do not wait for it
        due = _due(row, option, spec.buying.usual_startup)
        coming.append(
            CapacityUnderWay(
                id=row["id"], state=UnderWayState.ORDERED, tier=Tier(row["tier"]),
                provider=option.provider, instance_type=option.instance_type, nodes=missing,
                expected_at=max(now, due), due=due if due < now else None, place=row["place"],
                domain=(row["block"] or order_key(row["id"], 1)) if option.fast_fabric else None,
                until=(option.start or row["created_at"]) + option.length,
                # As it was promised, so that it counts for the job that it was bought for.
                shape=shape_of_offer(option.offer) if option.offer else None,
            )
        )  # fmt: skip
    return (*coming, *await _lost_of_late(connection, spec, now))


async def _lost_of_late(
    connection: AsyncConnection, spec: PoolSpec, now: datetime
) -> list[CapacityUnderWay]:
    """Return the nodes of bought windows that have lost their machine, or its agent, and are
    started again.

    Nobody waits for one for longer than a start may take, or where they fail again and again.
    """
    found = await connection.execute(
        text(_LOST), {"pool": spec.name, "of_use": now + least_use(spec.purchasing)}
    )
    coming: list[CapacityUnderWay] = []
    for row in found.mappings():
        request = stored_request(row["id"], row["request"])
        if request is None:
            continue
        began = silent_until(row["since"], spec.buying) if row["silent"] else row["since"]
        due = began + spec.buying.usual_startup
        late = now > row["since"] + request.ready_within
        if late or await fails_again(connection, row["block"]):
            continue
        coming.append(
            CapacityUnderWay(
                id=row["id"], tier=Tier(row["tier"]), provider=row["provider"],
                instance_type=row["instance_type"], nodes=row["lost"],
                expected_at=max(now, due), due=due if due < now else None, place=row["place"],
                domain=row["block"] if row["fast_fabric"] else None, until=row["ends_at"],
            )
        )  # fmt: skip
    return coming


def _due(row: RowMapping, option: PurchaseOption, usual_startup: timedelta) -> datetime:
    """Return when a purchase is to have its nodes, as it was ordered last: from when its time
    begins, or its machine was asked for, by as long as its market says that one takes to start."""
    begins = max(filter(None, (row["asked_at"] or row["ordered_at"], option.start)))
    startup = option.offer.startup if option.offer is not None else None
    return begins + (usual_startup if startup is None else startup)


async def look_at(
    markets: Sequence[Provider],
    unmet: Unmet,
    policy: BuyingPolicy,
    now: datetime,
    closed: Mapping[str, str] = NONE_CLOSED,
    refused: Sequence[RefusedOffer] = (),
) -> tuple[MarketView, ...]:
    """Return what each market shows for the jobs that wait; one that is away says so.

    Those that are `closed` for the pool are not asked: it says why, by market. Offers and rows of
    books that were `refused` are marked: they are left out of what is decided.
    """
    jobs = [job.request for job in unmet.jobs if not why_unverifiable(job.request)]
    looks = (_look(market, jobs, policy, now, closed.get(market.name, "")) for market in markets)
    views = await asyncio.gather(*looks)
    return tuple(
        view.model_copy(
            update={
                "offers": tuple(with_refusal(offer, refused) for offer in view.offers),
                "quotes": tuple(with_refused_rows(quote, refused) for quote in view.quotes),
            }
        )
        for view in views
    )


def with_refused_rows(quote: BookQuote, refused: Sequence[RefusedOffer]) -> BookQuote:
    """Return a quote whose book says which of its rows its market refused of late."""
    if isinstance(quote.answer, NoQuote):
        return quote
    return quote.model_copy(update={"answer": with_refused(quote.answer, refused)})


async def _look(
    market: Provider, jobs: Sequence[JobRequest], policy: BuyingPolicy, now: datetime, closed: str
) -> MarketView:
    if market.no_buying:
        closed = f"{market.name}: {market.no_buying}"
    view = MarketView(
        provider=market.name, capabilities=market.capabilities, observed_at=now, closed=closed
    )
    if closed:
        return view
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            if not market.capabilities.fixed_window:
                return view.model_copy(update={"offers": tuple(await market.offers())})
            return view.model_copy(update={"quotes": await _quotes(market, jobs, policy, now)})
    except TimeoutError:
        return view.model_copy(update={"away": f"no answer within {ANSWER_WITHIN:g} seconds"})
    except LongshoreError as error:
        return view.model_copy(update={"away": str(error)})
    except Exception as error:  # one market that cannot be read hides no other
        _log.exception("%s cannot be read", market.name)
        return view.model_copy(update={"away": f"it cannot be read: {type(error).__name__}"})


async def _quotes(
    market: Provider, jobs: Sequence[JobRequest], policy: BuyingPolicy, now: datetime
) -> tuple[BookQuote, ...]:
    """Return the books of each type that could serve a job, for the windows worth a look."""
    grain = market.capabilities.grain
    kinds, left_out = types_to_ask(await market.instance_types(), jobs, policy)
    quotes: list[BookQuote] = []
    for kind in kinds:
        shape = shape_of(str(kind))
        fitting = [job for job in jobs if shape is not None and holds(shape, job)]
        windows = windows_to_ask(fitting, policy, grain, now)
        quotes += [await _quote(market, kind, window) for window in windows]
    return (*quotes, *left_out)


async def _quote(market: Provider, kind: InstanceType, window: Window) -> BookQuote:
    answer: OrderBook | NoQuote
    try:
        answer = await market.book(kind, window)
    except LongshoreError as error:
        answer = NoQuote(reason=NoQuoteReason.UNREACHABLE, detail=str(error))
    return BookQuote(instance_type=str(kind), window=window, answer=answer)


_UNDER_WAY = """
    SELECT p.id, p.tier, p.request, p.created_at,
           (SELECT max(o.option) FROM orders o WHERE o.purchase_id = p.id) AS option,
           coalesce((SELECT max(o.created_at) FROM orders o WHERE o.purchase_id = p.id),
                    p.created_at) AS ordered_at,
           (SELECT max(m.asked_at) FROM machines m WHERE m.purchase_id = p.id) AS asked_at,
           k.id AS block, k.place, k.starts_at,
           (SELECT count(*) FROM machines m JOIN nodes n ON n.id = m.name
             WHERE m.purchase_id = p.id AND n.state IN ('READY', 'DRAINING')) AS ready
      FROM purchases p
      LEFT JOIN LATERAL (
           SELECT b.id, b.place,
                  CASE WHEN NOT o.is_machine THEN greatest(b.starts_at, p.created_at) END
                      AS starts_at
             FROM blocks b JOIN orders o ON o.key = b.id
            WHERE b.purchase_id = p.id ORDER BY b.id DESC LIMIT 1) AS k ON true
     WHERE p.pool = :pool AND p.buying AND p.state NOT IN ('ENDED', 'REFUSED')
     ORDER BY p.created_at, p.id
"""

_LOST = f"""
    SELECT DISTINCT ON (p.id)
           p.id, p.tier, p.request, b.id AS block, b.provider, b.instance_type, b.place, b.ends_at,
           b.nodes - m.held - g.held AS lost, m.silent,
           greatest(m.since, b.starts_at, p.changed_at) AS since,
           {FAST_FABRIC} AS fast_fabric
      FROM blocks b
      JOIN purchases p ON p.id = b.purchase_id AND NOT p.buying
      JOIN orders o ON o.key = b.id AND NOT o.is_machine
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE m.sale_key IS NOT NULL
                                      OR m.state = 'READY' AND n.state IN ('READY', 'DRAINING'))
                      AS held,
                  max(coalesce(m.ended_at, n.state_since))
                      FILTER (WHERE n.id IS NOT NULL
                                AND (m.state = 'ENDED' OR n.state IN ('LOST', 'GONE'))) AS since,
                  coalesce(bool_or({SILENT}), false) AS silent
             FROM machines m LEFT JOIN nodes n ON n.id = m.name
            WHERE m.block_id = b.id) AS m
     CROSS JOIN LATERAL (
           SELECT count(*) AS held
             FROM block_nodes k JOIN nodes n ON n.id = k.node_id
            WHERE k.next_block = b.id AND k.handed_over_at IS NULL
              AND n.state IN ('READY', 'DRAINING')) AS g
     WHERE b.pool = :pool AND b.state IN ('STARTING', 'OPEN') AND b.ends_at > :of_use
       AND m.held + g.held < b.nodes
     ORDER BY p.id, b.id
"""
"""Of one block of a purchase: they have one name for the pool."""

_BOUGHT_FOR = """
    SELECT q.job_id, p.id, p.created_at, p.ended_at, m.ready, m.shared, m.came,
           m.over AND coalesce(
               l.kept_back
               -- A worker from before `purchase_looks` has looked: after the others, or alone.
               OR q.kept_back_at BETWEEN m.since - interval '2 minutes' AND m.since
                  + CASE WHEN l.kept_back IS NULL THEN interval '2 minutes' ELSE '0' END,
               false) AS kept_back,
           EXISTS (SELECT FROM orders o
                    WHERE o.purchase_id = p.id AND o.is_machine) AS by_use
      FROM purchases p
     CROSS JOIN LATERAL jsonb_array_elements_text(p.decision -> 'serves') AS served (job_id)
      JOIN queue q ON q.job_id = served.job_id AND q.pool = p.pool AND p.created_at >= q.queued_at
      LEFT JOIN purchase_looks l ON l.purchase_id = p.id AND l.job_id = q.job_id
     CROSS JOIN LATERAL (
           SELECT count(n.id) >= coalesce((p.request ->> 'nodes')::int, 1)
                      AND NOT coalesce(bool_or(n.state = 'LOST'), false) AS ready,
                  count(n.id) > 0 AS came,
                  NOT coalesce(bool_or(n.state = 'READY'), false) AS over,
                  max(n.state_since) AS since,
                  coalesce(bool_or(EXISTS (SELECT FROM placements l
                                            WHERE l.node_id = n.id AND l.job_id <> q.job_id)),
                           false) AS shared
             FROM machines b JOIN nodes n ON n.id = b.name WHERE b.purchase_id = p.id) AS m
     WHERE p.pool = :pool AND p.state <> 'REFUSED' AND NOT q.held
       AND (m.ready OR EXISTS (SELECT FROM orders o
                                WHERE o.purchase_id = p.id AND o.nodes > 0))
     ORDER BY p.created_at, p.id
"""
