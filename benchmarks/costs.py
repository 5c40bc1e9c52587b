"""What a workflow costs, counted from its history: events, and actions as Temporal Cloud bills."""

from collections import Counter

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

_BILLED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "start",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signal",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "update",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "upsert",
    EventType.EVENT_TYPE_MARKER_RECORDED: "local activity",
}


async def actions(temporal: Client, workflow_id: str, run_id: str | None = None) -> Counter[str]:
    """Return how many of each thing that Temporal Cloud bills one run took.

    Retries and heartbeats of its activities are billed too; a history does not tell of them.
    """
    handle = temporal.get_workflow_handle(workflow_id, run_id=run_id)
    return billed(await handle.fetch_history())


def billed(history: WorkflowHistory) -> Counter[str]:
    """Return the same from a history at hand."""
    return Counter(_BILLED[e.event_type] for e in history.events if e.event_type in _BILLED)
