"""One pass over database, workflows and agents: find what disagrees, and mend what is safe."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from longshore.activities.node.process import NodeActivities
    from longshore.activities.reconcile import ReconcileActivities
    from longshore.models.messages import node_task_queue
    from longshore.models.reconcile import (
        RECONCILE_WORKFLOW,
        Finding,
        ReconcileReport,
        ReconcileRequest,
        Stop,
    )
    from longshore.workflows.options import DATABASE_TIMEOUT

_FIND_TIMEOUT = timedelta(minutes=5)
_A_FEW_TIMES = RetryPolicy(maximum_attempts=5)
"""Whatever does not work now is found again by the next pass."""
_NODE_HEARTBEAT = timedelta(seconds=15)


@workflow.defn(name=RECONCILE_WORKFLOW)
class ReconcileWorkflow:
    """Run by the schedule, and by `longshore reconcile`; two at a time do no harm."""

    @workflow.run
    async def run(self, request: ReconcileRequest) -> ReconcileReport:
        report = await workflow.execute_activity_method(
            ReconcileActivities.find_differences,
            request,
            start_to_close_timeout=_FIND_TIMEOUT,
            retry_policy=_A_FEW_TIMES,
            summary="compare database, workflows and agents",
        )
        if request.dry_run:
            return report
        findings = await asyncio.gather(
            *(_mended(finding, request.node_answers_within) for finding in report.findings)
        )
        return report.model_copy(update={"findings": tuple(findings)})


async def _mended(finding: Finding, node_answers_within: timedelta) -> Finding:
    """Mend a finding where that is safe, and return it with what was done."""
    if finding.mend is None:
        return finding
    if finding.stop is not None:
        # No GPU counts as free while a process may still use it.
        nodes = (finding.stop.node_id, *finding.stop.others)
        troubles = await asyncio.gather(
            *(_stop(finding.stop, node_id, node_answers_within) for node_id in nodes)
        )
        if trouble := "; ".join(filter(None, troubles)):
            return finding.model_copy(update={"done": f"not mended: {trouble}"})
    try:
        return await workflow.execute_activity_method(
            ReconcileActivities.mend_difference,
            finding,
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=_A_FEW_TIMES,
            summary=f"{finding.subject}: {finding.kind.value}",
        )
    except ActivityError as error:
        return finding.model_copy(update={"done": f"not mended: {error.cause or error}"})


async def _stop(stop: Stop, node_id: str, node_answers_within: timedelta) -> str:
    """Stop a process on its node; return why nobody knows that it has ended, if so."""
    try:
        await workflow.execute_activity_method(
            NodeActivities.stop_process,
            stop.request,
            task_queue=node_task_queue(node_id),
            schedule_to_start_timeout=node_answers_within,
            heartbeat_timeout=_NODE_HEARTBEAT,
            start_to_close_timeout=stop.request.grace + timedelta(minutes=1),
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=f"stop attempt {stop.request.key.attempt} of {stop.request.key.job_id}",
        )
    except ActivityError as error:
        return f"node {node_id} did not stop it ({error.cause or error})"
    return ""
