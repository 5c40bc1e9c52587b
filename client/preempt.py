"""Decides who would be preempted without stopping any job: for a waiting job, or for files."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.funding.rows import has_budgets
from longshore.activities.funding.use import hours_of, paid_now
from longshore.activities.preemption_inputs import PreemptionInputs, read_inputs
from longshore.activities.snapshot import load_pool
from longshore.activities.views import Views
from longshore.client.api import Longshore
from longshore.client.buying import decide_on_pool
from longshore.client.calls import known_job, quiet_runtime
from longshore.client.preempt_plan import plan_of, quote_of, store_away, with_job
from longshore.models.base import Frozen, Instant
from longshore.models.buying import UnmetJob
from longshore.models.document import read_document
from longshore.models.errors import LongshoreError, RefusedError, UnavailableError
from longshore.models.funding_use import PaidGPUs, PaidHours
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.job_status import JobState
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy
from longshore.models.pool import PoolSpec
from longshore.models.preemption import BuyQuote, Overcommit, PreemptionPlan, RunningWork
from longshore.models.preemption_document import PreemptionState
from longshore.models.settings import Settings
from longshore.models.text import listed, span
from longshore.models.views import JobView
from longshore.scheduling.buying.words import WAIT
from longshore.scheduling.cycle import foresee
from longshore.scheduling.deadline import LikelyDuration, start_by
from longshore.scheduling.forecast import as_if_begun, says_later
from longshore.scheduling.order import counted_as
from longshore.scheduling.preemption.payers import says_who_would_pay
from longshore.scheduling.preemption.plan import plan_preemption
from longshore.scheduling.preemption.ways import as_told

_NAMED = 5


class PreemptionDryRun(Frozen):
    """A plan that nothing was done about."""

    source: str
    """The state file, or the pool."""
    request: JobRequest
    plan: PreemptionPlan
    switched_on: bool
    """Whether the pool's policy allows it."""
    notes: tuple[str, ...] = ()
    """What could not be looked at, that the job begins later, and that its class has risen."""
    counted_as: int | None = None
    """The class that the job's wait has lifted it to in the order of its queue; None where that is
    its own. Whom it may have stopped goes by its own."""
    begins_at: Instant | None = None
    """Of a file: the `begin` of the job, where that is to come. It is looked at as if it began
    now."""
    simulated: bool = False
    payers: dict[str, tuple[PaidGPUs, ...]] = Field(
        default_factory=dict[str, tuple[PaidGPUs, ...]]
    )
    """Who pays for the jobs that run, by job; empty where no tenant has a budget."""
    hours: dict[str, tuple[PaidHours, ...]] = Field(
        default_factory=dict[str, tuple[PaidHours, ...]]
    )
    """Who has paid for what those have used that would be stopped; empty likewise."""
    funding: str = ""
    """Who would pay for the job itself; empty likewise."""


def decide_on_files(
    state_path: str | Path, job_path: str | Path, now: datetime
) -> PreemptionDryRun:
    """Return who would be preempted for a job in a file. Raises SpecError for either file."""
    state = read_document(state_path, PreemptionState)
    at = state.decided_at(now)
    spec, begins_at = as_if_begun(read_document(job_path, JobSpec), at)
    request = JobRequest.of(spec.name, spec, submitted_at=at, attempt=1)
    policy = state.preemption.model_copy(update={"enabled": True})
    plan = plan_preemption(
        request, state.packer_nodes(), state.works(), policy, state.policy, at, state.buy
    )
    start = _kept_start(request, (), state.packer_nodes(), state.works(), state.policy, at)
    return PreemptionDryRun(
        source=str(state_path), request=request, plan=as_told(plan, start),
        switched_on=state.preemption.enabled,
        **_later(begins_at, at),
    )  # fmt: skip


def _kept_start(
    job: JobRequest,
    queue: Sequence[JobRequest],
    nodes: Sequence[Node],
    running: Sequence[RunningWork],
    packing: PackingPolicy,
    now: datetime,
    recent: Sequence[RecentJobs] = (),
) -> datetime | None:
    """Return when a cycle would have the job start, with the others of its queue; None where it
    keeps no start for it."""
    others = [each for each in queue if each.id != job.id]
    shares = [share for work in running for share in work.shares]
    return foresee(job, others, nodes, shares, packing, now, recent).decision.estimated_start


def _later(
    begins_at: datetime | None, now: datetime, notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    if begins_at is None:
        return {}
    return {"begins_at": begins_at, "notes": (says_later(begins_at, now), *notes)}


async def decide_on_job(ref: str, now: datetime) -> PreemptionDryRun:
    """Return who would be preempted for a job that waits, beside the jobs before it in its queue.

    Raises NotFoundError for no such job, RefusedError for one that does not wait, and
    UnavailableError for one that no control worker takes up.
    """
    settings = Settings()
    database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    try:
        job = await _job(settings, database, ref)
        if job.state is not JobState.QUEUED:
            raise RefusedError(
                f"{job.id} is {job.state.value.lower()}: only a job that waits in its queue "
                "can have GPUs freed for it"
            )
        away = await store_away(settings, job.id)
        async with database.transaction() as connection:
            inputs = await read_inputs(connection, job.pool, away, margins=settings.margins)
            payers = await _payers(connection, inputs)
            request = next((one for one in inputs.queue if one.id == job.id), None)
            if request is None:
                raise await _why_not_planned(connection, job.id)
        start = job.estimated_start  # what `why` says: nobody is told two moments
        start = start if start and start > now else None
        found = await _decide(inputs, request, now, away, start)
        return await _with_payers(database, found, inputs, payers)
    finally:
        await database.close()


async def _why_not_planned(connection: AsyncConnection, job_id: str) -> RefusedError:
    """Return why a job of a queue is in no plan."""
    query = text("SELECT held FROM queue WHERE job_id = :id")
    row = (await connection.execute(query, {"id": job_id})).one_or_none()
    if row is None:
        return RefusedError(
            f"{job_id} has just left its queue: `longshore job {job_id}` says where to"
        )
    how = "is held" if row.held else "is set aside"
    return RefusedError(
        f"{job_id} {how}, so that no cycle plans it: `longshore why {job_id}` says why"
    )


async def _payers(
    connection: AsyncConnection, inputs: PreemptionInputs
) -> dict[str, tuple[PaidGPUs, ...]] | None:
    """Return who pays for the jobs that run; None where no tenant has a budget."""
    if not await has_budgets(connection):
        return None
    running = [work.id for work in inputs.running]
    return await paid_now(connection, running, await clock(connection)) if running else {}


async def _with_payers(
    database: Database,
    ran: PreemptionDryRun,
    inputs: PreemptionInputs,
    payers: dict[str, tuple[PaidGPUs, ...]] | None,
) -> PreemptionDryRun:
    if payers is None:
        return ran
    funding = says_who_would_pay(ran.request.id, inputs.spec.packing.funding)
    async with database.transaction() as connection:
        hours = await hours_of(connection, [victim.job_id for victim in ran.plan.victims])
    return ran.model_copy(update={"payers": payers, "hours": hours, "funding": funding})


async def _job(settings: Settings, database: Database, ref: str) -> JobView:
    """Return a job as other commands know it: Temporal has those that nobody has taken up yet.
    Where that is away, as the database has it."""
    try:
        api = await Longshore.connect(settings, runtime=quiet_runtime())
    except UnavailableError:
        return await Views(database).job(ref)
    try:
        return await known_job(api, ref)
    finally:
        await api.close()


async def decide_on_file(job_path: str | Path, now: datetime) -> PreemptionDryRun:
    """Return who would be preempted on its pool for a job in a file, were it submitted now.

    Raises SpecError for the file, NotFoundError where the pool is not there.
    """
    spec, begins_at = as_if_begun(read_document(job_path, JobSpec), now)
    settings = Settings()
    database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    request = JobRequest.of(spec.name, spec, submitted_at=now, attempt=1)
    try:
        away = await store_away(settings, spec.name)
        async with database.transaction() as connection:
            await load_pool(connection, spec.pool, known=True)
            inputs = await read_inputs(connection, spec.pool, away, margins=settings.margins)
            inputs = await with_job(connection, inputs, spec, request, now)
            payers = await _payers(connection, inputs)
        found = await _decide_beside(inputs, spec, inputs.queue[-1], now, away)
        found = await _with_payers(database, found, inputs, payers)
    finally:
        await database.close()
    later = _later(begins_at, now, found.notes)
    return found.model_copy(update=later) if later else found


async def _decide_beside(
    inputs: PreemptionInputs, spec: JobSpec, request: JobRequest, now: datetime, away: str
) -> PreemptionDryRun:
    """Return who would be preempted for a job that the pool's queue in the database is without."""
    duration = LikelyDuration.of(spec.expected_duration, spec.max_duration, request.learnt)
    latest = start_by(request, spec.deadline_at(now), duration, inputs.spec.buying, now)
    beside = UnmetJob(request=request, tenant=spec.tenant, start_by=latest)
    start = _kept_start(
        request, inputs.queue, inputs.nodes, inputs.running, inputs.spec.packing, now,
        inputs.recent,
    )  # fmt: skip
    return await _decide(inputs, request, now, away, start, beside)


async def _decide(
    inputs: PreemptionInputs,
    request: JobRequest,
    now: datetime,
    away: str,
    start: datetime | None,
    beside: UnmetJob | None = None,
) -> PreemptionDryRun:
    """Return who would be preempted for a job of the queue, beside the jobs before it.

    `away` says why the checkpoint store is away, empty where it is there; `start` is what a cycle
    keeps for the job; `beside` is the job where the pool's queue in the database is without it.
    """
    quote, no_price, bought_nothing = None, "buying is off for this pool", False
    if inputs.spec.buying.enabled:
        try:
            quote, no_price = await _quote(inputs.spec, request.id, now, beside)
            bought_nothing = quote is None
        except LongshoreError as error:
            no_price = str(error)
    found = plan_of(inputs, request, quote, now, bought_nothing=bought_nothing)
    notes = [away] if away else []
    if quote is None and found and (inputs.spec.buying.enabled or not found.ways):
        notes.append(f"no price to buy at: {no_price}")
    counts = counted_as(request, inputs.spec.packing, now)
    risen = counts > request.priority
    if risen:
        notes.append(_says_risen(request, counts, now))
    draws = inputs.spec.preemption.overcommit is Overcommit.LOTTERY
    if request.id in inputs.due and draws and not (found and found.preempts):
        notes.append("its start is due: the next cycle may draw jobs to be stopped for it")
    return PreemptionDryRun(
        source=f"pool {inputs.spec.name}",
        request=request,
        plan=as_told(found, start) if found else PreemptionPlan(
            job_id=request.id, at=now, reason=_no_plan(inputs, request)
        ),
        switched_on=inputs.spec.preemption.enabled,
        notes=tuple(notes),
        counted_as=counts if risen else None,
    )  # fmt: skip


def _says_risen(job: JobRequest, counts: int, now: datetime) -> str:
    """Return that a job whose class its wait has lifted preempts by its own (decision 37)."""
    waited = f" after {span(now - job.waits_since)} there" if job.waits_since else ""
    return (
        f"it counts as class {counts} in the order of its queue{waited}; which jobs may be "
        f"stopped for it goes by its own class, {job.priority}"
    )


def _no_plan(inputs: PreemptionInputs, request: JobRequest) -> str:
    """Return why there is no plan for a job."""
    of_it = [one for one in inputs.under_way if one.job_id == request.id]
    if victims := [each for one in of_it for each in one.victims]:
        return f"its GPUs are being freed already: {listed(victims, _NAMED)} stops for it"
    funding = inputs.spec.packing.funding
    if funding is not None and request.id in funding.held:
        return f"nobody is stopped for it: {funding.unfunded[request.id]}"
    return "it needs nobody's GPUs: the next cycle places it"


async def _quote(
    pool: PoolSpec, job_id: str, now: datetime, beside: UnmetJob | None
) -> tuple[BuyQuote | None, str]:
    """Return what it would cost to buy for the job, or why nothing would be bought for it."""
    funding = pool.packing.funding if beside else None
    bought = await decide_on_pool(pool.name, now, beside, funding=funding)
    quote = quote_of(bought.decision, job_id)
    why = f"nothing would be bought for it now: {bought.decision.reason.removeprefix(WAIT)}"
    return quote, "" if quote else why
