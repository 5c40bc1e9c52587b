"""Tables of services, their revisions and replicas. Where a replica runs is on record with its
job."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import default_of, time_column


class ServiceRow(SQLModel, table=True):
    """A service. Whoever changes it, or its replicas, locks its row first."""

    __tablename__: ClassVar[str] = "services"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        ForeignKeyConstraint(
            ["name", "revision"], ["service_revisions.service", "service_revisions.number"],
            deferrable=True, initially="DEFERRED", name="services_have_their_revision",
            use_alter=True,
        ),
        CheckConstraint("replicas >= 0", name="replicas_are_counted"),
        CheckConstraint(
            "state IN ('RUNNING', 'REMOVING', 'REMOVED')", name="services_have_a_state"
        ),
    )  # fmt: skip

    name: str = Field(primary_key=True, sa_type=Text)
    state: str = Field(sa_type=Text, sa_column_kwargs=default_of("'RUNNING'"))
    revision: int
    """The one that its replicas are to be of."""
    replicas: int
    """How many are wanted."""
    model: str | None = Field(default=None, foreign_key="models.name", sa_type=Text)
    """The model of its revision, which nobody may remove meanwhile; null of a service that is
    over, and of a revision whose model was removed before."""
    message: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    created_at: datetime = Field(sa_column=time_column(default=True))
    updated_at: datetime = Field(sa_column=time_column(default=True))


class ServiceRevisionRow(SQLModel, table=True):
    """What a service was to be like at one time; never rewritten."""

    __tablename__: ClassVar[str] = "service_revisions"  # pyright: ignore[reportIncompatibleVariableOverride]

    service: str = Field(primary_key=True, foreign_key="services.name", sa_type=Text)
    number: int = Field(primary_key=True)
    spec: dict[str, Any] = Field(sa_column=Column(JSONB(none_as_null=True), nullable=False))
    """The `ServiceSpec`."""
    engine: dict[str, Any] = Field(sa_column=Column(JSONB(none_as_null=True), nullable=False))
    """The `EngineSpec`: the model and its runtime as they were then."""
    model_revision: int
    created_at: datetime = Field(sa_column=time_column(default=True))
    ready_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """When a replica of it was ready first."""
    failures: int = Field(default=0, sa_column_kwargs=default_of("0"))
    """Engines of it that failed."""
    undone: str | None = Field(default=None, sa_type=Text)
    """Why it was undone."""
    sizes: list[dict[str, Any]] | None = Field(
        default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True)
    )
    """On how many GPUs an engine may run, and the MB on each, the fewest first; null where it is
    what `engine` says."""


class ReplicaRow(SQLModel, table=True):
    """One replica: the job that runs an engine, and what that engine said last."""

    __tablename__: ClassVar[str] = "replicas"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        ForeignKeyConstraint(
            ["service", "revision"], ["service_revisions.service", "service_revisions.number"]
        ),
        Index("replicas_live", "service", postgresql_where=text("ended_at IS NULL")),
        Index("replicas_by_revision", "service", "revision", "ended_at"),
        CheckConstraint(
            "stage IN ('loading', 'ready', 'draining', 'failed')", name="engines_have_a_stage"
        ),
        CheckConstraint("memory >= 0", name="memory_is_counted"),
        CheckConstraint("uses >= 0", name="uses_are_counted"),
    )

    job_id: str = Field(primary_key=True, sa_type=Text)
    service: str = Field(sa_type=Text)
    revision: int
    created_at: datetime = Field(sa_column=time_column(default=True))
    started: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    """Whether the workflow of its job is known to be there."""
    stopping_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """From when on it takes no more requests."""
    stop_reason: str | None = Field(default=None, sa_type=Text)
    cancel_sent: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    attempt: int = Field(default=0, sa_column_kwargs=default_of("0"))
    """The attempt of its job of which the engine is."""
    stage: str | None = Field(default=None, sa_type=Text)
    endpoint: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    memory: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    """Bytes that the engine really takes."""
    load_seconds: float = Field(default=0, sa_type=Double, sa_column_kwargs=default_of("0"))
    failures: int = Field(default=0, sa_column_kwargs=default_of("0"))
    message: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """Why an engine of it failed last; empty once one is ready."""
    ready_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    waits: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """For whom the engine waits before it loads; empty where it waits for nobody."""
    ended_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    idle_since: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    """Since when nobody has asked it anything; null while it is in use, as far as is known."""
    uses: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    """How often this engine was asked after a pause."""
