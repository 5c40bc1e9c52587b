"""Sums that are not the sums of their rows. Pure."""

from collections.abc import Iterator

from longshore.models.reconcile import Finding, FindingKind
from longshore.models.reconcile_seen import Observed
from longshore.models.text import count


def ledger_differences(seen: Observed) -> Iterator[Finding]:
    """Yield what nodes and GPUs count as used, and is not what is held there."""
    for ledger in seen.ledgers:
        yield Finding(
            kind=FindingKind.LEDGER_DIFFERS,
            subject=ledger.subject,
            problem=f"{ledger.what} counts {ledger.counted}, and {ledger.held} are held",
        )


def funding_differences(seen: Observed) -> Iterator[Finding]:
    """Yield what envelopes and caps count as used, and is not what is charged."""
    for sum_ in seen.funding:
        counted = count(sum_.counted / 1000, "GPU")
        problem = f"{sum_.what} counts {counted}, and {sum_.held / 1000:g} are charged"
        if sum_.subject.startswith("job "):
            problem = f"{sum_.what} is charged {counted}, and its placement has ended"
        yield Finding(kind=FindingKind.FUNDING_DIFFERS, subject=sum_.subject, problem=problem)
