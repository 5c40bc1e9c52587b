"""What keeps a job off nodes that are not ready, beside that.

A cycle rejects such a node before it looks at anything else. Who asks why is told what would
still be in the way if the node were ready and empty: then nobody makes it ready in vain.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from models.node import Node, NodeState
from models.placement import Decision, JobRequest, PackingPolicy, Rejection, RejectionCode
from scheduling.packer import place
from scheduling.placement.state import without_jobs
from scheduling.words import format_rejected


def look_past_states(
    alone: Decision,
    last: Decision | None,
    job: JobRequest,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
) -> tuple[Decision, Decision | None]:
    """Return both decisions with what else keeps the job off nodes that are not ready.

    `alone` is what the packer says of the job now, with every rejection; `last` what the last
    cycle said of it. A node that could take the job once it is ready keeps its state as the
    reason.
    """
    if not any(rejection.code is RejectionCode.STATE for rejection in alone.rejections):
        return alone, last
    could = [_as_if_ready(node) for node in nodes]
    behind = {each.node_id: each for each in place(job, could, policy, now).rejections}
    rejections = tuple(
        _with_what_is_behind(each, behind.get(each.node_id)) for each in alone.rejections
    )
    found = Counter(
        new.code
        for old, new in zip(alone.rejections, rejections, strict=True)
        if old.code is RejectionCode.STATE
    )
    looked = _counted(alone, found).model_copy(update={"rejections": rejections})
    return looked, None if last is None else _counted(last, found)


def _as_if_ready(node: Node) -> Node:
    if node.state is NodeState.GONE:  # it does not come back
        return node
    return without_jobs(node).model_copy(update={"state": NodeState.READY})


def _with_what_is_behind(rejection: Rejection, behind: Rejection | None) -> Rejection:
    not_ready = rejection.code is RejectionCode.STATE
    if not not_ready or behind is None or behind.code is RejectionCode.STATE:
        return rejection
    reason = f"{behind.reason}, and {rejection.reason}"
    return behind.model_copy(update={"reason": reason})


def _counted(decision: Decision, found: Counter[RejectionCode]) -> Decision:
    """Return the decision with these codes in place of so many nodes that are not ready."""
    rejected = Counter(decision.rejected)
    if rejected.pop(RejectionCode.STATE, 0) != found.total():
        return decision  # of other nodes: some have changed their state since
    rejected += found
    counts = {code: rejected[code] for code in RejectionCode if rejected[code]}
    # In the order in which they were counted: the database keeps none.
    before = {code: decision.rejected[code] for code in RejectionCode if code in decision.rejected}
    reason = decision.reason.replace(format_rejected(before), format_rejected(counts))
    return decision.model_copy(update={"rejected": counts, "reason": reason})
