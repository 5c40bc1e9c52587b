"""Jobs for which nothing is bought because of their score, which is below what the pool asks for
that or for a start, because no budget would pay for them, or because they take what is free."""

from collections.abc import Container
from datetime import datetime

from longshore.models.buying import Option, OptionKind, Unmet
from longshore.models.job_request import JobRequest
from longshore.scheduling.buying.fleet import Fleet, is_there
from longshore.scheduling.thresholds import held_back, not_bought_for


def without_low_scores(unmet: Unmet, fleet: Fleet, now: datetime) -> tuple[Unmet, list[Option]]:
    """Return what the queue wants without those jobs, and an option, rejected, for each of them.

    What is on its way counts neither as a node nor as in use: nobody knows yet what it is.
    """
    nodes = [node for node in fleet.nodes if is_there(node)]
    names = {node.id for node in nodes}
    running = [share for share in fleet.running if share.node_id in names]
    queue = [job.request for job in unmet.jobs]
    asked = queue, fleet.packing, now, nodes, running
    low = held_back(*asked) | not_bought_for(*asked)
    if not low:
        return unmet, []
    jobs = tuple(job for job in unmet.jobs if job.request.id not in low)
    unfunded = fleet.packing.unfunded
    options = [
        Option(
            kind=_kind(job.request, unfunded),
            tier=job.request.tier,
            title=f"buy for {job.request.id}", lost=low[job.request.id], job_id=job.request.id,
        )
        for job in unmet.jobs
        if job.request.id in low
    ]  # fmt: skip
    return unmet.model_copy(update={"jobs": jobs}), options


def _kind(job: JobRequest, unfunded: Container[str]) -> OptionKind:
    if job.fills:
        return OptionKind.FILLS
    return OptionKind.UNFUNDED if job.id in unfunded else OptionKind.LOW_SCORE
