"""Queries to workflows whose worker was too busy to answer: they are asked again."""

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
_PAUSES = (0.2, 0.5, 1.0, 2.0)


class AskAgain(Interceptor):
    """Asks a query again, four times within some seconds, whose worker did not come to it."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _AskAgain(next)


class _AskAgain(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Raises RPCError (RESOURCE_EXHAUSTED) where no asking helped."""
        for pause in _PAUSES:
            try:
                return await super().query_workflow(input)
            except WorkflowQueryFailedError as error:
                if not error.message.startswith(_NO_YIELD):
                    raise
            await asyncio.sleep(pause)
        message = f"the control worker is too busy to answer for {input.id}: ask again"
        raise RPCError(message, RPCStatusCode.RESOURCE_EXHAUSTED, b"")
