"""The rows of jobs in the capacity database: their record, the queue, placements and leases."""

from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import json_column, span_column, time_column


class JobRow(SQLModel, table=True):
    """The record of a job: what was asked, and how it ended. What it does now, Temporal knows."""

    __tablename__: ClassVar[str] = "jobs"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("jobs_by_submission", text("submitted_at DESC"), "id"),
        Index("jobs_by_name", "name", text("submitted_at DESC"), "id"),
        Index("jobs_by_key", "tenant", "name", "key", unique=True,
              postgresql_where=text("key IS NOT NULL")),
        Index("jobs_by_snapshot", "tenant",
              text("(((spec -> 'code'::text) ->> 'snapshot'::text))"),
              postgresql_where=text("spec->'code'->>'snapshot' IS NOT NULL")),
        Index("jobs_handed_to", "handed_to", unique=True,
              postgresql_where=text("handed_to IS NOT NULL")),
        Index("jobs_to_hand_on", "tenant", "name", "ended_at",
              postgresql_where=text("ended_at IS NOT NULL AND handed_to IS NULL")),
        Index("jobs_with_deadline", "pool",
              postgresql_where=text("deadline_at IS NOT NULL AND late_since IS NULL"
                                    " AND ended_at IS NULL")),
        Index("jobs_by_label", text("(spec -> 'labels')"), postgresql_using="gin",
              postgresql_where=text("(spec -> 'labels') IS NOT NULL")),
    )  # fmt: skip

    id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    tenant: str = Field(sa_type=Text)
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    key: str | None = Field(default=None, sa_type=Text)
    spec: dict[str, Any] = Field(sa_column=json_column())
    submitted_at: datetime = Field(sa_column=time_column())
    ended_at: datetime | None = Field(sa_column=time_column(nullable=True))
    end_state: str | None = Field(default=None, sa_type=Text)
    failure: str | None = Field(default=None, sa_type=Text)
    exit_code: int | None = None
    message: str = Field(default="", sa_type=Text)
    attempts: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    begins_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """From when on it may be placed; None where that was at once."""
    deadline_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """By when it should have ended; None where it says nothing."""
    late_since: datetime | None = Field(sa_column=time_column(nullable=True))
    """When a cycle first found that it would end after that, as it waits."""
    handed_to: str | None = Field(default=None, sa_type=Text)
    """The job of the same tenant and name that came soon after its end, and took over the time
    that it had held GPUs: in the order of its queue the two are one."""
    shape: str | None = Field(default=None, sa_type=Text)
    """What it asks for, as far as that tells how long it runs; None where nothing is learnt from
    it."""


class RunTimeRow(SQLModel, table=True):
    """How long a job ran that succeeded. The last ones of each key stay."""

    __tablename__: ClassVar[str] = "run_times"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("run_times_by_key", "tenant", "name", "shape", text("ended_at DESC"),
              postgresql_include=["seconds"]),
        Index("run_times_by_end", "ended_at"),
    )  # fmt: skip

    job_id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    tenant: str = Field(sa_type=Text)
    name: str = Field(sa_type=Text)
    """Of a job of a DAG with the DAG's before it."""
    shape: str = Field(sa_type=Text)
    ended_at: datetime = Field(sa_column=time_column())
    seconds: float
    """It held GPUs, over all attempts, as far as later ones went on from that."""


class QueueRow(SQLModel, table=True):
    """A job that waits for a placement; gone once it has one."""

    __tablename__: ClassVar[str] = "queue"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("queue_order", "pool", text("priority DESC"), "submitted_at"),
        Index("queue_by_change", "pool", "written_in"),
        Index("queue_held", "pool", postgresql_where=text("held")),
        Index("queue_set_aside", "pool",
              postgresql_where=text("NOT held AND decision->>'kind' = 'SET_ASIDE'")),
        Index("queue_waits_for_price", "pool", postgresql_where=text("price_since IS NOT NULL")),
        Index("queue_start_below", "pool", postgresql_where=text("start_below IS NOT NULL")),
    )  # fmt: skip

    job_id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    attempt: int
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    held: bool
    begin_only: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """It is held for its `begin` alone: nobody holds it."""
    start_below: int | None = Field(default=None, sa_type=BigInteger)
    """Micro-dollars for a GPU-hour: it starts only while the price of its pool is below this."""
    price_since: datetime | None = Field(sa_column=time_column(nullable=True))
    """Since when it is held for its price alone; None where it is not."""
    priority: int
    request: dict[str, Any] = Field(sa_column=json_column())
    submitted_at: datetime = Field(sa_column=time_column())
    queued_at: datetime = Field(sa_column=time_column(default=True))
    waited: timedelta = Field(sa_column=span_column())
    """In the queue before that, over all attempts and without holds."""
    attained: timedelta = Field(sa_column=span_column())
    """For how long earlier attempts held its GPUs, as far as the next one goes on from that."""
    can_stop: bool | None = None
    duration_known: bool | None = None
    """What the order of the queue asks besides; None in rows of before 0042."""
    learnt: dict[str, Any] | None = Field(sa_column=json_column(nullable=True))
    """How long those before it ran, as was known when it came (`models.durations.Learnt`)."""
    tenant: str | None = Field(default=None, sa_type=Text)
    """Whose job it is; None where a worker of before 0047 has put it there."""
    decision: dict[str, Any] | None = Field(sa_column=json_column(nullable=True))
    """What the last cycle said of it, and why."""
    decided_at: datetime | None = Field(sa_column=time_column(nullable=True))
    told_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """When its workflow last heard why it waits, and what it heard."""
    told_reason: str | None = Field(default=None, sa_type=Text)
    spared: list[dict[str, Any]] | None = Field(sa_column=json_column(nullable=True))
    """Running jobs that may not be stopped for it yet, and from when on each may."""
    kept_back_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """Of the last purchase for it, by and for workers from before `purchase_looks`."""
    preparing: dict[str, Any] | None = Field(sa_column=json_column(nullable=True))
    """Where its workflow was last told to prepare it: nodes, expected start, when and by which
    cycle."""
    changed_in: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    """The transaction that last changed what a cycle plans with; kept by trigger."""
    written_in: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    """The one that last wrote anything of it; kept by trigger."""
    came_in: int = Field(
        default=None, sa_type=BigInteger,
        sa_column_kwargs={"server_default": text("this_transaction()")},
    )  # fmt: skip
    """The one that put it here."""


class StartEstimateRow(SQLModel, table=True):
    """What a job that waits was told first of the start of an attempt. How it came is in its
    placement."""

    __tablename__: ClassVar[str] = "start_estimates"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (Index("start_estimates_by_pool", "pool", "made_at"),)

    job_id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    attempt: int = Field(primary_key=True)
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    made_at: datetime = Field(sa_column=time_column())
    starts_at: datetime = Field(sa_column=time_column())
    earliest: datetime | None = Field(sa_column=time_column(nullable=True))
    latest: datetime | None = Field(sa_column=time_column(nullable=True))
    """Between when and when it was told to come, where that was told."""
    kept_until: datetime | None = Field(sa_column=time_column(nullable=True))
    """When the first start was to have come, at the latest, for which a place was kept."""


class QueueLeftRow(SQLModel, table=True):
    """A job that left a queue a short while ago; written by trigger."""

    __tablename__: ClassVar[str] = "queue_left"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (Index("queue_left_by_change", "pool", "changed_in"),)

    id: int | None = Field(
        default=None, sa_column=Column(BigInteger, Identity(), primary_key=True)
    )
    job_id: str = Field(sa_type=Text)
    pool: str = Field(sa_type=Text)
    changed_in: int = Field(sa_type=BigInteger)
    """The transaction that removed it, and"""
    came_in: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    """the one that put it there."""
    left_at: datetime = Field(sa_column=time_column(default=True))


class CycleRow(SQLModel, table=True):
    """One committed cycle of a pool; its id makes a retry of the activity find it."""

    __tablename__: ClassVar[str] = "cycles"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (Index("cycles_by_time", "pool", "committed_at"),)

    id: str = Field(primary_key=True, sa_type=Text)
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    committed_at: datetime = Field(sa_column=time_column(default=True))
    queued: int
    placed: int
    refused: int
    """Placements that no longer held when they were committed."""
    took_ms: float
    looked_at: int | None = None
    """Jobs that it decided about; null, as the times of its parts, for one of an old version."""
    read_ms: float | None = None
    plan_ms: float | None = None
    commit_ms: float | None = None
    explain_ms: float | None = None


class PlacementRow(SQLModel, table=True):
    """What one attempt of a job has of one node, with the decision's terms.

    A gang has one on each of its nodes, told apart by rank. Ends once, with its leases.
    """

    __tablename__: ClassVar[str] = "placements"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("placements_by_cycle", "cycle_id"),
        Index("placements_by_node", "node_id", "epoch"),
        Index("placements_live", "job_id", "rank", unique=True,
              postgresql_where=text("ended_at IS NULL")),
        Index("placements_one_rank_per_node", "job_id", "attempt", "node_id", unique=True,
              postgresql_where=text("ended_at IS NULL")),
        Index("placements_by_end", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("placements_borrowing", "borrowed_from",
              postgresql_where=text("borrowed_from IS NOT NULL AND ended_at IS NULL")),
        Index("placements_lendable", "node_id",
              postgresql_where=text("lendable AND ended_at IS NULL")),
    )  # fmt: skip

    job_id: str = Field(primary_key=True, foreign_key="jobs.id", sa_type=Text)
    attempt: int = Field(primary_key=True)
    rank: int = Field(default=0, primary_key=True, sa_column_kwargs={"server_default": text("0")})
    """Of the node in its gang; 0 where there is no other. Spares follow."""
    spare: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """It stands by for the gang: nothing runs there."""
    lendable: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """A spare on which another job may run until it is needed."""
    borrowed_from: str | None = Field(default=None, foreign_key="jobs.id", sa_type=Text)
    """The gang on whose spare it began. Until it keeps that, the spare holds what it uses."""
    kept_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """From when on it has held these GPUs itself: the gang held them no more."""
    joined: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """It came to the attempt while that ran. Its number follows all that the attempt has had."""
    cycle_id: str = Field(foreign_key="cycles.id", sa_type=Text)
    node_id: str = Field(foreign_key="nodes.id", sa_type=Text)
    epoch: int
    gpu_indices: list[int] = Field(sa_column=Column(ARRAY(Integer), nullable=False))
    """All that it holds."""
    alone: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """No other job may be on the node."""
    idle: list[int] = Field(
        sa_column=Column(ARRAY(Integer), nullable=False, server_default=text("'{}'"))
    )
    """Of its GPUs those that it holds for that alone: its process does not see them."""
    cpu_milli: int = Field(sa_type=BigInteger)
    ram_mb: int = Field(sa_type=BigInteger)
    storage_mb_s: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    milliwatts: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")}
    )
    vram_mb: int = Field(sa_type=BigInteger)
    """Per GPU."""
    milli: int = Field(default=1000, sa_column_kwargs={"server_default": text("1000")})
    """Thousandths of its GPU; 1000 for whole GPUs, 0 for a MIG instance."""
    slices: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """Of a MIG instance, its set of slices."""
    mig_profile: str | None = Field(default=None, sa_type=Text)
    expected_seconds: float
    decision: dict[str, Any] = Field(sa_column=json_column())
    placed_at: datetime = Field(sa_column=time_column(default=True))
    waited: timedelta = Field(sa_column=span_column())
    """In the queue until then, over all attempts and without holds."""
    attained: timedelta = Field(sa_column=span_column())
    """As its queue had it: of the attempts before this one."""
    learnt: dict[str, Any] | None = Field(sa_column=json_column(nullable=True))
    """As its queue had it."""
    ended_at: datetime | None = Field(sa_column=time_column(nullable=True))
    end_reason: str | None = Field(default=None, sa_type=Text)
    end_message: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})


class LeaseRow(SQLModel, table=True):
    """This job holds this GPU of this node, or a part of it, from, to, and why it ended.

    Never rewritten.
    """

    __tablename__: ClassVar[str] = "leases"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("leases_one_per_gpu", "node_id", "gpu_index", unique=True,
              postgresql_where=text(
                  "ended_at IS NULL AND milli = 1000 AND borrowed_from IS NULL")),
        Index("leases_one_borrower_per_gpu", "node_id", "gpu_index", unique=True,
              postgresql_where=text("ended_at IS NULL AND borrowed_from IS NOT NULL")),
        Index("leases_by_gpu", "node_id", "gpu_index", postgresql_where=text("ended_at IS NULL")),
        Index("leases_by_job", "job_id", "attempt", "rank"),
        ForeignKeyConstraint(
            ["job_id", "attempt", "rank"],
            ["placements.job_id", "placements.attempt", "placements.rank"],
        ),
    )  # fmt: skip

    id: int | None = Field(
        default=None, sa_column=Column(BigInteger, Identity(), primary_key=True)
    )
    job_id: str = Field(sa_type=Text)
    attempt: int
    rank: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    node_id: str = Field(foreign_key="nodes.id", sa_type=Text)
    epoch: int
    gpu_index: int
    vram_mb: int = Field(sa_type=BigInteger)
    milli: int = Field(default=1000, sa_column_kwargs={"server_default": text("1000")})
    """Thousandths of its GPU; 1000 for whole GPUs, 0 for a MIG instance."""
    slices: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """Of a MIG instance, its set of slices."""
    mig_profile: str | None = Field(default=None, sa_type=Text)
    tenant: str = Field(sa_type=Text)
    borrowed_from: str | None = Field(default=None, foreign_key="jobs.id", sa_type=Text)
    """The gang whose spare it is, which holds a lease of its own, and pays."""
    started_at: datetime = Field(sa_column=time_column(default=True))
    ended_at: datetime | None = Field(sa_column=time_column(nullable=True))
    end_reason: str | None = Field(default=None, sa_type=Text)
