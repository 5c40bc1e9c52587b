"""Updates with a description, which Temporal shows beside the name."""

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from temporalio import workflow
from temporalio.workflow import UpdateMethodMultiParam

Params = ParamSpec("Params")
Answer = TypeVar("Answer")


class _Mark(Protocol):
    def __call__(
        self, handler: Callable[Params, Awaitable[Answer]], /
    ) -> UpdateMethodMultiParam[Params, Answer]: ...


def described_update(description: str) -> _Mark:
    """Return `workflow.update` with a description. By the types of the SDK such an update that is
    a coroutine answers with a coroutine, and not with what that returns."""
    mark: Any = workflow.update(description=description)
    return mark
