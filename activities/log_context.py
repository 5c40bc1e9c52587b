"""Fields for the log records of a block of code, such as the job's id."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_fields: ContextVar[Mapping[str, str | int]] = ContextVar("longshore_log_context")


@contextmanager
def log_context(**fields: str | int) -> Iterator[None]:
    """Put these fields into every log record of this block, and of the tasks begun in it."""
    token = _fields.set({**current(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def current() -> Mapping[str, str | int]:
    """Return the fields that hold here."""
    return _fields.get({})
