"""Why a job is where it is, in words: one headline, and what could be done about it."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from longshore.models.array_view import SlotsAside
from longshore.models.block_end import BlockDecision
from longshore.models.checkpointing import CheckpointDecision
from longshore.models.dag_view import HeldMutex
from longshore.models.elements import ElementState
from longshore.models.explanation import Explanation
from longshore.models.job_status import JobState, JobStatus
from longshore.models.placement import Decision, PlacementKind
from longshore.models.pool import Growth
from longshore.models.preemption import PreemptionPlan, Spared
from longshore.models.spending import BuyingRecord, PurchaseUnderWay
from longshore.models.text import count
from longshore.models.views import SPEC_UNREADABLE, UNREADABLE, JobView
from longshore.models.visible import brief
from longshore.scheduling.arrays import aside_text, progress_text
from longshore.scheduling.buying.buying_status import NO_BUYING, BuyingStatus
from longshore.scheduling.buying.words import under_way
from longshore.scheduling.job_changes import adding
from longshore.scheduling.words import format_spared

_HELD = "held"
"""What a workflow says of a hold for which nobody gave a reason."""
_UNTIL_THEN = "until then nobody is stopped for it, and nothing kept or bought"


def explain(
    job: JobView,
    *,
    alone: Decision | None = None,
    last: Decision | None = None,
    decided_at: datetime | None = None,
    position: int | None = None,
    path_behind: float = 0.0,
    head_start: timedelta = timedelta(0),
    nodes: int = 0,
    growth: Growth = Growth.OPEN,
    placed: Decision | None = None,
    making_room: PreemptionPlan | None = None,
    spared: Sequence[Spared] = (),
    gave_way: PreemptionPlan | None = None,
    saving: CheckpointDecision | None = None,
    buying: BuyingRecord | None = None,
    blocks: tuple[BlockDecision, ...] = (),
    coming: Sequence[PurchaseUnderWay] = (),
    purchases: Sequence[PurchaseUnderWay] = (),
    standing: BuyingStatus = NO_BUYING,
    kind: str = "",
    agent: str = "",
    helps: Sequence[str] = (),
    hold: JobStatus | None = None,
    mutexes: tuple[HeldMutex, ...] = (),
    unpriced: str = "",
    unpaid: Sequence[str] | None = None,
    also: str = "",
    slots_aside: SlotsAside | None = None,
) -> Explanation:
    """Return the explanation. For a queued job `alone` is what the packer says of it now by
    itself, `last` what the last cycle said with the jobs before it; `making_room` are the jobs
    that are preempted for it, `spared` those that are left alone for a time; `coming` is what the
    pool bought and is no node yet, `purchases` what the job is to start on of that; `standing`
    says whether the pool buys, `kind` what kind of node the job waits for where none that is
    there could ever hold it, `agent` the command that starts one for it, `helps` what would help
    with those that are there (`scheduling.advice`), `hold` what the workflow of a held job says,
    `unpriced` why nobody knows the price below which it is to start, `unpaid` what would help one
    that waits for a budget or a quota, `also` what else keeps it waiting,
    `slots_aside` those of an array that no cycle could plan. The others are as in the
    explanation."""
    queued = position is not None
    if last is not None and last.rejected and not nodes and queued:
        # The headline says how it is now: without this the two would contradict each other.
        gone = f"{last.reason}; {count(sum(last.rejected.values()), 'node')} gone since"
        last = last.model_copy(update={"reason": gone})
    headline = _headline(job, slots_aside)
    if queued:
        headline = _queued_headline(job, alone, last, nodes, standing, paid=unpaid is None)
    waits = queued and job.state is not JobState.HELD
    if queued and not waits:
        headline = _held(job, hold)
    elif waits and job.waits_for_price:
        headline = f"{job.reason}: {_UNTIL_THEN}"
    elif waits and making_room is not None:
        headline = f"waits until others have given way: {making_room.reason}"
    elif waits:
        if also:
            headline += f"; {also}"
        if spared:
            headline += f"; no job is preempted for it yet: {format_spared(spared)}"
        if purchases:
            headline += f"; {under_way(purchases, whose=' for it')}"
        elif coming:
            headline += f"; {_on_their_way(coming)}"
    if unpriced and waits and not job.waits_for_price:
        headline += f"; its price holds nothing up, for nobody knows what it is now: {unpriced}"
    if wanted := [each for each in mutexes if each.waiting]:
        headline += f"; {' and '.join(map(_keeps_waiting, wanted))}"
    others: tuple[str, ...] = ()
    if last is not None and last.kind is PlacementKind.SET_ASIDE:
        position = None  # no cycle plans it, and no node would help it
    elif queued and not coming:
        others = _hints(job, nodes, growth, standing, kind, agent, helps)
    elif queued and not purchases:  # what is on its way is for others
        others = _for_buying(job, nodes, standing)
    return Explanation(
        job=job,
        headline=headline,
        position=position,
        ahead=position - 1 if position else 0,
        path_behind=path_behind,
        head_start=head_start,
        decision=alone,
        last_decision=last,
        decided_at=decided_at,
        placed=placed,
        making_room=making_room,
        spared=tuple(spared),
        gave_way=gave_way,
        saving=saving,
        purchases=tuple(purchases),
        buying=buying,
        blocks=blocks,
        mutexes=mutexes,
        hints=_all_hints(
            unpaid,
            others,
            lacks_nodes=nodes == 0 or bool(kind),
        ),
    )


def with_trouble(told: Explanation, trouble: str) -> Explanation:
    """Return what is told of a job whose stored spec cannot be read, with `trouble`: why."""
    headline = told.headline
    if UNREADABLE not in headline:  # of some fields a list says so, too
        headline += f"; {unreadable_spec(trouble)}"
    hints = (*told.hints, mend_of_spec(told.job))
    return told.model_copy(update={"headline": headline, "hints": hints})


def unreadable_spec(trouble: str) -> str:
    return f"{SPEC_UNREADABLE}: {brief(trouble)}"


def mend_of_spec(job: JobView) -> str:
    """Return what to do with a job whose stored spec cannot be read."""
    if job.state.ended:
        return "It has ended: submit it anew where it is to run again"
    return (
        f"`longshore cancel {job.id}` ends it, where somebody wrote into its row: then submit it "
        "anew; where a newer version has stored it, run that one. Until then it is not preempted"
    )


def _keeps_waiting(mutex: HeldMutex) -> str:
    jobs = count(mutex.waiting, "job")
    return f"{jobs} wait{'s' * (mutex.waiting == 1)} for its mutex {mutex.name}"


def _on_their_way(coming: Sequence[PurchaseUnderWay]) -> str:
    """Return what comes, where it is not known that the job is to start there."""
    nodes = sum(each.nodes for each in coming)
    first = min(each.ready_at for each in coming)
    verb = "is" if nodes == 1 else "are"
    return f"{count(nodes, 'machine')} {verb} on the way, the first about {first:%H:%M} UTC"


def _of_array(job: JobView, elements: Mapping[ElementState, int], aside: SlotsAside | None) -> str:
    told = f"is {job.state.value.lower()}: {progress_text(elements, job.claimed)}"
    if job.waits_for_price:
        return f"{told}. It {job.reason}: {_UNTIL_THEN}"
    if elements.get(ElementState.BLOCKED):
        told += (
            ". A blocked element waits for the one with its index of an array before it: "
            f"`longshore elements {job.id} --state blocked` says of which"
        )
        if not elements.get(ElementState.WAITING):
            return told
    if aside:
        return f"{told}. {aside_text(aside)}"
    one = f"`longshore job {job.id}` names one to ask about"
    return f"{told}. What waits for GPUs is its slots: {one}"


def _headline(job: JobView, aside: SlotsAside | None) -> str:
    if job.begin_only:
        return _held(job, None)
    if job.elements is not None:
        return _of_array(job, job.elements, aside)
    match job.state:
        case JobState.RUNNING:
            spares = f"; {job.stands_by} stands by" if job.spares else ""
            return f"runs: {job.reason}{spares}"
        case JobState.RETRYING:
            return f"is between attempts: {job.reason}"
        case JobState.SUCCEEDED:
            return "has ended with success"
        case JobState.FAILED:
            code = "" if job.exit_code is None else f"exit code {job.exit_code}"
            what = ", ".join(filter(None, (job.failure, code)))
            return "has failed" + (f" ({what})" if what else "") + f": {job.reason}"
        case _:
            return f"is {job.state.value.lower()}" + (f": {job.reason}" if job.reason else "")


def _held(job: JobView, hold: JobStatus | None) -> str:
    if job.begin_only:
        return f"{job.reason}: {_UNTIL_THEN}"
    since, reason = "", job.reason
    if hold is not None:
        since, reason = f" since {hold.since:%Y-%m-%d %H:%M} UTC", hold.reason
    why = f" ({reason})" if reason not in ("", _HELD) else ""
    return f"is held{since}{why}: `longshore release {job.id}` lets it go on"


def _queued_headline(
    job: JobView,
    alone: Decision | None,
    last: Decision | None,
    nodes: int,
    standing: BuyingStatus,
    *,
    paid: bool,
) -> str:
    if last is not None and last.kind is PlacementKind.SET_ASIDE:
        return f"is {last.reason}"
    if nodes == 0:
        says = f"it {standing.says}" if standing.buys else standing.says
        return f"waits: pool {job.pool} has no nodes" + (f"; {says}" if says else "")
    if last is None:
        return "waits for the first cycle to look at it"
    if paid and alone is not None and alone.kind is PlacementKind.EXISTING_NODE:
        return f"waits behind the jobs before it: {last.reason}"
    return f"waits: {last.reason}"


def _all_hints(
    unpaid: Sequence[str] | None, others: tuple[str, ...], *, lacks_nodes: bool
) -> tuple[str, ...]:
    """Return what would help; of a job that waits for a budget or a quota, however many GPUs are
    idle, nothing that would bring more of them, unless it lacks those too."""
    if unpaid is None:
        return others
    return (*unpaid, *others) if lacks_nodes else tuple(unpaid)


def _hints(
    job: JobView,
    nodes: int,
    growth: Growth,
    standing: BuyingStatus,
    kind: str,
    agent: str,
    helps: Sequence[str],
) -> tuple[str, ...]:
    if job.state is JobState.HELD or job.waits_for_price:
        return ()
    look = f"see what it would buy now: `longshore buy --dry-run --pool {job.pool}`"
    agent = agent or f"`longshore agent --pool {job.pool}`"
    start = f"start a node: {agent} on a machine with GPUs"
    if nodes == 0:
        return (look,) if standing.buys else (standing.helps or start,)
    if kind and growth is Growth.OPEN:  # no node that is there could ever hold it
        if standing.buys:
            helps = (*helps, look)
        elif not any("add " in help or "`longshore agent " in help for help in helps):
            helps = (*helps, adding(kind, agent))
    return (*helps, *_for_buying(job, nodes, standing))


def _for_buying(job: JobView, nodes: int, standing: BuyingStatus) -> tuple[str, ...]:
    """Return what would let the pool buy; where it has nodes, with what keeps it from that, which
    the headline does not say then."""
    if job.state is JobState.HELD or job.waits_for_price or not standing.helps:
        return ()
    return (standing.helps if nodes == 0 else f"{standing.helps} ({standing.says})",)
