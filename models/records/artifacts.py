"""What the artifact store holds, and what keeps it there. The rules live in the migrations."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Text,
    text,
)
from sqlmodel import Field, SQLModel


def _time(default: str | None = None) -> Any:
    return Column(
        DateTime(timezone=True), nullable=False, server_default=text(default) if default else None
    )


def _going() -> Any:
    return Column(Boolean, nullable=False, server_default=text("false"))


class ArtifactObjectRow(SQLModel, table=True):
    """An object of the store."""

    __tablename__: ClassVar[str] = "artifact_objects"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        CheckConstraint("bytes > 0", name="artifact_objects_bytes_check"),
        Index("artifact_objects_by_lease", "leased_until"),
    )

    tenant: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    bytes: int = Field(sa_type=BigInteger)
    leased_until: datetime = Field(sa_column=_time())
    """An upload counts on it until then."""
    going: bool = Field(sa_column=_going())
    """Its removal has begun: nothing can count on it any more."""


class SnapshotRow(SQLModel, table=True):
    """What a folder held."""

    __tablename__: ClassVar[str] = "snapshots"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        CheckConstraint("files >= 0", name="snapshots_files_check"),
        CheckConstraint("bytes >= 0", name="snapshots_bytes_check"),
        Index("snapshots_by_lease", "leased_until"),
    )

    tenant: str = Field(primary_key=True, sa_type=Text)
    digest: str = Field(primary_key=True, sa_type=Text)
    files: int
    bytes: int = Field(sa_type=BigInteger)
    created_at: datetime = Field(sa_column=_time("clock_timestamp()"))
    leased_until: datetime = Field(sa_column=_time())
    """A submit counts on it until then; a job that has come into the queue keeps it by itself."""
    going: bool = Field(sa_column=_going())


class SnapshotObjectRow(SQLModel, table=True):
    """An object that a snapshot needs."""

    __tablename__: ClassVar[str] = "snapshot_objects"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant", "digest"], ["snapshots.tenant", "snapshots.digest"], ondelete="CASCADE"
        ),
        ForeignKeyConstraint(
            ["tenant", "object"], ["artifact_objects.tenant", "artifact_objects.name"]
        ),
        Index("snapshot_objects_by_object", "tenant", "object"),
    )

    tenant: str = Field(primary_key=True, sa_type=Text)
    digest: str = Field(primary_key=True, sa_type=Text)
    object: str = Field(primary_key=True, sa_type=Text)


class SnapshotHolderRow(SQLModel, table=True):
    """What needs a snapshot and is on record nowhere else: a schedule."""

    __tablename__: ClassVar[str] = "snapshot_holders"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        ForeignKeyConstraint(["tenant", "digest"], ["snapshots.tenant", "snapshots.digest"]),
    )

    tenant: str = Field(primary_key=True, sa_type=Text)
    digest: str = Field(primary_key=True, sa_type=Text)
    holder: str = Field(primary_key=True, sa_type=Text)
