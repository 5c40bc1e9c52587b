"""By what right a job may have a running one stopped, as far as who pays for them says.

What nobody pays for is stopped for whoever is paid for, whatever their classes; and what a
relative shares is stopped for the relative's own jobs, and for those that take it over. Own jobs
of who shares or lends are not stopped for who has it from them, of whatever class. Else class
decides between jobs that the same tenants pay for, and between those that nobody does. What
somebody pays for is never stopped for a job that another pays for; nor for one that nobody pays
for, unless that is of a higher class of its own tenant, and paid for then: else it would be
stopped for it in turn. Engines that nobody uses are left to `costs.right_of`.
"""

from enum import Enum

from longshore.models.funding import ITSELF, PoolFunding
from longshore.models.text import listed

_NAMED = 5


class Right(Enum):
    """What of two jobs decides."""

    FIRST = "first"
    """It is stopped: nobody pays for it, or not for as long as the one that asks wants that."""
    CLASS = "class"
    NONE = "none"


def right_over(running: str, asking: str, funding: PoolFunding | None) -> Right:
    """Return by what right a job `asking` may have one that is `running` stopped, by their ids.
    Without budgets (None) their classes decide."""
    if funding is None:
        return Right.CLASS
    theirs, mine = funding.of(running), funding.of(asking)
    if theirs.funded and mine.funded:
        if mine.owner in theirs.shared or running in funding.recalls.get(asking, ()):
            return Right.FIRST
        if theirs.owner in mine.tenants and theirs.owner != mine.owner:
            # What it shares it would take back at once; a loan is of what it leaves.
            return Right.NONE
        if theirs.far < mine.far:
            return Right.NONE  # nearer to who shares with both: it would take that back
        return Right.CLASS if theirs.tenants == mine.tenants else Right.NONE
    if theirs.funded:
        may = running in funding.takes_over.get(asking, ())
        return Right.CLASS if may else Right.NONE
    return Right.FIRST if mine.funded else Right.CLASS


def says_who_would_pay(job_id: str, funding: PoolFunding | None) -> str:
    """Return who would pay for a job that waits, or why nobody would; empty without budgets."""
    if funding is None:
        return ""
    payer = funding.of(job_id)
    if not payer.tenants:  # nor is anybody asked for one that is over its quota
        return funding.unfunded.get(job_id, "its tenant has no budget, and pays for itself")
    if payer.funded:
        return f"{listed(sorted(payer.tenants), _NAMED)} would pay for it"
    return funding.unfunded.get(job_id, "no budget pays for it")


def says_payer(running: str, funding: PoolFunding | None) -> str:
    """Return who pays for a running job, as why another may not have it stopped."""
    payer = funding.of(running) if funding else ITSELF
    if not payer.tenants:
        return "is of a tenant without a budget, which pays for itself"
    return f"is paid for by {', '.join(sorted(payer.tenants))}"
