"""Guards against buying again for a job that does not run on what was bought for it.

Whatever the reason, labels that are missing or a machine that is not what it was said to be, the
next one would be the same. A person looks, and says that it may be tried again: `longshore hold`
and `longshore release` begin the count anew, as a further attempt of the job does.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from longshore.models.buying import BuyingPolicy, BuyingRule, Option, OptionKind, UnmetJob

MOST_TRIES = 3
"""Purchases for one job, also where others took them or they never came up whole."""
FIRST_PAUSE = timedelta(minutes=2)
"""After a purchase that was terminated unused; doubled with each further one."""
BOUGHT_ONCE = "bought once for it already"
_KINDS = (True, False)
"""Machines that are billed as they run, and nodes for a window."""


def tried_before(job: UnmetJob, kinds: Collection[bool]) -> str:
    """Return why none of these kinds of machine is bought for a job again; empty where one may.

    A kind is whether it is billed as it runs. It was tried where all that was bought came up,
    nobody else took it, the job could have started, and it waits all the same.
    """
    for each in job.bought:
        if each.by_use in kinds and each.ready and not (each.shared or each.kept_back):
            return f"{BOUGHT_ONCE} ({each.purchase_id}), {_waits(job)}"
    return ""


def why_not_repeated(job: UnmetJob, policy: BuyingPolicy, now: datetime) -> str:
    """Return why nothing at all is bought for a job now; empty where something may be."""
    tried = [tried_before(job, (kind,)) for kind in _KINDS]
    # The seeds' rule counts GPUs, and does not tell for whom.
    if all(tried) or (any(tried) and policy.rule is BuyingRule.SEED):
        return next(why for why in tried if why)
    if late := _late(job, policy, now):
        return late
    tries = [each for each in job.bought if not each.kept_back]
    if len(tries) >= MOST_TRIES:
        last = tries[-1].purchase_id
        return f"bought {len(tries)} times for it already (last {last}), {_waits(job)}"
    return _pauses(job, now)


def blocked_repeats(jobs: Iterable[UnmetJob], policy: BuyingPolicy, now: datetime) -> list[Option]:
    """Return an option, rejected, for each job that nothing is bought for again now."""
    return [
        Option(
            kind=OptionKind.AGAIN,
            tier=job.request.tier,
            title=f"buy again for {job.request.id}",
            lost=why,
            job_id=job.request.id,
        )
        for job in jobs
        if (why := why_not_repeated(job, policy, now))
    ]


def _late(job: UnmetJob, policy: BuyingPolicy, now: datetime) -> str:
    """Return which machine that is billed as it runs has to end before another is bought."""
    for each in job.bought:
        if not each.by_use or each.came or each.ended_at or each.bought_at is None:
            continue
        if now >= each.bought_at + policy.startup_limit:
            return f"what was bought for it ({each.purchase_id}) is late, and is stopped first"
    return ""


def _pauses(job: UnmetJob, now: datetime) -> str:
    """Return until when nothing is bought, after purchases that were terminated unused."""
    ends = [each.ended_at for each in job.bought if each.ended_at and not each.shared]
    if not ends:
        return ""
    until = max(ends) + FIRST_PAUSE * 2 ** (len(ends) - 1)
    if now >= until:
        return ""
    return f"what was bought for it came to nothing: the next may be at {until:%H:%M:%S} UTC"


def _waits(job: UnmetJob) -> str:
    return f"and the job still waits: `longshore why {job.request.id}`"
