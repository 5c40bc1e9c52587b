"""What every travelling model has in common."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints


class Frozen(BaseModel):
    """A value that travels: immutable, and strict about names that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Wire(BaseModel):
    """A message through Temporal: immutable, and tolerant of fields that a newer version sends."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs its zone, for example 2026-11-20T12:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value} is out of range in UTC") from None


Instant = Annotated[datetime, AfterValidator(_utc)]
"""An aware time, held in UTC."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
"""Lower-case letters, digits, dot, dash and underscore; at most 63 characters."""
