"""Tables of models that are served, and of the runtimes that serve them.

The rules are in the migrations.
"""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Column, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import time_column


def _object() -> Any:
    return Column(JSONB(none_as_null=True), nullable=True)


class RuntimeRow(SQLModel, table=True):
    """A program that serves models. One that is built in has its name here, for models to refer
    to, and no more: what it is each version of Longshore says itself."""

    __tablename__: ClassVar[str] = "runtimes"  # pyright: ignore[reportIncompatibleVariableOverride]

    name: str = Field(primary_key=True, sa_type=Text)
    spec: dict[str, Any] | None = Field(sa_column=_object())
    """A `models.serving.Runtime`; null of one that is built in."""
    revision: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    """Rises by 1 with each change of it; kept by trigger."""
    changed_by: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    changed_at: datetime = Field(sa_column=time_column(default=True))
    created_at: datetime = Field(sa_column=time_column(default=True))


class ModelRow(SQLModel, table=True):
    """A model that may be served."""

    __tablename__: ClassVar[str] = "models"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (Index("models_by_runtime", "runtime"),)

    name: str = Field(primary_key=True, sa_type=Text)
    runtime: str = Field(foreign_key="runtimes.name", sa_type=Text)
    spec: dict[str, Any] = Field(sa_column=Column(JSONB(none_as_null=True), nullable=False))
    """A `models.serving.ModelSpec`, with context and concurrency."""
    facts: dict[str, Any] | None = Field(sa_column=_object())
    """`models.model_registry.ModelFacts`; null where its files were not read."""
    revision: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    """Rises by 1 with each change of it; kept by trigger."""
    changed_by: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    changed_at: datetime = Field(sa_column=time_column(default=True))
    created_at: datetime = Field(sa_column=time_column(default=True))
