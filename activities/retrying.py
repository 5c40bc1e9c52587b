"""Turning Longshore's errors into Temporal's, with the same text and a type to branch on."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from temporalio.exceptions import ApplicationError

from models.base import Wire
from models.errors import LongshoreError, MarketError, NotFoundError

P = ParamSpec("P")
R = TypeVar("R")


def reports_errors(call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Decorate an async activity: a LongshoreError becomes an ApplicationError of that type.

    Whether Temporal tries again is a property of the error's class (`retryable`). What the
    database does not take as data, or does not have, it will not take or have another time
    either: what a step is about is stored before the step is asked for.
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
            said = _about_data(error, f"{call.__name__} of {_ids(args)}")
            if said is None:
                raise
            kind, text = said
            raise ApplicationError(text, type=kind, non_retryable=True) from error

    return wrapped


def _about_data(error: Exception, step: str) -> tuple[str, str] | None:
    """Return the type and the text of an error of the database about data; None for any other.

    A row that is there already is none of these: the next try finds what another one has stored.
    """
    # Of SQLAlchemy and psycopg, by their names: agents do not import these.
    name, cause = type(error).__name__, getattr(error, "orig", None)
    if name == "DataError":
        return name, str(error)
    if name == "NoResultFound":
        return NotFoundError.__name__, f"{step}: the capacity database has no such row"
    if name == "IntegrityError" and type(cause).__name__ == "ForeignKeyViolation":
        return NotFoundError.__name__, f"{step}: {cause}"
    return None


def _ids(args: Sequence[object]) -> str:
    """Return what a step is about: ``block_id p-1.1``."""
    fields = [field for each in args if isinstance(each, Wire) for field in each]
    named = (f"{name} {value}" for name, value in fields if name.endswith("_id") or name == "key")
    return ", ".join(named) or "its input"
