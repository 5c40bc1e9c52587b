"""Which of those that run have no payer, and who pays for the others: what preemption looks at.

A job of which nobody pays for one GPU at least gives way to any job that has a payer, whatever
their classes. Between jobs that have one, class decides within one payer only.
"""

from collections.abc import Mapping
from typing import NamedTuple

from longshore.models.funding import Payer
from longshore.scheduling.funding.holding import Attempt
from longshore.scheduling.funding.split import Split


class Standing(NamedTuple):
    """Who pays for one that runs."""

    payer: Payer
    unfunded: int
    """For how much nobody pays, in thousandths of a GPU."""

    @property
    def wholly(self) -> bool:
        """Whether nobody pays for any of it."""
        return not self.payer.funded and not self.payer.tenants


def standings(splits: Mapping[Attempt, Split]) -> dict[str, Standing]:
    """Return who pays for those that run, by job."""
    return {
        job_id: Standing(Payer(split.owners, funded=not split.unfunded), split.unfunded)
        for (job_id, _), split in splits.items()
    }


def unfunded(splits: Mapping[Attempt, Split]) -> list[str]:
    """Return the jobs that have a GPU without a payer, those first that have most of them."""
    found = [(-split.unfunded, job_id) for (job_id, _), split in splits.items() if split.unfunded]
    return [job_id for _, job_id in sorted(found)]
