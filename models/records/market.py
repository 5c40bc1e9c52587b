"""The rows of the memory of markets: books, and what was recommended on them.

The constraints live in the migrations, as those of `models/records/tables.py`. Prices are
micro-dollars per GPU-hour.
"""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Column, ForeignKey, Identity, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import time_column


def _id() -> Any:
    return Column(BigInteger, Identity(), primary_key=True)


def _refers_to(table: str) -> Any:
    return Column(BigInteger, ForeignKey(f"{table}.id", ondelete="SET NULL"), nullable=True)


class MarketBookRow(SQLModel, table=True):
    """Asks and bids of one type at one market at one moment: sums, and the first levels."""

    __tablename__: ClassVar[str] = "market_books"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("market_books_once", "provider", "instance_type", "window_start", "window_end",
              "observed_at", unique=True, postgresql_nulls_not_distinct=True),
        Index("market_books_one_a_look", "look", "provider", "instance_type", unique=True,
              postgresql_where=text("look IS NOT NULL")),
        Index("market_books_by_time", "observed_at"),
    )  # fmt: skip

    id: int | None = Field(default=None, sa_column=_id())
    provider: str = Field(sa_type=Text)
    instance_type: str = Field(sa_type=Text)
    window_start: datetime | None = Field(sa_column=time_column(nullable=True))
    window_end: datetime | None = Field(sa_column=time_column(nullable=True))
    observed_at: datetime = Field(sa_column=time_column())
    simulated: bool
    look: str | None = Field(default=None, sa_type=Text)
    """The look of the watch that stored it: repeated, a look stores nothing more."""
    best_ask: int | None = Field(default=None, sa_type=BigInteger)
    best_bid: int | None = Field(default=None, sa_type=BigInteger)
    ask_gpus: int = Field(sa_type=BigInteger)
    bid_gpus: int = Field(sa_type=BigInteger)
    levels: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    """The best asks and bids."""
    kept: str = Field(
        default="all", sa_type=Text, sa_column_kwargs={"server_default": text("'all'")}
    )
    """`hour`: the one of its hour that stayed when older books were thinned out."""


class MarketRecommendationRow(SQLModel, table=True):
    """A limit that was recommended, and the market's prices at that moment."""

    __tablename__: ClassVar[str] = "market_recommendations"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("market_recommendations_once", "provider", "instance_type", "gpus", "window_start",
              "window_end", "made_at", "source", unique=True,
              postgresql_nulls_not_distinct=True),
        Index("market_recommendations_by_book", "book_id"),
        Index("market_recommendations_by_time", "made_at"),
    )  # fmt: skip

    id: int | None = Field(default=None, sa_column=_id())
    provider: str = Field(sa_type=Text)
    instance_type: str = Field(sa_type=Text)
    gpus: int = Field(sa_type=BigInteger)
    window_start: datetime | None = Field(sa_column=time_column(nullable=True))
    window_end: datetime | None = Field(sa_column=time_column(nullable=True))
    made_at: datetime = Field(sa_column=time_column())
    """When its book was observed."""
    limit: int = Field(sa_type=BigInteger)
    marginal: int | None = Field(default=None, sa_type=BigInteger)
    average: int | None = Field(default=None, sa_type=BigInteger)
    sufficient: bool
    index: int = Field(sa_type=BigInteger)
    source: str = Field(sa_type=Text)
    book_id: int | None = Field(default=None, sa_column=_refers_to("market_books"))
    simulated: bool
    kept: str = Field(
        default="all", sa_type=Text, sa_column_kwargs={"server_default": text("'all'")}
    )


class MarketFillRow(SQLModel, table=True):
    """Of no use any more: nothing writes it. A worker of an earlier version reads it."""

    __tablename__: ClassVar[str] = "market_fills"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("market_fills_by_time", "provider", "instance_type", "at"),
        Index("market_fills_by_recommendation", "recommendation_id"),
    )

    order_id: str = Field(primary_key=True, sa_type=Text)
    provider: str = Field(primary_key=True, sa_type=Text)
    instance_type: str = Field(sa_type=Text)
    gpus: int = Field(sa_type=BigInteger)
    price: int = Field(sa_type=BigInteger)
    at: datetime = Field(sa_column=time_column())
    recommendation_id: int | None = Field(
        default=None, sa_column=_refers_to("market_recommendations")
    )
    simulated: bool
