"""What a piece of code is about, for the logs written while it runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_about: ContextVar[Mapping[str, str | int]] = ContextVar("longshore_about")


@contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """Put these fields into every log record of this block, and of the tasks begun in it."""
    token = _about.set({**current(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def current() -> Mapping[str, str | int]:
    """Return the fields that hold here."""
    return _about.get({})
