"""Columns that many tables have."""

from typing import Any

from sqlalchemy import Column, DateTime, Interval, text
from sqlalchemy.dialects.postgresql import JSONB

NOW = text("clock_timestamp()")


def time_column(*, default: bool = False, nullable: bool = False) -> Any:
    """Return the column of an instant; its `default` is when the row is written."""
    return Column(
        DateTime(timezone=True), nullable=nullable, server_default=NOW if default else None
    )


def span_column() -> Any:
    """Return the column of a duration, by default none."""
    return Column(Interval, nullable=False, server_default=text("'0'"))


def json_column(*, nullable: bool = False) -> Any:
    return Column(JSONB(none_as_null=True), nullable=nullable)


def default_of(value: str) -> dict[str, Any]:
    """Return the options of a column whose default is this SQL."""
    return {"server_default": text(value)}
