"""Tables of preemptions, and of what was decided about saving."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel


class PreemptionRow(SQLModel, table=True):
    """One attempt that is preempted for another job; stored before the attempt hears of it.

    It is under way as long as the attempt's placement is open.
    """

    __tablename__: ClassVar[str] = "preemptions"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("preemptions_by_cycle", "cycle_id"),
        Index("preemptions_by_beneficiary", "for_job"),
        Index("preemptions_by_change", "changed_in"),
        CheckConstraint(
            "by_payer OR idle OR priority <= for_priority", name="no_higher_class_gives_way"
        ),
    )

    job_id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    attempt: int = Field(primary_key=True)
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    cycle_id: str = Field(sa_type=Text)
    """The cycle that left `for_job` waiting."""
    for_job: str = Field(foreign_key="jobs.id", sa_type=Text)
    for_attempt: int
    priority: int
    for_priority: int
    plan: dict[str, Any] = Field(sa_column=Column(JSONB(none_as_null=True), nullable=False))
    """The `PreemptionPlan`, with every way that was compared."""
    by_payer: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """A budget pays for `for_job` before it: their classes do not matter."""
    idle: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Nobody asked its engine: their classes do not matter."""
    frees_by: datetime = Field(sa_column=Column(DateTime(timezone=True), nullable=False))
    """When its GPUs will probably be free."""
    decided_at: datetime = Field(
        sa_column=Column(
            DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")
        )
    )
    changed_in: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    """The transaction that wrote it; kept by trigger."""


class CheckpointDecisionRow(SQLModel, table=True):
    """What was decided last about a save of a running attempt."""

    __tablename__: ClassVar[str] = "checkpoint_decisions"  # pyright: ignore[reportIncompatibleVariableOverride]

    job_id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    attempt: int
    decision: dict[str, Any] = Field(sa_column=Column(JSONB(none_as_null=True), nullable=False))
    """The `CheckpointDecision`, with every term."""
    decided_at: datetime = Field(sa_column=Column(DateTime(timezone=True), nullable=False))
