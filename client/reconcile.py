"""Comparing database, workflows and agents now, beside the schedule that does it."""

import uuid
from datetime import timedelta

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from longshore.activities.pollers import is_polled, poll_time
from longshore.client.api import Longshore
from longshore.models.errors import UnavailableError
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.reconcile import ReconcileReport, ReconcileRequest
from longshore.workflows.reconcile import ReconcileWorkflow

_LONGEST = timedelta(minutes=15)


async def reconcile(api: Longshore, request: ReconcileRequest) -> ReconcileReport:
    """Compare what there is, mend what is safe unless it is a dry run, and return the findings.

    Raises UnavailableError where no control worker runs, a server is away, or it fails; and
    RefusedError where a newer version has upgraded the database.
    """
    await api.refuse_newer()
    try:
        now = await poll_time(api.temporal)
        if not await is_polled(api.temporal, CONTROL_TASK_QUEUE, now, workflows=True):
            raise UnavailableError(
                "No control worker is running to do it. `longshore up` starts one, or "
                "`longshore worker`."
            )
        return await api.temporal.execute_workflow(
            ReconcileWorkflow.run,
            request,
            id=f"reconcile-{uuid.uuid4().hex[:10]}",
            task_queue=CONTROL_TASK_QUEUE,
            execution_timeout=_LONGEST,
            static_summary="compare database, workflows and agents: asked for by hand",
        )
    except WorkflowFailureError as error:
        cause = error.cause
        raise UnavailableError(f"reconcile failed: {cause.__cause__ or cause}") from error
    except RPCError as error:
        raise UnavailableError(f"Temporal does not answer ({error.message}).") from error
