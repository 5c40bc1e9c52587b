"""The comparison alone: what is young is left alone, what is old is found, with its mend."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.messages import LeaseEnd, job_workflow_id
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeStatus
from longshore.models.reconcile import Finding, FindingKind, ReconcileRequest
from longshore.models.reconcile_seen import (
    JobSeen,
    LedgerSeen,
    NodeSeen,
    Observed,
    PlacementSeen,
    PoolSeen,
    WorkflowSeen,
    WorkflowState,
)
from longshore.scheduling.reconcile import compare, to_ask, to_describe
from longshore.scheduling.reconcile_lost import Lost, lost

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
OLD, YOUNG = NOW - timedelta(hours=1), NOW - timedelta(seconds=5)
REQUEST = ReconcileRequest()
RUNNING, CLOSED, MISSING = WorkflowState.RUNNING, WorkflowState.CLOSED, WorkflowState.MISSING


def a_job(**fields: Any) -> JobSeen:
    return JobSeen(**{"id": "j", "submitted_at": OLD, **fields})


def placed(since: datetime = OLD, **fields: Any) -> PlacementSeen:
    values = {"attempt": 1, "node_id": "n", "epoch": 1, "placed_at": since}
    return PlacementSeen(**{**values, **fields})


def a_flow(id: str = "job-j", state: WorkflowState = RUNNING, **fields: Any) -> WorkflowSeen:
    return WorkflowSeen(**{"id": id, "state": state, "started_at": OLD, **fields})


def a_node(**fields: Any) -> NodeSeen:
    values = {"id": "n", "state": NodeState.READY, "epoch": 1}
    return NodeSeen(**{**values, "registered_at": OLD, "state_since": OLD, **fields})


def a_pool(**fields: Any) -> PoolSeen:
    values = {"name": "p", "interval": timedelta(seconds=30), "waiting": 2, "waiting_since": OLD}
    return PoolSeen(**{**values, "last_cycle_at": OLD, **fields})


def said(state: JobState, attempt: int = 1, since: datetime = OLD) -> JobStatus:
    return JobStatus(
        job_id="j", name="j", tenant="t", pool="p", state=state, attempt=attempt,
        submitted_at=OLD, since=since,
    )  # fmt: skip


def watching(**fields: Any) -> NodeStatus:
    return NodeStatus(**{"node_id": "n", "state": "READY", "epoch": 1, "since": OLD, **fields})


def seen(*flows: WorkflowSeen, **fields: Any) -> Observed:
    by_id = {flow.id: flow for flow in flows}
    values = {"at": NOW, "node_lost_after": timedelta(seconds=12), "workflows": by_id}
    return Observed(**{**values, **fields})


def found(*flows: WorkflowSeen, **fields: Any) -> list[Finding]:
    return list(compare(seen(*flows, **fields), REQUEST))


def not_judged(*flows: WorkflowSeen, **fields: Any) -> list[Lost]:
    return [each for each in lost(seen(*flows, **fields), REQUEST) if not each.by(NOW)]


def only(findings: list[Finding], kind: FindingKind) -> Finding:
    assert [finding.kind for finding in findings] == [kind]
    return findings[0]


def ended(state: JobState = JobState.FAILED, at: datetime = OLD) -> WorkflowSeen:
    return a_flow(state=CLOSED, closed_at=at, result=JobResult(job_id="j", state=state))


PLACED_ON_N = a_flow(job_state=JobState.RUNNING, node_id="n")
QUEUED = a_flow(job_state=JobState.QUEUED)


# --- jobs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_an_end_that_nobody_recorded_is_recorded_as_the_workflow_ended(state: JobState):
    finding = only(
        found(ended(state), jobs=[a_job(placement=placed(attempt=3))]),
        FindingKind.END_NOT_RECORDED,
    )
    assert finding.mend
    assert finding.mend.end_job
    assert (finding.mend.end_job.result.state, finding.mend.end_job.attempt) == (state, 3)
    assert finding.mend.end_job.result.attempts == 3


def test_an_end_that_may_be_recorded_at_this_moment_is_left_alone():
    assert found(ended(at=YOUNG), jobs=[a_job()]) == []
    (waits,) = not_judged(ended(at=YOUNG), jobs=[a_job()])
    assert (waits.finding.subject, waits.after) == ("job j", YOUNG + REQUEST.margin)


@pytest.mark.parametrize(
    ("flow", "job"),
    [
        (QUEUED, a_job()),
        (a_flow(state=MISSING), a_job()),
        (ended(), a_job()),
        (ended(at=YOUNG), a_job(ended_at=YOUNG)),
    ],
)
def test_no_other_job_waits_to_be_judged(flow: WorkflowSeen, job: JobSeen):
    assert not_judged(flow, jobs=[job]) == []


@pytest.mark.parametrize(
    ("flow", "margin"),
    [
        (a_flow("node-n", CLOSED, closed_at=YOUNG), timedelta(seconds=12) + REQUEST.margin),
        (a_flow("node-n", MISSING), REQUEST.missing_margin),
    ],
)
def test_a_node_that_has_just_lost_its_workflow_waits_to_be_judged(
    flow: WorkflowSeen, margin: timedelta
):
    assert found(flow, nodes=[a_node(registered_at=YOUNG)]) == []
    (waits,) = not_judged(flow, nodes=[a_node(registered_at=YOUNG)])
    assert (waits.finding.subject, waits.after) == ("node n", YOUNG + margin)


def test_engines_of_a_lost_node_may_answer_until_their_fence_falls():
    node = a_node(state=NodeState.LOST, state_since=YOUNG, engines=7)
    fence = timedelta(minutes=3)
    (waits,) = not_judged(nodes=[node], engine_fence=fence)
    assert (waits.finding.subject, waits.after) == ("node n", YOUNG + fence)
    assert waits.finding.problem.startswith("it was lost with 7 engines of services: ")
    assert lost(seen(nodes=[node], engine_fence=fence, at=YOUNG + 2 * fence), REQUEST) == ()
    assert found(nodes=[node], engine_fence=timedelta(0)) == [], "it is never a finding"
    assert not_judged(nodes=[node.model_copy(update={"engines": 0})], engine_fence=fence) == []


@pytest.mark.parametrize("after", [timedelta(0), timedelta(microseconds=1)])
def test_what_waits_is_a_finding_once_its_moment_has_passed(after: timedelta):
    (waits,) = not_judged(ended(at=YOUNG), jobs=[a_job()])
    later = seen(ended(at=YOUNG), jobs=[a_job()], at=waits.after + after)
    assert compare(later, REQUEST) == ((waits.finding,) if after else ())


@pytest.mark.parametrize(
    "job",
    [
        a_job(queued_attempt=1, queued_at=OLD),
        a_job(placement=placed()),
        a_job(placement=placed(YOUNG)),
        a_job(submitted_at=YOUNG),
    ],
)
def test_a_job_where_its_workflow_says_needs_no_question(job: JobSeen):
    state = seen(PLACED_ON_N if job.placement else QUEUED, jobs=[job])
    assert to_ask(state, REQUEST) == frozenset()
    assert compare(state, REQUEST) == ()


def test_a_list_that_lags_behind_leads_to_a_question_and_to_no_finding():
    state = seen(QUEUED, jobs=[a_job(placement=placed())])
    assert to_ask(state, REQUEST) == {"j"}
    answer = {"j": said(JobState.RUNNING)}
    assert compare(state.model_copy(update={"job_status": answer}), REQUEST) == ()


@pytest.mark.parametrize(("ended", "left"), [(OLD, True), (YOUNG, False), (None, False)])
def test_a_slot_that_outlives_its_array_is_cancelled(ended: datetime | None, left: bool):
    running = a_flow(job_state=JobState.RUNNING, node_id="n")
    job = a_job(placement=placed(), array_ended_at=ended)
    findings = found(running, jobs=[job])
    assert [each.kind for each in findings] == [FindingKind.SLOT_LEFT] * left
    assert all(each.mend and each.mend.cancel_job for each in findings)
    gone = a_flow(state=CLOSED)  # its own end is to be recorded
    assert not any(each.kind is FindingKind.SLOT_LEFT for each in found(gone, jobs=[job]))


def test_a_placement_that_its_workflow_waits_for_is_told_again():
    findings = found(
        QUEUED, jobs=[a_job(placement=placed())], job_status={"j": said(JobState.QUEUED)}
    )
    finding = only(findings, FindingKind.PLACEMENT_NOT_HEARD)
    assert finding.mend
    assert finding.mend.tell_placed


@pytest.mark.parametrize(
    "status", [said(JobState.QUEUED, attempt=2), said(JobState.RETRYING, attempt=1)]
)
def test_a_placement_that_is_over_for_its_workflow_is_withdrawn(status: JobStatus):
    findings = found(QUEUED, jobs=[a_job(placement=placed())], job_status={"j": status})
    finding = only(findings, FindingKind.PLACEMENT_OUTDATED)
    assert finding.mend
    assert finding.mend.end_attempt
    assert finding.mend.end_attempt.reason is LeaseEnd.WITHDRAWN


@pytest.mark.parametrize("answer", ["no worker answered", said(JobState.QUEUED, attempt=1)])
def test_a_placement_of_a_workflow_that_was_reset_or_is_stuck_is_for_a_person(
    answer: JobStatus | str,
):
    job = a_job(placement=placed(attempt=4))
    finding = only(
        found(QUEUED, jobs=[job], job_status={"j": answer}), FindingKind.PLACEMENT_NOT_HEARD
    )
    assert finding.mend is None


def test_a_job_that_missed_the_loss_of_its_node_is_told_again():
    lost = placed(ended_at=OLD, end_reason="node-lost")
    findings = found(
        PLACED_ON_N, jobs=[a_job(placement=lost)], job_status={"j": said(JobState.RUNNING)}
    )
    finding = only(findings, FindingKind.JOB_NOWHERE)
    assert finding.mend
    assert finding.mend.tell_lost


@pytest.mark.parametrize(
    "status",
    [
        said(JobState.SUBMITTED),
        said(JobState.RETRYING),
        said(JobState.RUNNING, attempt=2),
        said(JobState.QUEUED, since=YOUNG),
    ],
)
def test_a_job_between_two_attempts_is_left_alone(status: JobStatus):
    job = a_job(placement=placed(ended_at=OLD, end_reason="node-lost"))
    assert found(PLACED_ON_N, jobs=[job], job_status={"j": status}) == []


def test_a_running_workflow_of_a_job_that_nobody_recorded_is_reported_once_it_is_old():
    finding = only(found(a_flow("job-x")), FindingKind.JOB_NOT_RECORDED)
    assert (finding.subject, finding.mend) == ("job x", None)
    assert found(a_flow("job-x", started_at=YOUNG)) == []


def test_what_an_ended_job_left_is_ended_once_it_is_old():
    job = a_job(ended_at=OLD, placement=placed())
    only(found(jobs=[job]), FindingKind.LEFT_AFTER_END)
    assert found(jobs=[job.model_copy(update={"ended_at": YOUNG})]) == []


def test_missing_workflows_are_mended_unless_most_are_missing():
    jobs = [a_job(id=str(number)) for number in range(4)]
    missing = [a_flow(job_workflow_id(str(number)), MISSING) for number in range(3)]
    others = [a_flow("job-2"), a_flow("job-3")]
    running = {"jobs": [job.model_copy(update={"queued_attempt": 1}) for job in jobs]}
    half = found(*missing[:2], *others, **running)
    assert [finding.mend is not None for finding in half] == [True, True]
    most = found(*missing, others[1], **running)
    assert [finding.mend for finding in most] == [None, None, None]
    assert "3 of 4 open jobs have no workflow" in most[0].done
    even_so = compare(
        seen(*missing, others[1], **running), REQUEST.model_copy(update={"even_most": True})
    )
    assert all(finding.mend for finding in even_so)


def test_a_workflow_that_is_missing_for_minutes_may_still_come():
    job = a_job(submitted_at=NOW - timedelta(minutes=10))
    assert found(a_flow(state=MISSING), jobs=[job, job.model_copy(update={"id": "k"})]) == []


# --- pools and nodes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "mended"),
    [
        (a_flow("pool-p", MISSING), True),
        (a_flow("pool-p", CLOSED, closed_at=OLD), True),
        (a_flow("pool-p"), True),
        (a_flow("pool-p", trouble="run_cycle was tried 9 times"), False),
    ],
)
def test_a_pool_without_cycles_is_woken_unless_its_cycles_fail(flow: WorkflowSeen, mended: bool):
    finding = only(found(flow, pools=[a_pool()]), FindingKind.POOL_ASLEEP)
    assert (finding.mend is not None) is mended


@pytest.mark.parametrize(
    ("flow", "pool"),
    [
        (a_flow("pool-p"), a_pool(last_cycle_at=NOW - timedelta(seconds=100))),
        (a_flow("pool-p", MISSING), a_pool(waiting=0, waiting_since=None)),
        (a_flow("pool-p", MISSING), a_pool(waiting_since=YOUNG)),
    ],
)
def test_a_pool_that_has_its_cycles_or_nothing_to_do_is_left_alone(
    flow: WorkflowSeen, pool: PoolSeen
):
    assert found(flow, pools=[pool]) == []


def test_a_node_that_nobody_watches_is_lost_only_after_its_agent_has_fenced_itself():
    just_now = NOW - REQUEST.margin - timedelta(seconds=11)
    before = NOW - REQUEST.margin - timedelta(seconds=13)
    assert found(a_flow("node-n", CLOSED, closed_at=just_now), nodes=[a_node()]) == []
    findings = found(a_flow("node-n", CLOSED, closed_at=before), nodes=[a_node(epoch=7)])
    finding = only(findings, FindingKind.NODE_NOT_WATCHED)
    assert finding.mend
    assert finding.mend.lose_node
    assert finding.mend.lose_node.epoch == 7


@pytest.mark.parametrize("state", [NodeState.LOST, NodeState.GONE])
def test_a_node_that_is_over_needs_no_workflow(state: NodeState):
    node = a_node(state=state)
    assert to_describe(seen(nodes=[node]), REQUEST) == frozenset()
    assert found(a_flow("node-n", CLOSED, closed_at=OLD), nodes=[node]) == []


@pytest.mark.parametrize(
    ("node", "status", "differs"),
    [
        (a_node(), watching(), False),
        (a_node(), watching(epoch=2), True),
        (a_node(state=NodeState.LOST), watching(), True),
        (a_node(state=NodeState.LOST, state_since=YOUNG), watching(), False),
        (a_node(), watching(state="DRAINING", since=YOUNG), False),
        (a_node(), watching(epoch=0, state="GONE"), False),
    ],
)
def test_a_node_and_its_workflow_are_compared_when_neither_has_just_changed(
    node: NodeSeen, status: NodeStatus, differs: bool
):
    findings = found(a_flow("node-n"), nodes=[node], node_status={"n": status})
    assert [finding.kind for finding in findings] == [FindingKind.NODE_DIFFERS] * differs


def test_ledgers_and_silent_agents_are_reported():
    ledger = LedgerSeen(subject="node n", what="ram_mb_used", counted=5, held=0)
    findings = found(a_flow("node-n"), nodes=[a_node()], ledgers=[ledger], silent={"n"})
    assert [finding.kind for finding in findings] == [
        FindingKind.LEDGER_DIFFERS, FindingKind.AGENT_SILENT,
    ]  # fmt: skip
    assert all(finding.mend is None for finding in findings)


def test_sums_of_charges_that_differ_are_reported():
    sums = [
        LedgerSeen(subject="envelope red/main", what="used", counted=2500, held=1000),
        LedgerSeen(subject="job j", what="attempt 2", counted=1000, held=0),
    ]
    findings = found(a_flow("node-n"), nodes=[a_node()], funding=sums)
    assert [(finding.kind, finding.problem) for finding in findings] == [
        (FindingKind.FUNDING_DIFFERS, "used counts 2.5 GPUs, and 1 are charged"),
        (FindingKind.FUNDING_DIFFERS,
         "attempt 2 is charged 1 GPU, and its placement has ended"),
    ]  # fmt: skip
    assert all(finding.mend is None for finding in findings)


def test_a_workflow_that_the_list_does_not_show_is_looked_at_itself():
    state = seen(
        a_flow("job-x"), a_flow("job-y", started_at=YOUNG),
        jobs=[a_job(), a_job(id="k", ended_at=OLD)], nodes=[a_node()], pools=[a_pool()],
    )  # fmt: skip
    assert to_describe(state, REQUEST) == {"job-j", "job-x", "node-n", "pool-p"}
