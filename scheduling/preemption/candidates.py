"""Which running jobs may be stopped for a job, what that costs, and where it could cost least.

What does not depend on who asks is worked out once in a round of plans.
"""

import math
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from longshore.models.job_request import JobRequest
from longshore.models.placement import RunningJob
from longshore.models.preemption import PreemptionPolicy, RejectedVictim, RunningWork
from longshore.scheduling.preemption.costs import (
    cost_of,
    lost_at_once,
    price_of_waiting,
    same_class,
    shrinks_in_place,
)
from longshore.scheduling.preemption.parts import Parts
from longshore.scheduling.preemption.stoppable import Asks, Stoppable
from longshore.scheduling.preemption.yielding import Yielding

_MINUTE = timedelta(minutes=1)
_NOWHERE = math.inf
_NO_WAIT = timedelta(0)
_PAID_FOR = 10**15
"""Micro-dollars by which a set with a job that somebody pays for costs more than any without,
where a job asks that is paid for. It is in no plan: those name what each victim loses."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that may be stopped."""

    work: RunningWork
    id: str
    gpus: float
    frees: int
    """How many GPUs nobody has without it, at most."""
    wait: timedelta
    """For how long it then waits, as far as that counts."""
    cost: int
    """Micro-dollars, all in all: by this sets are compared."""
    submitted: float
    """Seconds since the epoch."""
    in_place: bool
    """Whether it gives up a part of its GPUs without a stop."""
    price: float
    """Of its waiting: for each of its GPUs, an hour."""
    seems_at_once: bool
    """Whether it would run elsewhere at once, if nobody took that room."""


@dataclass(slots=True)
class _Known:
    """What is known of a running job, whoever asks."""

    work: RunningWork
    id: str
    nodes: tuple[str, ...]
    gpus: float
    frees: int
    shares: tuple[RunningJob, ...]
    """What may be taken of it."""
    part: bool
    """Whether that is not all that it has."""
    at_once: int
    """What stopping it costs, however long it then waits."""
    in_place: int | None
    """What it costs that it gives up a part without a stop; None where it cannot."""
    price: float
    """Of its waiting: for each of its GPUs, an hour."""
    submitted: float
    kind: Hashable
    """Jobs of one kind wait for the same."""


@dataclass(slots=True)
class _Least:
    """What it costs at least to make room on each node, kept up as nodes change."""

    on: dict[str, float]
    seen: int
    """How many of the stale nodes it knows."""


_On = dict[str, list[tuple[_Known, int]]]
"""By node: those that may be stopped, with how many of its GPUs each has."""
_Ordered = list[tuple[float, str]]


class Candidates:
    """The running jobs of a pool in one round of plans."""

    def __init__(
        self,
        works: Sequence[RunningWork],
        stoppable: Stoppable,
        policy: PreemptionPolicy,
        now: datetime,
        kind_of: Callable[[JobRequest], Hashable],
        wait_of: Callable[[JobRequest], timedelta],
        free_gpus: Callable[[str], int],
        changes: Sequence[str],
        yielding: Yielding | None = None,
        parts: Mapping[str, Parts] = MappingProxyType({}),
        later: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`works` come in the order in which they are named, and in which `stoppable` has them.

        `wait_of` says for how long a job waits that is stopped now: the same for jobs of one
        kind. `free_gpus` says how many GPUs of a node nobody has. `changes` are the nodes that
        have changed, in order; it grows, and what both say holds until it does. `yielding` has who
        yields to whom within a class, where anybody does; `parts` what those have to lose that may
        not be stopped whole, and `later` who of them gives way after how many kinds of others.
        """
        self._parts = parts
        self._later = later
        self._yielding = yielding
        self.busy: dict[str, str] = {}
        """Why a job is out of the question, whoever asks. Its nodes are among `changes`."""
        self._works = works
        self._stoppable = stoppable
        self._policy = policy
        self._now = now
        self._kind_of = kind_of
        self._wait_of = wait_of
        self._free_gpus = free_gpus
        self._changes = changes
        self._raised: dict[str, timedelta] = {}
        self._known: dict[int, _Known] = {}
        """By place: those that may be stopped for any that has asked."""
        self._on: dict[Asks, _On] = {}
        self._least: dict[tuple[Asks, timedelta, int], _Least] = {}
        self._among: dict[tuple[Asks, tuple[str, ...]], list[_Known]] = {}
        self._kept: dict[tuple[Asks, tuple[str, ...]], list[RejectedVictim]] = {}
        self._ordered: dict[tuple[Asks, timedelta, int, tuple[str, ...]], _Ordered] = {}
        self._seen = 0
        """How many of the changes this knows."""
        self._stale: list[str] = []
        """The nodes where something costs another amount than before, in order."""
        self._waits: dict[Hashable, timedelta] = {}
        """Of the kinds that were asked for."""
        self._of_kind: dict[Hashable, list[_Known]] = {}

    def among(self, job: JobRequest, names: tuple[str, ...]) -> list[_Known]:
        """Return who may be stopped for the job on these nodes."""
        self._forget()
        key = self.asks(job), names
        if key not in self._among:
            here = frozenset(names)
            known = map(self._knows, self._stoppable.whom(job))
            self._among[key] = [
                one for one in known if one.id not in self.busy and not here.isdisjoint(one.nodes)
            ]
        return self._among[key]

    def kept(self, job: JobRequest, names: tuple[str, ...]) -> list[RejectedVictim]:
        """Return who may not be stopped for the job on these nodes, and why."""
        self._forget()
        key = self.asks(job), names
        if key not in self._kept:
            here = frozenset(names)
            found = (
                self._why_kept(place, work, job)
                for place, work in enumerate(self._works)
                if not here.isdisjoint(work.nodes)
            )
            self._kept[key] = [one for one in found if one]
        return self._kept[key]

    def _why_kept(self, place: int, work: RunningWork, job: JobRequest) -> RejectedVictim | None:
        if busy := self.busy.get(work.id):
            return RejectedVictim(job_id=work.id, reason=busy)
        return self._stoppable.why_not(place, job)

    def _knows(self, place: int) -> _Known:
        known = self._known.get(place)
        if known is None:
            work = self._works[place]
            part = self._parts.get(work.id)
            shares = part.taken if part else work.shares
            known = self._known[place] = _Known(
                work, work.id, tuple(dict.fromkeys(share.node_id for share in shares)),
                work.gpus, sum(len(share.gpu_indices) for share in shares), shares, bool(part),
                lost_at_once(work, self._policy, self._now),
                lost_at_once(work, self._policy, self._now, in_place=True)
                if shrinks_in_place(work) else None,
                price_of_waiting(work, self._policy, self._now),
                (work.request.submitted_at or work.started_at).timestamp(),
                self._kind_of(work.request),
            )  # fmt: skip
            self._of_kind.setdefault(known.kind, []).append(known)
        return known

    def cost(self, known: _Known, job: JobRequest, missing: int | None = None) -> Candidate:
        """Return what it costs to stop a job: it waits no longer than the one that asks runs.

        A malleable one goes on at once with what is left of its GPUs, where it gives up the
        `missing` ones, all that are asked for when left out.
        """
        gives_up = job.gpus if missing is None else min(max(missing, 1), job.gpus)
        if known.part:
            gives_up = min(gives_up, known.frees)
        # Beside a sensitive job nobody stays on its nodes.
        may_stay = not job.sensitive and known.work.without(gives_up) is not None
        shrinks = known.part or may_stay
        alone = _NO_WAIT if shrinks else min(self._wait(known), self.longest_wait(known.work, job))
        wait = max(alone, self._raised.get(known.id, _NO_WAIT))
        in_place = known.in_place if shrinks else None
        at_once = known.at_once if in_place is None else in_place
        cost = at_once + cost_of(wait, known.gpus, known.price)
        if self._stoppable.comes_later(known.id, job):
            cost += _PAID_FOR
        part = self._parts.get(known.id)
        if part is not None and part.spares_alone:
            cost = 0
        cost += self._later.get(known.id, 0) * _PAID_FOR
        return Candidate(
            known.work, known.id, known.gpus, known.frees, wait, cost, known.submitted,
            in_place is not None, known.price, bool(known.price) and not (shrinks or alone),
        )  # fmt: skip

    @contextmanager
    def raising(self) -> Generator[dict[str, timedelta]]:
        """Have jobs wait for as long as is put in here, for a while, where that is longer."""
        try:
            yield self._raised
        finally:
            self._raised.clear()

    def on(self, name: str, job: JobRequest) -> list[Candidate]:
        """Return who may be stopped for the job on one node."""
        here = self._by_node(job).get(name, ())
        missing = job.gpus - self._free_gpus(name)
        return [self.cost(known, job, missing) for known, _ in here if known.id not in self.busy]

    def cheapest_first(self, job: JobRequest, names: tuple[str, ...]) -> _Ordered:
        """Return nodes in the order of what it costs at least to make room there, with that.

        Those are left out where all that may be stopped have too few GPUs.
        """
        self._forget()
        runs, gpus = _rounded_down(self._shortest(job)), job.gpus if job.gpu.whole else 0
        key = self.asks(job), runs, gpus, names
        if key not in self._ordered:
            least = self._least_for(job, runs, gpus)
            found = ((least.get(name, _NOWHERE), name) for name in names)
            self._ordered[key] = sorted(each for each in found if each[0] < _NOWHERE)
        return self._ordered[key]

    def _forget(self) -> None:
        """Forget what held before the last change."""
        if self._seen == len(self._changes):
            return
        self._stale += self._changes[self._seen :]
        self._seen = len(self._changes)
        self._among, self._kept, self._ordered = {}, {}, {}
        for kind, before in self._waits.items():
            ours = self._of_kind[kind]
            self._waits[kind] = self._wait_of(ours[0].work.request)
            if self._waits[kind] != before:
                self._stale += [name for known in ours for name in known.nodes]

    def _by_node(self, job: JobRequest) -> _On:
        asks = self.asks(job)
        found = self._on.get(asks)
        if found is None:
            found = self._on[asks] = {}
            for known in map(self._knows, self._stoppable.whom(job)):
                for share in known.shares:
                    here = found.setdefault(share.node_id, [])
                    here.append((known, len(share.gpu_indices)))
        return found

    def asks(self, job: JobRequest) -> Asks:
        """Return what two jobs agree in that may stop the same others."""
        return self._stoppable.asks(job)

    def _shortest(self, job: JobRequest) -> timedelta:
        """Return for how long a job that is stopped for this one waits at most, or less."""
        if self._yielding is None:
            return job.expected_duration
        return min(job.expected_duration, self._yielding.longest_wait(job))

    def longest_wait(self, work: RunningWork, job: JobRequest) -> timedelta:
        """Return for how long a job waits at most that is stopped for this one."""
        if self._yielding is None or not same_class(work, job):
            return job.expected_duration
        return self._yielding.longest_wait(job)

    def _least_for(self, job: JobRequest, runs: timedelta, gpus: int) -> dict[str, float]:
        """Return the least costs, by node, for jobs of this class that want so many GPUs for
        themselves and run at least for so long."""
        asks = self.asks(job)
        found = self._least.get((asks, runs, gpus))
        on = self._by_node(job)
        if found is None:
            found = self._least[asks, runs, gpus] = _Least({}, len(self._stale))
            changed: Iterable[str] = on
        else:
            changed = set(self._stale[found.seen :])
            found.seen = len(self._stale)
        for name in changed:
            found.on[name] = self._least_on(name, on.get(name, ()), gpus, runs)
        return found.on

    def _least_on(
        self, name: str, on: Sequence[tuple[_Known, int]], gpus: int, runs: timedelta
    ) -> float:
        """Return what it costs at least to have so many GPUs of a node empty."""
        here = [
            (self._least_cost(known, runs), held)
            for known, held in on
            if known.id not in self.busy
        ]
        return least_cost(here, gpus - self._free_gpus(name))

    def _least_cost(self, known: _Known, runs: timedelta) -> int:
        """Return what a job costs at least that is stopped, or gives up a part, for one that runs
        so long at least."""
        if known.part and self._parts[known.id].spares_alone:
            return 0
        at_once = known.at_once if known.in_place is None else min(known.in_place, known.at_once)
        wait = _NO_WAIT if known.work.malleable else min(self._wait(known), runs)
        return at_once + cost_of(wait, known.gpus, known.price)

    def _wait(self, known: _Known) -> timedelta:
        if known.kind not in self._waits:
            self._waits[known.kind] = self._wait_of(known.work.request)
        return self._waits[known.kind]


def least_cost(costs: Sequence[tuple[int, int]], missing: int) -> float:
    """Return what it costs at least to free so many GPUs, but one job; infinite where all have too
    few. `costs` are those of each job, and how many GPUs it has. As if a job could be stopped for
    a part of its GPUs: the dearest of them."""
    if not costs:
        return _NOWHERE
    missing, cost = max(missing, 0), 0.0
    for each, gpus in sorted(costs, key=lambda one: one[0] / one[1]):
        cost += each * min(missing / gpus, 1)
        missing -= min(gpus, missing)
    return _NOWHERE if missing else max(math.ceil(cost - 1e-6), min(each for each, _ in costs))


def _rounded_down(span: timedelta) -> timedelta:
    """Return the longest of 1, 4, 16, 64 ... minutes that is no longer; nothing below a minute."""
    if span < _MINUTE:
        return timedelta(0)
    return _MINUTE * 4 ** int(math.log(span / _MINUTE, 4) + 1e-9)
