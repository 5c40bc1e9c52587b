"""Queries that got no answer: they change nothing, so they are asked again."""

import asyncio
from typing import Any

from temporalio.client import (
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
_PAUSES = (0.2, 0.5, 1.0, 2.0)


class AskAgain(Interceptor):
    """Asks a query again, four times within some seconds: one whose worker did not come to it, or
    whose connection broke."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _AskAgain(next)


class _AskAgain(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Raises RPCError where no asking helped: RESOURCE_EXHAUSTED for a worker that is busy."""
        last: RPCError | None = None
        for pause in _PAUSES:
            try:
                return await super().query_workflow(input)
            except WorkflowQueryFailedError as error:
                if not error.message.startswith(_NO_YIELD):
                    raise
                message = f"the control worker is too busy to answer for {input.id}: ask again"
                last = RPCError(message, RPCStatusCode.RESOURCE_EXHAUSTED, b"")
            except RPCError as error:
                if error.status not in _BROKEN or not error.message.startswith(_BROKEN_WORDS):
                    raise
                last = error
            await asyncio.sleep(pause)
        assert last is not None  # it is asked once at least
        raise last
