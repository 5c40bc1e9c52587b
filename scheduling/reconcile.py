"""Compares what database, workflows and agents say, and proposes what mends it. Pure.

Nothing is reported that a step under way could explain: what is younger than a margin is left
alone. The rows are read before Temporal is asked, so a workflow that ended, or began, in between
is young too.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from longshore.models.block import block_workflow_id
from longshore.models.cycles import NOTED_EVERY
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import LeaseEnd, job_workflow_id, node_workflow_id, pool_workflow_id
from longshore.models.purchase import purchase_workflow_id
from longshore.models.reconcile import (
    CancelJob,
    EndAttempt,
    Finding,
    FindingKind,
    Mend,
    PokePool,
    ReconcileRequest,
    TellLost,
    TellPlaced,
)
from longshore.models.reconcile_seen import (
    JobSeen,
    NodeSeen,
    Observed,
    PlacementSeen,
    PoolSeen,
    WorkflowState,
)
from longshore.models.service_messages import service_workflow_id
from longshore.scheduling.reconcile_lost import (
    Lost,
    lost_blocks,
    lost_dags,
    lost_jobs,
    lost_nodes,
    lost_purchases,
    lost_services,
    workflows_of,
)
from longshore.scheduling.reconcile_steps import failing_steps
from longshore.scheduling.reconcile_sums import funding_differences, ledger_differences

_JOB_PREFIX = job_workflow_id("")
_HAS_PROCESS = (JobState.RUNNING, JobState.STOPPING)


def to_describe(seen: Observed, request: ReconcileRequest) -> frozenset[str]:
    """Return the ids of workflows that a list alone does not settle: lists lag behind."""
    expected = {job_workflow_id(job.id) for job in seen.jobs if job.ended_at is None}
    wanted = {workflow_id for workflow_id in expected if workflow_id not in seen.workflows}
    wanted |= {
        flow.id
        for flow in seen.workflows.values()
        if flow.id.startswith(_JOB_PREFIX)
        and flow.id not in expected
        and _older(flow.started_at, seen, request.margin)
    }
    wanted |= {
        node_workflow_id(node.id)
        for node in seen.nodes
        if node.alive and node_workflow_id(node.id) not in seen.workflows
    }
    wanted |= {
        workflow_id
        for block in seen.blocks
        for workflow_id in workflows_of(block)
        if workflow_id not in seen.workflows
    }
    # Of those that run a list does not say whether their steps fail.
    wanted |= {block_workflow_id(block.id) for block in seen.blocks}
    wanted |= {purchase_workflow_id(purchase.id) for purchase in seen.purchases}
    wanted |= {id for dag in seen.dags if (id := dag_workflow_id(dag.id)) not in seen.workflows}
    served = {service_workflow_id(service.name) for service in seen.services}
    wanted |= {workflow_id for workflow_id in served if workflow_id not in seen.workflows}
    return frozenset(
        wanted | {pool_workflow_id(pool.name) for pool in seen.pools if _late(pool, seen, request)}
    )


def to_ask(seen: Observed, request: ReconcileRequest) -> frozenset[str]:
    """Return the ids of running jobs whose workflow must say where it is."""
    return frozenset(
        job.id for job in seen.jobs if _runs(seen, job) and _doubtful(job, seen, request)
    )


def compare(seen: Observed, request: ReconcileRequest) -> tuple[Finding, ...]:
    """Return every disagreement: jobs first, then pools, nodes, blocks, purchases, DAGs, services,
    ledgers, charges and agents."""
    open_jobs = [job for job in seen.jobs if job.ended_at is None]
    live_nodes = [node for node in seen.nodes if node.alive]
    jobs = (*_jobs(seen, request), *_by_now(lost_jobs(seen, request), seen))
    nodes = (*_nodes(seen, request), *_by_now(lost_nodes(seen, request), seen))
    blocks = _by_now(lost_blocks(seen, request), seen)
    bought = _by_now(lost_purchases(seen, request), seen)
    dags = _by_now(lost_dags(seen, request), seen)
    services = _by_now(lost_services(seen, request), seen)
    return (
        *_hold_back(jobs, len(open_jobs), "open jobs", request),
        *_unrecorded_jobs(seen, request),
        *_pools(seen, request),
        *_hold_back(nodes, len(live_nodes), "live nodes", request),
        *_hold_back(blocks, len(seen.blocks), "blocks", request),
        *_hold_back(bought, len(seen.purchases), "purchases", request),
        *_hold_back(dags, len(seen.dags), "DAGs", request),
        *_hold_back(services, len(seen.services), "services", request),
        *failing_steps(seen),
        *ledger_differences(seen),
        *funding_differences(seen),
        *_agents(seen, request),
    )


def _by_now(found: Iterable[Lost], seen: Observed) -> Iterator[Finding]:
    return (each.finding for each in found if each.by(seen.at))


# --- jobs ---------------------------------------------------------------------------------


def _jobs(seen: Observed, request: ReconcileRequest) -> Iterator[Finding]:
    for job in seen.jobs:
        if job.ended_at is not None:
            finding = _left_after_end(job, seen, request)
        elif _runs(seen, job):
            finding = _left_by_its_array(job, seen, request) or _where_it_is(job, seen, request)
        else:
            finding = None
        if finding is not None:
            yield finding


def _left_after_end(job: JobSeen, seen: Observed, request: ReconcileRequest) -> Finding | None:
    if not _older(job.ended_at, seen, request.margin):
        return None
    left = "holds GPUs" if _live(job) else "stands in the queue"
    end = EndAttempt(
        job_id=job.id, attempt=job.attempt, reason=LeaseEnd.WITHDRAWN,
        message="its job had ended already",
    )  # fmt: skip
    return _about_job(
        job.id, FindingKind.LEFT_AFTER_END, f"it has ended, and {left} still",
        Mend(end_attempt=end),
    )  # fmt: skip


def _left_by_its_array(job: JobSeen, seen: Observed, request: ReconcileRequest) -> Finding | None:
    """An array ends after its slots, unless its workflow was ended from outside."""
    if not _older(job.array_ended_at, seen, request.margin):
        return None
    cancel = CancelJob(job_id=job.id, reason="its array has ended")
    return _about_job(
        job.id, FindingKind.SLOT_LEFT, "it is a slot of an array that has ended, and goes on",
        Mend(cancel_job=cancel),
    )  # fmt: skip


def _doubtful(job: JobSeen, seen: Observed, request: ReconcileRequest) -> bool:
    """Return whether rows and search attributes leave open that its workflow knows its place."""
    live = _live(job)
    if (
        job.is_array
        or job.ended_at is not None
        or (live is None and job.queued_attempt is not None)
    ):
        return False
    if not _older(job.held_since, seen, request.margin):
        return False
    flow = seen.workflows[job_workflow_id(job.id)]
    if live is None:
        return flow.job_state is not JobState.RETRYING
    return flow.job_state is not JobState.RUNNING or flow.node_id != live.node_id


def _where_it_is(job: JobSeen, seen: Observed, request: ReconcileRequest) -> Finding | None:
    status = seen.job_status.get(job.id)
    if status is None or not _doubtful(job, seen, request):
        return None
    live = _live(job)
    if isinstance(status, str):
        where = f"holds GPUs of node {live.node_id}" if live else "is neither queued nor placed"
        kind = FindingKind.PLACEMENT_NOT_HEARD if live else FindingKind.JOB_NOWHERE
        return _about_job(job.id, kind, f"it {where}, and its workflow does not answer: {status}")
    if status.result is not None:
        return None  # it is about to end
    return _placed(job, live, status) if live else _nowhere(job, status, seen, request)


def _placed(job: JobSeen, live: PlacementSeen, status: JobStatus) -> Finding | None:
    held = f"attempt {live.attempt} holds GPUs of node {live.node_id}"
    if status.attempt < live.attempt:
        return _about_job(
            job.id, FindingKind.PLACEMENT_NOT_HEARD,
            f"{held}, and its workflow is at attempt {status.attempt} (was it reset?)",
        )  # fmt: skip
    if status.attempt > live.attempt or status.state is JobState.RETRYING:
        end = EndAttempt(
            job_id=job.id, attempt=live.attempt, reason=LeaseEnd.WITHDRAWN,
            message="the attempt was over for its workflow",
        )  # fmt: skip
        return _about_job(
            job.id, FindingKind.PLACEMENT_OUTDATED, f"{held}, and is over for its workflow",
            Mend(end_attempt=end),
        )  # fmt: skip
    if status.state in _HAS_PROCESS:
        return None
    return _about_job(
        job.id, FindingKind.PLACEMENT_NOT_HEARD, f"{held}, and its workflow waits for a placement",
        Mend(tell_placed=TellPlaced(job_id=job.id, attempt=live.attempt)),
    )  # fmt: skip


def _nowhere(
    job: JobSeen, status: JobStatus, seen: Observed, request: ReconcileRequest
) -> Finding | None:
    """Judge a job that is neither queued nor placed."""
    on_the_way = status.state in (JobState.SUBMITTED, JobState.RETRYING)
    if on_the_way or not _older(status.since, seen, request.margin):
        return None
    last = job.placement
    if last is None or status.attempt != last.attempt:
        if status.state in _HAS_PROCESS:
            return None  # its next attempt is on its way into the queue
        return _about_job(
            job.id, FindingKind.JOB_NOWHERE,
            f"its workflow is {status.state.value} at attempt {status.attempt}, and it is in no "
            "queue: cancel it and submit it again",
        )  # fmt: skip
    heard = next((each.left for each in status.attempts if each.attempt == last.attempt), ())
    if last.node_id in heard:
        return None  # it goes on in place, without that node
    problem = (
        f"its workflow is {status.state.value}, and attempt {last.attempt} on node "
        f"{last.node_id} has ended ({last.end_reason})"
    )
    if last.end_reason != LeaseEnd.NODE_LOST.value:
        return _about_job(job.id, FindingKind.JOB_NOWHERE, problem)
    return _about_job(
        job.id, FindingKind.JOB_NOWHERE, problem,
        Mend(tell_lost=TellLost(job_id=job.id, attempt=last.attempt)),
    )  # fmt: skip


def _unrecorded_jobs(seen: Observed, request: ReconcileRequest) -> Iterator[Finding]:
    known = {job.id for job in seen.jobs}
    for flow in seen.workflows.values():
        job_id = flow.id.removeprefix(_JOB_PREFIX)
        if not flow.id.startswith(_JOB_PREFIX) or job_id in known:
            continue
        if flow.state is not WorkflowState.RUNNING:
            continue
        if not _older(flow.started_at, seen, request.margin):
            continue
        what = "was recorded as ended" if job_id in seen.ended_jobs else "was never recorded"
        trouble = f": {flow.trouble}" if flow.trouble else ""
        yield _about_job(
            job_id, FindingKind.JOB_NOT_RECORDED, f"its workflow runs, and the job {what}{trouble}"
        )


# --- pools --------------------------------------------------------------------------------


def _pools(seen: Observed, request: ReconcileRequest) -> Iterator[Finding]:
    for pool in seen.pools:
        flow = seen.workflows.get(pool_workflow_id(pool.name))
        if flow is None or not _late(pool, seen, request):
            continue
        mend: Mend | None = Mend(poke_pool=PokePool(pool=pool.name))
        problem = f"jobs wait ({pool.waiting}), and "
        if flow.state is not WorkflowState.RUNNING:
            problem += "no workflow works on it"
        elif flow.trouble:
            problem, mend = f"{problem}its cycle fails: {flow.trouble}", None
        else:
            problem += "its workflow has run no cycle for long"
        yield Finding(
            kind=FindingKind.POOL_ASLEEP, subject=f"pool {pool.name}", problem=problem, mend=mend
        )


def _late(pool: PoolSeen, seen: Observed, request: ReconcileRequest) -> bool:
    """Return whether its workflow should have run a cycle by now; it may not run at all."""
    if not _older(pool.waiting_since, seen, request.margin):
        return False
    flow = seen.workflows.get(pool_workflow_id(pool.name))
    if flow is None or flow.state is not WorkflowState.RUNNING:
        return True
    last = pool.last_cycle_at or pool.waiting_since
    return _older(last, seen, request.margin + NOTED_EVERY + 2 * pool.interval)


# --- nodes --------------------------------------------------------------------------------


def _nodes(seen: Observed, request: ReconcileRequest) -> Iterator[Finding]:
    for node in seen.nodes:
        flow = seen.workflows.get(node_workflow_id(node.id))
        if flow is None or flow.state is not WorkflowState.RUNNING:
            continue
        finding = _other_words(node, seen, request)
        if finding is not None:
            yield finding
    known = {node.id for node in seen.nodes}
    for node_id, status in seen.node_status.items():
        if node_id not in known and status.epoch and _older(status.since, seen, request.margin):
            yield _about_node(
                node_id, FindingKind.NODE_DIFFERS,
                f"its workflow watches epoch {status.epoch}, and the database has no such node",
            )  # fmt: skip


def _other_words(node: NodeSeen, seen: Observed, request: ReconcileRequest) -> Finding | None:
    status = seen.node_status.get(node.id)
    if status is None or status.epoch == 0:
        return None
    if (status.epoch, status.state) == (node.epoch, node.state.value):
        return None
    if not _older(node.state_since, seen, request.margin):
        return None
    if not _older(status.since, seen, request.margin):
        return None
    return _about_node(
        node.id, FindingKind.NODE_DIFFERS,
        f"its row says {node.state.value} in epoch {node.epoch}, its workflow {status.state} in "
        f"epoch {status.epoch}: start its agent anew",
    )  # fmt: skip


def _agents(seen: Observed, request: ReconcileRequest) -> Iterator[Finding]:
    for node in seen.nodes:
        if not node.alive or node.id not in seen.silent:
            continue
        if _older(node.registered_at, seen, request.margin):
            yield _about_node(
                node.id, FindingKind.AGENT_SILENT,
                f"it is {node.state.value}, and its agent asks for no work",
            )  # fmt: skip


# --- the rest -----------------------------------------------------------------------------


def _hold_back(
    findings: Iterable[Finding], count: int, things: str, request: ReconcileRequest
) -> Sequence[Finding]:
    """Take back the mends of missing workflows where most are missing: that is no accident of
    one of them, and ending them all would be the greater harm."""
    found = list(findings)
    missing = sum(_is_missing(each) for each in found)
    if request.even_most or 2 * missing <= count:
        return found
    why = (
        f"not mended: {missing} of {count} {things} have no workflow. Is this the right "
        "namespace? If it is, `longshore reconcile --even-most` mends them"
    )
    return [
        each.model_copy(update={"mend": None, "done": why}) if _is_missing(each) else each
        for each in found
    ]


def _is_missing(finding: Finding) -> bool:
    return finding.kind is FindingKind.WORKFLOW_MISSING


def _runs(seen: Observed, job: JobSeen) -> bool:
    flow = seen.workflows.get(job_workflow_id(job.id))
    return flow is not None and flow.state is WorkflowState.RUNNING


def _live(job: JobSeen) -> PlacementSeen | None:
    return job.placement if job.placement and job.placement.live else None


def _older(since: datetime | None, seen: Observed, margin: timedelta) -> bool:
    return since is not None and since < seen.at - margin


def _about_job(job_id: str, kind: FindingKind, problem: str, mend: Mend | None = None) -> Finding:
    return Finding(kind=kind, subject=f"job {job_id}", problem=problem, mend=mend)


def _about_node(node: str, kind: FindingKind, problem: str, mend: Mend | None = None) -> Finding:
    return Finding(kind=kind, subject=f"node {node}", problem=problem, mend=mend)
