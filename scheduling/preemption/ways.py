"""The ways in which a job can start, in dollars: to stop others, to wait, to buy."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from longshore.models.job_request import JobRequest
from longshore.models.preemption import (
    BuyQuote,
    PreemptionPlan,
    PreemptionPolicy,
    RejectedVictim,
    Spared,
    Victim,
    Way,
    WayKind,
)
from longshore.models.text import amount, count, listed, span
from longshore.scheduling.buying.costs import UNSERVED
from longshore.scheduling.preemption.costs import cost_of
from longshore.scheduling.rank import AHEAD
from longshore.scheduling.words import format_spared

_MOST_REJECTED = 50
_MOST_NAMED = 4
_ORDER = (WayKind.WAIT, WayKind.BUY, WayKind.PREEMPT)
"""Which of equal ways is taken: the one that disturbs least."""


def weigh(
    job: JobRequest,
    victims: tuple[Victim, ...],
    start: datetime | None,
    quote: BuyQuote | None,
    rejected: Sequence[RejectedVictim],
    policy: PreemptionPolicy,
    now: datetime,
    *,
    by_payer: Collection[str],
    by_what: str,
    engines: Mapping[str, bool],
) -> PreemptionPlan:
    """Return the plan to stop these jobs, or not to, where another way costs less. What the job
    gets by it is left open.

    `start` is when the job starts if nobody is stopped; None where that is not known. Where one of
    its own class or above yields to it, that is decided already against waiting: by its rank, or
    where only `engines` do (true for one that is in use), since nobody asks them, or it has waited
    for its turn. Where all of them are stopped `by_payer`, for the reason `by_what`, no other way
    counts.
    """
    freed = now + max((victim.save for victim in victims), default=timedelta(0))
    cost = sum(victim.total for victim in victims)
    preempting = Way(
        kind=WayKind.PREEMPT, title=_title(victims), start=freed, cost=cost,
        delay=_delay(job, freed, policy, now),
    )  # fmt: skip
    waiting = _waiting(job, start, policy, now)
    buying = _buying(job, quote, policy, now)
    paid = [victim for victim in victims if victim.job_id not in by_payer]
    first = not paid
    yielding = {victim.job_id for victim in paid if victim.priority >= job.priority}
    ranked = bool(yielding)
    if ranked and start is not None and start - freed <= policy.restart:
        ranked = False  # a stop would take longer than the wait
    if first:
        others = (way.model_copy(update={"lost": by_what}) for way in (waiting, *buying))
        ways = (preempting.model_copy(update={"chosen": True}), *others)
    elif ranked:
        lost = f"those that are stopped have less than 1/{AHEAD:g} of its rank"
        if yielding <= engines.keys():
            lost = "nobody asks the engines that are stopped"
            lost = "it has waited for its turn" if _any_in_use(yielding, engines) else lost
        ways = (*_compared([preempting, *buying]), waiting.model_copy(update={"lost": lost}))
    else:
        ways = _compared([preempting, waiting, *buying])
    best = ways[0]
    chosen = best.kind is WayKind.PREEMPT
    value = max(waiting.delay - preempting.delay, 0)
    return PreemptionPlan(
        job_id=job.id,
        at=now,
        victims=victims if chosen else (),
        cost=cost,
        value=value,
        start=freed if chosen else None,
        ways=ways,
        rejected=tuple(rejected[:_MOST_REJECTED]),
        rejected_count=len(rejected),
        reason=_sentence(
            job.id,
            best,
            preempting,
            waiting,
            len(victims),
            _yields(yielding, engines),
            ranked=ranked,
            first=first,
        ),
    )


def refused(
    job: JobRequest,
    start: datetime | None,
    candidates: int,
    rejected: Sequence[RejectedVictim],
    policy: PreemptionPolicy,
    now: datetime,
    quote: BuyQuote | None = None,
) -> PreemptionPlan:
    """Return the plan of a job that no set of jobs would make room for.

    `candidates` is how many may be stopped where it could run.
    """
    if candidates:
        may = count(candidates, "running job")
        most = policy.max_victims
        bound = f", {most} at a time at most" if candidates > most else ""
        reason = f"there would be no room for it if the {may} that may be stopped left{bound}"
    elif rejected:
        kinds = Counter(_kind(one.reason) for one in rejected)
        told = "; ".join(f"{number} {kind}" for kind, number in kinds.most_common(_MOST_NAMED))
        reason = f"nobody may be stopped for it: of {count(len(rejected), 'running job')}, {told}"
    else:
        reason = "no running job is in its way: what is in use there belongs to none"
    ways = _compared([_waiting(job, start, policy, now), *_buying(job, quote, policy, now)])
    later = [Spared(job_id=one.job_id, until=one.until) for one in rejected if one.until]
    spared = tuple(sorted(later, key=lambda one: (one.until, one.job_id))[:_MOST_NAMED])
    if spared:
        reason = f"{reason}; {format_spared(spared)}"
    return PreemptionPlan(
        job_id=job.id, at=now, ways=ways, rejected=tuple(rejected[:_MOST_REJECTED]),
        rejected_count=len(rejected), spared=spared, reason=reason,
    )  # fmt: skip


def no_node(
    job: JobRequest,
    reason: str,
    quote: BuyQuote | None,
    policy: PreemptionPolicy,
    now: datetime,
) -> PreemptionPlan:
    """Return the plan of a job that no node could take, whoever stops and however long it waits:
    what is left is to buy."""
    ways = _compared(_buying(job, quote, policy, now))
    return PreemptionPlan(job_id=job.id, at=now, ways=ways, reason=reason)


def as_told(plan: PreemptionPlan, start: datetime | None) -> PreemptionPlan:
    """Return a plan whose way to wait says the `start` that a cycle keeps for the job, as all
    others who tell it do; None where it keeps none.

    A cycle plans with an hour for a job of which nobody knows how long it takes, so that a start
    can be kept at all. What waiting costs is by the time that those in the way probably run on
    (`costs.probable_end`), and that is said beside.
    """
    waiting = next((way for way in plan.ways if way.kind is WayKind.WAIT), None)
    if waiting is None or start is None or waiting.start is None:
        return plan
    title = _until(start)
    if abs(waiting.start - start) >= timedelta(seconds=1):
        counted = span(waiting.start - plan.at)
        title += f", counted as {counted}: what runs there probably lasts that long"
    told = waiting.model_copy(update={"title": title, "start": start})
    ways = tuple(told if way is waiting else way for way in plan.ways)
    reason = plan.reason.replace(waiting.title, title)
    return plan.model_copy(update={"ways": ways, "reason": reason})


def _until(start: datetime) -> str:
    return f"wait until {start:%Y-%m-%d %H:%M:%S} UTC"


def _waiting(
    job: JobRequest, start: datetime | None, policy: PreemptionPolicy, now: datetime
) -> Way:
    title = _until(start) if start else "wait, nobody knows for how long"
    delay = _delay(job, start or now + UNSERVED, policy, now)
    return Way(kind=WayKind.WAIT, title=title, start=start, delay=delay)


def _buying(
    job: JobRequest, quote: BuyQuote | None, policy: PreemptionPolicy, now: datetime
) -> list[Way]:
    if quote is None:
        return []
    return [
        Way(
            kind=WayKind.BUY, title=quote.title, start=quote.ready_at, cost=quote.cost,
            delay=_delay(job, quote.ready_at, policy, now),
        )
    ]  # fmt: skip


def _delay(job: JobRequest, start: datetime, policy: PreemptionPolicy, now: datetime) -> int:
    gpus = job.gpus * job.milli / 1000
    return cost_of(max(start - now, timedelta(0)), gpus, policy.price_of_waiting(job))


def _compared(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Return the ways, the cheapest first, which is chosen; with why the others are not."""
    ordered = sorted(ways, key=lambda way: (way.total, _ORDER.index(way.kind)))
    return tuple(_told(way, ordered[0]) for way in ordered)


def _told(way: Way, best: Way) -> Way:
    if way is best:
        return way.model_copy(update={"chosen": True})
    more = way.total - best.total
    lost = f"costs {amount(more)} more" if more else "costs the same"
    return way.model_copy(update={"lost": lost})


def _sentence(
    job_id: str, best: Way, preempting: Way, waiting: Way, victims: int, yields: str, *,
    ranked: bool, first: bool,
) -> str:  # fmt: skip
    if best.kind is WayKind.PREEMPT:
        they = "it loses" if victims == 1 else "they lose"
        if first:
            return (
                f"{preempting.title}, since a budget pays for {job_id} first: {they} "
                f"{amount(preempting.cost)}; to wait would cost {amount(waiting.total)}"
            )
        if ranked:
            return (
                f"{preempting.title}, which {yields}: {they} {amount(preempting.cost)}; to wait "
                f"would cost {amount(waiting.total)}"
            )
        return (
            f"{preempting.title}: {they} {amount(preempting.cost)}; with delay "
            f"{amount(preempting.total)} in all, against {amount(waiting.total)} for waiting"
        )
    return (
        f"{best.title}: {amount(best.total)} in all, against {amount(preempting.total)} to "
        f"{preempting.title}"
    )


def _yields(yielding: Collection[str], engines: Mapping[str, bool]) -> str:
    """Return why jobs of its class or above yield to a job."""
    one = len(yielding) == 1
    if not set(yielding) <= engines.keys():
        return "yields to twice its rank" if one else "yield to twice their ranks"
    if _any_in_use(yielding, engines):
        return "yields since the other has waited for its turn"
    return "yields since nobody asks it" if one else "yield since nobody asks them"


def _any_in_use(yielding: Collection[str], engines: Mapping[str, bool]) -> bool:
    """Return whether one of these is used: of a class that is not lower, it yields to a turn."""
    return any(engines[each] for each in yielding)


def with_victims(plan: PreemptionPlan, victims: tuple[Victim, ...]) -> PreemptionPlan:
    """Return a plan to stop these jobs that says of each what becomes of it, and what it loses
    then: some go on with a part of what they hold."""
    before, title = _title(plan.victims), _title(victims)
    cost = sum(victim.total for victim in victims)
    told = {"title": title, "cost": cost}
    ways = tuple(
        way.model_copy(update=told) if way.kind is WayKind.PREEMPT else way for way in plan.ways
    )
    reason = title + plan.reason.removeprefix(before)  # as `_sentence` begins
    update = {"victims": victims, "ways": ways, "reason": reason, "cost": cost}
    return plan.model_copy(update=update)


def _title(victims: Sequence[Victim]) -> str:
    """Return what is done with each: ``stop a, b; shrink c to 4 GPUs``."""
    stopped = [each.job_id for each in victims if each.gpus_left is None and not each.spares_on]
    shrunk = [
        f"{each.job_id} to {count(each.gpus_left, 'GPU')}"
        for each in victims
        if each.gpus_left is not None
    ]
    spares = [each.job_id for each in victims if each.spares_on]
    said = (("stop", stopped), ("shrink", shrunk), ("take the spares of", spares))
    return "; ".join(f"{verb} {listed(ids, _MOST_NAMED)}" for verb, ids in said if ids)


def _kind(reason: str) -> str:
    """Return a reason without its numbers, so that like ones are counted together."""
    for start, kind in _KINDS:
        if reason.startswith(start):
            return kind
    return "being stopped already"


_KINDS = (
    ("is of class", "not of a lower class"),
    ("is in use", "serving, and not of a lower class"),
    ("is idle", "idle too briefly, and not of a lower class"),
    ("serves the same", "serving the same model"),
    ("is of the same", "of the same service"),
    ("it loads", "loading a model"),
    ("it is pinned", "pinned"),
    ("others made", "of those that others made room for"),
    ("is paid for", "paid for by others"),
    ("is of a tenant", "of tenants without a budget"),
    ("says that", "not preemptible"),
    ("should end", "near the end"),
    ("cannot save", "not able to save"),
    ("was preempted", "preempted of late"),
    ("runs again", "preempted of late"),
    ("was placed", "running too briefly"),
    ("has run", "of more than half its rank"),
    ("had waited", "of more than half its rank"),
    ("has not saved", "not able to save"),
)
