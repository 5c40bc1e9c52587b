"""The order of a queue, and what its wait does to a job's class. Nothing else decides either.

Who pays comes first: what nobody pays for is stopped for what somebody does
(`scheduling.funding`). Then class: jobs are stopped for higher classes, so what started before a
job of a higher class would be stopped for it at once. Within a class a pool may have a score
(`scheduling.score`) beside age or rank, in one key:

    by age     w x ln(1 + hours waited) + sum of w_i x f_i
    by rank    rank x exp(sum of w_i x f_i / w)

with w the weight of waiting. The second is the first with the logarithm of the rank in place of
that of the wait, as a factor: a pool that weighs waiting alone goes by age, or by rank.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import Decision, RunningJob
from longshore.scheduling import score
from longshore.scheduling.guarantee import may_come_first
from longshore.scheduling.rank import (
    Service,
    lane,
    rank,
    room_of,
    standings,
    waiting,
    waits_since,
)

_LARGEST = 600.0
HIGHEST = 10
"""The highest class: nothing counts as more."""


class Waits(Protocol):
    """What the order looks at."""

    @property
    def id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def submitted_at(self) -> datetime | None: ...
    @property
    def waits_since(self) -> datetime | None: ...
    @property
    def path_behind(self) -> float: ...


class QueuedJob(NamedTuple):
    """As much of a job as its place in a queue takes."""

    id: str
    attempt: int
    priority: int
    submitted_at: datetime
    waits_since: datetime
    path_behind: float = 0.0


class Before(NamedTuple):
    """Which jobs of a class come before a job, by since when they wait; None where none does."""

    priority: int
    """The class."""
    more: datetime | None
    """Who waits since then, or since earlier, counts as more."""
    as_much: datetime | None
    """Who does since then counts as much at least: `by_age` says who of two is first."""


def queue_order(
    queue: Iterable[JobRequest],
    policy: PackingPolicy,
    now: datetime,
    nodes: Iterable[Node] = (),
    running: Iterable[RunningJob] = (),
    held: Collection[str] = (),
) -> list[JobRequest]:
    """Return the jobs that somebody pays for, then the others; of the first those before all for
    which others were stopped for who pays for them, and those that others than their tenant pay
    for after the own jobs of their relatives. Of each those come last that only fill what is
    free: whoever waits goes before them, as it may have them stopped once nobody asks them. Of
    these those of which there are the fewest copies come first, behind all others those that are
    prewarmed and were never asked. Of all each by the class that it counts as, highest first; in a
    class first the engines for which another was stopped: that one waits again, may have waited
    longer, and would take its GPUs back, as would an engine that came before, and may have
    nobody stopped, since it has no turn. Then as the pool's order says: by
    the time of submission less its head start, or by rank, and by the score, which is less where
    the tenant has had more than its GPU-hours. Then by id.

    The `nodes` of the pool and what is `running` there bound how many jobs come first for having
    waited long; the nodes say some terms of the score, too. Jobs that are `held` do not: who lists
    a queue has those as well.
    """
    counted = _counting(policy, now)
    turn = policy.funding.turn if policy.funding else _at_once

    def filling(job: JobRequest) -> tuple[bool, int]:
        return job.fills, policy.copies.get(job.id, 0) if job.fills else 0

    in_turn = {job_id: place for place, job_id in enumerate(policy.turns)}

    def in_class(job: JobRequest) -> tuple[int, int]:
        return -counted(job), in_turn.get(job.id, len(in_turn))

    if not (policy.by_rank or policy.by_terms):
        if policy.funding and policy.funding.factors:
            # As if it had waited for a part of the time that it has.
            return sorted(queue, key=lambda job: (
                turn(job.id), filling(job), *in_class(job),
                -policy.factor(job.tenant) * aged(job, policy, now).total_seconds(),
                *by_age(job, policy),
            ))  # fmt: skip
        return sorted(
            queue,
            key=lambda job: (turn(job.id), filling(job), *in_class(job), *by_age(job, policy)),
        )
    queue, nodes = list(queue), list(nodes)
    stand = standings(
        (waiting(job, now) for job in queue), room_of(nodes, running), worth(policy, nodes, now),
        may_come_first(policy, nodes, held),
    )  # fmt: skip

    def key(job: JobRequest) -> tuple[object, ...]:
        guaranteed, rank = stand[job.id]
        first = turn(job.id), filling(job), *in_class(job)
        return *first, -guaranteed, -rank, *_by_age(job, ahead)

    ahead = seconds_ahead(policy)
    return sorted(queue, key=key)


def with_turns(policy: PackingPolicy, queue: Iterable[JobRequest]) -> PackingPolicy:
    """Return the policy for who decides whom others are stopped for: engines that have their turn
    now go before the others of their class too, behind those that had theirs; who has waited
    longest first. Else the place of the one that is to be stopped would be kept for a job that
    may not have it stopped, and for the engine that was submitted first each time."""
    due = [(job.turn, job.id) for job in queue if job.turn and job.id not in policy.turns]
    if not due:
        return policy
    turns = (*policy.turns, *(job_id for _, job_id in sorted(due)))
    return policy.model_copy(update={"turns": turns})


def _at_once(job_id: str) -> int:
    return 0


def worth(
    policy: PackingPolicy, nodes: Iterable[Node], now: datetime
) -> Callable[[Service], float]:
    """Return what puts the jobs of a class into order, the largest first, where that is not age
    alone; less where the tenant has had more than its GPU-hours."""
    by = _by_terms(policy, nodes, now) if policy.by_terms else partial(rank, policy=policy)
    if not (policy.funding and policy.funding.factors):
        return by
    return lambda job: policy.factor(job.request.tenant) * by(job)


def _by_terms(
    policy: PackingPolicy, nodes: Iterable[Node], now: datetime
) -> Callable[[Service], float]:
    assert policy.score is not None
    scores = score.Scores(policy, nodes)
    for_waiting = policy.score.used.waiting

    def by_rank(job: Service) -> float:
        # Of more than 709 there is no float: with next to no weight of waiting.
        return rank(job, policy) * math.exp(min(_terms(job) / for_waiting, _LARGEST))

    def by_waiting(job: Service) -> float:
        return for_waiting * score.waiting(aged(job.request, policy, now)) + _terms(job)

    def _terms(job: Service) -> float:
        return scores.sum(job.request, can_stop=job.can_stop)

    return by_rank if policy.by_rank else by_waiting


class Lanes(NamedTuple):
    """What divides the jobs of a class that ask alike so that those of one lane do not pass each
    other while they wait.

    Each has a time in its lane. A job stays before another in the queue, and is planned for as
    long or for less, where it is before it in the lane and its time is as long or shorter. Who
    comes first for having waited long does so by another order (`scheduling.rank`).
    """

    by_rank: bool
    by_terms: bool
    by_data: bool
    seconds_ahead: float
    unpriced: frozenset[Tier]
    """Whose waiting costs nothing: all of their ranks are 0."""

    @classmethod
    def under(cls, policy: PackingPolicy) -> "Lanes":
        """Return those of a policy."""
        prices = policy.delay_price
        return cls(
            policy.by_rank,
            policy.by_terms,
            by_data=bool(policy.score and policy.score.used.data),
            seconds_ahead=seconds_ahead(policy),
            unpriced=frozenset(tier for tier in Tier if prices and not prices.get(tier)),
        )

    def of(self, job: JobRequest) -> tuple[Hashable, timedelta]:
        """Return the lane of a job, and its time in that."""
        if not (self.by_rank or self.by_terms):
            return None, job.expected_duration
        of_rank, time = lane(job) if self.by_rank else (None, job.expected_duration)
        if not self.by_terms:
            return of_rank, time
        data = frozenset(job.data.items()) if self.by_data else None
        return (job.can_stop, of_rank, job.tenant, data), time

    def key(self, job: JobRequest) -> tuple[object, ...]:
        """Return what puts the jobs of one lane into order."""
        age = _by_age(job, self.seconds_ahead)
        if not self.by_rank or job.tier in self.unpriced:
            return age
        since = waits_since(job)
        return since is None, since.timestamp() if since else 0.0, *age


def aged(job: Waits, policy: PackingPolicy, now: datetime) -> timedelta:
    """Return since how long a job counts as submitted."""
    unknown, submitted, *_ = by_age(job, policy)
    return timedelta(seconds=0 if unknown else max(now.timestamp() - submitted, 0))


def by_age(job: Waits, policy: PackingPolicy) -> tuple[bool, float, str, int]:
    """Return what puts jobs that count as one class into order by age."""
    return _by_age(job, seconds_ahead(policy))


def _by_age(job: Waits, seconds_ahead: float) -> tuple[bool, float, str, int]:
    submitted = job.submitted_at.timestamp() if job.submitted_at else 0.0
    ahead = seconds_ahead * job.path_behind
    return job.submitted_at is None, submitted - ahead, job.id, job.attempt


def seconds_ahead(policy: PackingPolicy) -> float:
    """Return by how much a job counts as submitted earlier behind which the whole of its DAG's
    longest path waits."""
    return 3600 * policy.weights.critical_path


def counted_as(job: Waits, policy: PackingPolicy, now: datetime) -> int:
    """Return the class that a job counts as in its queue: its own, and one more for each full
    `class_rises_every` that it has waited in all."""
    return _counting(policy, now)(job)


def before(job: Waits, policy: PackingPolicy, now: datetime) -> tuple[Before, ...]:
    """Return, for each class, which of its jobs come before `job` in a `queue_order` by age.

    For whoever counts them without reading the queue.
    """
    counts = counted_as(job, policy, now)
    return tuple(
        Before(
            priority=priority,
            more=_since(priority, counts + 1, policy, now),
            as_much=_since(priority, counts, policy, now),
        )
        for priority in range(HIGHEST + 1)
    )


def _since(priority: int, counts_as: int, policy: PackingPolicy, now: datetime) -> datetime | None:
    """Return since when a job of a class has to wait to count as another, or as more."""
    steps = counts_as - priority
    if steps <= 0:
        return _EVER
    if counts_as > HIGHEST or not policy.class_rises_every:
        return None
    return now - steps * policy.class_rises_every


_EVER = datetime.max.replace(tzinfo=UTC)


def noted(
    decisions: Sequence[Decision],
    jobs: Sequence[JobRequest],
    policy: PackingPolicy,
    now: datetime,
) -> tuple[Decision, ...]:
    """Return the decisions for `jobs`, in their order, each with the class that its job counted as
    where that is not its own."""
    counted = _counting(policy, now)
    made = list(decisions)
    for place, job in enumerate(jobs):
        if (counts := counted(job)) != job.priority:
            made[place] = made[place].model_copy(update={"counted_as": counts})
    return tuple(made)


def _counting(policy: PackingPolicy, now: datetime) -> Callable[[Waits], int]:
    every = policy.class_rises_every
    risen_before = now - every

    def counted(job: Waits) -> int:
        since = job.waits_since or job.submitted_at
        # A hundred thousand may be asked, of which nearly all are young.
        if since is None or since > risen_before or not every:
            return job.priority
        return min(job.priority + (now - since) // every, HIGHEST)

    return counted
