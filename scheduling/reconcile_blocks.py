"""Which blocks of bought time no workflow follows to their end. Pure; a part of
`scheduling.reconcile`."""

from collections.abc import Iterator

from models.purchase import block_workflow_id, purchase_workflow_id
from models.reconcile import (
    BlockSeen,
    Finding,
    FindingKind,
    FollowBlock,
    Mend,
    Observed,
    ReconcileRequest,
    WorkflowSeen,
    WorkflowState,
)


def workflows_of(block: BlockSeen) -> tuple[str, ...]:
    """Return the ids of the workflows that may follow a block: its own, and before there is that
    the one of its purchase, which starts it."""
    own = block_workflow_id(block.id)
    return (own,) if block.purchase_id is None else (own, purchase_workflow_id(block.purchase_id))


def nobody_follows(block: BlockSeen, workflows: dict[str, WorkflowSeen]) -> bool:
    """Return whether a block that has not ended is left to itself, as far as `workflows` are
    known, by id."""
    flows = [workflows.get(each) for each in workflows_of(block)]
    own, *others = [flow and flow.state for flow in flows]
    if own is WorkflowState.CLOSED:
        return True
    gone = (WorkflowState.CLOSED, WorkflowState.MISSING)
    return own is WorkflowState.MISSING and all(other in gone for other in others)


def not_followed(seen: Observed, request: ReconcileRequest) -> Iterator[Finding]:
    """Return a finding for each such block that no step under way explains."""
    for block in seen.blocks:
        if not nobody_follows(block, seen.workflows):
            continue
        flows = [seen.workflows.get(each) for each in workflows_of(block)]
        closed = [flow.closed_at for flow in flows if flow and flow.closed_at]
        kind, how, margin = FindingKind.BLOCK_NOT_FOLLOWED, "has ended", request.margin
        if not closed:
            kind, how = FindingKind.WORKFLOW_MISSING, "is not known to Temporal"
            margin = request.missing_margin
        if max([block.created_at, *closed]) < seen.at - margin:
            yield Finding(
                kind=kind, subject=f"block {block.id}",
                problem=f"it has not ended, and its workflow {how}",
                mend=Mend(follow_block=FollowBlock(block_id=block.id)),
            )  # fmt: skip
