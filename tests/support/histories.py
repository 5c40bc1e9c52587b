"""Workflow histories: which timers a run set, which activities it asked for, and a reset of it."""

import json
import uuid
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from longshore.activities.job_starts import JOB_STATE
from longshore.models.job_status import JobState


async def timers(temporal: Client, workflow_id: str) -> list[timedelta]:
    """Return the timers that a run has set, in order."""
    history = await temporal.get_workflow_handle(workflow_id).fetch_history()
    return [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
    ]


async def activities(temporal: Client, workflow_id: str) -> list[str]:
    """Return the names of the activities that a run has asked for, in order."""
    history = await temporal.get_workflow_handle(workflow_id).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]


async def pending(temporal: Client, workflow_id: str) -> list[str]:
    """Return the names of the activities that a workflow waits for.

    Of a history of megabytes this is to be asked again and again, and not `activities`: reading
    one keeps the workflows of this process waiting for as long as the SDK lets them take.
    """
    description = await temporal.get_workflow_handle(workflow_id).describe()
    asked = description.raw_description.pending_activities
    return [each.activity_type.name for each in asked]


async def runs(temporal: Client, workflow_id: str) -> list[str]:
    """Return the run ids of a workflow from its first run to its newest."""
    newest = (await temporal.get_workflow_handle(workflow_id).describe()).run_id
    chain = [newest]
    while True:
        handle = temporal.get_workflow_handle(workflow_id, run_id=chain[0])
        history = await handle.fetch_history()
        before = history.events[
            0
        ].workflow_execution_started_event_attributes.continued_execution_run_id
        if not before:
            return chain
        chain.insert(0, before)


async def was_signalled(temporal: Client, workflow_id: str, signal: str) -> bool:
    """Return whether a run has been sent this signal, handled or not."""
    history = await temporal.get_workflow_handle(workflow_id).fetch_history()
    return any(
        event.workflow_execution_signaled_event_attributes.signal_name == signal
        for event in history.events
    )


async def signals_to(temporal: Client, workflow_id: str, signal: str) -> list[dict[str, Any]]:
    """Return what came with each signal of this name that a run has been sent, in order."""
    history = await temporal.get_workflow_handle(workflow_id).fetch_history()
    sent = (event.workflow_execution_signaled_event_attributes for event in history.events)
    return [json.loads(each.input.payloads[0].data) for each in sent if each.signal_name == signal]


async def tells(handle: WorkflowHandle[Any, Any], state: JobState) -> bool:
    """Return whether a workflow's search attribute says that state."""
    return (await handle.describe()).typed_search_attributes.get(JOB_STATE) == state.value


async def tasks_done(temporal: Client, workflow_id: str) -> list[int]:
    """Return the events of the newest run that end a workflow task, in order."""
    history = await temporal.get_workflow_handle(workflow_id).fetch_history()
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [event.event_id for event in history.events if event.event_type == done]


async def reset_to(temporal: Client, workflow_id: str, event_id: int) -> None:
    """Have the workflow task that this event ends done anew, without the signals since."""
    newest = await temporal.get_workflow_handle(workflow_id).describe()
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace, reason="a test", request_id=uuid.uuid4().hex,
            workflow_execution=WorkflowExecution(workflow_id=newest.id, run_id=newest.run_id),
            workflow_task_finish_event_id=event_id,
            reset_reapply_exclude_types=[
                ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL
            ],
        )
    )  # fmt: skip


def scrubbed(content: Any) -> Any:
    """Leave out stack traces: they name folders of the machine, and no replay looks at them."""
    if isinstance(content, list):
        return [scrubbed(each) for each in content]
    if isinstance(content, dict):
        return {name: scrubbed(each) for name, each in content.items() if name != "stackTrace"}
    return content
