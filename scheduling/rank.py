"""The rank of a job among those of its class: by what it has run, not by what nobody knows.

GPU jobs are heavy-tailed: what has run for a day will most likely run another, what has just begun
will most likely end soon. The chance to end within the next GPU-second falls as 1 / (time run + c)
for such jobs, which is the Gittins index of their queue (Scully and others 2020, doi
10.1145/3428328; Tiresias, NSDI 2019, for GPUs). So

    rank = price of waiting x sqrt(GPUs) x (1 + 3 x days waited in all) / (x + 600 s / GPUs)

where x is the time that it has held its GPUs, or the time left that its user states where that is
less. A job that cannot be stopped ranks by its whole expected duration: once it runs it stays.

Waiting counts in all, also of one that runs: else two jobs could stop each other in turn. For each
exchange of two jobs the ratio of their ranks has to move fourfold (twice `AHEAD`).
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.durations import ExpectedFrom
from longshore.models.job_request import JobRequest
from longshore.models.mig import SLICES, profile_slices
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import RunningJob
from longshore.models.preemption import RunningWork
from longshore.models.queue_view import RankTerms
from longshore.scheduling.durations import expected_from, time_left

AHEAD = 2.0
"""A running job yields to one of so many times its rank."""
TIMES_THE_STOP = 10
"""It runs for so many times what a save and a restart take: no job loses more than a tenth."""
GUARANTEED_AFTER = timedelta(hours=36)
"""Who has waited so long in all comes before everybody. After two days the longest wait is longer
than that of EASY, after one the mean is a quarter longer (docs/decisions, 92)."""
KEEPS_FOR = timedelta(hours=6)
"""Such a job is stopped only by one that has waited so much longer."""
GUARANTEED_SHARE = 0.5
"""Of the GPUs, for the oldest of them. Without a bound all capacity goes by age in overload."""
TRIAL = timedelta(hours=1)
"""A newcomer is taken to hold its GPUs for so long at most: three of four have ended by then."""

_GROWTH = 3.0
"""What a day of waiting adds to the price of waiting."""
_FLAT = 600.0
"""GPU-seconds: below so many nobody can tell who ends first."""
_MEAN = timedelta(seconds=9_400)
"""What a job that cannot be stopped is taken to run, where nobody has said it: the mean of the
Philly trace (Jeon and others, USENIX ATC 2019)."""
_DAY = timedelta(days=1)
_NONE = timedelta(0)


class Standing(NamedTuple):
    """Where a job stands in its class. Larger goes first."""

    guaranteed: timedelta
    """How long it has waited in all, where that puts it before everybody; else nothing."""
    rank: float

    def yields_to(self) -> "Standing":
        """Return the least standing that a job which runs with this one yields to."""
        if self.guaranteed:
            return Standing(self.guaranteed + KEEPS_FOR, 0.0)
        return Standing(_NONE, self.rank * AHEAD)


class Service(NamedTuple):
    """What a job has had by now."""

    request: JobRequest
    gpus: float
    """That it holds, or will."""
    ran: timedelta
    """For how long it has held them, over all attempts."""
    waited: timedelta
    """In the queue, over all attempts and without holds."""
    can_stop: bool
    """Whether it can be stopped and go on: it says so, or a save of it has been seen."""


def waiting(job: JobRequest, now: datetime) -> Service:
    """Return what a job has had that waits."""
    since = waits_since(job) or now
    return Service(job, gpus_of_job(job), job.attained, max(now - since, _NONE), job.can_stop)


def waits_since(job: JobRequest) -> datetime | None:
    """Return since when the wait of a job counts."""
    return job.waits_since or job.submitted_at


def gpus_of_job(job: JobRequest) -> float:
    """Return the GPUs that a job will hold; a malleable one counts as of its smallest size."""
    part = profile_slices(job.mig) / SLICES if job.mig else job.milli / 1000
    return job.smallest.gpus_held * part


def running(work: RunningWork, now: datetime) -> Service:
    """Return what a job has had that runs."""
    ran = work.request.attained + max(now - work.started_at, _NONE)
    saved = work.checkpoint is not None and work.checkpoint.saved_at is not None
    can_stop = work.request.can_stop or (saved and work.preemptible)
    return Service(work.request, work.gpus, ran, work.waited, can_stop)


def rank(job: Service, policy: PackingPolicy) -> float:
    """Return the rank of a job; larger goes first."""
    price, growth = _price(job, policy), _growth(job)
    left = _counted_left(job, policy).total_seconds()
    return price * math.sqrt(job.gpus) * growth / (left + _FLAT / job.gpus)


def terms(job: Service, policy: PackingPolicy) -> RankTerms:
    """Return what the rank of a job is made of."""
    return RankTerms(
        price=_price(job, policy), gpus=job.gpus, growth=_growth(job),
        left=_counted_left(job, policy),
        rank=rank(job, policy),
    )  # fmt: skip


def lane(job: JobRequest) -> tuple[Hashable, timedelta]:
    """Return what divides jobs that ask alike, and a time, so that of two in one lane with times
    as long, or the second's longer, the first stays above where it has waited longer. It is
    planned for as long as the second then, or for less."""
    if not job.can_stop:
        return expected_from(job) is ExpectedFrom.UNKNOWN, job.expected_duration
    left = _likely_left(Service(job, 1.0, job.attained, _NONE, can_stop=True))
    if not left:  # as most that can be stopped: they have not run yet
        return None, job.expected_duration
    return job.expected_duration, left


def _price(job: Service, policy: PackingPolicy) -> float:
    prices = policy.delay_price
    return prices.get(job.request.tier, 0) if prices else 1


def _growth(job: Service) -> float:
    return 1 + _GROWTH * (job.waited / _DAY)


def standings(
    jobs: Iterable[Service],
    room: float,
    worth: Callable[[Service], float],
    may: Callable[[JobRequest], bool] | None = None,
) -> dict[str, Standing]:
    """Return where jobs stand, by id and by what they are worth (`scheduling.order.worth`); who
    has waited long, and `may` (`scheduling.guarantee`), comes first for so many GPUs, and the last
    of them may take more."""
    jobs = list(jobs)
    by_id = {job.request.id: job for job in jobs}
    found = {job.request.id: Standing(_NONE, worth(job)) for job in jobs}
    long = _long((job.request.id, job.gpus, job.waited) for job in jobs)
    # Few are asked: until there is no room.
    asked = ((id, gpus) for id, gpus in long if may is None or may(by_id[id].request))
    for id in first_of_long(asked, room):
        found[id] = found[id]._replace(guaranteed=by_id[id].waited)
    return found


def room_of(nodes: Iterable[Node], running: Iterable[RunningJob]) -> float:
    """Return for how many GPUs jobs that wait may come first because they have waited long: half
    of the pool's, less what such jobs hold that run."""
    room = gpus_of(nodes) * GUARANTEED_SHARE
    held: dict[str, float] = {}
    waited: dict[str, timedelta] = {}
    for share in running:
        held[share.job_id] = held.get(share.job_id, 0.0) + share.gpus
        waited[share.job_id] = share.waited
    for id in first_of_long(_long((id, held[id], waited[id]) for id in held), room):
        room -= held[id]
    return room


def _long(jobs: Iterable[tuple[str, float, timedelta]]) -> Iterator[tuple[str, float]]:
    """Yield who has waited long, the longest first, with their GPUs, of jobs with their GPUs and
    waits."""
    long = [job for job in jobs if job[2] >= GUARANTEED_AFTER]
    for id, gpus, _ in sorted(long, key=lambda job: (-job[2], job[0])):
        yield id, gpus


def first_of_long(jobs: Iterable[tuple[str, float]], room: float) -> Iterator[str]:
    """Yield who comes first of jobs that have all waited long, the longest first, with their
    GPUs."""
    left = iter(jobs)
    while room > 0 and (found := next(left, None)) is not None:
        id, gpus = found
        room -= gpus
        yield id


def gpus_of(nodes: Iterable[Node]) -> int:
    """Return the GPUs of a pool with these nodes."""
    return sum(len(node.gpus) for node in nodes)


def _counted_left(job: Service, policy: PackingPolicy) -> timedelta:
    least = _NONE if job.can_stop else policy.unstoppable_least
    return max(_likely_left(job), least)


def _likely_left(job: Service) -> timedelta:
    """Return for how long a job will probably hold its GPUs: about as long as it has."""
    request = job.request
    if not job.can_stop:
        nobody_knows = expected_from(request) is ExpectedFrom.UNKNOWN
        return _MEAN if nobody_knows else request.expected_duration
    # Who says how long it takes never loses by it.
    left = time_left(request, job.ran)
    return job.ran if left is None else min(left, job.ran)
