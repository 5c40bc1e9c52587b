"""The pollers of a task queue, when each last asked for work, and the time at the server."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    PollActivityTaskQueueRequest,
)
from temporalio.client import Client

POLL_SEEN_WITHIN = timedelta(seconds=75)
"""A poll waits at the server for up to a minute before the next one comes."""
_ANSWER_WITHIN = timedelta(seconds=5)
_POLL_EVERY = 0.05
"""Seconds."""


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


async def server_time(temporal: Client) -> datetime | None:
    """Return what time it is by the server's clock; None where it does not say so in time.

    It answers no question for the time, but notes when somebody asks it for work: so somebody
    does, at a task queue of nobody else. What `last_polls` says is compared with this, and not
    with this machine's clock, which may be wrong. Raises RPCError.
    """
    identity = task_queue = f"clock-{uuid.uuid4().hex[:8]}"
    poll = asyncio.create_task(
        temporal.workflow_service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(
                namespace=temporal.namespace,
                task_queue=TaskQueue(name=task_queue),
                identity=identity,
            ),
            timeout=_ANSWER_WITHIN,
        )
    )
    try:
        while not poll.done():
            seen = await last_polls(temporal, task_queue)
            if identity in seen:
                return seen[identity]
            await asyncio.sleep(_POLL_EVERY)
    finally:
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
    return None


async def poll_time(temporal: Client) -> datetime:
    """Return what to compare polls with: the server's time, or this machine's where it does not
    say that. Raises RPCError."""
    return await server_time(temporal) or datetime.now(UTC)
