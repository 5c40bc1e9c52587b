"""Why a job is where it is, in words: one headline, and what could be done about it."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from models.block_end import BlockDecision
from models.checkpointing import CheckpointDecision
from models.job import JobState
from models.placement import Decision, PlacementKind, Rejection, RejectionCode
from models.pool import Growth
from models.preemption import PreemptionPlan, Spared
from models.spending import BuyingRecord, PurchaseUnderWay
from models.views import Explanation, JobView
from scheduling.buying.words import under_way
from scheduling.placement.feasibility import CORDONED
from scheduling.words import count, format_spared

_HINTS = {
    RejectionCode.TIER: "give the job the other tier, or add a node of its tier",
    RejectionCode.GPU_TYPE: "name another gpu_type, or leave it out",
    RejectionCode.CONTAINER_RUNTIME: "no docker or podman was found there: give a command "
    "without an image, or install one and restart the agent",
    RejectionCode.EXPIRY: "lower expected_duration or the grace if they are too careful, or add a "
    "node that lasts longer",
    RejectionCode.CPU: "ask for fewer cpus",
    RejectionCode.RAM: "ask for less ram",
    RejectionCode.STORAGE: "ask for less storage_bandwidth, or wait for jobs that use the storage "
    "to end",
    RejectionCode.POWER: "limit what its GPUs draw and say so as power_per_gpu, or wait for jobs "
    "there to end",
    RejectionCode.GPU_COUNT: "ask for fewer GPUs: a job's GPUs are all on one node, unless "
    "`gang` lets it span several",
    RejectionCode.FLAVOR: "name another gpu_type, or leave it out",
    RejectionCode.LABELS: "start the agents with --label region=..., --label cluster=... and "
    "--label fabric.domain=..., or set gang.unlabelled_nodes",
    RejectionCode.CONFORMANCE: "leave out conformance, set gang.same_conformance to "
    "prefer, or add nodes that say what they have (`longshore topology`)",
    RejectionCode.NOT_ALLOWED: "allow the fingerprints of other nodes too; `longshore topology` "
    "lists them",
    RejectionCode.DOMAIN: "make gang.group_gpus smaller, or add nodes to a domain",
    RejectionCode.VRAM: "ask for less vram_per_gpu, or add a node with larger GPUs",
    RejectionCode.MIG_PROFILE: "name another profile, or start an agent on GPUs in MIG mode",
    RejectionCode.MIG_BUSY: "wait for jobs in other instances to end, or name a smaller profile",
    RejectionCode.SHARES_BUSY: "ask for a smaller milli or less vram_per_gpu, or wait for jobs "
    "that share the GPUs to end",
    RejectionCode.GPUS_BUSY: "wait for running jobs to end (`longshore jobs`), ask who would give "
    "way to it (`longshore preempt --dry-run {job}`), or add a node",
}


def explain(
    job: JobView,
    *,
    alone: Decision | None = None,
    last: Decision | None = None,
    decided_at: datetime | None = None,
    position: int | None = None,
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
    buys: bool = False,
) -> Explanation:
    """Return the explanation. For a queued job `alone` is what the packer says of it now by
    itself, `last` what the last cycle said with the jobs before it; `making_room` are the jobs
    that give way to it, `spared` those that are left alone for a time; `coming` is what the
    pool bought and is no node yet, `purchases` what the job is to start on of that; with `buys`
    the pool buys what its jobs lack. The others are as in the explanation."""
    queued = position is not None
    headline = _queued_headline(job, alone, last, nodes, buys) if queued else _headline(job)
    waits = queued and job.state is not JobState.HELD
    if waits and making_room is not None:
        headline = f"waits until others have given way: {making_room.reason}"
    elif waits:
        if spared:
            headline += f"; nobody gives way to it yet: {format_spared(spared)}"
        if purchases:
            headline += f"; {under_way(purchases, whose=' for it')}"
        elif coming:
            headline += f"; {_on_their_way(coming)}"
    return Explanation(
        job=job,
        headline=headline,
        position=position,
        ahead=position - 1 if position else 0,
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
        # What is on its way needs nobody's help.
        hints=_hints(job, alone, nodes, growth, buys) if queued and not coming else (),
    )


def _on_their_way(coming: Sequence[PurchaseUnderWay]) -> str:
    """Return what comes, where it is not known that the job is to start there."""
    nodes = sum(each.nodes for each in coming)
    first = min(each.ready_at for each in coming)
    verb = "is" if nodes == 1 else "are"
    return f"{count(nodes, 'machine')} {verb} on the way, the first about {first:%H:%M} UTC"


def _headline(job: JobView) -> str:
    match job.state:
        case JobState.RUNNING:
            spares = f"; {', '.join(job.spares)} stands by" if job.spares else ""
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


def _queued_headline(
    job: JobView, alone: Decision | None, last: Decision | None, nodes: int, buys: bool
) -> str:
    if job.state is JobState.HELD:
        return f"is held: `longshore release {job.id}` lets it go on"
    if nodes == 0:
        return f"waits: pool {job.pool} has no nodes" + (", and buys what lacks" if buys else "")
    if last is None:
        return "waits for the first cycle to look at it"
    if last.kind is PlacementKind.SET_ASIDE:
        return f"is {last.reason}"
    if alone is not None and alone.kind is PlacementKind.EXISTING_NODE:
        return f"waits behind the jobs before it: {last.reason}"
    return f"waits: {last.reason}"


def _hints(
    job: JobView, alone: Decision | None, nodes: int, growth: Growth, buys: bool
) -> tuple[str, ...]:
    if job.state is JobState.HELD:
        return ()
    if nodes == 0 and buys:
        return (f"see what it would buy now: `longshore buy --dry-run --pool {job.pool}`",)
    if nodes == 0:
        return (f"start a node: `longshore agent --pool {job.pool}` on a machine with GPUs",)
    if alone is None:
        return ()
    codes = Counter(rejection.code for rejection in alone.rejections)
    hints: list[str] = []
    for code, _ in codes.most_common():
        if code is RejectionCode.STATE:
            hints += _of_states(alone.rejections)
        elif code in _HINTS:
            hints.append(_HINTS[code].format(job=job.id))
    permanent = bool(alone.rejections) and all(r.permanent for r in alone.rejections)
    if permanent and growth is Growth.OPEN:
        hints.insert(0, "no node that is there could ever hold it: it waits for a larger one")
    return tuple(hints)


def _of_states(rejections: Sequence[Rejection]) -> list[str]:
    """Return what helps with nodes that are not ready: a cordoned one is let in again, another
    one's agent is looked at."""
    states = {each.node_id: each.reason for each in rejections if each.code is RejectionCode.STATE}
    cordoned = next((node for node, reason in states.items() if reason == CORDONED), None)
    other = next((node for node, reason in states.items() if reason != CORDONED), None)
    hints: list[str] = []
    if cordoned:
        hints.append(f"let {cordoned} take jobs again: `longshore uncordon {cordoned}`")
    if other:
        hints.append(f"look at the agent of {other}, which {states[other]} (`longshore nodes`)")
    return hints
