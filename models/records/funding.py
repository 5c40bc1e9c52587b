"""Tables of tenants, budgets and charges. GPUs are counted in thousandths.

The rules are in the migrations.
"""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel

from longshore.models.records.columns import default_of, time_column


def _object() -> Any:
    return Column(JSONB(none_as_null=True), nullable=False, server_default=text("'{}'"))


class TenantRow(SQLModel, table=True):
    """A tenant that somebody has told something about. Others have neither parent nor budget."""

    __tablename__: ClassVar[str] = "tenants"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("tenants_by_parent", "parent"),
        Index("tenants_with_quotas", "name", postgresql_where=text("quotas <> '{}'")),
        Index("tenants_with_budget", "name", postgresql_where=text("budget_since IS NOT NULL")),
    )

    name: str = Field(primary_key=True, sa_type=Text)
    parent: str | None = Field(default=None, foreign_key="tenants.name", sa_type=Text)
    shares: float = Field(default=1.0, sa_type=Double, sa_column_kwargs=default_of("1"))
    quotas: dict[str, Any] = Field(sa_column=_object())
    """Those of `models.funding.Quotas` that are set."""
    budget_since: datetime | None = Field(sa_column=time_column(nullable=True))
    """From when on it has a budget; without one it pays for all that it uses."""
    money_per_day: int | None = Field(default=None, sa_type=BigInteger)
    money_per_month: int | None = Field(default=None, sa_type=BigInteger)
    """Micro-dollars that purchases for it and those below it may cost."""
    created_at: datetime = Field(sa_column=time_column(default=True))


class EnvelopeRow(SQLModel, table=True):
    """A claim of a tenant to so many GPUs at one time. It is removed, and never deleted."""

    __tablename__: ClassVar[str] = "envelopes"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("envelopes_live", "tenant", "name", unique=True,
              postgresql_where=text("removed_at IS NULL")),
    )  # fmt: skip

    id: int | None = Field(
        default=None, sa_column=Column(BigInteger, Identity(), primary_key=True)
    )
    tenant: str = Field(foreign_key="tenants.name", sa_type=Text)
    name: str = Field(sa_type=Text)
    gpu_type: str | None = Field(default=None, sa_type=Text)
    pool: str | None = Field(default=None, sa_type=Text)
    labels: dict[str, str] = Field(sa_column=_object())
    milli: int = Field(sa_type=BigInteger)
    starts_at: datetime = Field(sa_column=time_column(default=True))
    ends_at: datetime | None = Field(sa_column=time_column(nullable=True))
    """None: never."""
    sharing: str = Field(default="family", sa_type=Text, sa_column_kwargs=default_of("'family'"))
    lend_to: list[str] = Field(
        sa_column=Column(ARRAY(Text), nullable=False, server_default=text("'{}'"))
    )
    lend_milli: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    used: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    lent: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    """What its open charges sum up to, and those that are loans; kept by trigger."""
    created_at: datetime = Field(sa_column=time_column(default=True))
    removed_at: datetime | None = Field(sa_column=time_column(nullable=True))


class FundingCapRow(SQLModel, table=True):
    """A joint limit over several envelopes."""

    __tablename__: ClassVar[str] = "funding_caps"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("funding_caps_live", "tenant", "name", unique=True,
              postgresql_where=text("removed_at IS NULL")),
    )  # fmt: skip

    id: int | None = Field(
        default=None, sa_column=Column(BigInteger, Identity(), primary_key=True)
    )
    tenant: str = Field(foreign_key="tenants.name", sa_type=Text)
    name: str = Field(sa_type=Text)
    milli: int = Field(sa_type=BigInteger)
    subtree: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    """Over all envelopes of its tenant and of those below it; a trigger keeps its members then."""
    used: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=default_of("0"))
    """What is used of its envelopes; kept by trigger."""
    created_at: datetime = Field(sa_column=time_column(default=True))
    removed_at: datetime | None = Field(sa_column=time_column(nullable=True))


class FundingCapMemberRow(SQLModel, table=True):
    """An envelope that a cap is over."""

    __tablename__: ClassVar[str] = "funding_cap_members"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (Index("funding_cap_members_by_envelope", "envelope_id"),)

    cap_id: int = Field(primary_key=True, foreign_key="funding_caps.id", sa_type=BigInteger)
    envelope_id: int = Field(primary_key=True, foreign_key="envelopes.id", sa_type=BigInteger)


class ChargeRow(SQLModel, table=True):
    """This envelope pays for these GPUs of this placement, from, to, and why that ended.

    Never rewritten. It lasts no longer than its envelope, which may end without anybody closing
    it, and than its placement: where a cycle closes it while that ends, the end here may be a
    moment after. Whoever counts takes the least of the three (`activities.funding.rows.LASTS`).
    """

    __tablename__: ClassVar[str] = "charges"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        Index("charges_open", "job_id", "attempt", "rank",
              postgresql_where=text("ended_at IS NULL")),
        Index("charges_by_job", "job_id", "attempt"),
        Index("charges_by_envelope", "envelope_id", "started_at"),
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
    rank: int
    envelope_id: int = Field(foreign_key="envelopes.id", sa_type=BigInteger)
    gpu_indices: list[int] = Field(sa_column=Column(ARRAY(Integer), nullable=False))
    milli: int
    """Of each GPU."""
    lent: bool = Field(default=False, sa_column_kwargs=default_of("false"))
    since: datetime = Field(sa_column=time_column())
    """From when on its attempt has had this of the envelope: a swap keeps it."""
    started_at: datetime = Field(sa_column=time_column(default=True))
    ended_at: datetime | None = Field(sa_column=time_column(nullable=True))
    end_reason: str | None = Field(default=None, sa_type=Text)
