"""Who gives way to a job whose start is due, in which order, where budgets pay for all of them.

A job that somebody pays for has those stopped at once that nobody pays for. Once the start is due
that was kept for it, and these are too few, further ones follow: what stands by for gangs, then
what malleable jobs have beyond their fewest GPUs, and by lottery, where the pool says so, whole
jobs. No budget says which of them should: their tenants are drawn, each as likely as any other,
then one job of the tenant that was drawn, until there is room.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from longshore.models.funding import PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.preemption import (
    Cut,
    Lottery,
    LotteryEntry,
    Overcommit,
    PreemptionPolicy,
    RejectedVictim,
    RunningWork,
    TakenSpare,
)
from longshore.models.text import count, format_gpus, listed
from longshore.scheduling.preemption.costs import right_of, why_spared
from longshore.scheduling.preemption.parts import Parts, shrunk_to, spares_of
from longshore.scheduling.preemption.payers import Right, says_payer

_DIGITS = 16
_NAMED = 4
_MADE_ROOM = "others made room for it, so that it keeps its GPUs"


def cuts(overcommit: Overcommit) -> tuple[Cut, ...]:
    """Return how far it goes for a job whose start is due, one after the other."""
    draws = overcommit is Overcommit.LOTTERY
    return (Cut.SPARES, Cut.SHRINK, Cut.LOTTERY) if draws else (Cut.SPARES, Cut.SHRINK)


def may_cut(job: JobRequest, funding: PoolFunding | None) -> bool:
    """Return whether a job whose start is due has others give way that are paid for: a budget
    pays for it, and not its tenant for all that it uses."""
    if funding is None:
        return False
    payer = funding.of(job.id)
    return payer.funded and bool(payer.tenants)


def gives_up(
    works: Iterable[RunningWork],
    job: JobRequest,
    cut: Cut,
    funding: PoolFunding,
    policy: PreemptionPolicy,
    now: datetime,
) -> dict[str, Parts]:
    """Return what jobs that another pays for give up for one whose start is due."""
    found: dict[str, Parts] = {}
    for work in works:
        if not _is_asked(work, job, funding, policy, now):
            continue
        parts = spares_of(work)
        may_shrink = work.malleable is not None and why_spared(work, policy, now) is None
        if cut is not Cut.SPARES and may_shrink and work.malleable is not None:
            parts = shrunk_to(work, work.malleable.min, funding.of(work.id)) or parts
        if parts is not None:
            found[work.id] = parts
    return found


def why_it_keeps(
    work: RunningWork,
    job: JobRequest,
    funding: PoolFunding,
    policy: PreemptionPolicy,
    now: datetime,
) -> RejectedVictim | None:
    """Return why a running job that another pays for keeps its GPUs from one whose start is due;
    None where that is who pays for it."""
    if job.sensitive or not may_cut(job, funding):
        return None
    if right_of(work, job, policy, now, funding) is not Right.NONE:
        return None
    if not work.preemptible:
        return why_spared(work, policy, now)
    if work.id in funding.first:
        return RejectedVictim(job_id=work.id, reason=_MADE_ROOM)
    drawn = policy.overcommit is Overcommit.LOTTERY
    if work.malleable is None and not drawn:
        return None
    spared = why_spared(work, policy, now)
    if spared or work.malleable is None or drawn:
        return spared
    if shrunk_to(work, work.malleable.min, funding.of(work.id)) is None:
        reason = f"{says_payer(work.id, funding)}, and has no more than its fewest GPUs"
    else:
        least = count(work.malleable.min, "GPU")
        reason = f"{says_payer(work.id, funding)}, and shrinks to no less than {least}"
    return RejectedVictim(job_id=work.id, reason=reason)


def entries(
    works: Iterable[RunningWork],
    job: JobRequest,
    funding: PoolFunding,
    policy: PreemptionPolicy,
    now: datetime,
) -> tuple[LotteryEntry, ...]:
    """Return whose jobs take part in a lottery for one whose start is due. Who was stopped lately,
    or ends soon, takes no part."""
    found: dict[str, list[str]] = {}
    for work in works:
        if _is_asked(work, job, funding, policy, now) and why_spared(work, policy, now) is None:
            found.setdefault(work.tenant, []).append(work.id)
    return tuple(
        LotteryEntry(tenant=tenant, jobs=tuple(sorted(found[tenant]))) for tenant in sorted(found)
    )


def _is_asked(
    work: RunningWork,
    job: JobRequest,
    funding: PoolFunding,
    policy: PreemptionPolicy,
    now: datetime,
) -> bool:
    """Return whether a running job is one that budgets, and classes, protect from another. One for
    which others gave way itself is not asked while it runs: they would have each other stopped in
    turn."""
    if not work.preemptible or work.id in funding.first:
        return False
    return right_of(work, job, policy, now, funding) is Right.NONE


def seed_of(source: str) -> str:
    """Return the seed of a lottery: the first 64 bits of the SHA-256 of where it is drawn."""
    return hashlib.sha256(source.encode()).hexdigest()[:_DIGITS]


def draws(seed: str, entries: Sequence[LotteryEntry]) -> Iterator[str]:
    """Yield jobs in the order in which they are drawn: a tenant, then a job of it, in turns.

    Number n of a seed is the first 64 bits of the SHA-256 of `SEED/n`, from 0; of so many names in
    their order that one is drawn whose place is the remainder.
    """
    left = {entry.tenant: list(entry.jobs) for entry in entries if entry.jobs}
    number = 0

    def drawn(names: Sequence[str]) -> str:
        nonlocal number
        digits = seed_of(f"{seed}/{number}")
        number += 1
        return names[int(digits, 16) % len(names)]

    while left:
        tenant = drawn(sorted(left))
        job = drawn(sorted(left[tenant]))
        yield job
        left[tenant].remove(job)
        if not left[tenant]:
            del left[tenant]


def is_as_drawn(lottery: Lottery) -> bool:
    """Return whether a lottery that was stored comes to the same when it is drawn again."""
    again = draws(lottery.seed, lottery.entries)
    return all(job == next(again, None) for job in lottery.drawn)


def lottery_words(lottery: Lottery) -> str:
    """Return what was drawn, and whether that comes out again: ``sweep of 3 jobs of 2 tenants,
    with seed 7c4a8d09ca3762af; drawn again it is the same``."""
    tenants = count(len(lottery.entries), "tenant")
    jobs = count(sum(len(entry.jobs) for entry in lottery.entries), "job")
    same = "the same" if is_as_drawn(lottery) else "another"
    return (
        f"{listed(lottery.drawn, _NAMED)} of {jobs} of {tenants}, with seed {lottery.seed}; drawn "
        f"again it is {same}"
    )


def given_up_for(job_id: str) -> str:
    """Return why what stood by for a gang was given up for a job."""
    return f"given up for {job_id}, whose start was due"


def took_words(took: Sequence[TakenSpare]) -> str:
    """Return who gave up what stood by: ``its start was due: gang gave up GPUs 0-3 of b, which
    stood by for it``."""
    gave: dict[str, list[str]] = {}
    for each in took:
        gave.setdefault(each.job_id, []).append(
            f"{format_gpus(each.gpu_indices)} of {each.node_id}"
        )
    said = "; ".join(f"{gang} gave up {listed(of, _NAMED)}" for gang, of in gave.items())
    return f"its start was due: {said}, which stood by for {'it' if len(gave) == 1 else 'them'}"


def having_right(funding: PoolFunding, job: JobRequest, gives: Mapping[str, Parts]) -> PoolFunding:
    """Return who pays, with the right of a job over what these give up."""
    more = funding.recalls.get(job.id, frozenset[str]()) | gives.keys()
    return funding._replace(recalls={**funding.recalls, job.id: more})
