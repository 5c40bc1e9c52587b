"""Jobs and DAGs whose workflow was ended from outside, and what they are shown as meanwhile.

The capacity database says how a job ended. Of a workflow that was terminated, or timed out, nobody
writes it there before the next reconcile, and until then the rows are as for a job that goes on.
What is decided here is what lists, `job`, `why` and the pages show of it: it has failed.
A DAG goes on for its record until somebody retries it: it is shown as one that nobody follows.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from longshore.activities.job_runs import may_be_on_record, run_of_job
from longshore.activities.rpc_errors import is_unknown
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.dag_view import NOT_FOLLOWED, DagSummary, mend_of_unfollowed
from longshore.models.job_status import JobState
from longshore.models.messages import ARRAY_WORKFLOW, JOB_WORKFLOW, job_workflow_id
from longshore.models.reconcile import RECONCILE_SCHEDULE, ReconcileRequest
from longshore.models.views import JobView

_HOW = {
    WorkflowExecutionStatus.TERMINATED: "its workflow was terminated",
    WorkflowExecutionStatus.TIMED_OUT: "its workflow timed out",
}
_PATIENCE = timedelta(seconds=3)
"""For Temporal to answer before the database alone does."""
_LOOK_BACK = timedelta(days=1)
_MOST = 1_000
"""Workflows, the newest, that a list of jobs looks at: one page of Temporal's."""
_LATELY = (
    f"WorkflowType IN ('{JOB_WORKFLOW}', '{ARRAY_WORKFLOW}')"
    " AND ExecutionStatus IN ('Terminated', 'TimedOut')"
    " AND CloseTime > '{since}'"
)
_Dag = TypeVar("_Dag", bound=DagSummary)
_PREFIX = job_workflow_id("")


@dataclass(frozen=True)
class OutsideEnd:
    """How and when a workflow was ended by something else than itself."""

    how: str
    at: datetime


def outside_end(found: WorkflowExecution) -> OutsideEnd | None:
    """Return how a workflow was ended from outside; None for one that was not."""
    how = _HOW.get(found.status or WorkflowExecutionStatus.RUNNING)
    return OutsideEnd(how, found.close_time) if how and found.close_time else None


def is_outside_end(reason: str) -> bool:
    """Return whether that is all that is known of why a job ended."""
    return reason in _HOW.values()


async def outside_end_of(temporal: Client, job_id: str) -> OutsideEnd | None:
    """Return how the workflow of a job that has not ended by its record was ended from outside;
    None too where nobody says."""
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    try:
        newest = await handle.describe(rpc_timeout=_PATIENCE)
        return outside_end(await run_of_job(temporal, newest, within=_PATIENCE))
    except RPCError:
        return None


async def ended_outside_lately(temporal: Client) -> tuple[str, ...]:
    """Return the jobs with a run that was ended from outside within a day, the newest; none where
    nobody says. One of them may have been started again."""
    query = _LATELY.format(since=(datetime.now(UTC) - _LOOK_BACK).isoformat())
    try:
        flows = temporal.list_workflows(query, limit=_MOST, rpc_timeout=_PATIENCE)
        ids = [flow.id.removeprefix(_PREFIX) async for flow in flows if may_be_on_record(flow.id)]
    except RPCError:
        return ()
    return tuple(dict.fromkeys(ids))


async def outside_ends_of(temporal: Client, jobs: Sequence[JobView]) -> Mapping[str, OutsideEnd]:
    """Return which of these jobs, as the database has them, have ended and how."""
    open_ids = [job.id for job in jobs if not job.state.ended]
    ends = await asyncio.gather(*(outside_end_of(temporal, job_id) for job_id in open_ids))
    return {job_id: end for job_id, end in zip(open_ids, ends, strict=True) if end}


async def not_followed(temporal: Client, dags: Sequence[DagSummary]) -> frozenset[str]:
    """Return which of these DAGs, as the database has them, have not ended and are followed by no
    workflow; none where nobody says."""
    open_ids = [dag.id for dag in dags if not dag.state.ended]
    follows = await asyncio.gather(*(_is_followed(temporal, dag_id) for dag_id in open_ids))
    return frozenset(dag_id for dag_id, does in zip(open_ids, follows, strict=True) if not does)


async def _is_followed(temporal: Client, dag_id: str) -> bool:
    handle = temporal.get_workflow_handle(dag_workflow_id(dag_id))
    try:
        flow = await handle.describe(rpc_timeout=_PATIENCE)
    except RPCError as error:
        return not is_unknown(error)
    return flow.status is WorkflowExecutionStatus.RUNNING


def as_not_followed(dag: _Dag) -> _Dag:
    """Return a DAG as it is shown while no workflow follows it."""
    return dag.model_copy(update={"followed": False, "reason": why_not_followed(dag.id, "it")})


def why_not_followed(dag_id: str, whom: str) -> str:
    """Return what it means that no workflow follows a DAG, and what helps."""
    return f"no workflow follows {whom}: {NOT_FOLLOWED}. {mend_of_unfollowed(dag_id)}"


async def freed(temporal: Client, ends: Collection[OutsideEnd]) -> dict[OutsideEnd, str]:
    """Return when what each of these held is freed: by the first reconcile that looks at it."""
    if not ends:
        return {}
    handle = temporal.get_schedule_handle(RECONCILE_SCHEDULE)
    try:
        schedule = await handle.describe(rpc_timeout=_PATIENCE)
    except RPCError:
        coming = list[datetime]()
    else:
        coming = [] if schedule.schedule.state.paused else schedule.info.next_action_times
    return {end: _freed(end, coming) for end in ends}


def shown(job: JobView, end: OutsideEnd, when: str) -> JobView:
    """Return a job as it is shown once its workflow was ended from outside."""
    return job.model_copy(
        update={
            "state": JobState.FAILED, "ended_at": end.at,
            "reason": f"{end.how}; {when}", "queued_at": None, "estimated_start": None,
            "start_range": None, "counted_as": None,
        }
    )  # fmt: skip


def _freed(end: OutsideEnd, coming: Sequence[datetime]) -> str:
    looked_at = end.at + ReconcileRequest().margin  # what is younger is left alone
    first = next((moment for moment in sorted(coming) if moment >= looked_at), None)
    if first is None:
        return "`longshore reconcile` records that, and frees what it may hold"
    return f"the reconcile at {first:%H:%M:%S} UTC records that, and frees what it may hold"
