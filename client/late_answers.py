"""Queries that got no answer: they change nothing, so they are asked again.

Where the server answers and no control worker does, that is told.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import (
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowQueryFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from longshore.models.errors import UnavailableError

T = TypeVar("T")

LOOKS = "`longshore doctor` says whether one runs, and what it does."

# The SDK takes a workflow for deadlocked that did not yield for two seconds of the clock. On a
# machine with more to do than cores, a sound one is taken for it too. Of a workflow task, the
# server makes a second one then; of a query, the question fails.
_NO_YIELD = "[TMPRL1101]"
# A connection that broke under a question is CANCELLED or UNKNOWN, which the SDK takes for an
# answer: it repeats UNAVAILABLE alone.
_BROKEN = RPCStatusCode.CANCELLED, RPCStatusCode.UNKNOWN
_BROKEN_WORDS = "h2 protocol error", "transport error"
# A server keeps few questions that wait for one workflow, and refuses those beyond.
_MANY_ASK = "query buffer is full"
_LATE = RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED
_PAUSES = (0.2, 0.5, 1.0, 2.0)
_ANSWER_WITHIN = timedelta(seconds=30)
"""For a control worker; the SDK has the same."""
_SERVER_WITHIN = timedelta(seconds=3)


class NoAnswerError(RPCError):
    """The server answers, and no control worker does; the message says so, as a clause."""

    def __init__(self, message: str) -> None:
        super().__init__(message, RPCStatusCode.RESOURCE_EXHAUSTED, b"")


async def carried_out(update: Awaitable[T], what: str) -> T:
    """Await an update of the workflow of `what`, such as ``job train-1``; not for ever.

    Raises UnavailableError where no control worker has carried it out in time. It cannot be taken
    back: one that comes later may do so still.
    """
    within = _ANSWER_WITHIN.total_seconds()
    try:
        async with asyncio.timeout(within):
            return await update
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError from None  # who asked has given up
        raise UnavailableError(
            f"No control worker has answered for {what} within {within:g} s; when one does, it "
            f"may still carry this out. {LOOKS}"
        ) from None


class AskAgain(Interceptor):
    """Asks a query again, four times within some seconds: one whose worker did not come to it, or
    whose connection broke."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _AskAgain(next)


class _AskAgain(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Raises RPCError where no asking helped; NoAnswerError for want of a worker."""
        last: RPCError | None = None
        within = input.rpc_timeout or _ANSWER_WITHIN
        for pause in _PAUSES:
            try:
                return await super().query_workflow(replace(input, rpc_timeout=within))
            except WorkflowQueryFailedError as error:
                if not error.message.startswith(_NO_YIELD):
                    raise
                last = NoAnswerError("the control worker is too busy to answer")
            except RPCError as error:
                if _MANY_ASK in error.message:
                    raise NoAnswerError(
                        "more questions wait for a control worker than Temporal keeps: many ask "
                        "at once, or no control worker answers"
                    ) from error
                if error.status in _BROKEN and error.message.startswith(_BROKEN_WORDS):
                    last = error
                elif error.status in _LATE and await self._server_answers(input.id):
                    raise NoAnswerError(
                        f"no control worker has answered within {within.total_seconds():g} s"
                    ) from error
                else:
                    raise
            await asyncio.sleep(pause)
        assert last is not None  # it is asked once at least
        raise last

    async def _server_answers(self, workflow_id: str) -> bool:
        """Return whether the server says something of a workflow: no worker is needed for that."""
        look = DescribeWorkflowInput(
            id=workflow_id, run_id=None, rpc_metadata={}, rpc_timeout=_SERVER_WITHIN
        )
        try:
            await self.next.describe_workflow(look)
        except RPCError:
            return False
        return True
