"""What the plan of preemption says of one job of a queue, and what it costs to meet a deadline."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.checkpoints.rows import checkpoints_of
from longshore.activities.funding.planning import funding_beside
from longshore.activities.locality import with_locality_beside
from longshore.activities.preemption_inputs import PreemptionInputs
from longshore.models.buying import BuyDecision
from longshore.models.deadline import DeadlineCost, DeadlineJudgment, DeadlineOutlook
from longshore.models.errors import StoreError, UnavailableError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.preemption import BuyQuote, Overcommit, PreemptionPlan, Way, WayKind
from longshore.models.settings import Settings
from longshore.scheduling.deadline import LikelyDuration, what_it_costs
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.order import queue_order, with_turns
from longshore.scheduling.packer import could_ever_place
from longshore.scheduling.preemption.plan import plan_preemptions


async def with_job(
    connection: AsyncConnection,
    inputs: PreemptionInputs,
    spec: JobSpec,
    request: JobRequest,
    now: datetime,
) -> PreemptionInputs:
    """Return a pool as if the job were in its queue, as the last, with who would pay for it."""
    inputs = await with_one_more(connection, inputs, request)
    funding = await funding_beside(connection, inputs.spec, request, spec, inputs.nodes, now)
    packing = inputs.spec.packing
    if funding is not None:
        packing = packing.model_copy(update={"funding": funding})
    pool = inputs.spec.model_copy(update={"packing": packing})
    queue = where_paid(inputs.queue, packing.funding, everyone=True)
    return inputs.model_copy(update={"spec": pool, "queue": tuple(queue)})


async def with_one_more(
    connection: AsyncConnection, inputs: PreemptionInputs, job: JobRequest
) -> PreemptionInputs:
    """Return a pool with a job more, as the last of its queue: by what its nodes hold of its data,
    as those that are there."""
    pool = inputs.spec
    job, nodes = await with_locality_beside(connection, pool.name, pool.packing, job, inputs.nodes)
    return inputs.model_copy(update={"queue": (*inputs.queue, job), "nodes": nodes})


def plan_of(
    inputs: PreemptionInputs,
    request: JobRequest,
    quote: BuyQuote | None,
    now: datetime,
    *,
    bought_nothing: bool = False,
) -> PreemptionPlan | None:
    """Return who would be preempted for a job of the queue, beside the jobs before it, as if the
    pool allowed it; None where it needs nobody's GPUs, or gets some already.

    `quote` is what it costs to buy for it; without one what the cycle thinks that counts, but
    where the markets were asked and `bought_nothing`. Where its start is due others give way as in
    a cycle, but that nobody is drawn.
    """
    shares = [share for work in inputs.running for share in work.shares]
    packing = with_turns(inputs.spec.packing, inputs.queue)
    queue = queue_order(inputs.queue, packing, now, inputs.nodes, shares)
    ahead = queue[: queue.index(request) + 1]
    nobody_drawn = {"enabled": True, "overcommit": Overcommit.WAIT}
    policy = inputs.spec.preemption.model_copy(update=nobody_drawn)
    due = {request.id: ""} if request.id in inputs.due else {}
    quotes = inputs.quotes(now) | ({request.id: quote} if quote else {})
    if bought_nothing:
        quotes.pop(request.id, None)
    plans = plan_preemptions(
        ahead, inputs.nodes, inputs.running, policy, inputs.spec.packing, now, inputs.under_way,
        quotes, inputs.recent, due=due,
    )  # fmt: skip
    return next((plan for plan in plans if plan.job_id == request.id), None)


class Turn(NamedTuple):
    """What is weighed of a job that waits."""

    says: str = ""
    """Of an engine: when it has its turn, and who would be stopped for it then, as things are now;
    empty where it is to have none, where no node could hold it at its turn either. Of another job
    why it does not get the GPUs of engines."""
    plan: PreemptionPlan | None = None
    """Who would be stopped for the job, of an engine at its turn."""


def weighed(inputs: PreemptionInputs, job_id: str, now: datetime) -> Turn:
    """Return what is weighed of a job of a queue while nobody is stopped for it. Nothing is of one
    that is not in the queue, and that no node could hold."""
    request = next((each for each in inputs.queue if each.id == job_id), None)
    if request is None or not could_ever_place(request, inputs.nodes, now):
        return Turn()
    if not (request.turn or request.turn_at):
        plan = plan_of(inputs, request, None, now)
        if plan is None or request.engine is not None:
            return Turn(plan=plan)
        return Turn(_says_of_engines(inputs, plan), plan)
    said = "it has its turn"
    if at := request.turn_at:
        said += f" from {at:%H:%M:%S} UTC on"
        # Whoever has its turn by then too comes before it.
        by_then = {each.id: _at_turn(each, at) for each in inputs.queue}
        inputs = inputs.model_copy(update={"queue": tuple(by_then.values())})
        request = by_then[job_id]
    plan = plan_of(inputs, request, None, now)
    return Turn(f"{said}: as things are now, {plan.reason}" if plan else said, plan)


def _says_of_engines(inputs: PreemptionInputs, plan: PreemptionPlan) -> str:
    """Return why nobody is stopped for a job, where engines run that do not end by themselves, as
    other jobs do; else nothing."""
    may_stop = any(way.kind is WayKind.PREEMPT for way in plan.ways)
    if may_stop or not any(work.engine for work in inputs.running):
        return ""
    return f"{plan.reason}; an engine runs until its service is scaled down or removed"


def words_of_like(inputs: PreemptionInputs, job: JobRequest) -> str:
    """Return which engine of the queue serves the same as one that is not there yet: of that one
    other things hold. Empty where none does."""
    others = (each for each in inputs.queue if each.id != job.id)
    like = next(
        (each.id for each in others if each.engine and each.engine.is_like(job.engine)), ""
    )
    return like and f"{like} waits with the same model already: `longshore why {like}` tells of it"


def _at_turn(job: JobRequest, at: datetime) -> JobRequest:
    """Return a job as it waits at a time: with its turn, where it has one by then."""
    if job.turn_at is None or job.turn_at > at:
        return job
    return job.model_copy(update={"turn": job.turn_at, "turn_at": None})


def quote_of(decision: BuyDecision, job_id: str) -> BuyQuote | None:
    """Return what it costs to buy for a job as was decided; None where nothing is."""
    plans = [plan for plan in decision.plans if job_id in plan.serves]
    if not plans:
        return None
    return BuyQuote(
        cost=sum(plan.expected_cost for plan in plans),
        ready_at=max(plan.ready_at for plan in plans),
        title="buy " + " + ".join(f"{plan.nodes} x {plan.instance_type}" for plan in plans),
    )


def asks_for_cost(judgment: DeadlineJudgment | None) -> bool:
    """Return whether it is worth to say what it costs to meet the deadline of a job that waits."""
    return judgment is not None and judgment.outlook in (
        DeadlineOutlook.LATE, DeadlineOutlook.AT_RISK, DeadlineOutlook.UNKNOWN,
    )  # fmt: skip


def cost_of_meeting(
    judgment: DeadlineJudgment,
    inputs: PreemptionInputs,
    job_id: str,
    duration: LikelyDuration,
    quote: BuyQuote | None,
    now: datetime,
    *,
    buys: bool,
) -> DeadlineCost | None:
    """Return what it costs that a job of the queue meets its deadline, by the ways that its pool
    may go; None where that says nothing: where nobody knows how long the job takes, or it is
    no more in the queue.

    `quote` is as for `plan_of`; `buys` says whether the pool buys now, if it is worth it.
    """
    request = next((each for each in inputs.queue if each.id == job_id), None)
    if request is None or judgment.latest_start is None:
        return None
    plan = plan_of(inputs, request, quote, now)
    ways: Sequence[Way] = plan.ways if plan else ()
    if not inputs.spec.preemption.enabled:
        ways = [way for way in ways if way.kind is not WayKind.PREEMPT]
    if not buys:
        ways = [way for way in ways if way.kind is not WayKind.BUY]
    return what_it_costs(judgment, ways, duration)


async def store_away(settings: Settings, job_id: str) -> str:
    """Return why the checkpoint store cannot be read now; empty where it can."""
    try:
        await checkpoints_of(settings.resolve_checkpoint_store(), job_id)
    except (StoreError, UnavailableError) as error:
        return str(error)
    return ""
