"""The rows of buying: purchases, their orders and machines, what may be committed, the ledger.

The constraints and triggers live in the migrations, as those of `models/records/tables.py`.
Amounts are micro-dollars.
"""

from datetime import date, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    Identity,
    Index,
    SmallInteger,
    Text,
    text,
)
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import default_of, json_column, time_column


class MarketSwitchRow(SQLModel, table=True):
    """One row: whether buying is stopped."""

    __tablename__: ClassVar[str] = "market_switch"  # pyright: ignore[reportIncompatibleVariableOverride]

    id: bool = Field(default=True, primary_key=True, sa_column_kwargs=default_of("true"))
    stopped: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs=default_of("''"))
    changed_at: datetime = Field(sa_column=time_column(default=True))


class PurchaseCapRow(SQLModel, table=True):
    """The most that may be committed: for one purchase, or on one day in UTC."""

    __tablename__: ClassVar[str] = "purchase_caps"  # pyright: ignore[reportIncompatibleVariableOverride]

    scope: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(
        default="*", primary_key=True, sa_type=Text, sa_column_kwargs=default_of("'*'")
    )
    """The pool, tier or tenant; `*` for each that has none of its own."""
    micro: int = Field(sa_type=BigInteger)


class PurchaseSumRow(SQLModel, table=True):
    """What was committed on a day; kept by trigger from the purchases of that day."""

    __tablename__: ClassVar[str] = "purchase_sums"  # pyright: ignore[reportIncompatibleVariableOverride]

    scope: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    day: date = Field(primary_key=True, sa_type=Date)
    committed: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))


class PurchaseRow(SQLModel, table=True):
    """A durable intent to buy capacity, and what came of it."""

    __tablename__: ClassVar[str] = "purchases"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("purchases_by_time", "created_at"),
        Index("purchases_renew_once", "renews", unique=True,
              postgresql_where=text("state NOT IN ('ENDED', 'REFUSED')")),
    )  # fmt: skip

    id: str = Field(primary_key=True, sa_type=Text)
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    tenant: str = Field(sa_type=Text)
    tier: str = Field(sa_type=Text)
    state: str = Field(sa_type=Text)
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs=default_of("''"))
    request: dict[str, Any] = Field(sa_column=json_column())
    decision: dict[str, Any] | None = Field(sa_column=json_column(nullable=True))
    planned: int = Field(sa_type=BigInteger)
    """The most that it can cost, by its request."""
    committed: int = Field(sa_type=BigInteger)
    """The most that it can still cost, with what it has cost. Counts towards the caps."""
    spent: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    day: date = Field(
        sa_type=Date, sa_column_kwargs=default_of("(clock_timestamp() AT TIME ZONE 'UTC')::date")
    )
    simulated: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    buying: bool = Field(default=True, sa_column_kwargs=default_of("true"))
    """More orders may come."""
    created_at: datetime = Field(sa_column=time_column(default=True))
    changed_at: datetime = Field(sa_column=time_column(default=True))
    ended_at: datetime | None = Field(sa_column=time_column(nullable=True))
    renews: str | None = Field(default=None, sa_type=Text)
    """The block whose machines are to go on in what is bought."""
    split: dict[str, int] | None = Field(sa_column=json_column(nullable=True))
    """By what weights tenants pay for it; `tenant` alone where there is none."""
    longer: dict[str, int] | None = Field(sa_column=json_column(nullable=True))
    """What of `committed` each tenant pays for longer times of machines: the database says it, by
    its orders. The split is of the rest."""
    longer_days: dict[str, dict[str, int]] | None = Field(sa_column=json_column(nullable=True))
    """What of that counts on other days than `day`, by the day on which it was committed."""


class PurchaseLookRow(SQLModel, table=True):
    """What was last seen of a job for which a purchase was made, while that was there."""

    __tablename__: ClassVar[str] = "purchase_looks"  # pyright: ignore[reportIncompatibleVariableOverride]

    purchase_id: str = Field(
        primary_key=True, foreign_key="purchases.id", ondelete="CASCADE", sa_type=Text
    )
    job_id: str = Field(primary_key=True, sa_type=Text)
    kept_back: bool
    """Whether nobody would have paid for the job, as for a quota."""


class OrderRow(SQLModel, table=True):
    """One order at a market, stored before it is sent: of a purchase, or to sell the rest of one
    machine's time."""

    __tablename__: ClassVar[str] = "orders"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("orders_numbers", "purchase_id", "number", unique=True),
        Index("orders_at_market", "provider", "side", "order_id", unique=True),
        Index("orders_refused", "closed_at", postgresql_where=text("refused_finally")),
        Index("sales_numbers", "block_id", "number", unique=True),
        Index("sales_once", "machine", unique=True,
              postgresql_where=text("side = 'sell' AND state <> 'UNSOLD'")),
    )  # fmt: skip

    key: str = Field(primary_key=True, sa_type=Text)
    """What the market knows it by; of one to buy also the id of the block that comes of it."""
    side: str = Field(default="buy", sa_type=Text, sa_column_kwargs=default_of("'buy'"))
    number: int
    """Of the orders of its purchase, or of the sales of its block, from 1."""
    provider: str = Field(sa_type=Text)
    account: str | None = Field(default=None, sa_type=Text)
    request: dict[str, Any] = Field(sa_column=json_column())
    """The order as it is sent, but for the start-up script."""
    state: str = Field(default="INTENT", sa_type=Text, sa_column_kwargs=default_of("'INTENT'"))
    sent_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """When it was sent first; what is not known to the market by then may still come."""
    order_id: str | None = Field(default=None, sa_type=Text)
    order_state: str | None = Field(default=None, sa_type=Text)
    starts_at: datetime | None = Field(sa_column=time_column(nullable=True))
    ends_at: datetime | None = Field(sa_column=time_column(nullable=True))
    refused: str = Field(default="", sa_type=Text, sa_column_kwargs=default_of("''"))
    simulated: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    created_at: datetime = Field(sa_column=time_column(default=True))
    closed_at: datetime | None = Field(sa_column=time_column(nullable=True))

    # Of an order to buy.
    purchase_id: str | None = Field(default=None, foreign_key="purchases.id", sa_type=Text)
    option: int | None = None
    is_machine: bool
    gpus_per_node: int | None = None
    nodes: int = Field(default=0, sa_column_kwargs=default_of("0"))
    """That were bought."""
    committed: int = Field(sa_type=BigInteger)
    spent: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    refused_finally: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    """Its seller will take no other order with this image either, its market none of this row."""
    longer: list[dict[str, Any]] | None = Field(sa_column=json_column(nullable=True))
    """Of a machine that went on: `split`, by what weights tenants pay for its time from `after`
    so many seconds, each until the next."""

    # Of an order to sell.
    block_id: str | None = Field(default=None, foreign_key="blocks.id", sa_type=Text)
    machine: str | None = Field(default=None, foreign_key="machines.name", sa_type=Text)
    fee_bps: int = Field(default=0, sa_column_kwargs=default_of("0"))
    fee_flat: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    """Micro-dollars for a node-hour."""
    proceeds: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    fee: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))


class MachineRow(SQLModel, table=True):
    """A machine at a market, stored before it is asked for; its node has its name."""

    __tablename__: ClassVar[str] = "machines"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("machines_at_market", "provider", "machine_id", "part", unique=True),
        Index("machines_by_block", "block_id"),
        Index("machines_by_purchase", "purchase_id"),
    )

    name: str = Field(primary_key=True, sa_type=Text)
    purchase_id: str = Field(foreign_key="purchases.id", sa_type=Text)
    block_id: str = Field(foreign_key="blocks.id", sa_type=Text)
    provider: str = Field(sa_type=Text)
    machine_id: str | None = Field(default=None, sa_type=Text)
    part: int = Field(default=0, sa_type=SmallInteger, sa_column_kwargs=default_of("0"))
    """Of the machines that are a cluster, and have one id at their market, which: from 0."""
    state: str = Field(default="INTENT", sa_type=Text, sa_column_kwargs=default_of("'INTENT'"))
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs=default_of("''"))
    asked_at: datetime | None = Field(sa_column=time_column(nullable=True))
    created_at: datetime = Field(sa_column=time_column(default=True))
    ended_at: datetime | None = Field(sa_column=time_column(nullable=True))
    sale_key: str | None = Field(default=None, sa_type=Text)
    """The sale that its time is in: nothing is placed on its node."""
    stop_reason: str | None = Field(default=None, sa_type=Text)
    """Why it was to be stopped, since before its market was asked: its node is gone, not lost."""
    tries: int = Field(default=0, sa_column_kwargs=default_of("0"))
    """How often its market refused to start it."""
    refused_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """When it did so last."""
    refused: str | None = Field(default=None, sa_type=Text)
    """Why, the last time."""
    started_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """When its market took the start, where that is not the order."""


class MarketRefusalRow(SQLModel, table=True):
    """A market that does not let our key buy or start, or whose account has too little money,
    until it takes something again."""

    __tablename__: ClassVar[str] = "market_refusals"  # pyright: ignore[reportIncompatibleVariableOverride]

    provider: str = Field(primary_key=True, sa_type=Text)
    reason: str = Field(sa_type=Text)
    times: int
    """In a row; those of one minute are one."""
    at: datetime = Field(sa_column=time_column())
    for_funds: bool = Field(default=False, sa_column_kwargs=default_of("false"))


class BlockNodeRow(SQLModel, table=True):
    """A node that goes, or went, from one block to the next, whose time follows."""

    __tablename__: ClassVar[str] = "block_nodes"  # pyright: ignore[reportIncompatibleVariableOverride]

    block_id: str = Field(primary_key=True, foreign_key="blocks.id", sa_type=Text)
    node_id: str = Field(primary_key=True, sa_type=Text)
    next_block: str = Field(foreign_key="blocks.id", sa_type=Text)
    handed_over_at: datetime | None = Field(sa_column=time_column(nullable=True))


class LedgerRow(SQLModel, table=True):
    """Money that went from the account `credit` to the account `debit`. Never rewritten."""

    __tablename__: ClassVar[str] = "ledger"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("ledger_once", "reference", unique=True),
        Index("ledger_by_block", "block_id"),
        Index("ledger_by_purchase", "purchase_id"),
    )

    id: int | None = Field(
        default=None, sa_column=Column(BigInteger, Identity(), primary_key=True)
    )
    at: datetime = Field(sa_column=time_column(default=True))
    kind: str = Field(sa_type=Text)
    debit: str = Field(sa_type=Text)
    """`block:ID`, `job:ID`, `idle:BLOCK`, `market:PROVIDER`, `fee:PROVIDER`."""
    credit: str = Field(sa_type=Text)
    micro: int = Field(sa_type=BigInteger)
    purchase_id: str | None = Field(default=None, foreign_key="purchases.id", sa_type=Text)
    block_id: str | None = Field(default=None, foreign_key="blocks.id", sa_type=Text)
    reference: str = Field(sa_type=Text)
    """What it is for; makes a repeat of a step find it."""
    simulated: bool
