"""The rows of pools, blocks and nodes in the capacity database. Those of jobs are in `jobs.py`.

The constraints and triggers that make the database refuse live in the migrations
(`models/records/migrations`); `tests/activities/test_migrations.py` holds these classes and the
migrations equal.
"""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import json_column, time_column


class PoolRow(SQLModel, table=True):
    """A queue with its own nodes and policy."""

    __tablename__: ClassVar[str] = "pools"  # pyright: ignore[reportIncompatibleVariableOverride]

    name: str = Field(primary_key=True, sa_type=Text)
    spec: dict[str, Any] = Field(sa_column=json_column())
    poked: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Somebody has signalled the pool's workflow since its last cycle began."""
    buying_decision: dict[str, Any] | None = Field(
        default=None, sa_column=json_column(nullable=True)
    )
    """What was decided last about buying for it."""
    left_trimmed: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    """The highest transaction of a row of `queue_left` that is there no more."""
    counted: int | None = Field(default=None, sa_type=BigInteger)
    """The jobs of its queue, held ones too, as a snapshot showed them, and"""
    counted_in: str | None = Field(default=None, sa_type=Text)
    """this snapshot; null where nobody has noted it."""
    counted_on: str | None = Field(default=None, sa_type=Text)
    """The run of the server that numbered the transactions in it."""
    created_at: datetime = Field(sa_column=time_column(default=True))


class BlockRow(SQLModel, table=True):
    """A contract with a provider."""

    __tablename__: ClassVar[str] = "blocks"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("blocks_by_purchase", "purchase_id"),
        Index("blocks_live", "pool", postgresql_where=text("state <> 'ENDED'")),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    provider: str = Field(sa_type=Text)
    instance_type: str = Field(sa_type=Text)
    tier: str = Field(sa_type=Text)
    starts_at: datetime | None = Field(sa_column=time_column(nullable=True))
    ends_at: datetime | None = Field(sa_column=time_column(nullable=True))
    price_micro_per_gpu_hour: int = Field(sa_type=BigInteger)
    created_at: datetime = Field(sa_column=time_column(default=True))
    purchase_id: str | None = Field(default=None, foreign_key="purchases.id", sa_type=Text)
    pool: str | None = Field(default=None, sa_type=Text)
    state: str = Field(
        default="OPEN", sa_type=Text, sa_column_kwargs={"server_default": text("'OPEN'")}
    )
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """Why it ends, or ended."""
    nodes: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    gpus_per_node: int = Field(default=8, sa_column_kwargs={"server_default": text("8")})
    account: str | None = Field(default=None, sa_type=Text)
    """Where the bought time is at its market."""
    place: str | None = Field(default=None, sa_type=Text)
    """Where its machines are, at a market that fills an order in one place."""
    decision: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True)
    )
    """What was decided about it last: every option with its price."""
    decided_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    tried_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """When a sale or a renewal of it was tried last."""
    woken_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """When it was told last that it has lost its work."""
    simulated: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    ended_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class NodeRow(SQLModel, table=True):
    """One machine. What is used of it, `cpu_milli_used` and the like, is kept by trigger from its
    placements."""

    __tablename__: ClassVar[str] = "nodes"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("nodes_by_pool", "pool"),
        Index("nodes_by_change", "changed_in"),
        Index("nodes_by_block", "block_id", postgresql_where=text("block_id IS NOT NULL")),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    block_id: str | None = Field(default=None, foreign_key="blocks.id", sa_type=Text)
    provider: str = Field(sa_type=Text)
    tier: str = Field(sa_type=Text)
    state: str = Field(sa_type=Text)
    state_reason: str = Field(default="", sa_type=Text)
    state_since: datetime = Field(sa_column=time_column(default=True))
    drain_reason: str | None = Field(default=None, sa_type=Text)
    """Set as long as somebody wants it drained, over restarts of its agent."""
    clearing: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Besides taking no new job: those that run there are to leave."""
    epoch: int
    agent_id: str = Field(sa_type=Text)
    boot_id: str = Field(sa_type=Text)
    hostname: str = Field(sa_type=Text)
    address: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """Where other nodes reach it."""
    agent_version: str = Field(sa_type=Text)
    agent_protocol: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """What it speaks (`models.protocol`); 0 also where it registered before that was kept."""
    simulated: bool
    gpu_type: str = Field(sa_type=Text)
    container_runtime: str | None = Field(default=None, sa_type=Text)
    cpu_milli: int = Field(sa_type=BigInteger)
    cpu_milli_used: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    ram_mb: int = Field(sa_type=BigInteger)
    ram_mb_used: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    storage_mb_s: int | None = Field(default=None, sa_type=BigInteger)
    """Storage bandwidth; null where it is not limited."""
    storage_mb_s_used: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    milliwatts: int | None = Field(default=None, sa_type=BigInteger)
    """Power budget; null where there is none."""
    milliwatts_used: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    gpu_milliwatts: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    """What one of its GPUs may draw; 0 where that is not known."""
    labels: dict[str, str] = Field(sa_column=json_column())
    topology: dict[str, Any] | None = Field(sa_column=json_column(nullable=True))
    conformance: str | None = Field(default=None, sa_type=Text)
    accepted: str | None = Field(default=None, sa_type=Text)
    """The fingerprint that counts for jobs which hold a node alone: the first that it had, until
    somebody accepts another."""
    held_alone_by: str | None = Field(default=None, foreign_key="jobs.id", sa_type=Text)
    """The job that holds it alone; kept by trigger from its placements."""
    firmware: list[dict[str, Any]] | None = Field(sa_column=json_column(nullable=True))
    """What of its host's firmware is in that fingerprint, and what could not be read; null where
    its agent has not said."""
    expires_at: datetime | None = Field(sa_column=time_column(nullable=True))
    registered_at: datetime = Field(sa_column=time_column(default=True))
    """Its epoch of now."""
    came_at: datetime = Field(sa_column=time_column(default=True))
    """Its first one."""
    changed_in: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    """The transaction that last changed it, its GPUs, or who holds them; kept by trigger."""


class GpuRow(SQLModel, table=True):
    """One GPU. What is used of it, and in which way, is kept by trigger from the live leases."""

    __tablename__: ClassVar[str] = "gpus"  # pyright: ignore[reportIncompatibleVariableOverride]

    node_id: str = Field(primary_key=True, foreign_key="nodes.id", sa_type=Text)
    index: int = Field(primary_key=True)
    model: str = Field(sa_type=Text)
    uuid: str = Field(sa_type=Text)
    vram_mb: int = Field(sa_type=BigInteger)
    vram_mb_used: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    kind: str | None = Field(default=None, sa_type=Text)
    """How it is leased: whole, share or mig; null where nothing is."""
    milli_used: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """Thousandths; 1000 for a whole lease."""
    mig: dict[str, list[int]] | None = Field(sa_column=json_column(nullable=True))
    """Set in MIG mode: the positions of each profile, as sets of slices."""
    mig_instances: list[dict[str, Any]] | None = Field(sa_column=json_column(nullable=True))
    """Those that the agent found there."""
    slices_used: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """In MIG mode: the set of slices that are leased."""
    borrowed_by: str | None = Field(default=None, foreign_key="jobs.id", sa_type=Text)
    """The job to which it is lent as a spare; kept by trigger."""


class NodeDataRow(SQLModel, table=True):
    """What a node holds: by its agent's word (`held`), or by what jobs named and used there."""

    __tablename__: ClassVar[str] = "node_data"  # pyright: ignore[reportIncompatibleVariableOverride]

    node_id: str = Field(primary_key=True, foreign_key="nodes.id", sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    tenant: str = Field(
        default="", primary_key=True, sa_type=Text, sa_column_kwargs={"server_default": text("''")}
    )
    """Whose it is; empty for what all may use."""
    source: str = Field(
        default="", primary_key=True, sa_type=Text, sa_column_kwargs={"server_default": text("''")}
    )
    """Where it was fetched."""
    used_at: datetime = Field(sa_column=time_column(default=True))
    bytes: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    total: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    held: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
