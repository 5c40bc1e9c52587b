"""The pollers of a task queue, and when each last asked for work."""

from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

POLL_SEEN_WITHIN = timedelta(seconds=75)
"""A poll waits at the server for up to a minute before the next one comes."""
_ANSWER_WITHIN = timedelta(seconds=5)


async def last_polls(
    temporal: Client, task_queue: str, *, workflows: bool = False
) -> dict[str, datetime]:
    """Return when each worker last asked a task queue for activities, or for workflows.

    By the server's clock and the workers' identities. Raises RPCError.
    """
    kind = (
        TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW if workflows
        else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    )  # fmt: skip
    reply = await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=kind,
        ),
        timeout=_ANSWER_WITHIN,
    )
    return {
        poller.identity: poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in reply.pollers
    }


async def is_polled(
    temporal: Client, task_queue: str, now: datetime, *, workflows: bool = False
) -> bool:
    """Return whether some worker asks a task queue for work at `now`, by a server's clock.

    Raises RPCError.
    """
    seen = await last_polls(temporal, task_queue, workflows=workflows)
    return any(now - at < POLL_SEEN_WITHIN for at in seen.values())
