"""What no workflow looks after any more: jobs, nodes, DAGs, purchases and blocks of bought time.
Pure; a part of `scheduling.reconcile`.

A workflow that has just ended may have told of its end at this moment: such a thing is lost for
good only after a margin.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.block import block_workflow_id
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.job_status import JobResult, JobState
from longshore.models.messages import job_workflow_id, node_workflow_id
from longshore.models.purchase import purchase_workflow_id
from longshore.models.reconcile import (
    EndJob,
    Finding,
    FindingKind,
    FollowBlock,
    FollowService,
    GiveUpMutexes,
    LoseNode,
    Mend,
    ReconcileRequest,
    SettlePurchase,
)
from longshore.models.reconcile_seen import (
    BlockSeen,
    JobSeen,
    NodeSeen,
    Observed,
    WorkflowSeen,
    WorkflowState,
)
from longshore.models.service_messages import service_workflow_id
from longshore.models.text import count

_CLOSED, _MISSING = WorkflowState.CLOSED, WorkflowState.MISSING


class Lost(NamedTuple):
    """What would be a finding, and from when on it is one."""

    finding: Finding
    after: datetime

    def by(self, at: datetime) -> bool:
        """Return whether it is one at this moment."""
        return self.after < at


def lost(seen: Observed, request: ReconcileRequest) -> tuple[Lost, ...]:
    """Return all that has no workflow any more, however lately it lost that, and the engines that
    may go on without one."""
    return (
        *_engines_of_lost_nodes(seen),
        *lost_jobs(seen, request), *lost_nodes(seen, request), *lost_blocks(seen, request),
        *lost_purchases(seen, request), *lost_dags(seen, request),
        *lost_services(seen, request),
    )  # fmt: skip


def lost_jobs(seen: Observed, request: ReconcileRequest) -> Iterator[Lost]:
    """Return the open jobs whose workflow has ended, or is not known."""
    for job in seen.jobs:
        flow = seen.workflows.get(job_workflow_id(job.id))
        if job.ended_at is None and flow is not None:
            yield from _lost_job(job, flow, request)


def _lost_job(job: JobSeen, flow: WorkflowSeen, request: ReconcileRequest) -> Iterator[Lost]:
    if flow.state is _CLOSED and flow.result is not None and flow.closed_at is not None:
        why = (
            f"its workflow has ended ({flow.result.message or flow.result.state.value}), and "
            "nobody recorded that"
        )
        kind, result = FindingKind.END_NOT_RECORDED, flow.result
        after = flow.closed_at + request.margin
    elif flow.state is _MISSING:
        why = "it is open, and Temporal knows no workflow of it"
        kind, after = FindingKind.WORKFLOW_MISSING, job.held_since + request.missing_margin
        result = JobResult(
            job_id=job.id, state=JobState.FAILED,
            message="Temporal knows no workflow of this job any more",
        )  # fmt: skip
    else:
        return
    end = EndJob(result=_counted(result, job), attempt=job.attempt)
    yield Lost(
        Finding(kind=kind, subject=f"job {job.id}", problem=why, mend=Mend(end_job=end)), after
    )


def _counted(result: JobResult, job: JobSeen) -> JobResult:
    attempts = job.placement.attempt if job.placement else 0
    return result.model_copy(update={"attempts": max(result.attempts, attempts)})


def lost_nodes(seen: Observed, request: ReconcileRequest) -> Iterator[Lost]:
    """Return the nodes that count as alive, and that no workflow watches."""
    for node in seen.nodes:
        flow = seen.workflows.get(node_workflow_id(node.id))
        if node.alive and flow is not None and flow.state is not WorkflowState.RUNNING:
            yield _lost_node(node, flow, seen.node_lost_after, request)


def _engines_of_lost_nodes(seen: Observed) -> Iterator[Lost]:
    """Yield the nodes whose engines may run on: nobody can ask there, until their fence falls.
    Then nothing is wrong; before, they hold nothing here."""
    for node in seen.nodes:
        until = node.state_since + seen.engine_fence
        if node.engines and until >= seen.at:
            problem = (
                f"it was lost with {count(node.engines, 'engine')} of services: what its agent "
                f"has not ended may answer until {until:%H:%M:%S} UTC, and holds no lease"
            )
            kind, subject = FindingKind.ENGINES_UNSEEN, f"node {node.id}"
            yield Lost(Finding(kind=kind, subject=subject, problem=problem), until)


def _lost_node(
    node: NodeSeen, flow: WorkflowSeen, node_lost_after: timedelta, request: ReconcileRequest
) -> Lost:
    # An agent that nobody watches has killed its processes well before `node_lost_after`, and
    # registers anew under another epoch.
    if flow.state is _MISSING:
        kind, how = FindingKind.WORKFLOW_MISSING, "is not known to Temporal"
        after = node.registered_at + request.missing_margin
    else:
        kind, how = FindingKind.NODE_NOT_WATCHED, "has ended"
        since = max(node.registered_at, flow.closed_at or node.registered_at)
        after = since + node_lost_after + request.margin
    reason = f"nobody watched it: its workflow {how}"
    lose = LoseNode(node_id=node.id, epoch=node.epoch, reason=reason)
    problem = f"it is {node.state.value} in epoch {node.epoch}, and its workflow {how}"
    return Lost(
        Finding(
            kind=kind, subject=f"node {node.id}", problem=problem, mend=Mend(lose_node=lose)
        ),
        after,
    )  # fmt: skip


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
    if own is _CLOSED:
        return True
    return own is _MISSING and all(other in (_CLOSED, _MISSING) for other in others)


def lost_blocks(seen: Observed, request: ReconcileRequest) -> Iterator[Lost]:
    """Return the blocks of bought time that no workflow follows to their end."""
    for block in seen.blocks:
        if not nobody_follows(block, seen.workflows):
            continue
        flows = [seen.workflows.get(each) for each in workflows_of(block)]
        closed = [flow.closed_at for flow in flows if flow and flow.closed_at]
        kind, how, margin = FindingKind.BLOCK_NOT_FOLLOWED, "has ended", request.margin
        if not closed:
            kind, how = FindingKind.WORKFLOW_MISSING, "is not known to Temporal"
            margin = request.missing_margin
        finding = Finding(
            kind=kind, subject=f"block {block.id}",
            problem=f"it has not ended, and its workflow {how}",
            mend=Mend(follow_block=FollowBlock(block_id=block.id)),
        )  # fmt: skip
        yield Lost(finding, max([block.created_at, *closed]) + margin)


def lost_purchases(seen: Observed, request: ReconcileRequest) -> Iterator[Lost]:
    """Return the purchases that may order on, and whose workflow does not run: what they may cost
    counts as committed."""
    for purchase in seen.purchases:
        flow = seen.workflows.get(purchase_workflow_id(purchase.id))
        if flow is None or flow.state is WorkflowState.RUNNING:
            continue
        kind, how = FindingKind.PURCHASE_NOT_FOLLOWED, "has ended"
        after = max(purchase.created_at, flow.closed_at or purchase.created_at) + request.margin
        if flow.state is _MISSING:
            kind, how = FindingKind.WORKFLOW_MISSING, "is not known to Temporal"
            after = purchase.created_at + request.missing_margin
        finding = Finding(
            kind=kind, subject=f"purchase {purchase.id}",
            problem=f"it may order on, and its workflow {how}",
            mend=Mend(settle_purchase=SettlePurchase(purchase_id=purchase.id)),
        )  # fmt: skip
        yield Lost(finding, after)


def lost_services(seen: Observed, request: ReconcileRequest) -> Iterator[Lost]:
    """Return the services that are not over and that no workflow follows."""
    for service in seen.services:
        flow = seen.workflows.get(service_workflow_id(service.name))
        if flow is None or flow.state is WorkflowState.RUNNING:
            continue
        kind, how = FindingKind.SERVICE_NOT_FOLLOWED, "has ended"
        after = max(service.updated_at, flow.closed_at or service.updated_at) + request.margin
        if flow.state is _MISSING:
            kind, how = FindingKind.WORKFLOW_MISSING, "is not known to Temporal"
            after = service.updated_at + request.missing_margin
        finding = Finding(
            kind=kind, subject=f"service {service.name}",
            problem=f"its replicas are kept by nobody: its workflow {how}",
            mend=Mend(follow_service=FollowService(name=service.name)),
        )  # fmt: skip
        yield Lost(finding, after)


def lost_dags(seen: Observed, request: ReconcileRequest) -> Iterator[Lost]:
    """Return the DAGs that have not ended and that no workflow follows.

    Somebody may have meant that: a person decides whether one goes on. Others that wait for its
    mutexes need not wait for that.
    """
    for dag in seen.dags:
        flow = seen.workflows.get(dag_workflow_id(dag.id))
        if flow is None or flow.state is WorkflowState.RUNNING:
            continue
        kind, how = FindingKind.DAG_NOT_FOLLOWED, "has ended"
        after = max(dag.submitted_at, flow.closed_at or dag.submitted_at) + request.margin
        if flow.state is _MISSING:
            kind, how = FindingKind.WORKFLOW_MISSING, "is not known to Temporal"
            after = dag.submitted_at + request.missing_margin
        finding = Finding(
            kind=kind, subject=f"dag {dag.id}",
            problem=f"it has not ended, and its workflow {how}: `longshore dag retry {dag.id}` "
            f"goes on with it, and `longshore dag cancel {dag.id}` after that ends it",
            mend=Mend(give_up_mutexes=GiveUpMutexes(dag_id=dag.id)) if dag.keeps_others else None,
        )  # fmt: skip
        yield Lost(finding, after)
