"""The rows of what is known of checkpoints. The constraints live in the migrations."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Text
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import time_column


class JobCheckpointRow(SQLModel, table=True):
    """A whole checkpoint of a job, as it was seen in the checkpoint store."""

    __tablename__: ClassVar[str] = "job_checkpoints"  # pyright: ignore[reportIncompatibleVariableOverride]

    job_id: str = Field(sa_column=Column(Text, ForeignKey("jobs.id"), primary_key=True))
    attempt: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    """Of the attempt's checkpoints, from 1."""
    step: int | None = Field(default=None, sa_type=BigInteger)
    ranks: int
    bytes: int = Field(sa_type=BigInteger)
    """Of all ranks."""
    write_seconds: float | None = Field(default=None, sa_type=Float)
    """Of the slowest rank."""
    saved_at: datetime = Field(sa_column=time_column())
    simulated: bool
