"""Constraints that keep a job off nodes once they are ready, and off nodes that can never hold it.

A cycle rejects a node for the first constraint that fails. Who asks why is told what would still
be in the way if the node were ready and empty: then nobody makes it ready, or waits for the jobs
there, in vain.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import Decision, PackingPolicy, Rejection, RejectionCode
from longshore.scheduling.packer import place
from longshore.scheduling.placement.state import without_jobs
from longshore.scheduling.words import format_rejected

_AS_THEY_ARE: Mapping[str, datetime] = {}


def look_past_states(
    alone: Decision,
    last: Decision | None,
    job: JobRequest,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
    ends: Mapping[str, datetime] = _AS_THEY_ARE,
) -> tuple[Decision, Decision | None]:
    """Return both decisions with what else keeps the job off nodes that are not ready.

    `alone` is what the packer says of the job now, with every rejection; `last` what the last
    cycle said of it. A node that could take the job once it is ready keeps its state as the
    reason; `ends` are those of nodes that last longer once they are.
    """
    if not any(each.permanent or each.code is RejectionCode.STATE for each in alone.rejections):
        return alone, last
    for_good = {each.node_id for each in alone.rejections if each.permanent}
    could = [_as_if_ready(_until(node, ends), lasting=node.id in for_good) for node in nodes]
    behind = {each.node_id: each for each in place(job, could, policy, now).rejections}
    rejections = tuple(
        _with_what_is_behind(each, behind.get(each.node_id)) for each in alone.rejections
    )
    looked = _counted(alone, alone.rejections, rejections)
    looked = looked.model_copy(update={"rejections": rejections})
    return looked, None if last is None else _counted(last, alone.rejections, rejections)


def in_the_way_for_good(
    job: JobRequest, nodes: Sequence[Node], policy: PackingPolicy, now: datetime
) -> tuple[Rejection, ...]:
    """Return why nodes that could never hold the job could not: if all were ready and empty, with
    time left."""
    could = [_as_if_ready(node, lasting=True) for node in nodes]
    return place(job, could, policy, now).rejections


def _until(node: Node, ends: Mapping[str, datetime]) -> Node:
    return node.model_copy(update={"expires_at": ends.get(node.id, node.expires_at)})


def _as_if_ready(node: Node, *, lasting: bool) -> Node:
    if node.state is NodeState.GONE:  # it does not come back
        return node
    update: dict[str, object] = {"expires_at": None} if lasting else {}
    return without_jobs(node).model_copy(update={**update, "state": NodeState.READY})


def _with_what_is_behind(rejection: Rejection, behind: Rejection | None) -> Rejection:
    if behind is None or behind.code in (RejectionCode.STATE, rejection.code):
        return rejection
    if rejection.code is RejectionCode.STATE:
        return behind.model_copy(update={"reason": f"{behind.reason}, and {rejection.reason}"})
    return behind if rejection.permanent else rejection


def _counted(
    decision: Decision, now: Sequence[Rejection], looked: Sequence[Rejection]
) -> Decision:
    """Return the decision with the codes of what was looked behind in place of those `now`."""
    changed = {old.code for old, new in zip(now, looked, strict=True) if old.code is not new.code}
    seen = Counter(each.code for each in now)
    if any(decision.rejected.get(code, 0) != seen[code] for code in changed):
        return decision  # of other nodes: some have changed since
    rejected = Counter(decision.rejected)
    rejected.subtract(seen)
    rejected.update(each.code for each in looked)
    counts = {code: rejected[code] for code in RejectionCode if rejected[code] > 0}
    # In the order in which they were counted: the database keeps none.
    before = {code: decision.rejected[code] for code in RejectionCode if code in decision.rejected}
    reason = decision.reason.replace(format_rejected(before), format_rejected(counts))
    return decision.model_copy(update={"rejected": counts, "reason": reason})
