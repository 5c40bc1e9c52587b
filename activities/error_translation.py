"""Translates Longshore's errors into Temporal's, with the same text and a type to branch on."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from longshore.models.base import Wire
from longshore.models.errors import (
    LongshoreError,
    NoProviderError,
    NotFoundError,
    RefusedError,
    SpecError,
)
from longshore.models.problems import describe_all

P = ParamSpec("P")
R = TypeVar("R")

_BOUNDS = ("_in_reach", "_in_bounds", "_in_calendar", "_ten_years")
"""How the names of checks end that look at one value alone."""
_DATA = "DataError"
_MOST = 1_000
"""Characters that a failure tells of an error of the database."""
_BY_A_PERSON = (NoProviderError, RefusedError, SpecError)
"""What no other try helps: somebody installs, allows or mends something."""
_LONGEST_PAUSE = timedelta(minutes=5)
"""Between two tries of a step on what was bought that only a person can help."""


def reports_errors(call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Decorate an async activity: a LongshoreError becomes an ApplicationError of that type.

    Whether Temporal tries again is a property of the error's class (`retryable`). What the
    database does not take as data, or does not have, it will not take or have another time
    either: what a step is about is stored before the step is asked for. Of any other error of the
    database the failure tells the first line that it said, and no statement.
    """

    return _reporting(call, lambda error: error.retryable)


def follows_up(call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Like `reports_errors`, for a step on what was bought at a market: it is tried for ever,
    unless the database does not have what it is about.

    A market may refuse a look or an end by mistake, and what a worker cannot read, or may not
    ask, another one can, or somebody mends it. Whoever gave up then would leave a machine there
    that nobody stops, and money that nobody books. What only a person can help is tried ever less
    often, up to every five minutes.
    """
    return _reporting(call, lambda error: not isinstance(error, NotFoundError), patient=True)


def _reporting(
    call: Callable[P, Awaitable[R]],
    again: Callable[[LongshoreError], bool],
    *,
    patient: bool = False,
) -> Callable[P, Awaitable[R]]:
    @functools.wraps(call)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await call(*args, **kwargs)
        except LongshoreError as error:
            cause = _without_statements(error)
            text = str(error) if cause else str(error)[:_MOST]
            helped = patient and isinstance(error, _BY_A_PERSON)
            raise ApplicationError(
                text, type=type(error).__name__,
                non_retryable=not (error.retryable or again(error)),
                next_retry_delay=_pause() if helped else None,
            ) from cause  # fmt: skip
        except ValidationError as error:
            # Of what is stored: somebody wrote into it by hand, or another version. It may be
            # mended meanwhile, so it may be tried again: the policy of the step says whether.
            said = "; ".join(describe_all(error, whole="all of it"))
            text = f"a {error.title} cannot be read: {said}"[:_MOST]
            raise ApplicationError(
                text, type=type(error).__name__, next_retry_delay=_pause() if patient else None
            ) from None
        except Exception as error:
            said = _about_data(error, f"{call.__name__} of {_ids(args)}")
            if said is None and not _carries_statement(error):
                raise
            kind, text = said or (type(error).__name__, f"the capacity database: {_first(error)}")
            helped = patient and kind == _DATA
            raise ApplicationError(
                text, type=kind, non_retryable=said is not None and not helped,
                next_retry_delay=_pause() if helped else None,
            ) from _without_statements(error)  # fmt: skip

    return wrapped


def _pause() -> timedelta:
    """Return how long to wait before a step is tried again that only a person can help."""
    tried = activity.info().attempt if activity.in_activity() else 1
    return min(timedelta(seconds=2 ** min(tried, 10)), _LONGEST_PAUSE)


def _without_statements(error: BaseException) -> BaseException | None:
    """Return an error as the cause of another; None where it carries a statement, or one below it,
    or where its causes go round in a circle.

    Temporal replaces all of a failure that is too long, and with it what is wrong; and whoever
    follows a circle, here or in its SDK, comes to no end and holds up the process.
    """
    seen: set[int] = set()
    below: BaseException | None = error
    while below is not None:
        if _carries_statement(below) or id(below) in seen:
            return None
        seen.add(id(below))
        below = below.__cause__
    return error


def _carries_statement(error: BaseException) -> bool:
    # Of SQLAlchemy, by what it has: agents do not import it.
    return hasattr(error, "statement") and hasattr(error, "orig")


def bound_broken(cause: object) -> str:
    """Return the name of the bound of a table that a value is beyond; empty for any other error of
    the database. Sums of several rows have checks too: these may hold at the next try."""
    if type(cause).__name__ != "CheckViolation":
        return ""
    diag: Any = getattr(cause, "diag", None)
    name = getattr(diag, "constraint_name", None) or ""
    return name if name.endswith(_BOUNDS) else ""


def _first(error: BaseException) -> str:
    """Return the first line of what the database, or its driver, said."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0][:_MOST]


def _about_data(error: Exception, step: str) -> tuple[str, str] | None:
    """Return the type and the text of an error of the database about data; None for any other.

    A row that is there already is none of these: the next try finds what another one has stored.
    """
    # Of SQLAlchemy and psycopg, by their names: agents do not import these.
    name = type(error).__name__
    cause: Any = getattr(error, "orig", None)
    if name in ("DataError", "StatementError"):  # the second is never sent, for want of a value
        return _DATA, _first(error)
    if name == "IntegrityError" and bound_broken(cause):
        return _DATA, f"{step}: {_first(error)}"
    if name == "NoResultFound":
        return NotFoundError.__name__, f"{step}: the capacity database has no such row"
    if name == "IntegrityError" and type(cause).__name__ == "ForeignKeyViolation":
        detail = cause.diag.message_detail or ""  # which row is not there
        return NotFoundError.__name__, f"{step}: {_first(error)}. {detail}"[:_MOST]
    return None


def _ids(args: Sequence[object]) -> str:
    """Return what a step is about: ``block_id p-1.1``."""
    fields = [field for each in args if isinstance(each, Wire) for field in each]
    named = (f"{name} {value}" for name, value in fields if name.endswith("_id") or name == "key")
    return ", ".join(named) or "its input"
