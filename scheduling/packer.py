"""The packer's answer for one job: on which node and GPUs, or why it waits."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from models.job import Tier
from models.node import Node
from models.placement import (
    Decision,
    JobRequest,
    PackingPolicy,
    PlacementKind,
    RejectionCode,
)
from scheduling.feasibility import explain as explain_rejection
from scheduling.scan import Option, Scan
from scheduling.scoring import provider_for
from scheduling.state import Need, view_nodes

ALTERNATIVES = 3
"""Candidates that a decision keeps beside the best one when it need not explain itself fully."""


def place(
    job: JobRequest,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
    *,
    explain: bool = True,
) -> Decision:
    """Return where `job` goes now, given `nodes` as they are.

    With `explain` the decision lists every candidate and every rejection with its reason; without,
    the best candidates and how many nodes each constraint ruled out.
    """
    scan = Scan(Need.of(job, policy), view_nodes(nodes, (), now), policy, now)
    decision = decide(job, scan)
    if not explain:
        return decision
    candidates = tuple(scan.candidate(position) for position in scan.all_options())
    rejections = tuple(
        explain_rejection(view, scan.need, found, now)
        for view, found in zip(scan.views, scan.answers, strict=True)
        if not isinstance(found, Option)
    )
    return decision.model_copy(update={"candidates": candidates, "rejections": rejections})


def decide(job: JobRequest, scan: Scan) -> Decision:
    """Return the decision that a scan of all nodes leads to, with the best candidates only."""
    best = scan.best(1 + ALTERNATIVES)
    if not best:
        return waiting(job, scan)
    option, node = scan.option(best[0]), scan.views[best[0]].node
    return Decision(
        job_id=job.id,
        kind=PlacementKind.EXISTING_NODE,
        node_id=node.id,
        gpu_indices=option.chosen.indices,
        terms=option.score.terms(),
        candidates=tuple(scan.candidate(position) for position in best),
        rejected=scan.rejected,
        reason=(
            f"{node.id}, {format_gpus(option.chosen.indices)}: the best of "
            f"{_count(scan.option_count, 'candidate')}, score {option.score.total:.3f}"
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


def format_gpus(indices: Sequence[int]) -> str:
    """Return ``GPU 3``, ``GPUs 0-3`` or ``GPUs 0-1,4``; `indices` are ascending."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {','.join(parts)}"


def format_rejected(rejected: Mapping[RejectionCode, int]) -> str:
    """Return ``3 nodes: 2 gpus-busy, 1 tier-mismatch``, most frequent constraint first."""
    if not rejected:
        return "there are no nodes"
    by_count = sorted(rejected.items(), key=lambda item: -item[1])
    constraints = ", ".join(f"{count} {code}" for code, count in by_count)
    return f"{_count(sum(rejected.values()), 'node')}: {constraints}"


def _why_waiting(scan: Scan, outlook: str) -> str:
    summary = format_rejected(scan.rejected)
    if not scan.views:
        return f"no node can take it now; {summary}"
    if not scan.holders:
        return f"no known node could ever hold it ({summary})"
    outlook = outlook or (
        f"{_count(len(scan.holders), 'node')} could hold it when empty and with time left"
    )
    return f"no node can take it now ({summary}); {outlook}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
