"""Signals with too few or too many arguments, from any SDK or the Temporal UI, change nothing.

The SDK calls a handler with what came. Where that does not fit, it would fail the workflow's task,
again and again: the workflow would hear nothing any more, and hold what it holds.
"""

import inspect
from collections.abc import Callable
from typing import cast

from temporalio import workflow
from temporalio.worker import (
    HandleSignalInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

Handler = Callable[..., object]


class FittingArguments(Interceptor):
    """Of a worker: has its workflows drop such signals, and log them."""

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        return _DropsWhatDoesNotFit


class _DropsWhatDoesNotFit(WorkflowInboundInterceptor):
    async def handle_signal(self, input: HandleSignalInput) -> None:
        # The SDK leaves open what a handler returns.
        find = cast("Callable[[str], Handler | None]", workflow.get_signal_handler)  # pyright: ignore[reportUnknownMemberType]
        handler = find(input.signal)
        if handler is not None:
            try:
                inspect.signature(handler).bind(*input.args)
            except TypeError as error:
                workflow.logger.warning("signal %s is dropped: %s", input.signal, error)
                return
        await super().handle_signal(input)
