"""Starts, signals and updates whose arguments do not fit, from any SDK or the Temporal UI.

The SDK calls a workflow or a handler with what came. Where that does not fit, it would fail the
workflow's task, again and again: a start would never end, and a workflow that is sent such a
signal would hear nothing any more, and hold what it holds. So the start ends with a sentence, as
does the update, and the signal changes nothing. An input that cannot be read is refused by
client/payloads.py.

A start under another id than the one of what it is about, or for what nobody has stored, ends
with a sentence too.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from longshore.models.base import Input, StartInput
from longshore.models.errors import NotFoundError, SpecError
from longshore.workflows.naming import no_such_input, refuse_another_id, refuse_unknown

Handler = Callable[..., object]
_OWN_END = (NotFoundError.__name__, SpecError.__name__)
"""Errors of steps whose sentence is the end of their workflow."""


class Started:
    """Base of each workflow whose `__init__` takes the input: that is called with what fits."""

    def __new__(cls, *inputs: Any, **_named: Any) -> Self:
        refuse_inputs(cls, inputs)
        return super().__new__(cls)


def refuse_inputs(of: type, inputs: Sequence[object]) -> None:
    """Raise SpecError unless a start of this class of workflow was given what it takes: one
    `StartInput`, or nothing. (What comes to one that takes nothing is not read.) Raise
    ApplicationError where the workflow's id is not that of its input, or that has unknown
    names."""
    _self, *wanted = inspect.signature(cast(Any, of).run).parameters.values()
    if len(inputs) == len(wanted):
        for given in inputs:
            refuse_another_id(cast(StartInput, given))
            refuse_unknown(cast(StartInput, given))
        return
    if not inputs:
        raise SpecError("input", (wanted[0].annotation.instead,))
    raise SpecError("input", (f"give one input, not {len(inputs)}",))


class FittingArguments(Interceptor):
    """Of a worker: has its workflows end such starts, refuse such updates, and drop such signals
    and log them."""

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        return _TakesWhatFits


class _TakesWhatFits(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        refuse_inputs(input.type, input.args)
        try:
            return await super().execute_workflow(input)
        except ActivityError as error:
            cause = error.cause
            if not isinstance(cause, ApplicationError) or cause.type not in _OWN_END:
                raise
            # The sentence is the workflow's own end: nobody has to look for it in an activity's.
            raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from error

    async def handle_signal(self, input: HandleSignalInput) -> None:
        # The SDK leaves open what a handler returns.
        find = cast("Callable[[str], Handler | None]", workflow.get_signal_handler)  # pyright: ignore[reportUnknownMemberType]
        handler = find(input.signal)
        if handler is not None:
            # By its name, which is that of its method: what the SDK gives of one that is async
            # takes whatever comes.
            method = getattr(workflow.instance(), input.signal, handler)
            try:
                _fit(inspect.signature(method), input.args)
            except TypeError as error:
                workflow.logger.warning("signal %s is dropped: %s", input.signal, error)
                return
        await super().handle_signal(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        if (given := _update_input(input)).unknown:
            raise no_such_input(given)
        super().handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        # Of one without a validator; an earlier version may have taken names that it did not have.
        if (given := _update_input(input)).unknown and workflow.patched("known-fields"):
            raise no_such_input(given)
        return await super().handle_update_handler(input)


def _update_input(update: HandleUpdateInput) -> Input:
    """Return the one `Input` that each update takes. Raises SpecError for anything else."""
    # By its name, which is that of its method: the handler that the SDK gives has no signature.
    (wanted,) = inspect.signature(getattr(workflow.instance(), update.update)).parameters.values()
    if len(update.args) == 1 and isinstance(update.args[0], wanted.annotation):
        return update.args[0]
    several = f"give one input, not {len(update.args)}"
    raise SpecError("input", (several if len(update.args) > 1 else wanted.annotation.instead,))


def _fit(signature: inspect.Signature, given: Sequence[object]) -> None:
    """Raise TypeError unless a handler takes so many arguments of these types. A converter holds
    JSON against them, and gives on as they are what came as nothing, as bytes or as protobuf."""
    bound = signature.bind(*given)
    for name, value in bound.arguments.items():
        wanted = signature.parameters[name].annotation
        if isinstance(wanted, type) and not isinstance(value, wanted):
            raise TypeError(f"{name} is a {type(value).__name__}: a {wanted.__name__} is right")
