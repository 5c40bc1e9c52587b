"""The packer's answer for one job: on which node and GPUs, or why it waits."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.placement import (
    Candidate,
    Decision,
    PackingPolicy,
    PlacementKind,
    Rejection,
    RejectionCode,
)
from longshore.models.start_range import StartRange
from longshore.models.text import count
from longshore.scheduling import elastic
from longshore.scheduling.funding.where_paid import paid_first
from longshore.scheduling.gangs.decision import place_gang
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.plan import could_ever_hold as gang_could_ever_hold
from longshore.scheduling.gangs.rooms import most_now
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.placement.feasibility import explain as explain_rejection
from longshore.scheduling.placement.filters import all_labels
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.mix import mix_of
from longshore.scheduling.placement.scan import Scan, Scanner
from longshore.scheduling.placement.scoring import provider_for
from longshore.scheduling.placement.state import Need, view_nodes
from longshore.scheduling.words import (
    format_link,
    format_place,
    format_rejected,
    format_start,
    format_terms,
)

ALTERNATIVES = 3
"""Candidates that a decision keeps beside the best one when it need not explain itself fully."""


def place(
    job: JobRequest,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
    *,
    explain: bool = True,
    recent: Iterable[RecentJobs] = (),
) -> Decision:
    """Return where `job` goes now, given `nodes` as they are.

    With `explain` the decision lists every candidate and every rejection with its reason; without,
    the best candidates and how many nodes each constraint ruled out. `recent` are jobs placed
    lately, as in a cycle. A job with a gang gets
    shares of several nodes (`Decision.members`), and no candidates: its plan says the rest.
    """
    if job.malleable is not None:
        of_size = partial(place, nodes=nodes, policy=policy, now=now, explain=explain,
                          recent=tuple(recent))  # fmt: skip

        def start_now(sized: JobRequest) -> Decision | None:
            decision = of_size(sized)
            return decision if decision.kind is PlacementKind.EXISTING_NODE else None

        def most() -> int:
            views = view_nodes(nodes, (), now)
            if job.gang is None:
                return max((view.free.bit_count() for view in views), default=0)
            return most_now(
                job, job.gang, GangNodes.of(views, all_labels(job, nodes)), policy, now
            )

        return elastic.start(job, start_now, of_size, policy.most_paid_for(job.id), most)
    paid = paid_first(job, policy.funding)
    if paid is not None:
        decision = place(paid, nodes, policy, now, explain=explain, recent=recent)
        if decision.kind is PlacementKind.EXISTING_NODE:
            return decision
    views, labels = view_nodes(nodes, (), now), all_labels(job, nodes)
    if job.gang is not None:
        return place_gang(job, GangNodes.of(views, labels), policy, now, explain=explain)
    columns = Columns(views, now, labels=labels)
    mix = mix_of([job], recent, sum(len(view.holds) for view in views), policy)
    scan = Scanner(columns, policy, mix).scan(Need.of(job, policy))
    best = scan.best(1 + ALTERNATIVES)
    decision = placing(job, scan, best) if best else waiting(job, scan)
    if not explain:
        return decision
    everything = {"candidates": candidates_of(scan), "rejections": rejections_of(scan)}
    return decision.model_copy(update=everything)


def check(node: Node, job: JobRequest, policy: PackingPolicy, now: datetime) -> Rejection | None:
    """Return why `node` cannot take `job` now, or None when it can.

    The constraints are checked in the order of RejectionCode; the first that fails is named.
    """
    rejections = place(job, [node], policy, now).rejections
    return rejections[0] if rejections else None


def could_ever_place(job: JobRequest, nodes: Sequence[Node], now: datetime) -> bool:
    """Return whether the nodes could hold the job when empty and with time left; of a malleable
    one its smallest size."""
    job = job.smallest
    if job.gang is not None:
        views = view_nodes(nodes, (), now)
        return gang_could_ever_hold(job, GangNodes.of(views, all_labels(job, nodes)))
    return any(could_ever_hold(node, job) for node in nodes)


def placing(job: JobRequest, scan: Scan, best: Sequence[int]) -> Decision:
    """Return the decision for the first of the `best` options, with the others beside it."""
    chosen = scan.candidate(best[0], in_words=True)
    candidates = (chosen, *[scan.candidate(position) for position in best[1:]])
    return placed_on(job, candidates, scan.rejected, scan.option_count)


def placed_on(
    job: JobRequest,
    candidates: tuple[Candidate, ...],
    rejected: dict[RejectionCode, int],
    options: int,
) -> Decision:
    """Return the decision for the first of these candidates, of so many that there are."""
    chosen = candidates[0]
    where = format_place(job, chosen.gpu_indices, chosen.slices) + format_link(chosen.link)
    return Decision.trusted(
        job_id=job.id,
        kind=PlacementKind.EXISTING_NODE,
        node_id=chosen.node_id,
        gpu_indices=chosen.gpu_indices,
        slices=chosen.slices,
        terms=chosen.terms,
        candidates=candidates,
        rejected=rejected,
        reason=(
            f"{chosen.node_id}, {where}: the best of "
            f"{count(options, 'candidate')}{format_terms(chosen.terms)}"
        ),
    )


def started_among(
    job: JobRequest,
    chosen: Chosen,
    node_id: str,
    rejected: dict[RejectionCode, int],
    others: int,
) -> Decision:
    """Return the decision for a job that starts since others of its plan have other places."""
    decision = Decision.trusted(
        job_id=job.id, kind=PlacementKind.EXISTING_NODE, rejected=rejected, reason=""
    )
    why = f"{count(others, 'job')} of the same cycle placed elsewhere, so that it can start too"
    return _at(decision, chosen, node_id, job, why)


def moved_to(decision: Decision, chosen: Chosen, node_id: str, job: JobRequest) -> Decision:
    """Return the decision for a job that has another place, so that others can start too."""
    place = decision.node_id, decision.gpu_indices, decision.slices
    if place == (node_id, chosen.indices, chosen.slices):
        return decision
    why = "placed there so that another job of the same cycle can start too"
    return _at(decision, chosen, node_id, job, why)


def _at(decision: Decision, chosen: Chosen, node_id: str, job: JobRequest, why: str) -> Decision:
    where = format_place(job, chosen.indices, chosen.slices)
    return decision.model_copy(
        update={
            "node_id": node_id, "gpu_indices": chosen.indices, "slices": chosen.slices,
            "terms": None, "candidates": (), "reason": f"{node_id}, {where}: {why}",
        }
    )  # fmt: skip


def waiting(
    job: JobRequest,
    scan: Scan,
    outlook: str = "",
    start: datetime | None = None,
    between: StartRange | None = None,
) -> Decision:
    """Return the decision for a job that no node can take now.

    `outlook` is what else is known of its start; `start` the estimate, where there is one, and
    `between` its range.
    """
    return waits(job, scan.rejected, len(scan.holders), outlook, start, between)


def waits(
    job: JobRequest,
    rejected: dict[RejectionCode, int],
    holders: int,
    outlook: str = "",
    start: datetime | None = None,
    between: StartRange | None = None,
) -> Decision:
    """Return the same where so many nodes were rejected, and so many could hold it when empty."""
    fast = job.tier is Tier.FAST
    return Decision.trusted(
        job_id=job.id,
        kind=PlacementKind.REQUEST_MORE_CAPACITY if fast else PlacementKind.QUEUE_FOR_FLEX,
        provider_hint=provider_for(job.gpus),
        rejected=rejected,
        reason=_why_waiting(rejected, holders, outlook),
        estimated_start=start,
        start_range=between,
    )


def may_not_start(job: JobRequest, why: str) -> Decision:
    """Return the decision for a job that no node is looked at for."""
    return Decision.trusted(**{**waits(job, {}, 0).__dict__, "reason": why})


def waits_as(job: JobRequest, other: Decision) -> Decision:
    """Return for a job what another was told that needs the same and waits without an estimate."""
    return Decision.trusted(**{**other.__dict__, "job_id": job.id})


def behind_reservations(job: JobRequest, policy: PackingPolicy) -> str:
    """Return what a job is told that comes after as many reservations as there may be."""
    kept = policy.starts_kept
    if not kept:
        return "its start is not known: this pool keeps no starts"
    have = "has a reservation" if kept == 1 else "have reservations"
    return f"its start is not known while {count(kept, f'{job.tier} job')} before it {have}"


def may_start_later(start: datetime) -> str:
    """Return what a job is told behind those, if all before it run as they are expected to."""
    return f"behind those before it, it waits {format_start(start)}; no place is kept for it yet"


def candidates_of(scan: Scan) -> tuple[Candidate, ...]:
    """Return every node that could take the job, best first, with the parts of its value."""
    return tuple(scan.candidate(position, in_words=True) for position in scan.all_options())


def rejections_of(scan: Scan) -> tuple[Rejection, ...]:
    """Return every node that could not take the job, with its reason."""
    columns = scan.columns
    return tuple(
        explain_rejection(columns.views[position], scan.need, code, columns.now)
        for position, code in scan.failures()
    )


def _why_waiting(rejected: dict[RejectionCode, int], holders: int, outlook: str) -> str:
    summary = format_rejected(rejected)
    if not rejected:
        return f"no node can take it now; {summary}"
    if not holders:
        return f"no known node could ever hold it ({summary})"
    outlook = outlook or f"{count(holders, 'node')} could hold it when empty and with time left"
    return f"no node can take it now ({summary}); {outlook}"
