"""The packer's answer for one job: on which node and GPUs, or why it waits."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from models.job import Tier
from models.node import Node
from models.placement import (
    Candidate,
    Decision,
    JobRequest,
    PackingPolicy,
    PlacementKind,
    RecentJobs,
    Rejection,
)
from scheduling.gangs.decision import place_gang
from scheduling.gangs.plan import could_ever_hold as gang_could_ever_hold
from scheduling.placement.columns import Columns
from scheduling.placement.feasibility import could_ever_hold
from scheduling.placement.feasibility import explain as explain_rejection
from scheduling.placement.mix import mix_of
from scheduling.placement.scan import Scan, Scanner
from scheduling.placement.scoring import provider_for
from scheduling.state import Need, view_nodes
from scheduling.words import (
    count,
    format_gpus,
    format_link,
    format_part,
    format_rejected,
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
    views = view_nodes(nodes, (), now)
    if job.gang is not None:
        return place_gang(job, views, policy, now, explain=explain)
    columns = Columns(views, now)
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
    """Return whether the nodes could hold the job when empty and with time left."""
    if job.gang is not None:
        return gang_could_ever_hold(job, view_nodes(nodes, (), now))
    return any(could_ever_hold(node, job) for node in nodes)


def placing(job: JobRequest, scan: Scan, best: Sequence[int]) -> Decision:
    """Return the decision for the first of the `best` options, with the others beside it."""
    chosen = scan.candidate(best[0], in_words=True)
    candidates = (chosen, *[scan.candidate(position) for position in best[1:]])
    where = format_gpus(chosen.gpu_indices) + format_link(chosen.link)
    if not job.whole:
        where = format_part(job, chosen.gpu_indices[0], chosen.slices)
    return Decision(
        job_id=job.id,
        kind=PlacementKind.EXISTING_NODE,
        node_id=chosen.node_id,
        gpu_indices=chosen.gpu_indices,
        slices=chosen.slices,
        terms=chosen.terms,
        candidates=candidates,
        rejected=scan.rejected,
        reason=(
            f"{chosen.node_id}, {where}: the best of "
            f"{count(scan.option_count, 'candidate')}{format_terms(chosen.terms)}"
        ),
    )


def waiting(
    job: JobRequest, scan: Scan, outlook: str = "", start: datetime | None = None
) -> Decision:
    """Return the decision for a job that no node can take now.

    `outlook` is what else is known of its start; `start` the estimate, where there is one.
    """
    fast = job.tier is Tier.FAST
    return Decision(
        job_id=job.id,
        kind=PlacementKind.REQUEST_MORE_CAPACITY if fast else PlacementKind.QUEUE_FOR_FLEX,
        provider_hint=provider_for(job.gpus),
        rejected=scan.rejected,
        reason=_why_waiting(scan, outlook),
        estimated_start=start,
    )


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


def _why_waiting(scan: Scan, outlook: str) -> str:
    summary = format_rejected(scan.rejected)
    if not len(scan.columns):
        return f"no node can take it now; {summary}"
    if not len(scan.holders):
        return f"no known node could ever hold it ({summary})"
    outlook = outlook or (
        f"{count(len(scan.holders), 'node')} could hold it when empty and with time left"
    )
    return f"no node can take it now ({summary}); {outlook}"
