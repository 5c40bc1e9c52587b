"""What a job that runs hears when others pay for it, or nobody does any more."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.funding import FundingClass, FundingCode, PaidFor
from longshore.models.funding_use import PaidGPUs
from longshore.scheduling.funding.facts import Charge, Facts, Use
from longshore.scheduling.funding.holding import Attempt, Ended
from longshore.scheduling.funding.kept import Funded
from longshore.scheduling.funding.split import class_of, split_of

_CLASSES = {each: place for place, each in enumerate(FundingClass)}
_SAFE = (
    FundingClass.OWNED, FundingClass.BORROWED, FundingClass.SHARED, FundingClass.UNFUNDED
)  # fmt: skip
"""Classes, those first that are lost last."""


class News(NamedTuple):
    """Of a job that runs: who pays for it now."""

    job_id: str
    paid: PaidFor


def news_of(
    facts: Facts, funded: Funded, now: datetime, begins: Collection[Use] = ()
) -> tuple[News, ...]:
    """Return what jobs are to hear of a change of who pays `now`: those of another class than they
    were by `facts`, by the class of the GPUs that they would lose first. One of `begins` hears it
    with its placement."""
    ended: dict[Attempt, list[Ended]] = {}
    for each in funded.ended:
        ended.setdefault((each.charge.job_id, each.charge.attempt), []).append(each)
    concerned = {*ended, *((each.job_id, each.attempt) for each in funded.opened)}
    concerned -= {(use.job_id, use.attempt) for use in begins}
    if not concerned:
        return ()
    before: dict[Attempt, list[Charge]] = {attempt: [] for attempt in concerned}
    for charge in facts.charges:
        if (attempt := (charge.job_id, charge.attempt)) in before:
            before[attempt].append(charge)
    opened: dict[Attempt, list[Charge]] = {attempt: [] for attempt in concerned}
    for charge in funded.opened:
        if (attempt := (charge.job_id, charge.attempt)) in opened:
            opened[attempt].append(charge)
    found = (
        _news(use, before[attempt], ended.get(attempt, []), opened[attempt], facts, now)
        for use in facts.uses
        if (attempt := (use.job_id, use.attempt)) in concerned
    )
    return tuple(each for each in found if each is not None)


def _news(
    use: Use,
    before: list[Charge],
    ended: list[Ended],
    opened: list[Charge],
    facts: Facts,
    at: datetime,
) -> News | None:
    closed = {each.charge for each in ended}
    after = [charge for charge in before if charge not in closed] + opened
    was, now = split_of(use, before, facts).loses_first, split_of(use, after, facts).loses_first
    if was is now:
        return None
    who = ", ".join(each.words for each in paid_gpus(after, use, facts))
    why = _why(ended, facts) if _SAFE.index(now) > _SAFE.index(was) else ""
    says = f"{why}; {who}" if why else who
    return News(use.job_id, PaidFor(attempt=use.attempt, funding=now, says=says, since=at))


def _why(ended: Iterable[Ended], facts: Facts) -> str:
    """Return why an envelope pays no longer."""
    for each in ended:
        if not each.lost:
            continue
        owned = facts.envelopes.get(each.charge.envelope)
        its = f"{owned.tenant}/{owned.spec.name}" if owned else "its envelope"
        if each.for_job:
            return f"recalled: {its} pays for {each.for_job} now"
        return _WHY.get(each.code, "{its} pays no longer").format(its=its)
    return ""


_WHY = {
    FundingCode.NO_ROOM: "{its} has become too small",
    FundingCode.NOT_OPEN: "{its} has ended",
    FundingCode.NO_ENVELOPE: "{its} is not for it any more",
    FundingCode.ACL_DENIED: "{its} is not shared with it any more",
    FundingCode.CAP: "a cap over {its} has become too small",
}


def paid_gpus(charges: Iterable[Charge], use: Use, facts: Facts) -> tuple[PaidGPUs, ...]:
    """Return who pays for a job by these charges, by class and envelope; then for how much nobody
    does."""
    funded = funded_gpus(charges, use, facts)
    rest = sum(share.amount for share in use.shares) - sum(round(1000 * g.gpus) for g in funded)
    unfunded = (PaidGPUs(funding=FundingClass.UNFUNDED, gpus=rest / 1000),) if rest > 0 else ()
    return (*funded, *unfunded)


def funded_gpus(charges: Iterable[Charge], use: Use, facts: Facts) -> tuple[PaidGPUs, ...]:
    """Return who pays for a job by these charges, by class and envelope."""
    found: dict[tuple[FundingClass, int], int] = {}
    for charge in charges:
        key = class_of(charge, use, facts), charge.envelope
        found[key] = found.get(key, 0) + charge.amount
    return tuple(
        PaidGPUs(
            funding=funding, payer=facts.envelopes[id].tenant,
            envelope=facts.envelopes[id].spec.name, gpus=found[funding, id] / 1000,
        )
        for funding, id in sorted(found, key=lambda key: (_CLASSES[key[0]], key[1]))
    )  # fmt: skip


def paid_for(attempt: int, gpus: Sequence[PaidGPUs]) -> PaidFor | None:
    """Return what a job hears with its placement; None where its tenant has no budget."""
    if all(each.funding is FundingClass.OWNED and each.envelope is None for each in gpus):
        return None
    funding = max((each.funding for each in gpus), key=_SAFE.index)
    return PaidFor(attempt=attempt, funding=funding, says=", ".join(each.words for each in gpus))
