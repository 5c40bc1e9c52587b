"""The steps of a run of a schedule: the id for its job or DAG, how that is, and its cancel.

Nothing here starts anything, and every activity may run twice.
"""

from datetime import timedelta

from sqlalchemy import text
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError

from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.rpc_errors import is_unknown
from longshore.models.schedule import MOST_AGAIN, Kind
from longshore.models.schedule_messages import (
    CancelRun,
    FindRun,
    FoundRun,
    LookAtRun,
    RunEnd,
    run_id,
    run_workflow_id,
)

_PATIENCE = timedelta(seconds=10)
_KNOWN = {
    Kind.JOB: "SELECT id FROM jobs WHERE id = ANY (:ids)",
    Kind.DAG: "SELECT id FROM dags WHERE id = ANY (:ids)",
}
_ENDS = {
    WorkflowExecutionStatus.COMPLETED: "SUCCEEDED",
    WorkflowExecutionStatus.CANCELED: "CANCELLED",
}


class ScheduleRunActivities:
    """Activities of `ScheduleRunWorkflow`."""

    def __init__(self, database: Database, temporal: Client) -> None:
        self._database = database
        self._temporal = temporal

    @activity.defn
    @reports_errors
    async def find_run(self, request: FindRun) -> FoundRun:
        """Return the id for the job or DAG of a time: the first that nothing has had.

        Or that of one which runs: its workflow was started by another run of the same time.
        Temporal forgets what is long over, and the database has nothing of what was refused: an id
        is free where neither knows it.
        """
        ids = [run_id(request.schedule, request.at, number) for number in range(1, MOST_AGAIN + 1)]
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(_KNOWN[request.kind]), {"ids": ids})
            on_record = {row.id for row in rows}
        for each in ids:
            found = await self._describe(request.kind, each)
            if found is not None and found.status is WorkflowExecutionStatus.RUNNING:
                return FoundRun(id=each, running=True)
            if found is None and each not in on_record:
                return FoundRun(id=each)
        return FoundRun()

    @activity.defn
    @reports_errors
    async def look_at_run(self, request: LookAtRun) -> RunEnd:
        """Return how a job or DAG is that the workflow did not start itself."""
        found = await self._describe(request.kind, request.id)
        if found is None:
            return RunEnd(state="FAILED", message="Temporal does not know it any more")
        if found.status is WorkflowExecutionStatus.RUNNING or found.status is None:
            return RunEnd()
        if found.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return RunEnd()
        return RunEnd(state=_ENDS.get(found.status, "FAILED"))

    @activity.defn
    @reports_errors
    async def cancel_run(self, request: CancelRun) -> None:
        """Ask a job or DAG to end; one that has just ended is left as it ended."""
        handle = self._temporal.get_workflow_handle(run_workflow_id(request.kind, request.id))
        try:
            await handle.cancel(reason=request.reason, rpc_timeout=_PATIENCE)
        except RPCError as error:
            if not is_unknown(error):
                raise

    async def _describe(self, kind: Kind, of: str) -> WorkflowExecutionDescription | None:
        handle = self._temporal.get_workflow_handle(run_workflow_id(kind, of))
        try:
            return await handle.describe(rpc_timeout=_PATIENCE)
        except RPCError as error:
            if is_unknown(error):
                return None
            raise
