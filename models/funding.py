"""Whose GPUs are whose: tenants in a tree, their budgets, and what a job says of who pays for it.

A budget has envelopes. An envelope is a ranked claim to GPUs, not a wall: GPUs that nobody uses
may always be used. What decides about them is in `scheduling.funding`.
"""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, NamedTuple, Self

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from longshore.models.base import Frozen, Instant, Name, Reason, Wire, known_or
from longshore.models.bounds import Most, Range
from longshore.models.constraints import Constraint
from longshore.models.counts import DIGITS
from longshore.models.money import Money
from longshore.models.score import LEAST_SHARES, MOST_SHARES

MOST_ENVELOPES = 200
"""Of one budget."""
MOST_GPUS = 1_000_000
"""Of one envelope, cap or quota."""
_MOST_HELD = 1_000_000_000
"""Nodes or jobs of a quota: as many as the database takes."""
_MOST_HOURS = 1e10
"""Of a soft quota; more than all GPUs of an envelope have in its days."""
NEVER = "never"
"""How an envelope says that it has no end."""

NO_PARENT = "none"
"""How a command says that a tenant has no parent."""


def _in_thousandths(gpus: float) -> float:
    if round(gpus * 1000) != round(gpus * 1000, 6):
        raise ValueError(f"is {gpus:g}: GPUs are counted in thousandths, such as 0.125")
    return gpus


GPUs = Annotated[
    float,
    Field(ge=0, le=MOST_GPUS, allow_inf_nan=False),
    AfterValidator(_in_thousandths),
]
"""A number of GPUs; a part of one counts as that part."""
SomeGPUs = Annotated[
    float,
    Field(ge=0.001, le=MOST_GPUS, allow_inf_nan=False),  # behind a validator a schema loses it
    AfterValidator(_in_thousandths),
]
"""The same, and not 0."""


class FundingClass(StrEnum):
    """Who pays for a GPU in use. It follows from facts, and is never stored."""

    OWNED = "OWNED"
    """An envelope of the job's own tenant, or the tenant has no budget."""
    SHARED = "SHARED"
    """An envelope of a relative, which may take it back at any time."""
    BORROWED = "BORROWED"
    """An envelope of a sponsor: a contract until the attempt or the envelope ends."""
    UNFUNDED = "UNFUNDED"
    """Nobody. It runs on GPUs that are idle, and gives them up first."""


class PaidFor(Wire):
    """What a job hears of who pays for its attempt, where its tenant has a budget: with its
    placement, and as a signal when that changes."""

    attempt: int
    funding: Annotated[FundingClass | None, known_or(FundingClass, None)]
    """Of its GPUs that it would lose first; null: of a newer version."""
    says: Reason = ""
    """Who pays for how many, and before that why others did."""
    since: Instant | None = None
    """Since when; null: since it hears of it."""


class FundingCode(StrEnum):
    """Why an envelope does not pay for a job."""

    NO_ENVELOPE = "NO_ENVELOPE"
    """No envelope is for such GPUs."""
    NOT_OPEN = "NOT_OPEN"
    """It has not begun, or has ended."""
    NO_ROOM = "NO_ROOM"
    """All of its GPUs are paid for others."""
    CAP = "CAP"
    """A cap over several envelopes leaves less."""
    ACL_DENIED = "ACL_DENIED"
    """It is not shared, or not lent to this tenant."""
    BORROW_LIMIT = "BORROW_LIMIT"
    """The job may not borrow so many GPUs, or any."""
    QUOTA = "QUOTA"
    """The tenant, or one above it, may hold no more."""


class WhenUnfunded(StrEnum):
    """What a job does for which nobody would pay."""

    RUN = "run"
    """It runs on GPUs that are idle, and gives them up first."""
    WAIT = "wait"
    """It stays in the queue."""


Sponsors = Annotated[tuple[Name, ...], Most(50)]


class FundingTerms(Frozen):
    """What a job says of who may pay for it, beside its own tenant and that tenant's relatives."""

    allow_borrow: bool = False
    """Whether envelopes of `sponsors` may pay."""
    max_borrow: Annotated[int, Field(ge=1, le=MOST_GPUS), DIGITS] | None = None
    """The most GPUs that sponsors pay for at a time. All, when left out."""
    sponsors: Sponsors = ()
    """Tenants that are asked, in this order; each has to lend to the job's tenant."""
    unfunded: WhenUnfunded = WhenUnfunded.RUN
    """What it does where nobody would pay: `run` on idle GPUs, or `wait`."""

    @model_validator(mode="after")
    def _borrowing(self) -> Self:
        if self.allow_borrow and not self.sponsors:
            raise ValueError("allow_borrow needs sponsors: name the tenants that lend")
        if not self.allow_borrow:
            if self.max_borrow is not None:
                raise ValueError(f"max_borrow is {self.max_borrow}: that needs allow_borrow: true")
            if self.sponsors:
                raise ValueError(
                    f"sponsors are {', '.join(self.sponsors)}: they need allow_borrow: true"
                )
        if len(set(self.sponsors)) < len(self.sponsors):
            raise ValueError("sponsors names a tenant twice")
        return self


class Payer(NamedTuple):
    """Who pays for a job that runs, or would for one that waits."""

    tenants: frozenset[str]
    """Whose envelopes; its own tenant where it is not funded. None of a job whose tenant has no
    budget: it pays for itself."""
    funded: bool = True
    """False: nobody pays for one of its GPUs at least."""
    owner: str = ""
    """Its own tenant, where that has a budget."""
    shared: frozenset[str] = frozenset()
    """Of the tenants those that may take back at any time what pays for it."""
    far: int = 0
    """How many steps away of these that is that is farthest, as `scheduling.funding.ladder`
    counts; 0 where there are none."""
    keeps: int = 0
    """Of one that runs, and that is paid for in part: the GPUs that are. Where all are, and
    relatives may take back some: the others. 0 where that is so of all, or of none."""
    ranks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Of the same: its nodes in the order of its ranks, with the GPUs that it does not keep."""


_FIRST, _LAST = -1, 1_000_000
ITSELF = Payer(frozenset())
"""Of a job whose tenant has no budget."""


class Foreseen(NamedTuple):
    """What an envelope would pay for of a job that waits, with all before it in the queue."""

    envelope: int
    gpus: int
    lent: bool


class PaidOn(NamedTuple):
    """On what nodes envelopes pay for a job."""

    gpu_types: tuple[str, ...]
    """One of these; any when empty."""
    constraints: tuple[Constraint, ...]
    must: bool = False
    """Whether it starts nowhere else."""


class PoolFunding(NamedTuple):
    """Who pays for the jobs of a pool, as it matters to its plans; those that are not named pay
    for themselves."""

    payers: Mapping[str, Payer]
    """By job, waiting or running, of tenants with a budget."""
    unfunded: Mapping[str, str]
    """Why nobody would pay for it, of jobs that wait."""
    held: frozenset[str]
    """Jobs of these that do not start unfunded."""
    recalls: Mapping[str, frozenset[str]] = MappingProxyType({})
    """By job that waits and would be paid for: those that run for which nobody would pay then."""
    takes_over: Mapping[str, frozenset[str]] = MappingProxyType({})
    """By job for which nobody would pay: those that run of its own tenant each of which pays for
    enough, were it stopped."""
    behind: Mapping[str, int] = MappingProxyType({})
    """By job that waits and that others than its own tenant would pay for: after how many others
    it comes, one after the other, where jobs of its relatives wait."""
    factors: Mapping[str, float] = MappingProxyType({})
    """By tenant: by what its jobs count in the queue, where it has had more than its soft quota
    of GPU-hours."""
    sizes: Mapping[str, int] = MappingProxyType({})
    """By malleable job that somebody pays for, or would: the largest size for which that is so,
    where it is less than the desired one."""
    first: frozenset[str] = frozenset()
    """Jobs that wait for which others gave way since they are paid for, or not before them: who
    gave way is not to have GPUs and room back before them. Those that run for which others gave
    way as their start was due. And who goes on with the part of it that is paid for."""
    foreseen: Mapping[str, tuple[Foreseen, ...]] = MappingProxyType({})
    """By job that waits and that somebody would pay for: which envelopes."""
    only_on: Mapping[str, PaidOn] = MappingProxyType({})
    """By job that somebody would pay for on some nodes of the pool alone: on which; of malleable
    ones that run onto which they may grow."""
    loses: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    """By job that waits, of those that run from which it has, or takes over, what pays for them:
    for how many of their GPUs nobody pays then."""
    together_on: Mapping[str, PaidOn] = MappingProxyType({})
    """By job that somebody would pay for beside all others of the queue on fewer nodes than
    `only_on`: on which. Others are stopped for it, and machines bought, there alone. Empty where
    nobody asked."""

    over_quota: frozenset[str] = frozenset()
    """Jobs of those `held` that do not start for a hard quota."""
    own_nodes: Mapping[str, Constraint] = MappingProxyType({})
    """By job that starts, or grows, on nodes alone on which its tenant has others: on these, and
    why."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """A policy carries it as it is: it is in no document."""
        return core_schema.is_instance_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "null"}

    @property
    def beside_others(self) -> Mapping[str, PaidOn]:
        """By job that somebody would pay for, beside all others of the queue where that was asked,
        on some nodes of the pool alone: on which."""
        return {**self.only_on, **self.together_on}

    def of_tenant(self, tenant: str) -> float:
        """Return by what the jobs of a tenant count in the order of a class."""
        return self.factors.get(tenant, 1.0)

    def turn(self, job_id: str) -> int:
        """Return when a job that waits comes, before its class counts: the lowest is first."""
        if job_id in self.unfunded:
            return _LAST
        return _FIRST if job_id in self.first else self.behind.get(job_id, 0)

    def of(self, job_id: str) -> Payer:
        """Return who pays for a job."""
        return self.payers.get(job_id, ITSELF)


class Sharing(StrEnum):
    """Who may use an envelope beside its tenant, without a contract."""

    FAMILY = "family"
    """Relatives: at most two steps up in the tree of tenants, and down from there."""
    NONE = "none"


class Lending(Frozen):
    """To whom an envelope is lent by contract."""

    to: tuple[Name, ...] = Field(min_length=1, max_length=1000)
    """Tenants. Nobody else."""
    max: SomeGPUs
    """The most GPUs that are lent at one time, in all."""


class Envelope(Frozen):
    """A claim to so many GPUs at one time, of a type, somewhere, for a time."""

    name: Name
    gpus: GPUs
    """At one time. A part of a GPU counts as that part."""
    gpu_type: str | None = Field(default=None, max_length=100)
    """Any, when left out."""
    pool: Name | None = None
    """Any, when left out."""
    labels: dict[str, str] = Field(default_factory=dict[str, str], max_length=20)
    """Of the nodes that it is for."""
    start: Instant | None = None
    """From when on; from the time that it was applied, when left out."""
    end: Instant | None
    """Until when. It has to be said: a time, or `never` (None here)."""
    sharing: Sharing = Sharing.FAMILY
    lending: Lending | None = None


class CapTerms(Frozen):
    """A joint limit over several envelopes."""

    gpus: GPUs
    """That they pay for at one time, together."""
    envelopes: tuple[Name, ...] = Field(default=(), max_length=MOST_ENVELOPES)
    """Names of this budget's envelopes."""
    subtree: bool = False
    """Over all envelopes of this tenant and of those below it, also ones made later."""

    @model_validator(mode="after")
    def _members(self) -> Self:
        if bool(self.envelopes) == self.subtree:
            raise ValueError("give the envelopes of the cap, or subtree: true")
        return self


class Cap(CapTerms):
    """A joint limit over several envelopes, with its name."""

    name: Name


class BudgetMoney(Frozen):
    """What purchases for a tenant and those below it may cost."""

    per_day: Money | None = None
    """Each day in UTC."""
    per_month: Money | None = None
    """Each month in UTC."""


class Budget(Frozen):
    """The envelopes of one tenant. A tenant without a budget pays for all of its jobs."""

    tenant: Name
    envelopes: tuple[Envelope, ...] = Field(default=(), max_length=MOST_ENVELOPES)
    caps: tuple[Cap, ...] = Field(default=(), max_length=50)
    money: BudgetMoney | None = None


QUOTA_WINDOW = timedelta(days=90)
"""Of which GPU- and node-hours count against a soft quota."""


Held = Annotated[int, Field(ge=0, le=_MOST_HELD)]
Hours = Annotated[
    float, Field(gt=0, allow_inf_nan=False), Range(0.001, _MOST_HOURS, on_arrival=False)
]


class Quotas(Frozen):
    """What a tenant and those below it may hold at one time, together; any, when left out."""

    max_gpus: GPUs | None = None
    max_nodes: Held | None = None
    """Nodes on which they have a job."""
    max_jobs: Held | None = None
    """That run."""
    max_queued: Held | None = None
    """That wait."""
    sensitive_nodes: Held | None = None
    """That sensitive jobs hold alone."""
    gpu_hours: Hours | None = None
    """Soft, over 90 rolling days: whoever has had more comes later."""
    node_hours: Hours | None = None
    """The same of nodes: of each that part counts which they hold of its GPUs. Of both quotas that
    one counts of which they have had more."""


def _can_be_named(name: str) -> str:
    if name == NO_PARENT:
        raise ValueError(
            f"is {NO_PARENT}, which as a parent means that there is none: give it another name, "
            "so that others can be below it"
        )
    return name


TenantName = Annotated[Name, AfterValidator(_can_be_named)]


class Tenant(Frozen):
    """A tenant, and where it stands in the tree."""

    name: TenantName
    parent: Name | None = None
    shares: Annotated[float, Field(ge=LEAST_SHARES, le=MOST_SHARES, allow_inf_nan=False)] = 1.0
    """Of what its parent has, beside its siblings'."""
    quotas: Quotas = Quotas()
