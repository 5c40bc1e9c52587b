"""Which jobs do not start for a hard quota: never, or not now.

Of a queue it is told by GPUs and jobs: nodes are counted when they are known, by the database.
"""

from collections.abc import Iterable, Sequence

from longshore.models.funding import FundingCode, Quotas
from longshore.models.job_request import JobRequest
from longshore.models.mig import SLICES, profile_slices
from longshore.scheduling.funding.facts import OverQuota, Wall


def why_never(quotas: Iterable[tuple[str, Quotas]], job: JobRequest) -> str:
    """Return why a job could not start even if its tenant, and those above it, held nothing else
    and nothing of theirs waited; empty where it may. `quotas` are those of these tenants."""
    asked = {
        "max_gpus": _asked(job) / 1000, "max_nodes": 1, "max_jobs": 1, "max_queued": 1,
        "sensitive_nodes": int(job.sensitive),
    }  # fmt: skip
    for tenant, its in quotas:
        for field, wants in asked.items():
            most = getattr(its, field)
            if most is not None and wants > most:
                return (
                    f"quota of tenant {tenant}: {field}: it asks for {wants:g}, and {most:g} is "
                    "the most that the tenant and those below it may hold; "
                    f"{raises(tenant, field, wants)} raises it"
                )
    return ""


def raises(tenant: str, field: str, to: float) -> str:
    """Return the command that sets a quota."""
    return f"`longshore tenant set {tenant} --{field.replace('_', '-')} {to:g}`"


def over_quotas(walls: Sequence[Wall], queue: Sequence[JobRequest]) -> dict[str, str]:
    """Return which jobs of a queue, in its order, do not start for a hard quota, and why."""
    return at_quotas(walls, queue)[0]


def at_quotas(
    walls: Sequence[Wall], queue: Sequence[JobRequest]
) -> tuple[dict[str, str], list[Wall]]:
    """Return the same, with the quotas as they are when all others have started."""
    found: dict[str, str] = {}
    now = list(walls)
    if not walls:
        return found, now
    for job in queue:
        its = [place for place, wall in enumerate(now) if job.tenant in wall.below]
        if not its:
            continue
        amount = _asked(job)
        why = next((why for place in its if (why := now[place].refuses(amount))), "")
        if why:
            found[job.id] = (
                f"{why}: it waits for others of its tenant to end ({FundingCode.QUOTA})"
            )
            continue
        for place in its:
            wall = now[place]
            now[place] = wall._replace(milli=wall.milli + amount, jobs=wall.jobs + 1)
    return found, now


def in_its_way(
    walls: Sequence[Wall], queue: Sequence[JobRequest], job: JobRequest
) -> tuple[tuple[Wall, OverQuota], ...]:
    """Return each quota that keeps a job of a queue, which comes in its order, from starting at
    its turn, with what is used of it then."""
    before = queue[: [each.id for each in queue].index(job.id)]
    _, left = at_quotas(walls, before)
    its = (wall for wall in left if job.tenant in wall.below)
    return tuple((wall, over) for wall in its for over in wall.over(_asked(job)))


def milli_of(job: JobRequest) -> int:
    """Return the thousandths of each GPU that a job asks for."""
    return profile_slices(job.mig) * 1000 // SLICES if job.mig else job.milli


def _asked(job: JobRequest) -> int:
    """Return what a job takes of a quota of GPUs, a malleable one at its smallest size."""
    least = job.smallest
    return least.gpus_held * milli_of(least)
