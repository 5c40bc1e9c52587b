"""The rows of prices over time: one series for each pool that names a price."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Text
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import time_column


class PriceSeriesRow(SQLModel, table=True):
    """What was read of the price of a pool."""

    __tablename__: ClassVar[str] = "price_series"  # pyright: ignore[reportIncompatibleVariableOverride]

    pool: str = Field(primary_key=True, foreign_key="pools.name", sa_type=Text)
    source: str = Field(sa_type=Text)
    """As the settings of the pool named it then."""
    whence: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    ends_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """When its last price ends; None where it could not be read yet."""
    read_at: datetime | None = Field(sa_column=time_column(nullable=True))
    tried_at: datetime = Field(sa_column=time_column())
    trouble: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """Why it could not be read since then."""


class PricePointRow(SQLModel, table=True):
    """From when on a GPU-hour costs so many micro-dollars."""

    __tablename__: ClassVar[str] = "price_points"  # pyright: ignore[reportIncompatibleVariableOverride]

    pool: str = Field(
        sa_column=Column(
            Text, ForeignKey("price_series.pool", ondelete="CASCADE"), primary_key=True
        )
    )
    at: datetime = Field(sa_column=Column(DateTime(timezone=True), primary_key=True))
    price: int = Field(sa_type=BigInteger)
