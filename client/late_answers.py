"""Queries that got no answer: they change nothing, so they are asked again.

Where the server answers and no control worker does, that is told.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio.client import (
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

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
