"""Tenants and budgets as people see them, and what an edit of a budget would change."""

from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen, Instant, Name
from longshore.models.funding import BudgetMoney, Cap, Envelope, FundingClass, Quotas
from longshore.models.money import MicroDollars


class Holdings(Frozen):
    """What tenants hold at one moment."""

    gpus: float = 0.0
    nodes: int = 0
    """On which they have a job."""
    jobs: int = 0
    """That run."""
    queued: int = 0
    """That wait."""
    sensitive_nodes: int = 0
    """That sensitive jobs hold alone."""


class TenantView(Frozen):
    """A tenant, where it stands in the tree, and what it holds."""

    name: Name
    parent: Name | None = None
    shares: float = 1.0
    quotas: Quotas = Quotas()
    budget_since: Instant | None = None
    """None: it has no budget, and pays for all that it uses."""
    known: bool = True
    """False: nobody has said anything of it; it has jobs."""
    own: Holdings = Holdings()
    subtree: Holdings = Holdings()
    """With those below it: what its quotas are held against."""
    gpu_hours: float | None = None
    """Of the last 90 days, with those below it; null where it has no quota of hours, as they are
    not read then."""
    node_hours: float | None = None
    counts: float = 1.0
    """By what its jobs count in the queue, for what it or one above it has had of such a quota."""


class EnvelopeState(StrEnum):
    NOT_YET = "not yet"
    OPEN = "open"
    ENDED = "ended"


class EnvelopeView(Frozen):
    """An envelope, and what it pays for."""

    id: int
    spec: Envelope
    state: EnvelopeState
    used: float
    """GPUs that it pays for now."""
    lent: float
    """Of these, to other tenants by contract."""


class CapView(Frozen):
    """A cap, and what its envelopes pay for."""

    spec: Cap
    used: float


class BudgetSpent(Frozen):
    """What purchases for a tenant and those below it may cost, of those of some time."""

    today: MicroDollars = 0
    this_month: MicroDollars = 0
    forecast: MicroDollars = 0
    """Of the whole month, at the pace of the last seven days."""


class BudgetView(Frozen):
    """The budget of a tenant."""

    tenant: Name
    since: Instant
    envelopes: tuple[EnvelopeView, ...] = ()
    caps: tuple[CapView, ...] = ()
    money: BudgetMoney | None = None
    spent: BudgetSpent | None = None
    """Where it has money."""
    money_of: tuple[Name, ...] = ()
    """Tenants above it whose budgets have money: its purchases count there, too."""


class Edit(StrEnum):
    MADE = "made"
    CHANGED = "changed"
    RENEWED = "renewed"
    """In place of one of that name that has ended."""
    REMOVED = "removed"


class BudgetChange(Frozen):
    """One thing of a budget that another file makes otherwise."""

    tenant: Name
    what: str
    """Such as ``envelope main``."""
    edit: Edit
    fields: tuple[str, ...] = ()
    """Of what is changed: ``gpus 64 to 48``."""


class ClassMove(Frozen):
    """A job that others would pay for, or nobody."""

    job_id: str
    job_name: str
    attempt: int
    tenant: Name
    before: dict[FundingClass, float] = Field(default_factory=dict[FundingClass, float])
    after: dict[FundingClass, float] = Field(default_factory=dict[FundingClass, float])
    """GPUs by class, without classes of which there are none."""
    payers_before: dict[Name, float] = Field(default_factory=dict[str, float])
    payers_after: dict[Name, float] = Field(default_factory=dict[str, float])
    """GPUs by the tenant that pays."""
    loses: bool
    """More of it would be without a payer, or recallable."""


class BudgetEdit(Frozen):
    """What the application of a file changes, or would change."""

    changes: tuple[BudgetChange, ...] = ()
    notes: tuple[str, ...] = ()
    moves: tuple[ClassMove, ...] = ()
    """Of a check: the jobs that run for which others would pay, those that lose first."""
