"""Tables of DAGs. How a job of one has ended is on record with the job."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import time_column


class DagRow(SQLModel, table=True):
    """A DAG. It has ended when its state is no longer RUNNING."""

    __tablename__: ClassVar[str] = "dags"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("dags_by_time", text("submitted_at DESC"), "id"),
        Index("dags_by_name", "name", "submitted_at"),
        CheckConstraint("(state = 'RUNNING') = (ended_at IS NULL)", name="an_end_has_a_time"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    tenant: str = Field(sa_type=Text)
    spec: dict[str, Any] = Field(sa_column=Column(JSON(none_as_null=True), nullable=False))
    """The `DagSpec`."""
    generation: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    """1, and one more for each retry."""
    state: str = Field(
        default="RUNNING", sa_type=Text, sa_column_kwargs={"server_default": text("'RUNNING'")}
    )
    held: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    cancelled: str | None = Field(default=None, sa_type=Text)
    """Why somebody cancelled it."""
    stopped_by: str | None = Field(default=None, sa_type=Text)
    """The job whose failure stops it."""
    poked: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Its workflow has been signalled since it looked last."""
    message: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    submitted_at: datetime = Field(sa_column=time_column())
    ended_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class DagJobRow(SQLModel, table=True):
    """One job of a DAG; once it was submitted, `jobs` says how it ends."""

    __tablename__: ClassVar[str] = "dag_jobs"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        CheckConstraint(
            "state NOT IN ('SUBMITTING', 'SUBMITTED') OR job_id IS NOT NULL",
            name="a_submitted_job_has_an_id",
        ),
        Index(
            "dag_jobs_that_wait_for_mutexes", "mutexes", postgresql_using="gin",
            postgresql_where=text("state = 'WAITING' AND ready_at IS NOT NULL"),
        ),
    )  # fmt: skip

    dag_id: str = Field(primary_key=True, foreign_key="dags.id", sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    state: str = Field(
        default="WAITING", sa_type=Text, sa_column_kwargs={"server_default": text("'WAITING'")}
    )
    """WAITING; SUBMITTING before its workflow is known to be there, SUBMITTED after that; SKIPPED;
    WITHDRAWN where it was cancelled first; LOST where its workflow ended and left no record."""
    generation: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    """That of the DAG in which it was submitted, or will be."""
    job_id: str | None = Field(default=None, unique=True, sa_type=Text)
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    cancel_sent: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    submitted_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """When its conditions held."""
    ended_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """Of one that was never submitted, or left no record."""
    mutexes: list[str] = Field(
        default_factory=list[str],
        sa_column=Column(ARRAY(Text), nullable=False, server_default=text("'{}'")),
    )
    """Names that it asks for, sorted, from when its other conditions held."""
    priority: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """Its class, for the order of those that wait for a mutex."""
    ready_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """When its other conditions held, of one that asks for mutexes."""
    element_join: str | None = Field(default=None, sa_type=Text)
    """Of an array whose elements come after those of others: `all` or `any`, which each element
    needs."""
    others: str | None = Field(default=None, sa_type=Text)
    """And what its other edges are worth together, to all elements alike; null where it has none
    or they are not known yet."""
    kept_from: str | None = Field(default=None, sa_type=Text)
    """The array, of a generation before, whose elements that succeeded stay as they are."""


class ElementEdgeRow(SQLModel, table=True):
    """An edge from array to array, element to element."""

    __tablename__: ClassVar[str] = "element_edges"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        ForeignKeyConstraint(["dag_id", "name"], ["dag_jobs.dag_id", "dag_jobs.name"]),
        Index("element_edges_by_upstream", "dag_id", "upstream"),
        CheckConstraint("whole IN ('OPEN', 'SATISFIED', 'DEAD')", name="whole_is_an_edge_state"),
    )

    dag_id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    """The array that comes after."""
    upstream: str = Field(primary_key=True, sa_type=Text)
    extra_waits: bool
    """An index without a partner waits for all of the upstream array."""
    firsts: list[int] = Field(sa_column=Column(ARRAY(Integer), nullable=False))
    """The indices of the upstream array, which may not be on record yet: ranges."""
    lasts: list[int] = Field(sa_column=Column(ARRAY(Integer), nullable=False))
    steps: list[int] = Field(sa_column=Column(ARRAY(Integer), nullable=False))
    whole: str = Field(
        default="OPEN", sa_type=Text, sa_column_kwargs={"server_default": text("'OPEN'")}
    )
    """What the upstream array as a whole is worth: not OPEN once it has ended."""


class MutexRow(SQLModel, table=True):
    """A mutex of a tenant: nobody's, or that of the one job that has it."""

    __tablename__: ClassVar[str] = "mutexes"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        CheckConstraint("(job_id IS NULL) = (since IS NULL)", name="a_holder_has_it_since"),
        Index("mutexes_by_job", "job_id", postgresql_where=text("job_id IS NOT NULL")),
    )

    tenant: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    job_id: str | None = Field(default=None, sa_type=Text)
    since: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class OutputRow(SQLModel, table=True):
    """What a job of a DAG put out, for the jobs behind it."""

    __tablename__: ClassVar[str] = "outputs"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        CheckConstraint(
            "octet_length(content) = bytes AND bytes <= 65536", name="an_output_is_small"
        ),
    )

    job_id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    content: str = Field(sa_type=Text)
    """JSON."""
    digest: str = Field(sa_type=Text)
    """SHA-256 of the content, in hex."""
    bytes: int
