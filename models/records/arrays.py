"""Tables of arrays. What was asked of an array, and how it ended, is on record as a job's."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import time_column


class ArrayRow(SQLModel, table=True):
    """An array. It has ended when the job of its id has."""

    __tablename__: ClassVar[str] = "arrays"  # pyright: ignore[reportIncompatibleVariableOverride]

    id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    elements: int
    first: int
    """The lowest index."""
    last: int
    """The highest."""
    slots: int
    """How many it may have at a time."""
    generation: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    """1, and one more for each retry."""
    held: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    cancelled: str | None = Field(default=None, sa_type=Text)
    """Why somebody cancelled it."""
    poked: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Its workflow has been signalled since it looked last."""


class ArraySlotRow(SQLModel, table=True):
    """A slot: a job that runs elements one after another; `jobs` says how it ends."""

    __tablename__: ClassVar[str] = "array_slots"  # pyright: ignore[reportIncompatibleVariableOverride]

    array_id: str = Field(primary_key=True, foreign_key="arrays.id", sa_type=Text)
    number: int = Field(primary_key=True)
    job_id: str = Field(unique=True, sa_type=Text)
    generation: int
    """That of the array in which it was opened."""
    state: str = Field(
        default="SUBMITTING",
        sa_type=Text,
        sa_column_kwargs={"server_default": text("'SUBMITTING'")},
    )
    """SUBMITTING before its workflow is known to be there; SUBMITTED; LOST where its workflow
    ended and left no record."""
    attempt: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """Of its job, the one that claimed elements last."""
    batch: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """The last that was claimed in that attempt."""
    cancel_sent: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    submitted_at: datetime = Field(sa_column=time_column())


class ElementRow(SQLModel, table=True):
    """One attempt of one element."""

    __tablename__: ClassVar[str] = "elements"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index(
            "elements_newest", "array_id", "index", unique=True, postgresql_where=text("newest")
        ),
        Index("elements_waiting", "array_id", "index", postgresql_where=text("state = 'WAITING'")),
        Index("elements_claimed", "job_id", postgresql_where=text("state = 'RUNNING'")),
        Index("elements_blocked", "array_id", "index", postgresql_where=text("state = 'BLOCKED'")),
        CheckConstraint(
            "num_nulls(job_id, job_attempt, batch) IN (0, 3)"
            " AND (state <> 'RUNNING' OR job_id IS NOT NULL)"
            " AND (state NOT IN ('WAITING', 'BLOCKED', 'SKIPPED') OR job_id IS NULL)",
            name="a_claim_is_of_one_batch",
        ),
        CheckConstraint(
            "(state IN ('BLOCKED', 'WAITING', 'RUNNING')) = (ended_at IS NULL)",
            name="an_end_has_a_time",
        ),
        CheckConstraint(
            "newest OR state IN ('FAILED', 'CANCELLED')", name="only_the_newest_goes_on"
        ),
    )

    array_id: str = Field(primary_key=True, foreign_key="arrays.id", sa_type=Text)
    index: int = Field(primary_key=True)
    attempt: int = Field(
        default=1, primary_key=True, sa_column_kwargs={"server_default": text("1")}
    )
    newest: bool = Field(default=True, sa_column_kwargs={"server_default": text("true")})
    """The element's last attempt: its state is the element's."""
    generation: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    """That of the array in which it was made: a retry of the array counts retries anew."""
    state: str = Field(
        default="WAITING", sa_type=Text, sa_column_kwargs={"server_default": text("'WAITING'")}
    )
    variables: dict[str, Any] | None = Field(default=None, sa_column=Column(JSONB))
    """Its row of the table."""
    not_before: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """The end of the wait before a retry."""
    cancel: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Somebody has cancelled it while it was in a batch."""
    job_id: str | None = Field(default=None, sa_type=Text)
    """The slot that has claimed it, as a job."""
    job_attempt: int | None = None
    batch: int | None = None
    failure: str | None = Field(default=None, sa_type=Text)
    exit_code: int | None = None
    message: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """The last line that it wrote, of one that failed, or why it ended."""
    started_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    ended_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    stdout_offset: int | None = Field(default=None, sa_column=Column(BigInteger))
    """Where its output begins in that of its batch, in bytes."""
    stdout_length: int | None = Field(default=None, sa_column=Column(BigInteger))
    stderr_offset: int | None = Field(default=None, sa_column=Column(BigInteger))
    stderr_length: int | None = Field(default=None, sa_column=Column(BigInteger))
