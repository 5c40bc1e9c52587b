"""Turning Longshore's errors into Temporal's, with the same text and a type to branch on."""

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from temporalio.exceptions import ApplicationError

from models.errors import LongshoreError, MarketError

P = ParamSpec("P")
R = TypeVar("R")


def reports_errors(call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Decorate an async activity: a LongshoreError becomes an ApplicationError of that type.

    Whether Temporal tries again is a property of the error's class (`retryable`). What the
    database does not take as data it will not take another time either.
    """

    return _reporting(call, lambda error: error.retryable)


def follows_up(call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Like `reports_errors`, for a step on what was bought at a market: it is tried for ever.

    A market may refuse a look or an end by mistake. Whoever gave up then would leave a machine
    there that nobody stops, and money that nobody books.
    """
    return _reporting(call, lambda error: error.retryable or isinstance(error, MarketError))


def _reporting(
    call: Callable[P, Awaitable[R]], again: Callable[[LongshoreError], bool]
) -> Callable[P, Awaitable[R]]:
    @functools.wraps(call)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await call(*args, **kwargs)
        except LongshoreError as error:
            raise ApplicationError(
                str(error), type=type(error).__name__, non_retryable=not again(error)
            ) from error
        except Exception as error:
            # Of SQLAlchemy, by its name: agents do not import that.
            if type(error).__name__ != "DataError":
                raise
            raise ApplicationError(str(error), type="DataError", non_retryable=True) from error

    return wrapped
