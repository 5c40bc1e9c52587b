"""What is used, of which class, and who pays: now, at a moment, and over a time."""

from enum import StrEnum

from pydantic import Field

from longshore.models.base import Instant, Wire
from longshore.models.funding import FundingClass
from longshore.models.funding_views import BudgetView, TenantView
from longshore.models.text import count


class UsedBy(StrEnum):
    """By what use is summed up."""

    TENANT = "tenant"
    ENVELOPE = "envelope"
    JOB = "job"


class Payer(Wire):
    """Of what class GPUs are, and who pays for them."""

    funding: FundingClass
    payer: str | None = None
    """The tenant that pays: of SHARED a relative, of BORROWED the sponsor that lends. Null of
    UNFUNDED."""
    envelope: str | None = None
    """Which of its envelopes. Null of a tenant without a budget, which pays for itself."""

    @property
    def lender(self) -> str | None:
        """Who pays where that is another tenant."""
        lent = self.funding in (FundingClass.SHARED, FundingClass.BORROWED)
        return self.payer if lent else None

    @property
    def by(self) -> str:
        """Return who pays: ``red/main``, of a tenant without a budget ``red``; empty of nobody."""
        return "/".join(filter(None, (self.payer, self.envelope)))


class PaidGPUs(Payer):
    """GPUs in use."""

    gpus: float
    """A part of a GPU counts as that part."""

    @property
    def words(self) -> str:
        """Return ``4 OWNED by red/main``."""
        if self.funding is FundingClass.UNFUNDED:
            return f"{count(self.gpus)} UNFUNDED: preempted first"
        without = "" if self.envelope else ", which has no budget"
        return f"{count(self.gpus)} {self.funding} by {self.by}{without}"


class PaidHours(Payer):
    """GPU-hours that were used."""

    gpu_hours: float

    @property
    def words(self) -> str:
        """Return ``12.50 OWNED by red/main``."""
        by = f" by {self.by}" if self.by else ""
        return f"{format_hours(self.gpu_hours)} {self.funding}{by}"


class Payers(Wire):
    """Who pays for a job, and who has paid for it."""

    now: tuple[PaidGPUs, ...] = ()
    """By class; none where it does not run."""
    waiting: str = ""
    """Of one that waits: who would pay for it by the order of its queue, or why nobody would."""
    hours: tuple[PaidHours, ...] = ()
    """Over all of its attempts, of an array with all of its slots."""

    @property
    def words(self) -> str:
        """Return ``4 OWNED by red/main, 2 UNFUNDED: preempted first``."""
        return ", ".join(each.words for each in self.now)

    @property
    def hours_words(self) -> str:
        """Return ``12.50 OWNED by red/main, 3.00 UNFUNDED``."""
        return ", ".join(each.words for each in self.hours)


class UsageRow(PaidHours):
    """What one user of GPUs had of one payer."""

    tenant: str
    """Whose jobs."""
    job_id: str | None = None
    """By job alone; of the slots of an array, that."""
    service: str | None = Field(default=None, exclude_if=lambda name: name is None)
    """By job alone, in place of one: of its replicas."""


class Usage(Wire):
    """GPU-hours by class over a time. Each GPU-second is of exactly one class, so that `by_class`
    adds up to what jobs held."""

    since: Instant
    until: Instant
    by: UsedBy
    tenant: str | None = None
    """That it is of alone."""
    rows: tuple[UsageRow, ...] = ()
    """The most first, those of one tenant together."""
    gpu_hours: float = 0.0
    """That jobs held, in all."""
    by_class: dict[FundingClass, float] = Field(default_factory=dict[FundingClass, float])
    """Of these, by class."""
    on_lent_spares: float = Field(default=0.0, exclude_if=lambda hours: not hours)
    """Beside these: that jobs ran on spares of gangs, which hold them and pay."""
    simulated: bool = False
    """True where some were on simulated GPUs."""


class InUse(PaidGPUs):
    """GPUs that jobs of a tenant use now."""

    tenant: str


class FundingState(Wire):
    """Whose GPUs are whose, and who pays for those in use."""

    at: Instant
    tenants: tuple[TenantView, ...] = ()
    budgets: tuple[BudgetView, ...] = ()
    in_use: tuple[InUse, ...] = ()
    """By tenant, class and envelope."""
    simulated: bool = False
    """True where some of the GPUs in use are simulated."""


class LeaseView(Payer):
    """Who held a GPU, or a part of it, and who paid then."""

    node_id: str
    gpu_index: int
    gpus: float
    """1 for all of the GPU."""
    mig: str | None = None
    job_id: str
    job_name: str
    tenant: str
    attempt: int
    rank: int = 0
    spare: bool = False
    """It stood by."""
    started_at: Instant
    ended_at: Instant | None = None
    end_reason: str | None = None
    paid_since: Instant | None = None
    """From when on the envelope had paid for it. Null where none did."""
    borrowed_from: str | None = Field(default=None, exclude_if=lambda lender: lender is None)
    """The gang that lends it as a spare, and that has a lease of its own on it, and pays."""
    simulated: bool = False


class Leases(Wire):
    """Who held GPUs at a moment."""

    at: Instant
    leases: tuple[LeaseView, ...] = ()


def format_hours(hours: float) -> str:
    """Return ``1,234.50``; of what is less than a hundredth that it is so."""
    return "under 0.01" if 0 < hours < 0.01 else f"{hours:,.2f}"
