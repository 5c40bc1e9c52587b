"""Who would pay for a job, envelope by envelope, as people see it."""

from pydantic import Field

from longshore.models.base import Instant, Wire
from longshore.models.funding import FundingCode
from longshore.models.funding_use import PaidGPUs


class FundRung(Wire):
    """An envelope that a job asks, and what it gives. Numbers are GPUs."""

    rung: str
    """`own`, `parent`, `sibling`, `grandparent`, `aunt`, `cousin` or `sponsor`; `lender` of one
    that would lend, and that the job does not name as a sponsor."""
    tenant: str
    envelope: str
    gpus: float
    """That it has."""
    unused: float
    """What nobody has of it, below its caps; of a sponsor's what it may lend of that."""
    recallable: float
    """What relatives have of it who are farther away: it takes that back for the job."""
    held_by: dict[str, float] = Field(default_factory=dict[str, float])
    """Which tenants have how much of it, without this job."""
    ahead: float = 0.0
    """Of that, what is for jobs before it in the queue."""
    gives: float
    """The job."""
    code: FundingCode | None = None
    """Why it does not give more; null where no more is wanted."""
    opens: Instant | None = None
    """When it opens, where it will."""
    ends: Instant | None = None
    on: str = Field(default="", max_length=1000)
    """On which nodes it is asked, and gives that, where the answer is of others; empty else."""


class FundRemedy(Wire):
    """One thing that would help by itself: it has been tried."""

    what: str
    """Such as `later` or `sponsors`."""
    says: str


class FundView(Wire):
    """Who pays for a job that runs, or would for one that waits."""

    job_id: str
    tenant: str
    has_budget: bool
    """False: its tenant pays for all that it uses, and asks nobody."""
    runs: bool
    wants: float = 0.0
    """GPUs: of a malleable job that waits its fewest, of a gang with its spares."""
    answer: tuple[PaidGPUs, ...] = ()
    """Who pays for them, or would, by class."""
    funded: bool = True
    code: FundingCode | None = None
    """Why not."""
    deficit: float = 0.0
    """For how many GPUs nobody would pay."""
    says: str
    """The answer in a sentence."""
    rungs: tuple[FundRung, ...] = ()
    """In the order in which they are asked."""
    remedies: tuple[FundRemedy, ...] = ()
