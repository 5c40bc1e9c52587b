"""Checks of workflows: whether the tasks of any fail, so that it hears nothing."""

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.rpc_errors import is_unknown
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.text import listed
from longshore.workers.doctor.findings import Finding, fail, ok
from longshore.workers.versioning import WORKFLOWS

_STUCK = """TemporalReportedProblems IN ("category=WorkflowTaskFailed",
    "category=WorkflowTaskTimedOut") AND ExecutionStatus = "Running\""""
_KNOWN = ", ".join(f'"{each.__name__}"' for each in WORKFLOWS)
_OTHER = f"""TaskQueue = "{CONTROL_TASK_QUEUE}" AND ExecutionStatus = "Running"
    AND WorkflowType NOT IN ({_KNOWN})"""
_MOST, _SHOWN = 100, 5


async def workflows(temporal: Client) -> list[Finding]:
    """Name workflows whose tasks fail: of a type that no worker knows from the first task on; any
    other once the server says so, which it does after some."""
    unknown = await _of_an_unknown_type(temporal)
    found = [_unknown(unknown)] if unknown else []
    stuck = [each for each in await _stuck(temporal) if each not in unknown]
    if stuck:
        found.append(
            fail(
                "workflows",
                f"tasks of {listed(stuck, _SHOWN)} fail again and again: they hear nothing",
                "Look at their last events in the Temporal UI, and at the log of the control "
                "worker. `temporal workflow terminate` ends one that somebody started wrongly.",
            )
        )
    return found or [ok("workflows", "the tasks of none fail again and again")]


async def _of_an_unknown_type(temporal: Client) -> list[str]:
    """Return the ids of workflows that no worker can run: their first task has failed.

    A task that has not failed may yet be done by a worker of a newer version.
    """
    failed: list[str] = []
    async for flow in temporal.list_workflows(_OTHER, limit=_MOST):
        try:
            seen = await temporal.get_workflow_handle(flow.id, run_id=flow.run_id).describe()
        except RPCError as error:
            if not is_unknown(error):
                raise
            continue
        if seen.raw_description.pending_workflow_task.attempt > 1:
            failed.append(flow.id)
    return failed


def _unknown(ids: list[str]) -> Finding:
    return fail(
        "workflows",
        f"no control worker knows the type of {listed(ids, _SHOWN)}: tasks of it fail again and "
        "again",
        "`temporal workflow terminate` ends one that was started with a wrong type; where a newer "
        "version has the type, run that one.",
    )


async def _stuck(temporal: Client) -> list[str]:
    """Return the ids of workflows whose tasks the server sees failing one after another."""
    try:
        return [flow.id async for flow in temporal.list_workflows(_STUCK, limit=_MOST)]
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        return []  # an older server does not tell
