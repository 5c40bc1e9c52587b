"""What would become of a job if it were submitted now, read from the database and the markets."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.durations import learnt_for
from longshore.activities.funding.planning import funding_beside
from longshore.activities.funding.quotas import why_too_many_wait
from longshore.activities.funding.refusals import why_never_taken
from longshore.activities.lending import on_lent_spare
from longshore.activities.locality import with_locality
from longshore.activities.preemption_inputs import PreemptionInputs, read_inputs
from longshore.activities.prices.views import why_waits
from longshore.activities.snapshot import load_nodes, load_recent, load_simulated
from longshore.activities.staged_data import held_by
from longshore.activities.usage import load_pool_to_plan
from longshore.client.buying import decide_on_pool
from longshore.client.preempt_plan import (
    asks_for_cost,
    cost_of_meeting,
    plan_of,
    quote_of,
    with_job,
)
from longshore.models.buying import UnmetJob
from longshore.models.data import HeldData
from longshore.models.errors import LongshoreError, UnavailableError
from longshore.models.forecast import Forecast, ForecastKind, NodePrice
from longshore.models.funding import PoolFunding
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.moment import said_at
from longshore.models.node import Node
from longshore.models.placement import Decision, PlacementKind
from longshore.models.preemption import BuyQuote
from longshore.models.settings import Settings
from longshore.models.start_range import StartRange, probably
from longshore.models.text import format_duration
from longshore.scheduling.cycle import foresee
from longshore.scheduling.deadline import JobTimes, LikelyDuration, judge, start_by
from longshore.scheduling.durations import with_learnt
from longshore.scheduling.forecast import (
    Left,
    as_if_begun,
    data_says,
    forecast_of,
    forecast_of_later,
    forecast_of_no_purchase_yet,
    forecast_of_price_wait,
    forecast_of_refusal,
    forecast_of_unfunded_wait,
    with_deadline,
)
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.kept_starts import LATER_STARTS
from longshore.scheduling.packer import place
from longshore.scheduling.placement.state import with_job as with_share
from longshore.scheduling.preemption.payers import says_who_would_pay

MARKETS_WITHIN = 10.0
"""Seconds: a submit does not wait longer for prices."""
_MOST_WAITING = 1000
_MOST_PAIRS = 1_000_000
"""Of jobs that wait and nodes: so many take about a second to plan."""
_THIS = "this-job"


def looks_at_queue(waiting: int, nodes: int) -> bool:
    """Return whether a submit looks for whom to stop, and when the job may start, beside so many
    jobs that wait: beside more, or on so many nodes, that takes long."""
    return waiting <= _MOST_WAITING and waiting * nodes <= _MOST_PAIRS


class _Start(NamedTuple):
    """When a job may start."""

    moment: datetime
    between: StartRange | None = None
    kept: bool = True
    """Whether a place would be kept for it from then on."""

    @property
    def as_range(self) -> StartRange:
        return self.between or StartRange.at(self.moment)


class Foretold(NamedTuple):
    """What would become of a job now, and where it would be."""

    job: JobRequest
    spec: JobSpec
    forecast: Forecast
    alone: Decision | None = None
    """Where the packer would put it; None of one that is refused."""

    @property
    def starts(self) -> bool:
        return self.forecast.kind is ForecastKind.STARTS


async def forecast(
    database: Callable[[], Database], settings: Settings, spec: JobSpec
) -> Forecast:
    """Return what would become of a job now. Raises UnavailableError without a database."""
    return (await foretell(database, settings, spec)).forecast


async def foretell(
    database: Callable[[], Database],
    settings: Settings,
    spec: JobSpec,
    others: Sequence[Foretold] = (),
) -> Foretold:
    """Return the same of a job beside others, which have the GPUs where they would start, and in
    its pool's queue their parts of quotas and budgets before it; those of other pools have their
    parts of quotas where they would start."""
    async with database().transaction() as connection:
        pool = await load_pool_to_plan(connection, spec.pool, settings.margins)
        nodes = _with(await load_nodes(connection, spec.pool), others)
        simulated = await load_simulated(connection, spec.pool)
        recent = await load_recent(connection, spec.pool) if pool.packing.rule.learns else ()
        waiting = await connection.scalar(text(_WAITING), {"pool": spec.pool})
        now = await clock(connection)
        begun, begins_at = as_if_begun(spec, now)
        learnt = await learnt_for(connection, _THIS, spec)
        duration = LikelyDuration.of(spec.expected_duration, spec.max_duration, learnt)
        job = with_learnt(JobRequest.of(_THIS, begun, now, 1), learnt)
        if refused := await _why_refused(connection, job, spec):
            return Foretold(job, spec, forecast_of_refusal(refused))
        funding = await funding_beside(
            connection, pool, job, spec, nodes, now,
            _before(others, spec.pool), _elsewhere(others, spec.pool),
        )  # fmt: skip
        (job,) = where_paid([job], funding)
        unpaid = _why_unpaid(funding)
        packing = pool.packing.model_copy(update={"funding": funding})
        asked = job
        (job,), nodes = await with_locality(connection, spec.pool, packing, [job], nodes)
        alone = place(job, nodes, packing, now, recent=recent)
        if alone.kind is not PlacementKind.EXISTING_NODE and funding:
            alone = await on_lent_spare(connection, spec.pool, alone, job, nodes, packing, now)
        prices = await _prices(connection, [node for node, _ in alone.held])
        holds = await held_by(connection, [node for node, _ in alone.held[:1]])
        deadline = spec.deadline_at(now)
        waits = await why_waits(connection, pool, spec.start_below, now)
        blocked = unpaid or waits or begins_at is not None
        looks = (
            alone.kind is not PlacementKind.EXISTING_NODE
            and not blocked
            and looks_at_queue(waiting or 0, len(nodes))
        )
        may_stop = looks and pool.preemption.enabled
        inputs = None
        if looks or deadline is not None:
            inputs = await read_inputs(connection, spec.pool, margins=settings.margins)
            inputs = inputs.model_copy(update={"nodes": _with(inputs.nodes, others)})
            inputs = await with_job(connection, inputs, spec, asked.smallest, now)
    bought, left, away, not_yet = None, Left(), "", ""
    if pool.buying.enabled and not unpaid and alone.kind is not PlacementKind.EXISTING_NODE:
        latest = start_by(job, deadline, duration, pool.buying, now)
        beside = UnmetJob(request=job, tenant=spec.tenant, start_by=latest)
        try:
            async with asyncio.timeout(MARKETS_WITHIN):
                ran = await decide_on_pool(spec.pool, now, beside, settings, funding)
            bought, not_yet = ran.decision, ran.not_yet
            left = Left(ran.left_today_micro_usd, ran.left_of_tenant_micro_usd, spec.tenant)
        except TimeoutError:
            away = f"the markets gave no price within {MARKETS_WITHIN:g} s"
        except LongshoreError as error:
            away = str(error)
    quote = quote_of(bought, _THIS) if bought and not not_yet else None
    stops = plan_of(inputs, inputs.queue[-1], quote, now) if inputs and may_stop else None
    if stops is not None:
        async with database().transaction() as connection:
            prices = await _prices(connection, [each.node_id for each in stops.gains])
    found = forecast_of(job, spec.pool, alone, waiting or 0, prices, bought, left, now, stops)
    so_far = "; it"
    if not_yet and found.kind is ForecastKind.BUYS:
        found = forecast_of_no_purchase_yet(found, spec.pool, not_yet)
        so_far = ". As it is, it"
    start = None
    if found.kind is ForecastKind.WAITS and inputs is not None and not blocked:
        start = _start_beside_others(job, inputs, now)
    if start is not None:
        when = f"{said_at(start.moment, now)}{probably(start.between, now)}"
        told = {"ready_at": start.moment, "start_range": start.between, "start_kept": start.kept}
        unkept = "" if start.kept else ", for which no place would be kept yet"
        says = f"{found.says}{so_far} may start at {when}{unkept}"
        found = found.model_copy(update={**told, "says": says})
    node_id = next((node for node, _ in alone.held), None)
    held = {each.source: each for each in holds.get(node_id or "", ()) if _may_use(each, spec)}
    if said := data_says(spec.data, held, node_id):
        found = found.model_copy(update={"says": f"{found.says}{said}"})
    if paid := _says_paid(funding, alone):
        found = found.model_copy(update={"says": f"{found.says}{paid}"})
    if away:
        told = f"{found.says}; what would be bought: {away}"
        found = found.model_copy(update={"says": told, "not_known": away})
    if unpaid:
        found = forecast_of_unfunded_wait(unpaid)
    starts = found.kind in (ForecastKind.STARTS, ForecastKind.PREEMPTS)
    starts_now = starts and found.ready_at is not None
    later = pool.buying.enabled and found.kind is not ForecastKind.BUYS and not starts_now
    at_market = settings.market == "simulated" and bool(prices or bought)
    where = [each.node_id for each in stops.gains] if stops else [node for node, _ in alone.held]
    if not starts:
        where = [] if found.kind is ForecastKind.BUYS else [node.id for node in nodes]
    if waits:
        found = forecast_of_price_wait(found, waits)
        later = pool.buying.enabled
    if begins_at is not None:
        found = forecast_of_later(found, begins_at, now)
        later = pool.buying.enabled
    if found.kind is ForecastKind.BUYS and spec.expected_duration is None:
        found = _with_assumed(found, spec.likely_duration)
    if deadline is not None and inputs is not None:
        if start is None and found.ready_at is not None:
            # Of one that waits that is its start if nobody else did.
            start = _Start(found.ready_at, kept=found.kind is not ForecastKind.WAITS)
        if found.kind is ForecastKind.STARTS and not blocked:
            start = _start_beside_others(job, inputs, now)
        found = _with_deadline(found, duration, deadline, start, inputs, quote, now)
    marks = {"simulated": at_market or not simulated.isdisjoint(where)}
    marks |= {"simulated_market": at_market, "buys_later": later}
    found = found.model_copy(update=marks)
    return Foretold(job, spec, found, alone)


def _with(nodes: Iterable[Node], others: Sequence[Foretold]) -> tuple[Node, ...]:
    """Return nodes with the jobs that would start on them."""
    by_id = {node.id: node for node in nodes}
    for other in others:
        if not other.starts or other.alone is None or other.alone.borrowed_from:
            continue
        for node_id, gpu_indices in other.alone.held:
            if (node := by_id.get(node_id)) is not None:
                by_id[node_id] = with_share(node, other.job, gpu_indices, other.alone.slices)
    return tuple(by_id.values())


def _before(others: Sequence[Foretold], pool: str) -> list[tuple[JobRequest, JobSpec]]:
    """Return the jobs of others that would come into the queue of a pool, each by its own id."""
    return [
        (other.job.model_copy(update={"id": f"{_THIS}-{number}"}), other.spec)
        for number, other in enumerate(others)
        if other.spec.pool == pool and other.forecast.kind is not ForecastKind.REFUSED
    ]


def _elsewhere(others: Sequence[Foretold], pool: str) -> list[tuple[JobRequest, frozenset[str]]]:
    """Return the jobs of others that would start in other pools, each with its nodes."""
    return [
        (other.job, frozenset(node_id for node_id, _ in other.alone.held))
        for other in others
        if other.spec.pool != pool and other.starts and other.alone is not None
    ]


def _with_assumed(found: Forecast, length: timedelta) -> Forecast:
    """Return a forecast of a purchase with for how long it is bought, as the job does not say."""
    assumed = f"for {format_duration(length)}, as is assumed of a job that does not say"
    says = f"{found.says}; bought {assumed} (`expected_duration`)"
    return found.model_copy(update={"says": says, "assumed_duration": length})


async def _why_refused(connection: AsyncConnection, job: JobRequest, spec: JobSpec) -> str:
    """Return why the queue would not take the job, as it does itself; empty where it would."""
    (never,) = await why_never_taken(connection, [(job, spec)])
    return never or await why_too_many_wait(connection, spec.tenant)


def _why_unpaid(funding: PoolFunding | None) -> str:
    """Return for which hard quota the job would wait, or why no budget pays for it where it has
    to; empty where it would wait for neither."""
    return funding.unfunded[_THIS] if funding and _THIS in funding.held else ""


def _says_paid(funding: PoolFunding | None, alone: Decision) -> str:
    """Return who would pay for the job, or that nobody would; empty where its tenant has no
    budget, or it would run on a spare that another job lends."""
    if funding is None or alone.borrowed_from:
        return ""
    payer = funding.of(_THIS)
    if payer.funded and payer.tenants:
        return f"; {says_who_would_pay(_THIS, funding)}"
    why = funding.unfunded.get(_THIS, "")
    return f"; it would be UNFUNDED, and preempted first: {why}" if why else ""


def _start_beside_others(
    job: JobRequest, inputs: PreemptionInputs, now: datetime
) -> _Start | None:
    """Return when a cycle would have the job start, with the jobs before it in its queue."""
    shares = [share for work in inputs.running for share in work.shares]
    others = [each for each in inputs.queue if each.id != job.id]
    packing = inputs.spec.packing
    decision = foresee(
        job, others, inputs.nodes, shares, packing, now, inputs.recent, later=LATER_STARTS
    ).decision
    start = now if decision.kind is PlacementKind.EXISTING_NODE else decision.estimated_start
    return None if start is None else _Start(start, decision.start_range, decision.start_kept)


def _with_deadline(
    found: Forecast,
    duration: LikelyDuration,
    deadline: datetime,
    start: _Start | None,
    inputs: PreemptionInputs,
    quote: BuyQuote | None,
    now: datetime,
) -> Forecast:
    """Return the forecast with its deadline; what it costs to meet it, where it would not by
    itself."""
    times = JobTimes(
        deadline, duration, start and start.as_range, start_kept=start is None or start.kept,
        begins_at=found.begins_at,
    )  # fmt: skip
    judgment = judge(times, now)
    meeting = None
    if found.begins_at is None and asks_for_cost(judgment):
        meeting = cost_of_meeting(
            judgment, inputs, _THIS, duration, quote, now, buys=quote is not None
        )
    return with_deadline(found, judgment, meeting, now)


def _may_use(held: HeldData, spec: JobSpec) -> bool:
    return bool(held.source) and held.tenant == spec.tenant


async def forecast_of_submit(
    database: Callable[[], Database], settings: Settings, spec: JobSpec
) -> Forecast | None:
    """Return the same, of an array what concerns one slot of it: whether the queue takes it, and
    whether it would wait for a quota or a budget. None of one of which that says nothing, and
    where the database is away: the submit says so."""
    try:
        if spec.array is None:
            return await forecast(database, settings, spec)
        async with database().transaction() as connection:
            now = await clock(connection)
            job = JobRequest.of(_THIS, spec, now, 1)
            if refused := await _why_refused(connection, job, spec):
                return forecast_of_refusal(refused)
            if spec.begins_at(now) is not None:
                return None
            pool = await load_pool_to_plan(connection, spec.pool, settings.margins)
            nodes = await load_nodes(connection, spec.pool)
            unpaid = _why_unpaid(await funding_beside(connection, pool, job, spec, nodes, now))
    except UnavailableError:
        return None
    return forecast_of_unfunded_wait(unpaid, of_slots=True) if unpaid else None


async def _prices(connection: AsyncConnection, names: list[str]) -> dict[str, NodePrice]:
    rows = await connection.execute(text(_PRICES), {"names": names})
    return {
        row.id: NodePrice(
            micro_per_gpu_hour=row.price, by_use=row.by_use,
            paid_until=None if row.by_use else row.ends_at, gpus=row.gpus,
        )
        for row in rows
    }  # fmt: skip


_WAITING = "SELECT count(*) FROM queue WHERE pool = :pool AND NOT held"

_PRICES = """
    SELECT n.id, b.price_micro_per_gpu_hour AS price, coalesce(o.is_machine, false) AS by_use,
           b.ends_at, (SELECT count(*) FROM gpus WHERE node_id = n.id) AS gpus
      FROM nodes n
      JOIN blocks b ON b.id = n.block_id
      LEFT JOIN orders o ON o.key = b.id
     WHERE n.id = ANY(:names)
"""
