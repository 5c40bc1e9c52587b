"""What would become of a job if it were submitted now: where it would run, what would be bought.

It is a look at one moment: jobs that wait already, and those that come meanwhile, may change it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.buying import BuyDecision, PurchasePlan
from longshore.models.data import DataSet, HeldData
from longshore.models.deadline import DeadlineCost, DeadlineJudgment
from longshore.models.forecast import Forecast, ForecastKind, NodePrice
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.moment import said_at
from longshore.models.placement import Decision, PlacementKind
from longshore.models.preemption import PreemptionPlan, Victim
from longshore.models.text import amount, count, dollars, format_duration, format_places, listed
from longshore.models.units import format_gb
from longshore.scheduling.buying.words import WAIT

_NAMED = 3
"""Jobs by name, of those that are stopped."""


class Left(NamedTuple):
    """What may still be committed today, in micro-dollars; None without a limit."""

    pool: int | None = None
    tenant: int | None = None
    """For the job's own tenant."""
    name: str = ""
    """Of the tenant."""


def forecast_of(
    job: JobRequest,
    pool: str,
    alone: Decision,
    waiting: int,
    prices: Mapping[str, NodePrice],
    bought: BuyDecision | None,
    left: Left,
    now: datetime,
    stops: PreemptionPlan | None = None,
) -> Forecast:
    """Return the forecast of a job.

    `alone` is where the packer would put it now, `waiting` how many jobs wait in its pool,
    `prices` those of nodes that were bought, `bought` what its pool would buy with it in its queue
    (None where the pool does not buy), `left` what it may still commit today, `stops` whom it
    would stop for the job.
    """
    if alone.kind is PlacementKind.EXISTING_NODE:
        return _starts(job, pool, alone, waiting, prices, now)
    if stops is not None and stops.preempts:
        return _preempts(job, stops, prices, now)
    plans = [plan for plan in bought.plans if job.id in plan.serves] if bought else []
    if plans:
        return _buys(job, pool, plans, left, now)
    why = [f"would wait in pool {pool}: {alone.reason}"]
    if bought is not None and bought.reason:
        not_bought = bought.in_vain.get(job.id, bought.reason).removeprefix(WAIT)
        why.append(f"nothing would be bought for it now: {not_bought}")
    start = alone.estimated_start
    return Forecast(kind=ForecastKind.WAITS, says="; ".join(why), ready_at=start)


def as_if_begun(spec: JobSpec, now: datetime) -> tuple[JobSpec, datetime | None]:
    """Return a job as one that may start now, and its `begin` where that is to come: what is
    looked at is the moment, and nobody knows what it finds then."""
    begins_at = spec.begins_at(now)
    return (spec if begins_at is None else spec.model_copy(update={"begin": None})), begins_at


def says_later(begins_at: datetime, now: datetime) -> str:
    """Return what to say where a job that begins later is looked at as if it began now."""
    return (
        f"it begins at {said_at(begins_at, now)} at the earliest, and until then nothing is kept "
        "or bought for it, and nobody is stopped: this is as if it began now"
    )


def forecast_of_later(found: Forecast, begins_at: datetime, now: datetime) -> Forecast:
    """Return the forecast of a job that begins later; `found` is what would become of it now.

    Who waits then, and at which prices, nobody knows: what is said of now is no promise."""
    return found.model_copy(
        update={
            "kind": ForecastKind.WAITS,
            "says": f"begins at {said_at(begins_at, now)} at the earliest, and nothing is kept or "
            "bought for it before; what it finds then, and the prices, are not known. If it began "
            f"now, it {found.says}",
            "expected_micro_usd": None, "most_micro_usd": None, "ready_at": None,
            "begins_at": begins_at, "not_known": "",
        }
    )  # fmt: skip


def with_deadline(
    found: Forecast, judgment: DeadlineJudgment, meeting: DeadlineCost | None, now: datetime
) -> Forecast:
    """Return a forecast with how the job would stand to its deadline, and what it costs."""
    cost = f"; {meeting.says}" if meeting else ""
    says = f"{found.says}. Its deadline, {said_at(judgment.at, now)}: {judgment.told}{cost}"
    return found.model_copy(update={"says": says, "deadline": judgment, "meeting": meeting})


def forecast_of_price_wait(found: Forecast, why: str) -> Forecast:
    """Return the forecast of a job that waits for its price; `found` is what would become of it
    now, `why` what it waits for. When the price comes, and who waits then, nobody knows."""
    return found.model_copy(
        update={
            "kind": ForecastKind.WAITS,
            "says": f"{why}; nothing is kept or bought for it before. If that were its price now, "
            f"it {found.says}",
            "expected_micro_usd": None, "most_micro_usd": None, "ready_at": None, "not_known": "",
        }
    )  # fmt: skip


def forecast_of_no_purchase_yet(found: Forecast, pool: str, why: str) -> Forecast:
    """Return the forecast of a job whose pool buys nothing for a while; `found` is what would
    become of it if the pool might buy. At which prices it then does, nobody knows."""
    return found.model_copy(
        update={
            "kind": ForecastKind.WAITS,
            "says": f"would wait: pool {pool} buys nothing now: {why}. If it might, it "
            f"{found.says}",
            "expected_micro_usd": None, "most_micro_usd": None, "ready_at": None,
        }
    )  # fmt: skip


def forecast_of_unfunded_wait(why: str, *, of_slots: bool = False) -> Forecast:
    """Return the forecast of a job that waits for a hard quota of its tenant, or a budget; of an
    array `why` is what a slot of it waits for. When others end that hold it, and what the job
    finds then, nobody knows."""
    whom = "any slot of it" if of_slots else "it"
    return Forecast(
        kind=ForecastKind.WAITS, says=f"would wait, with nothing kept or bought for {whom}: {why}",
        not_known="it is an array" if of_slots else "",
    )  # fmt: skip


def forecast_of_refusal(why: str) -> Forecast:
    """Return the forecast of a job that its pool would not take."""
    return Forecast(kind=ForecastKind.REFUSED, says=f"would be refused: {why}")


def data_says(
    data: Mapping[str, DataSet], held: Mapping[str, HeldData], node_id: str | None
) -> str:
    """Return what nodes fetch for a job before it starts, ``; first 150GB of data are fetched``;
    nothing for a job without such data.

    `held` is what the node `node_id`, where it would start, has of it, by source; None where that
    is not known.
    """
    lacks, unknown = 0.0, list[str]()
    fetched = {name: each for name, each in data.items() if each.source is not None}
    for name, each in fetched.items():
        has = held.get(each.source or "")
        size = has.total / 1e9 if has and has.total else each.size
        there = has.bytes / 1e9 if has else 0.0
        if has is not None and has.bytes >= has.total:
            continue
        if not size:
            unknown.append(name)
        lacks += max(size - there, 0.0)
    if not fetched:
        return ""
    if not lacks and not unknown:
        return f"; its data is on {node_id}"
    said = [f"{format_gb(round(lacks, 3))} of data"] if lacks else []
    said += [f"{name}, whose size is not given," for name in unknown]
    to = f" to {node_id}" if node_id else ""
    return f"; first {' and '.join(said)} {'is' if len(said) == 1 else 'are'} fetched{to}"


def _preempts(
    job: JobRequest, stops: PreemptionPlan, prices: Mapping[str, NodePrice], now: datetime
) -> Forecast:
    held = [(each.node_id, each.gpu_indices) for each in stops.gains]
    cost, told = _paid(job, held, prices, now)
    start = "" if stops.start is None else f", at about {said_at(stops.start, now)}"
    says = (
        f"would start on {format_places(held)} once {_gives_way(stops.victims)} for it{start}: "
        f"that loses {amount(stops.cost)} of work and time; {told}"
    )
    return Forecast(
        kind=ForecastKind.PREEMPTS, says=says, expected_micro_usd=cost, most_micro_usd=cost,
        ready_at=stops.start,
    )  # fmt: skip


def _gives_way(victims: Sequence[Victim]) -> str:
    """Return what comes of each: ``a, b are stopped``, ``c is shrunk to 4 GPUs``."""
    spares = [victim.job_id for victim in victims if victim.spares_on]
    shrunk = [
        f"{victim.job_id} is shrunk to {count(victim.gpus_left, 'GPU')}"
        for victim in victims
        if victim.gpus_left is not None
    ]
    stopped = [v.job_id for v in victims if v.gpus_left is None and not v.spares_on]
    said: list[str] = []
    if stopped:
        said.append(f"{listed(stopped, _NAMED)} {'is' if len(stopped) == 1 else 'are'} stopped")
    if shrunk:
        said.append(listed(shrunk, _NAMED))
    if spares:
        said.append(f"{listed(spares, _NAMED)} give{'s' * (len(spares) == 1)} up spares")
    return " and ".join(said)


def _starts(
    job: JobRequest,
    pool: str,
    alone: Decision,
    waiting: int,
    prices: Mapping[str, NodePrice],
    now: datetime,
) -> Forecast:
    cost, told = _paid(job, alone.held, prices, now)
    if alone.borrowed_from:
        cost, told = 0, f"that is a spare of {alone.borrowed_from}, which lends and pays for it"
    where = format_places(alone.held)
    first = f"{count(waiting, 'job')} wait{'s' * (waiting == 1)} in pool {pool} already"
    says = f"fits on {where} now, and {first}" if waiting else f"would start now on {where}"
    return Forecast(
        kind=ForecastKind.STARTS, says=f"{says}: {told}", expected_micro_usd=cost,
        most_micro_usd=cost, ready_at=None if waiting else now,
    )  # fmt: skip


def _paid(
    job: JobRequest,
    held: Sequence[tuple[str, Sequence[int]]],
    prices: Mapping[str, NodePrice],
    now: datetime,
) -> tuple[int, str]:
    """Return what a job commits on GPUs that are there, in micro-dollars, and how that is said."""
    hours = job.expected_duration / timedelta(hours=1)
    share = job.milli / 1000

    def billed(node: str, gpus: Sequence[int]) -> int:
        return max(prices[node].gpus, len(gpus)) if job.sensitive else len(gpus)

    by_use = [
        round(billed(node, gpus) * share * prices[node].micro_per_gpu_hour * hours)
        for node, gpus in held
        if node in prices and prices[node].by_use
    ]
    if by_use:
        cost = sum(by_use)
        return cost, f"about {dollars(cost)} for {format_duration(job.expected_duration)}"
    if paid := [prices[node].paid_until for node, _ in held if node in prices]:
        until = min((end for end in paid if end is not None), default=None)
        return 0, "its time is paid for" + (f" until {_to_minutes(until, now)}" if until else "")
    return 0, "nothing is bought for it"


def _to_minutes(moment: datetime, now: datetime) -> str:
    return said_at(moment.replace(second=0, microsecond=0), now)


def _buys(
    job: JobRequest, pool: str, plans: list[PurchasePlan], left: Left, now: datetime
) -> Forecast:
    expected, most = sum(plan.expected_cost for plan in plans), sum(plan.most for plan in plans)
    others = {each for plan in plans for each in plan.serves} - {job.id}
    whom = f"it and {count(len(others), 'other job')}" if others else "it"
    ready = max(plan.ready_at for plan in plans)
    bought = " + ".join(map(_order, plans))
    return Forecast(
        kind=ForecastKind.BUYS,
        says=f"would have pool {pool} buy {bought} for {whom}: about {dollars(expected)}, at most "
        f"{dollars(most)}, ready about {_to_minutes(ready, now)}; {_says_left(left)}",
        expected_micro_usd=expected, most_micro_usd=most, ready_at=ready,
    )  # fmt: skip


def _says_left(left: Left) -> str:
    pool = (
        "it has no cap for a day"
        if left.pool is None
        else f"it may commit {dollars(left.pool)} more today"
    )
    if left.tenant is None or (left.pool is not None and left.pool <= left.tenant):
        return pool
    return f"{pool}, for tenant {left.name} {dollars(left.tenant)}"


def _order(plan: PurchasePlan) -> str:
    machines = f"{plan.nodes} x {plan.instance_type} at {plan.provider}"
    if plan.window is None:
        return f"{machines}, while used"
    return f"{machines} until {plan.window.end:%d %b %H:%M} UTC"
