"""What an option costs in all: money committed, less what is left over, plus delay."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from longshore.models.buying import (
    BuyingPolicy,
    DemandSample,
    Option,
    OptionKind,
    PurchasePlan,
    Served,
    UnmetJob,
)
from longshore.models.caps_left import CapsLeft
from longshore.models.job import Tier
from longshore.scheduling.buying.caps import over_a_cap, spent
from longshore.scheduling.buying.fleet import Fleet, names_of, nodes_of
from longshore.scheduling.buying.outlook import Outlook
from longshore.scheduling.buying.prices import BlockSource, PodSource, Taken, taken_by
from longshore.scheduling.buying.repeat_guard import tried_before
from longshore.scheduling.buying.runtime_estimate import RuntimeEstimate
from longshore.scheduling.buying.unverifiable_constraints import CANNOT_MEET
from longshore.scheduling.buying.words import NOT_LOST, UNUSED, title_of
from longshore.scheduling.node_lifetime import to_finish

UNSERVED = timedelta(hours=24)
"""A job that starts at no known time counts as waiting so long."""
SHORTEST_RESALE = timedelta(hours=1)
"""Whole nodes that are idle for less until their end are not sold again."""
_HOUR, _NONE = timedelta(hours=1), timedelta(0)
Source = BlockSource | PodSource


@dataclass(frozen=True, slots=True)
class Scene:
    """What the options of one round are compared on."""

    tier: Tier
    jobs: tuple[UnmetJob, ...]
    fleet: Fleet
    policy: BuyingPolicy
    caps: CapsLeft
    usual_demand: float
    """GPUs of the tier that were wanted of late, on average."""
    now: datetime
    round: int = 0
    taken: Taken = field(default_factory=dict[tuple[str, str, str | None], int])
    """What was chosen before, and is in the books no more."""
    lasting: RuntimeEstimate = field(default_factory=RuntimeEstimate)

    _known: dict[Hashable, Outlook] = field(
        default_factory=dict[Hashable, Outlook], init=False, repr=False, compare=False
    )
    """By what is bought: half of all options differ from another one in their price alone."""

    def outlook(
        self, bought: Sequence[PurchasePlan] = (), left_out: Collection[str] = ()
    ) -> Outlook:
        """Return when the jobs start once this is bought; those that are left out, by id, start
        when they would without a purchase."""
        key = tuple(nodes_of(plan, _until(plan)) for plan in bought), frozenset(left_out)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._look_ahead(bought, left_out)
        return found

    def _look_ahead(self, bought: Sequence[PurchasePlan], left_out: Collection[str]) -> Outlook:
        fleet = self.fleet
        for number, plan in enumerate(bought):
            fleet = fleet.with_bought(plan, name_in(self, number), _until(plan))
        rest = (job.request for job in self.jobs if job.request.id not in left_out)
        found = fleet.outlook(rest, self.now)
        if not left_out:
            return found
        without = self.outlook().starts
        starts = {**{job_id: without[job_id] for job_id in left_out}, **found.starts}
        return Outlook(starts, found.uses)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Machines that might be bought together, before it is known what they are used for."""

    kind: OptionKind
    blocks: tuple[tuple[BlockSource, PurchasePlan], ...] = ()
    pods: tuple[PodSource, ...] = field(default=())


def _until(bought: PurchasePlan) -> datetime | None:
    """Return when nodes end that are looked ahead for; without a window, at no known time."""
    return bought.window.end if bought.window else None


def waiting(scene: Scene, title: str = "wait") -> Option:
    """Return the option to buy nothing."""
    outlook = scene.outlook()
    return Option(
        kind=OptionKind.WAIT,
        tier=scene.tier,
        round=scene.round,
        title=title,
        delay=_delay(scene, outlook),
        hoped=_hoped(scene, outlook),
        starts=_starts(scene, outlook),
    )


def costed(scene: Scene, candidate: Candidate) -> Option:
    """Return a candidate with all that it costs; what no job would use is not bought."""
    machines, outlook, tried = foreseen(scene, candidate)
    plans: list[PurchasePlan] = []
    leftover = 0
    for number, (source, plan) in enumerate(machines):
        names = names_of(plan, name_in(scene, number))
        served = dict.fromkeys(use.job_id for name in names for use in outlook.uses.get(name, ()))
        if not served:
            continue
        if isinstance(source, PodSource):
            until = max(end for name in names if (end := outlook.ends_on(name)) is not None)
            lasts = max(end for name in names if (end := lasts_on(scene, outlook, name)))
            uses = [use for name in names for use in outlook.uses.get(name, ())]
            likely = scene.lasting.likely_end(uses, plan.ready_at)
            plan = source.plan(until, scene.tier, scene.policy, scene.now, lasts, likely)
        else:
            leftover += _leftover(scene, source, plan, names, outlook)
        plans.append(plan.model_copy(update={"serves": tuple(served)}))
    option = Option(
        kind=candidate.kind,
        tier=scene.tier,
        round=scene.round,
        title=title_of(plans or [plan for _, plan in machines]),
        plans=tuple(plans),
        committed=sum(plan.expected_cost for plan in plans),
        max_total=sum(plan.max_total for plan in plans),
        delay=_delay(scene, outlook),
        hoped=_hoped(scene, outlook),
        leftover=leftover,
        starts=_starts(scene, outlook),
    )
    unused = next(iter(tried.values()), UNUSED)
    lost = ruled_out(scene, machines, outlook) if plans else unused
    return option.model_copy(update={"lost": lost}) if lost else within_caps(scene, option)


def within_caps(scene: Scene, option: Option) -> Option:
    """Return an option, rejected where it is over a cap."""
    over = over_a_cap(scene.caps, scene.jobs, option) or NOT_LOST
    return option.model_copy(update={"lost": over.why, "limits": over.limits})


def foreseen(
    scene: Scene, candidate: Candidate
) -> tuple[list[tuple[Source, PurchasePlan]], Outlook, Mapping[str, str]]:
    """Return the machines of a candidate, smallest first, what runs there, and by job why it is
    left out. The nodes of a machine are named by `names_of` and `name_in`."""
    tentative = [
        (source, source.plan(scene.now + UNSERVED, scene.tier, scene.policy, scene.now))
        for source in candidate.pods
    ]
    machines: list[tuple[Source, PurchasePlan]] = [*candidate.blocks, *tentative]
    # Of machines that come at one time the packer fills the first: small jobs go to small ones.
    machines.sort(key=lambda machine: machine[1].gpus_per_node)
    tried = {
        job.request.id: why
        for job in scene.jobs
        if (why := tried_before(job, {isinstance(source, PodSource) for source, _ in machines}))
    }
    return machines, scene.outlook([plan for _, plan in machines], tried), tried


def ruled_out(
    scene: Scene, machines: Sequence[tuple[Source, PurchasePlan]], outlook: Outlook
) -> str:
    """Return why machines may not be bought for what would run there; empty where they may.

    Ranks of a gang must meet, and a cluster is bought for a gang alone: others would pay for
    machines beside theirs.
    """
    gangs = {job.request.id for job in scene.jobs if job.request.gang is not None}
    spans = Counter(
        job_id for uses in outlook.uses.values() for job_id in {use.job_id for use in uses} & gangs
    )
    for number, (source, plan) in enumerate(machines):
        served = outlook.jobs_on(names_of(plan, name_in(scene, number)))
        if not plan.meets and any(spans[job_id] > 1 for job_id in served):
            place = f" {plan.place}" if plan.place else ""
            return f"{CANNOT_MEET}: {plan.provider}{place} opens no ports between its machines"
        if isinstance(source, PodSource) and source.is_cluster and served and not served & gangs:
            return "a cluster is for a gang"
    return ""


def lasts_on(scene: Scene, outlook: Outlook, name: str) -> datetime | None:
    """Return until when a node has to last, so that all that is to run there ends there."""
    beyond = {
        job.request.id: to_finish(job.request, scene.policy) - job.request.expected_duration
        for job in scene.jobs
    }
    uses = outlook.uses.get(name, ())
    return max((use.end + beyond[use.job_id] for use in uses), default=None)


def after(scene: Scene, option: Option) -> Scene:
    """Return the scene when an option was taken: its machines are coming, its money is gone."""
    fleet = scene.fleet
    for number, plan in enumerate(option.plans):
        ends_at = plan.ends_at(scene.now)
        fleet = fleet.with_bought(plan, f"{name_in(scene, number)}-taken", ends_at)
    caps = spent(scene.caps, scene.jobs, option)
    taken = taken_by(option.plans, scene.taken)
    return replace(scene, fleet=fleet, caps=caps, taken=taken, round=scene.round + 1)


def start_by(job: UnmetJob, policy: BuyingPolicy, now: datetime) -> datetime:
    """Return the latest start of a FLEX job."""
    if job.start_by is not None:
        return job.start_by
    return (job.request.submitted_at or now) + policy.flex_deadline


def patient_until(job: UnmetJob, policy: BuyingPolicy, now: datetime) -> datetime:
    """Return until when a FAST job waits for what costs less; the warm target does not."""
    if job.start_by is not None:
        return job.start_by
    return (job.request.submitted_at or now) + policy.fast_patience


def presses(job: UnmetJob, policy: BuyingPolicy, now: datetime) -> bool:
    """Return whether a FLEX job that waits on would start too late."""
    return start_by(job, policy, now) - policy.startup_limit <= now


def hoped_price(job: UnmetJob, policy: BuyingPolicy, now: datetime) -> int:
    """Return the price of a GPU-hour that a FLEX job hopes for, in micro-dollars.

    It rises from its submission to its latest start.
    """
    since, latest = job.request.submitted_at or now, start_by(job, policy, now)
    waited = (now - since) / (latest - since) if latest > since else 1.0
    return int(policy.flex_price * (1 + policy.flex_rise * min(max(waited, 0.0), 1.0)))


def usual_demand(samples: Sequence[DemandSample], tier: Tier, now: datetime) -> float:
    """Return the GPUs that were wanted on average, by time; 0 where nothing is known."""
    known = [sample for sample in samples if sample.tier is tier and sample.at <= now]
    if not known:
        return 0.0
    ends = [*(sample.at for sample in known[1:]), now]
    spans = [(end - sample.at).total_seconds() for sample, end in zip(known, ends, strict=True)]
    wanted = [sample.queued + sample.used for sample in known]
    if sum(spans) <= 0:
        return float(wanted[-1])
    return sum(n * span for n, span in zip(wanted, spans, strict=True)) / sum(spans)


def name_in(scene: Scene, number: int) -> str:
    """Return the name of the purchase of a candidate that has this number."""
    return f"new-{scene.round}-{number}"


def _starts(scene: Scene, outlook: Outlook) -> tuple[Served, ...]:
    return tuple(
        Served(job_id=job.request.id, start=outlook.starts[job.request.id]) for job in scene.jobs
    )


def _delay(scene: Scene, outlook: Outlook) -> int:
    return sum(_delay_of(job, outlook.starts[job.request.id], scene) for job in scene.jobs)


def _hoped(scene: Scene, outlook: Outlook) -> int:
    """Return the part of the delay that goes by `flex_price`: of FLEX jobs that may wait."""
    if scene.tier is not Tier.FLEX:
        return 0
    may_wait = (job for job in scene.jobs if not presses(job, scene.policy, scene.now))
    return sum(_delay_of(job, outlook.starts[job.request.id], scene) for job in may_wait)


def _delay_of(job: UnmetJob, start: datetime | None, scene: Scene) -> int:
    """Return what it costs that a job starts then.

    A FAST job costs from now on; while it is patient, no more than to wait for as long as it is
    and then to be served at the price of its time. A FLEX job that may wait costs what its time is
    to be bought for later; one that may not costs as a FAST job does, from its latest start on.
    """
    policy, now, request = scene.policy, scene.now, job.request
    if scene.tier is Tier.FAST:
        waited = UNSERVED if start is None else start - now
        delay = priced(policy.fast_delay_price, request.gpus, waited)
        patience = patient_until(job, policy, now) - now
        return min(delay, _served_later(job, scene, patience)) if patience > _NONE else delay
    latest = start_by(job, policy, now)
    if start is not None and start <= latest:
        return 0
    if presses(job, policy, now):
        waited = UNSERVED if start is None else start - max(latest, now)
        return priced(policy.fast_delay_price, request.gpus, waited)
    return priced(hoped_price(job, policy, now), request.gpus, request.expected_duration)


def _served_later(job: UnmetJob, scene: Scene, patience: timedelta) -> int:
    """Return what it costs to serve a FAST job at the end of its patience: the wait, and what its
    likely time and a start-up cost at the most that FLEX jobs hope for."""
    policy, request = scene.policy, job.request
    most = int(policy.flex_price * (1 + policy.flex_rise))
    likely = request.expected_duration * scene.lasting.mean + policy.usual_startup
    wait = priced(policy.fast_delay_price, request.gpus, patience)
    return wait + priced(most, request.gpus, likely)


def _leftover(
    scene: Scene,
    source: BlockSource,
    plan: PurchasePlan,
    names: Sequence[str],
    outlook: Outlook,
) -> int:
    """Return what the unused time of bought nodes is worth: sold again, or used by jobs to come.

    The better of the two, and never more than was paid for it.
    """
    assert plan.window is not None
    tail = free = timedelta(0)
    for name in names:
        uses = outlook.uses.get(name, ())
        last = scene.lasting.likely_end(uses, plan.ready_at) if uses else plan.ready_at
        idle = plan.window.end - last
        tail += idle * plan.gpus_per_node if idle >= SHORTEST_RESALE else timedelta(0)
        until = max(plan.window.end - scene.lasting.too_short, plan.ready_at)
        spans = ((min(use.end, until) - min(use.start, until)) * use.gpus for use in uses)
        free += (until - plan.ready_at) * plan.gpus_per_node
        free -= sum(spans, timedelta(0)) * scene.lasting.mean
    paid = plan.expected_cost / (plan.gpus * plan.window.hours)
    return int(max(_resold(scene, source, plan, paid, tail), _reused(scene, plan, paid, free)))


def _resold(
    scene: Scene, source: BlockSource, plan: PurchasePlan, paid: float, tail: timedelta
) -> float:
    if not source.market.capabilities.resellable:
        return 0.0
    hoped = source.best_bid(plan.place) * scene.policy.resale_share * (1 - scene.policy.resale_fee)
    return min(hoped, paid) * (tail / _HOUR)


def _reused(scene: Scene, plan: PurchasePlan, paid: float, free: timedelta) -> float:
    total = scene.fleet.gpus_of(scene.tier) + plan.gpus
    likely = min(scene.usual_demand / total, 1.0)
    return paid * scene.policy.reuse_share * likely * (max(free, timedelta(0)) / _HOUR)


def priced(price: int, gpus: int, length: timedelta) -> int:
    """Return what GPUs cost for so long, by micro-dollars per GPU-hour; nothing before zero."""
    return price * gpus * max(length // timedelta(seconds=1), 0) // 3600
